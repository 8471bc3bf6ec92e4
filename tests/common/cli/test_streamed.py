"""The tools with --stream: the checkpoint and the numbers that they give without it, and what they refuse."""

from types import SimpleNamespace

import pytest
import torch

from common import hooks
from common.cli import forecast
from common.models import offload

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
def test_same_checkpoint_and_numbers(command, tool, tmp_path):
    whole = tool(*command, out=tmp_path / "whole")
    streamed = tool(*command, "--stream", "0.000001", out=tmp_path / "streamed")
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, streamed.model.get_parameter(name)), name
    pairs = zip(hooks.patch_parameters(whole.model), hooks.patch_parameters(streamed.model), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    assert whole.report["facts"]["removed"] == streamed.report["facts"]["removed"]
    for part in ("before", "cut", "after"):
        first, second = (run.report["evaluation"][part]["perplexity"] for run in (whole, streamed))
        assert first == second
    assert whole.report["bytes"] == streamed.report["bytes"] and "expected: " in streamed.stdout + streamed.stderr


def test_a_plan_tells_memory_and_time_and_writes_nothing(tool):
    run = tool("linearpatch", "--remove", 2, "--stream", "--plan")
    assert run.status == 0 and not run.out.exists()
    assert "GB of memory at most" in run.stdout and "nothing was written" in run.stdout


def test_a_plan_that_measures_names_layers_and_numbers_of_the_run(tool, tmp_path):
    plan = tool("linearpatch", "--remove", 2, "--stream", "--plan", "--measure")
    assert plan.status == 0 and not list(tmp_path.iterdir())
    run = tool("linearpatch", "--remove", 2, "--stream")
    removed = ", ".join(map(str, sorted(run.report["facts"]["removed"])))
    (numbers,) = (line for line in run.stdout.splitlines() if line.startswith("perplexity: "))
    assert f"layers to remove: {removed}\n" in plan.stdout and numbers in plan.stdout.splitlines()


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
    assert tool("linearpatch", "--remove", "2", "--stream", "--no-evaluation", "--plan").status == 0
    assert forecasts[0].seconds == pytest.approx((1 + 3) * 6 * 100 + forecast.START)
