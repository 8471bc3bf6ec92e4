"""The tools with --stream: the checkpoint and the numbers that they give without it, and what they refuse."""

import json
from types import SimpleNamespace

import pytest
import torch
from tools import method_of

from common import hooks
from common.cli import forecast, main
from common.models import checkpoint, offload
from tests.tools import paragraphs


@pytest.fixture
def tool(write_checkpoint, tmp_path, capsys):
    """Run a paper's command: (status, saved model, report, what it said)."""
    model, text = write_checkpoint(tmp_path / "tiny", "llama"), tmp_path / "text.txt"
    text.write_text(paragraphs())

    def run(paper, *options):
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        fixed = ["--model", str(model), "--out", str(out), "--text", str(text), "--windows", "5"]
        fixed += ["--samples", "4", "--length", "32", "--dtype", "float32"]
        status = main(method_of(paper), [*fixed, *options])
        printed = capsys.readouterr()
        if not out.exists():
            return status, None, None, printed.out + printed.err
        return (
            status,
            checkpoint.load(out)[0],
            json.loads((out / "pruning.json").read_text()),
            printed.out + printed.err,
        )

    return run


CASES = [
    ("linearpatch", "--remove", "2"),
    ("linearpatch", "--layers", "1,3", "--patch", "matrix"),
    ("prunecomp", "--remove", "2"),
    ("prunecomp", "--remove", "2", "--metric", "cl"),
    ("prunecomp", "--layers", "3,2", "--one-shot"),
    ("refit", "--remove", "2"),
    ("refit", "--layers", "1,3", "--following", "1", "--held-out", "1"),
]


@pytest.mark.parametrize("command", CASES, ids=" ".join)
def test_same_checkpoint_and_numbers(command, tool):
    (_, whole, report, _), (_, streamed, other, printed) = tool(*command), tool(*command, "--stream", "0.000001")
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, streamed.get_parameter(name)), name
    for expected, actual in zip(hooks.patch_parameters(whole), hooks.patch_parameters(streamed), strict=True):
        assert torch.equal(expected, actual)
    assert report["facts"]["removed"] == other["facts"]["removed"]
    for part in ("before", "cut", "after"):
        assert report["evaluation"][part]["perplexity"] == other["evaluation"][part]["perplexity"]
    assert report["bytes"] == other["bytes"] and "expected: " in printed


def test_a_plan_tells_memory_and_time_and_writes_nothing(tool):
    status, model, _, printed = tool("linearpatch", "--remove", "2", "--stream", "--plan")
    assert status == 0 and model is None
    assert "GB of memory at most" in printed and "nothing was written" in printed


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("laco", "--remove", "2", "--stream"), "LaCo needs the whole model in memory"),
        (("reassessing", "--remove", "2", "--stream"), "needs the whole model in memory"),
        (("linearpatch", "--remove", "2", "--stream", "--distill", "8"), "--distill trains with the whole model"),
        (("prunecomp", "--remove", "2", "--stream", "--metric", "ppl"), "--metric ppl needs the whole model"),
        (("linearpatch", "--sweep", "1-2", "--stream"), "ask for one"),
        (("linearpatch", "--remove", "2", "--stream", "-1"), "--stream -1.0: use 0 to 100,000"),
        (("linearpatch", "--remove", "2", "--stream", "--device", "auto"), "name one device"),
    ],
)
def test_what_cannot_be_streamed_is_refused(command, reason, tool):
    status, model, _, printed = tool(*command)
    assert status == 2 and model is None and reason in printed and printed.count("\n") == 1


def test_the_forecast_counts_each_reading_of_the_layers(tool, monkeypatch):
    """Of six layers that take 100 s each: calibrated, read and written for the result, and the result read back."""
    read, fetch, forecast_of, forecasts = [], offload.Streamed.fetch, forecast.streamed, []

    def begun(job):
        read.clear()
        forecasts.append(forecast_of(job))
        return forecasts[0]

    born = forecast.psutil.Process().create_time()
    clock = SimpleNamespace(perf_counter=lambda: 100.0 * bool(read), time=lambda: born, monotonic=lambda: 0.0)
    monkeypatch.setattr(forecast, "time", clock)
    monkeypatch.setattr(offload.Streamed, "fetch", lambda self, layer: read.append(layer) or fetch(self, layer))
    monkeypatch.setattr(forecast, "streamed", begun)
    assert tool("linearpatch", "--remove", "2", "--stream", "--no-evaluation", "--plan")[0] == 0
    assert forecasts[0].seconds == pytest.approx((1 + 3) * 6 * 100 + forecast.START)
