"""The forecast of a tool: counted, within seconds, from no weights; what --quick changes, and that it says so."""

import json
import re
from types import SimpleNamespace

import pytest
from tools import main

from common.cli import checks, forecast
from common.cli.options import QUICK, parsed
from common.models import loading
from common.models.architectures import layer_list
from tests.tiny_models import LAYERS, tiny_model
from tests.tools import TOOLS, method_of, module_of

pytestmark = pytest.mark.usefixtures("short")
PARAGRAPHS = 400  # with room for a part that is held out
RATES = forecast.Rates(token=1e-3, step=1e-2, logits=1e-4, operations=1e9, layer_bytes=1000, edge_bytes=500)


@pytest.fixture
def seconds(tool, monkeypatch):
    """`seconds(paper, *options)` -> {stage: seconds} that a plan forecasts at a fixed rate."""

    def forecasted(paper, *options):
        parts, line = {}, forecast.Forecast.line
        with monkeypatch.context() as patch:
            patch.setattr(forecast, "rates", lambda job: RATES)
            patch.setattr(forecast.Forecast, "line", lambda self: parts.update(self.parts) or line(self))
            run = tool(paper, *options, "--plan")
        assert run.status == 0 and "no forecast" not in run.stderr
        return parts

    return forecasted


@pytest.mark.parametrize("paper", TOOLS)
def test_a_plan_reads_no_weights_and_writes_nothing(paper, tool, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("the weights are read"))
    plan = tool(paper, "--remove", 2, "--plan")
    times = re.findall(r"\b(\d+):(\d\d)\b", plan.stdout.split("time: ")[1].split("\n")[0])
    total, *parts = [60 * int(minutes) + int(seconds) for minutes, seconds in times]
    assert plan.status == 0 and total == sum(parts) and len(parts) > 3 and "(starting " in plan.stdout
    assert "no forecast" not in plan.stderr
    command = f"plan: python -m {module_of(paper)} "
    for part in (command, "time: about ", "memory: about ", "disk: ", "nothing was written"):
        assert part in plan.stdout
    assert not list(tmp_path.iterdir())


def test_the_forecast_of_disk_is_the_size_of_the_saved_weights(tool, monkeypatch):
    """The embedding is kept, so a share of the layers is not the same share of the file."""
    sizes, line = [], forecast.Forecast.line
    monkeypatch.setattr(forecast.Forecast, "line", lambda self: sizes.append(self.disk_bytes) or line(self))
    run = tool("prunecomp", "--remove", 2, "--no-evaluation")
    assert run.status == 0
    assert sizes == [pytest.approx((run.out / "model.safetensors").stat().st_size, abs=4096)]


def test_time_is_counted_from_tokens_and_layers(seconds):
    few = seconds("linearpatch", "--remove", 2)
    many = seconds("linearpatch", "--remove", 2, "--samples", 8)
    evaluation = 4 * 32 * (4 * RATES.token + RATES.logits)  # four of six layers are left
    assert few["result"] == pytest.approx(evaluation)
    assert few["original"] == pytest.approx(4 * 32 * (6 * RATES.token + RATES.logits))
    assert few["prune"] == pytest.approx(4 * 32 * 6 * RATES.token + evaluation)
    assert many["prune"] - few["prune"] == pytest.approx(4 * 32 * 6 * RATES.token)
    trained = seconds("linearpatch", "--remove", 2, "--distill", 8)
    assert trained["prune"] - few["prune"] == pytest.approx(4 * 8 * 32 * 6 * RATES.token)


def test_a_search_that_tries_every_layer_is_forecast_to_take_longer(seconds):
    cheap = seconds("prunecomp", "--remove", 2)
    assert seconds("prunecomp", "--remove", 2, "--metric", "ppl")["prune"] > 2 * cheap["prune"]


@pytest.mark.parametrize(
    ("layers", "removed", "executions"),
    [(30, 9, 43720), (30, 15, 26570), (30, 4, 6050), (24, 6, 14220), (28, 9, 48390), (16, 4, 4760)],
)
def test_laco_s_search_is_forecast_to_within_a_few_times(layers, removed, executions):
    """Layer executions over ten sentences, of searches in reproductions/results."""
    sentences = {"sentences": ["x"] * 10}
    job = SimpleNamespace(
        named_layers=None, count=removed, layers=layers, shared=sentences, tokenizer=lambda text: {"input_ids": [1]}
    )
    assert 1 / 4 < method_of("laco").work(job) * layers / executions < 4


def test_a_search_for_the_number_of_layers_is_forecast_by_its_trials(seconds, tool):
    """Of the numbers 1 to 4 halving tries at most three; each reads the model, prunes it and reads the held-out text."""
    options = ["--max-perplexity-increase", "10%"]
    expected = seconds("linearpatch", *options)
    held_out = 4 * 32 * (6 * RATES.token + RATES.logits)
    pruning = 4 * 32 * 6 * RATES.token
    assert expected["search"] == pytest.approx(held_out + 3 * (expected["read"] + pruning + held_out))
    fewest = seconds("linearpatch", "--remove", "1")  # the largest result of the four
    assert (expected["save"], expected["result"]) == (fewest["save"], fewest["result"])
    plan = tool("linearpatch", *options, "--plan")
    assert "(starting " in plan.stdout and "searching for the number of layers" in plan.stdout
    assert "--max-perplexity-increase 10%" in plan.stdout and "--remove" not in plan.stdout


@pytest.mark.parametrize(
    "name",
    ["mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3", "hunyuan_v1_moe", "ernie4_5_moe", "olmoe", "gpt_neox", "opt"],
)
def test_the_memory_of_a_layer_counts_experts_that_the_measured_token_does_not_use(name):
    model = tiny_model(name)
    options = SimpleNamespace(device="cpu", dtype=None)
    job = SimpleNamespace(config=model.config, layers=LAYERS, length=16, options=options)
    size = sum(p.numel() * 4 for p in layer_list(model)[LAYERS // 2].parameters())
    assert forecast.rates(job).layer_bytes == size


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "opt"])
def test_a_share_of_parameters_counts_layers_whatever_the_checkpoint_calls_them(name, tmp_path):
    model = tiny_model(name)
    model.save_pretrained(tmp_path)
    size, whole = (sum(p.numel() for p in part.parameters()) for part in (layer_list(model)[0], model))
    assert [checks.layers_of(n * size / whole, tmp_path, LAYERS) for n in (0.5, 1, 1.5)] == [1, 1, 2]
    for beside in (
        "mtp.layers.0.mlp.up_proj.weight",
        "model.visual.encoder.layers.1.w",
        f"model.layers.{LAYERS}.a.weight",
    ):
        assert not checks._of_decoder(beside, LAYERS)
    weights = tmp_path / "model.safetensors"
    assert checks.saved_bytes(tmp_path, 2, LAYERS) == weights.stat().st_size - 2 * 4 * size


def test_the_time_left_follows_what_the_stages_took(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(forecast.time, "monotonic", lambda: now[0])
    stages = forecast.Stages(forecast.Forecast(0, 0.0, 0, (("read", 10.0), ("prune", 60.0), ("save", 20.0))))
    stages.begin("read", "reading")
    now[0] += 20  # twice as long as was forecast
    stages.begin("prune", "pruning")
    stages.begin("other", "something else")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "[1/3] reading: about 0:10, 1:30 left in all",
        "[2/3] pruning: about 2:00, 2:40 left in all",
        "something else",
    ]


def test_quick_sets_what_was_not_given_and_is_marked(model, text, tmp_path, capsys):
    method, out = method_of("linearpatch"), tmp_path / "out"
    command = ["--model", str(model), "--text", str(text), "--remove", "2", "--quick", "--test-samples", "4"]
    options = parsed(method.options, [*command, "--plan"])
    assert (options.samples, options.length, options.test_samples) == (QUICK["samples"], QUICK["length"], 4)
    assert main(method, [*command, "--out", str(out)]) == 0
    assert "quick run: 16 calibration samples and 4 test sequences of 256 tokens" in capsys.readouterr().out
    assert "**Quick run.** 16 calibration samples" in (out / "README.md").read_text()
    assert json.loads((out / "pruning.json").read_text())["quick"] is True


def test_quick_changes_no_typed_value_and_reads_no_more_than_otherwise(model, text):
    command = ["--model", str(model), "--text", str(text), "--remove", "2", "--quick", "--plan"]
    kind = method_of("linearpatch").options
    typed = parsed(kind, [*command, "--samples", str(kind.samples), "--test-samples", str(kind.test_samples)])
    assert (typed.samples, typed.test_samples, typed.length) == (kind.samples, kind.test_samples, QUICK["length"])
    for paper in TOOLS:
        kind = method_of(paper).options
        assert parsed(kind, command).samples == min(kind.samples, QUICK["samples"])
