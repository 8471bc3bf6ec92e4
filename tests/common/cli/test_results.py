"""What the tools say of a result: sizes, no repair, a broken model, own layers, plans, sweeps, the card's metadata."""

import contextlib
import copy
import csv
import gc
import io
import json
import math
import weakref
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jinja2
import pytest
import scipy.stats
import torch
import yaml
from heads import detach_patches
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tools import main, method_of, module_of
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config, Qwen3_5TextConfig

from common.calibration import massive_activations
from common.cli import Job, bounded, measure, sweep
from common.cli.card import _quoted, source_facts
from common.cli.card import card as card_of
from common.evaluation import significance
from common.models import checkpoint
from common.models import loading as models
from common.models.surgery import remove_layers
from common.training.finetuning.trainer import TokenTrainer
from common.utils import atomic_files
from common.utils.errors import UserError
from common.utils.signs import signed
from extensions.refit import tool as refit_tool
from papers import prunecomp
from papers.laco import algorithm, merge_layers
from papers.laco import tool as laco_tool
from papers.linearpatch import tool as linearpatch_tool
from papers.prunecomp import tool as prunecomp_tool
from papers.prunecomp.search import Search
from tests.tools import TOOLS

pytestmark = pytest.mark.usefixtures("short")
LINEARPATCH = linearpatch_tool.METHOD


@pytest.fixture(scope="module")
def two_removed(model, text, tmp_path_factory):
    """`two_removed(paper)`: the folder of the result without two layers, and what the command printed."""

    @cache
    def pruned(paper):
        out = tmp_path_factory.mktemp("two-removed") / paper
        command = ["--model", model, "--text", text, "--out", out, "--remove", 2]
        command += ["--samples", 4, "--length", 32, "--test-samples", 4]
        command += ["--finetune", "none"] if paper == "reassessing" else []
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(method_of(paper), list(map(str, command))) == 0
        return out, printed.getvalue()

    return pruned


@pytest.fixture
def undrawn(monkeypatch):
    """A sweep's picture, half a second of its time, is left out."""
    monkeypatch.setattr(sweep, "_draw", lambda path, report: path.write_bytes(b"\x89PNG"))


def report_of(out):
    return json.loads((out / "pruning.json").read_text())


@pytest.fixture
def held_out(model, text):
    """The held-out sequences [4, 32] of the text file."""
    ids = torch.tensor(checkpoint.load_tokenizer(model)(text.read_text())["input_ids"])
    return ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)


@torch.no_grad()
def perplexity(model, sequences):
    return model(sequences, labels=sequences).loss.exp().item()


def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("paper", TOOLS)
def test_no_repair_is_the_original_model_without_the_layers(paper, model, held_out, two_removed):
    out, _ = two_removed(paper)
    report, original = report_of(out), plain(model)
    assert report["evaluation"]["before"]["perplexity"] == pytest.approx(perplexity(original, held_out), rel=1e-4)
    remove_layers(original, report["facts"]["removed"])
    assert report["evaluation"]["cut"]["perplexity"] == pytest.approx(perplexity(original, held_out), rel=1e-4)
    for stage in ("original", "no repair", "repaired"):
        assert stage in (out / "README.md").read_text()


@pytest.mark.parametrize("paper", TOOLS)
def test_a_tool_writes_a_checkpoint_that_loads_plainly_and_its_card(paper, two_removed):
    out, printed = two_removed(paper)
    assert [path.name for path in out.parent.iterdir()] == [paper]  # no leftovers
    report, card = report_of(out), (out / "README.md").read_text()
    removed = report["facts"]["removed"]
    assert len(removed) == len(set(removed)) == 2 and report["layers"] == {"before": 6, "after": 4}
    saved = plain(out)
    assert saved.config.num_hidden_layers == len(saved.model.layers) == 4
    assert f"{report['evaluation']['after']['perplexity']:.2f}" in card
    assert ("checkpoint.load" in card) == (paper == "linearpatch") == (out / "patches.safetensors").exists()
    assert str(out.parent) not in card and f"python -m {module_of(paper)}" in card
    assert str(out) in printed


def test_no_repair_of_the_official_loop_takes_the_factors_back(model, held_out, tool):
    run = tool("prunecomp", "--remove", 2, "--fidelity", "code")
    assert run.status == 0
    original = plain(model)
    remove_layers(original, run.report["facts"]["removed"])
    assert run.report["evaluation"]["cut"]["perplexity"] == pytest.approx(perplexity(original, held_out), rel=5e-3)


@pytest.mark.parametrize("paper", TOOLS)
@pytest.mark.parametrize(
    "name, dtype", [("gemma2", torch.bfloat16), ("llama", torch.float16), ("llama", torch.float32)]
)
def test_what_is_saved_is_smaller_and_has_the_dtype_it_came_in(
    paper, name, dtype, model, held_out, two_removed, tool, tmp_path, make_tiny, write_checkpoint
):
    if (paper, name) == ("refit", "gemma2"):
        pytest.skip("refused: tests/extensions/refit/test_method.py")
    if dtype == torch.float32:
        out = two_removed(paper)[0]
    else:
        model, out = write_checkpoint(tmp_path / "model", model=make_tiny(name).to(dtype)), tmp_path / "out"
        assert tool(paper, "--remove", 3, model=model).status == 0
    with safe_open(out / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {dtype}  # noqa: SIM118
    sizes = [sum(file.stat().st_size for file in folder.glob("*.safetensors")) for folder in (model, out)]
    assert sizes[1] < sizes[0]
    report = report_of(out)
    for side, size in zip(("before", "after"), sizes):
        assert report["bytes"][side] == pytest.approx(size, abs=9000)  # less the headers
    loaded, _ = checkpoint.load(out, dtype=torch.float32)
    assert loaded.config.tie_word_embeddings == (name == "gemma2")
    # what was measured in float32 is what lies on the disk in half of it
    assert report["evaluation"]["after"]["perplexity"] == pytest.approx(perplexity(loaded, held_out), rel=1e-4)


@pytest.mark.parametrize("times, status", [(0.5, 3), (1e9, 0)])
def test_a_broken_model_is_saved_and_named(times, status, tool, monkeypatch):
    monkeypatch.setattr(measure, "BROKEN", times)
    run = tool("linearpatch", "--remove", 2)
    assert run.status == status
    for text in (run.card, run.stdout, run.stderr):
        assert ("this model is broken: its perplexity is" in text) == (status == 3)
    assert plain(run.out).config.num_hidden_layers == 4


def linearpatch_applying(change):
    """LinearPatch's tool, which removes layer 2 and then changes the model in place of patching it."""

    def apply(job):
        measure.without_repair(job, [2])
        remove_layers(job.model, [2])
        change(job.model)
        return {"removed": [2]}

    return replace(LINEARPATCH, apply=apply)


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_a_repair_that_is_worse_than_none_is_said_to_be(factor, tool):
    run = tool(linearpatch_applying(lambda model: model.lm_head.weight.data.mul_(factor)), "--remove", 1)
    assert run.status == 0
    no_repair, after, against = (run.report["evaluation"][key] for key in ("cut", "after", "against_cut"))
    assert (after["perplexity"] > no_repair["perplexity"]) == (factor > 1)
    for stage in (no_repair, after):
        mean = sum(stage["window_nlls"]) / len(stage["window_nlls"])
        assert math.exp(mean) == pytest.approx(stage["perplexity"], rel=1e-4)
    change = 100 * (after["perplexity"] / no_repair["perplexity"] - 1)
    assert against["change"] == pytest.approx(change, abs=0.01) and against["low"] <= against["change"]
    change, low, high = (signed(against[key], "+.1f") for key in ("change", "low", "high"))
    assert f"against no repair: {change} % [{low}, {high}]" in run.card
    for text in (run.card, run.stdout):
        assert ("worse than the same layers left out" in text) == (factor > 1)


def test_a_result_that_is_no_number_is_broken_and_valid_json(tool):
    run = tool(linearpatch_applying(lambda model: model.model.norm.weight.data.fill_(math.nan)), "--remove", 1)
    assert run.status == 3
    content = (run.out / "pruning.json").read_text()
    report = json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["evaluation"]["after"]["perplexity"] is None and "not finite" in report["broken"]
    assert "model-index" not in run.card


def test_removed_layers_that_break_the_pattern_of_attentions_are_noted():
    """Gemma 2 alternates; Qwen2 has full attention first and windows from max_window_layers on, wherever that is now."""

    def note(config, removed):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
        remove_layers(model, removed)
        return Job.shifted_attention(SimpleNamespace(model=model))

    small = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 6}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    alternating = Gemma2Config(**small)
    assert note(alternating, [2, 3]) is note(alternating, [5]) is note(LlamaConfig(**small), [1]) is None
    assert "no longer in the pattern" in note(alternating, [1]) and note(alternating, [1, 2, 3])
    hybrid = Qwen3_5TextConfig(
        **small, **{f"linear_num_{part}_heads": 2 for part in ("key", "value")},
        linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    assert set(hybrid.layer_types) == {"linear_attention", "full_attention"}
    assert note(hybrid, [0]).startswith("which layers have linear attention is in this model's config")
    windowed = Qwen2Config(**small, use_sliding_window=True, max_window_layers=3)
    assert windowed.layer_types[2:4] == ["full_attention", "sliding_attention"]
    assert note(windowed, [1, 3]) is note(windowed, [2]) is None


def test_a_result_is_called_worse_only_where_the_difference_is_significant():
    no_repair, mixed = [2.0, 3.0, 4.0, 5.0], [0.9, -0.3, 0.2, -0.4]
    for shift, is_worse in (([0.1] * 4, True), (mixed, False), ([-0.1] * 4, False)):
        after = [a + b for a, b in zip(no_repair, shift)]
        against = measure.change_by_repair({"window_nlls": no_repair}, {"window_nlls": after})
        assert (measure.worse_than_no_repair(against) is not None) == is_worse
    low, high = scipy.stats.ttest_1samp(mixed, 0).confidence_interval(0.95)
    assert significance.student(mixed) == pytest.approx((low, high))
    for losses in ([1.0], [math.inf, 2.0]):
        before = {"window_nlls": [1.0, 2.0][: len(losses)]}
        assert measure.change_by_repair(before, {"window_nlls": losses}) == {}
    assert measure.change_by_repair({}, {}) == {} and measure.worse_than_no_repair({}) is None


def test_a_patch_on_massive_tokens_names_the_option_that_spares_them(tool, monkeypatch):
    norms = massive_activations.Norms(6)
    for layer in range(6):
        hidden = torch.ones(2, 8, 4)
        hidden[:, 0] *= 50 if layer >= 3 else 1
        norms.add(layer, hidden)
    job = SimpleNamespace(shared={"norms": norms})
    massive = [linearpatch_tool._massive_at(job, removed) for removed in ([2], [3], [1, 4, 5], [1, 2])]
    assert massive == [False, True, True, False] and not linearpatch_tool._massive_at(SimpleNamespace(shared={}), [4])
    monkeypatch.setattr(linearpatch_tool, "_massive_at", lambda job, removed: True)
    for more, is_noted in ((["--acts-on", "ordinary"], False), (["--force"], True)):
        run = tool("linearpatch", "--remove", 2, *more)
        assert run.status == 0 and ("compare --acts-on ordinary" in run.stdout) == is_noted


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name, more",
    [("model.layers.3.mlp.up_proj", []), ("model.embed_tokens", ["--stream"]), ("lm_head", ["--stream"])],
)
def test_weights_that_are_no_numbers_are_named(name, more, value, tool, tmp_path, tiny_llama, write_checkpoint):
    tiny_llama.get_submodule(name).weight.data[0, 0] = value
    run = tool("linearpatch", "--remove", 1, *more, model=write_checkpoint(tmp_path / "model", model=tiny_llama))
    assert run.status == 2 and f"NaN or infinite weights in {name}.weight;" in run.stderr and not run.out.exists()


def test_an_original_model_that_gives_no_numbers_is_refused(tool, tmp_path, tiny_llama, write_checkpoint):
    tiny_llama.model.norm.weight.data.fill_(3e38)  # finite weights, infinite logits
    run = tool("laco", "--remove", 1, model=write_checkpoint(tmp_path / "model", model=tiny_llama))
    assert run.status == 2
    assert "the model's own perplexity is not finite, before anything is removed" in run.stderr


def test_the_layers_that_the_user_names_are_removed(tool, model, text, tmp_path):
    named = dict.fromkeys(TOOLS, "1,3-4") | {"prunecomp": "2-3,1"}
    runs = {paper: tool(paper, "--layers", layers, out=tmp_path / paper) for paper, layers in named.items()}
    for paper, run in runs.items():
        assert run.status == 0
        assert sorted(run.report["facts"]["removed"]) == ([1, 2, 3] if paper == "prunecomp" else [1, 3, 4])
    merged, saved = plain(model), plain(tmp_path / "laco")
    merge_layers(merged, 2, 2, "code")
    merge_layers(merged, 0, 1, "code")
    assert all(torch.equal(a, b) for a, b in zip(merged.parameters(), saved.parameters(), strict=True))
    scaled, saved = plain(model), plain(tmp_path / "prunecomp")
    prunecomp.repeat(scaled, [2, 3, 1], runs["prunecomp"].report["facts"]["factors"])
    ids = torch.tensor([checkpoint.load_tokenizer(model)(text.read_text())["input_ids"][:64]])
    assert torch.equal(saved(ids).logits, scaled(ids).logits)
    assert [patch.position for patch in detach_patches(runs["linearpatch"].model)] == [1, 2]


@pytest.mark.parametrize("paper", TOOLS)
def test_a_plan_says_what_would_be_removed_and_writes_nothing(paper, two_removed, tool, tmp_path):
    plan = tool(paper, "--remove", 2, "--plan", "--measure")
    assert plan.status == 0 and not list(tmp_path.iterdir()) and "nothing was written" in plan.stdout
    out, printed = two_removed(paper)
    removed = sorted(report_of(out)["facts"]["removed"])
    assert f"layers to remove: {', '.join(map(str, removed))}\n" in plan.stdout
    perplexities = [line for line in printed.splitlines() if line.startswith("perplexity:")]
    assert perplexities[0] in plan.stdout.splitlines()


def test_a_plan_tells_the_time_of_training_and_does_not_train(tool, tmp_path):
    plan = tool("linearpatch", "--remove", 2, "--plan", "--measure", "--distill", 8)
    assert plan.status == 0 and "of training, whose effect is not in these numbers" in plan.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("paper", TOOLS)
def test_a_sweep_is_single_runs_side_by_side(paper, two_removed, tool, tmp_path, request):
    if paper != "linearpatch":
        request.getfixturevalue("undrawn")
    run, out = tool(paper, "--sweep", "2,3", out=tmp_path / "sweep"), tmp_path / "sweep"
    assert run.status == 0
    with (out / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["removed"] for row in rows] == ["2", "3"]
    three = tool(paper, "--remove", 3, out=tmp_path / "3")
    for row, report in zip(rows, (report_of(two_removed(paper)[0]), three.report), strict=True):
        assert list(map(int, row["layers"].split())) == report["facts"]["removed"]
        for column, stage in (("cut_alone", "cut"), ("repaired", "after")):
            assert float(row[column]) == pytest.approx(report["evaluation"][stage]["perplexity"], rel=1e-5)
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "sweep.md").read_text() in run.stdout
    assert not list(out.glob("*.safetensors"))
    assert tool(paper, "--sweep", 1, out=out).status == 2  # not without --force
    assert tool(paper, "--sweep", 1, "--force", out=out).status == 0
    for command, folder, message in (
        (["--remove", 1], out, "holds a sweep, which --force does not replace by a checkpoint"),
        (["--sweep", 1], three.out, "holds a checkpoint, which --force does not replace by a sweep"),
    ):
        run = tool(paper, *command, "--force", out=folder)
        assert run.status == 2 and message in run.stderr


def test_a_sweep_keeps_what_it_measured_whatever_stops_it(tool, tmp_path):
    """A number that cannot be had has its reason in its row; what stops the process leaves the rows before it."""

    def failing(error, count):
        def apply(job):
            if job.count == count:
                raise error
            return LINEARPATCH.apply(job)

        return replace(LINEARPATCH, apply=apply)

    run = tool(failing(UserError("not so | many"), 3), "--sweep", "2-4")
    assert run.status == 0
    assert [(row["removed"], row["repaired"] is None, row["reason"]) for row in run.rows] == [
        (2, False, None), (3, True, "not so | many"), (4, False, None)]  # fmt: skip
    assert r"| 3 |  |  | not so \| many |" in run.stdout
    with pytest.raises(ZeroDivisionError):
        tool(failing(ZeroDivisionError(), 2), "--sweep", "2-4", out=tmp_path / "b")
    assert [row["removed"] for row in json.loads((tmp_path / "b" / "sweep.json").read_text())["rows"]] == [3, 4]
    run = tool(failing(UserError("none"), 2), "--sweep", 2, out=tmp_path / "c")
    assert run.status == 2 and not run.out.exists()


@pytest.mark.parametrize("method", [LINEARPATCH, refit_tool.METHOD, laco_tool.METHOD], ids=lambda method: method.paper)
def test_a_sweep_that_was_stopped_continues_by_the_same_command(method, tool, text, tmp_path, undrawn):
    """To the numbers of one that was not; nothing is measured twice, and not from what changed since."""
    applied, stop = [], 3

    def counted(job):
        applied.append(job.count)
        if job.count == stop:
            raise KeyboardInterrupt
        return method.apply(job)

    own_text = tmp_path / "text.txt"
    own_text.write_text(text.read_text())

    def run(out, *more):
        return tool(replace(method, apply=counted), "--sweep", "2-4", *more, text=own_text, out=tmp_path / out)

    assert run("stopped").status == 130 and applied == [4, 3]
    assert "Not measured yet: 2, 3. The same command continues" in (tmp_path / "stopped" / "sweep.md").read_text()
    other = run("stopped", "--seed", 7)
    assert other.status == 2 and "holds a sweep" in other.stderr
    stop = None
    stopped = run("stopped")
    assert stopped.status == 0 and applied == [4, 3, 3, 2]
    assert stopped.rows == run("whole").rows and [row["removed"] for row in stopped.rows] == [2, 3, 4]
    assert run("stopped").status == 2  # finished
    stop = 3
    assert run("stopped", "--force").status == 130
    stop, before = None, len(applied)
    assert run("stopped").rows == stopped.rows and applied[before:] == [3, 2]  # without --force
    stop = 2
    assert run("changed").status == 130
    own_text.write_text(text.read_text() + "more of it\n" * 50)
    changed = run("changed")
    assert changed.status == 2 and "model or texts have changed since" in changed.stderr


def test_a_sweep_on_a_full_disk_continues_and_prints_what_it_measured(tool, tmp_path, monkeypatch, undrawn):
    put, full = atomic_files.put, True

    def on_disk(path, write):
        if full:
            raise OSError(28, "No space left on device")
        put(path, write)

    monkeypatch.setattr(atomic_files, "put", on_disk)
    run = tool("linearpatch", "--sweep", "2-3")
    assert run.status == 2 and not run.out.exists()
    assert "cannot write to" in run.stderr and "the table above is not in" in run.last_line
    full = False
    saved = tool("linearpatch", "--sweep", "2-3")
    assert saved.status == 0
    table = [line for line in saved.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in run.stdout.splitlines() if line.startswith("|")] and len(table) == 5


def test_a_sweep_holds_one_model_at_a_time(tool, tmp_path, monkeypatch, undrawn):
    load, models_read, alive = models.load, [], []

    def loading(*arguments, **options):
        gc.collect()
        alive.append(sum(reference() is not None for reference in models_read))
        loaded = load(*arguments, **options)
        models_read.append(weakref.ref(loaded[0]))
        return loaded

    monkeypatch.setattr(models, "load", loading)
    for paper in ("refit", "prunecomp", "linearpatch"):
        assert tool(paper, "--sweep", "1-3", out=tmp_path / paper).status == 0
        models_read.clear()
    assert alive == [0] * 9


def test_weights_that_rounding_does_not_change_stay_as_they_are(make_tiny):
    """A streamed model's layers are written to the disk once they change."""
    model = make_tiny("llama").bfloat16().float()
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = 1 + 2**-12
    measure.round_to(model, torch.bfloat16)
    assert model.model.layers[1].mlp.up_proj.weight[0, 0] == 1
    moved = [name for name, parameter in model.named_parameters() if parameter.data_ptr() != before[name]]
    assert moved == ["model.layers.1.mlp.up_proj.weight"]


def test_laco_takes_a_threshold_in_place_of_a_number(tool, tmp_path):
    run = tool("laco", "--threshold", -1, "--combine", 2)
    removed = run.report["facts"]["removed"]
    assert run.report["facts"]["threshold"] == -1 and run.report["layers"]["after"] == 6 - len(removed) < 6
    run = tool("laco", "--threshold", 1, out=tmp_path / "none")
    assert run.status == 2 and "no merge is so similar (the most similar was" in run.stderr


def test_the_card_has_what_the_hub_reads(tool, tmp_path, write_checkpoint, monkeypatch):
    monkeypatch.setattr(measure, "BATCHES", (1, 2))
    model = write_checkpoint(tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: apache-2.0\nlanguage:\n- en\n---\n# A model\n")
    run = tool("linearpatch", "--remove", 2, model=model)
    front = yaml.safe_load(run.card.split("---\n")[1])
    assert front["license"] == "apache-2.0" and front["pipeline_tag"] == "text-generation"
    assert "base_model" not in front  # a directory is no model of the hub
    result = front["model-index"][0]["results"][0]
    assert result["dataset"]["name"] == "text.txt" and result["task"]["type"] == "text-generation"
    value = result["metrics"][0]["value"]
    assert value == pytest.approx(run.report["evaluation"]["after"]["perplexity"], rel=1e-4)
    assert run.card.count("- prompt: ") == 3 and run.card.count("  - this model: ") == 3
    for label in ("time to first token, batch 1 (ms)", "time per further token, batch 2 (ms)"):
        assert label in run.card


def test_a_field_that_the_card_lacks_is_no_empty_text(two_removed):
    report = report_of(two_removed("linearpatch")[0])
    del report["computed_in"]
    with pytest.raises(jinja2.UndefinedError, match="computed_in"):
        card_of(LINEARPATCH, report)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("llama-2-7b", {"base_model": "meta-llama/Llama-2-7b-hf"}),
        ("org/model", {"base_model": "org/model"}),
        ("standin", {}),
        ("smollm2-135m-instruct", {"base_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "license": "apache-2.0"}),
    ],
)
def test_base_model_and_licence_are_named_as_the_hub_does(name, expected, tmp_path):
    facts = source_facts(name, tmp_path)
    assert {key: facts.get(key) for key in expected} == expected and ("base_model" in facts) == bool(expected)


def die(*unused, **named):
    raise KeyboardInterrupt


def test_a_training_that_was_killed_continues_by_the_same_command(tool, data, tmp_path, monkeypatch):
    options = ["--remove", 2, "--finetune", "partial", "--last", 1, "--data", data, "--batch", 4, "--no-evaluation"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", die)  # the training has ended, the result is not yet saved
        killed = tool("reassessing", *options)
    work = tmp_path / ".out.work"
    assert killed.status == 130 and str(work) in killed.stderr
    (folder,) = work.iterdir()
    first = json.loads((folder / "report.json").read_text())
    assert tool("reassessing", *options, "--learning-rate", 1e-3, out=tmp_path / "other").status == 0
    assert tool("reassessing", *options).report["facts"]["training"]["seconds"] == first["seconds"]  # not trained again
    assert not work.exists()


@pytest.mark.parametrize(
    "stop_after, state", [(0, "has no checkpoint yet"), (3, "has the last checkpoint of the training")]
)
def test_a_training_that_was_stopped_says_whether_it_has_a_checkpoint(
    stop_after, state, tool, data, tmp_path, monkeypatch
):
    """Ten steps; a checkpoint is written after every fifth at the latest."""
    options = ["--remove", 2, "--finetune", "partial", "--last", 1, "--data", data, "--batch", 4, "--no-evaluation"]
    step, steps = TokenTrainer.training_step, []

    def stopping(self, *arguments, **named):
        steps.append(1)
        if self.state.global_step >= 2 * stop_after:
            raise KeyboardInterrupt
        return step(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(TokenTrainer, "training_step", stopping)
        run = tool("reassessing", *options)
    (folder,) = (tmp_path / ".out.work").iterdir()
    assert run.status == 130 and f"{folder.parent} {state}" in run.last_line
    assert bool(list(folder.glob("checkpoint-*"))) == bool(stop_after)
    again = tool("reassessing", *options)
    assert again.status == 0 and ("training continues from" in again.stderr) == bool(stop_after)


def test_a_search_that_was_killed_continues_by_the_same_command(tool, tmp_path, monkeypatch):
    options = ["--metric", "ppl", "--remove", 4, "--no-evaluation"]
    work, scored, scores = tmp_path / ".out.work", [], Search.scores

    def dying(self, stream, eligible):
        if len(scored) == 2:
            raise KeyboardInterrupt
        return counted(self, stream, eligible)

    def counted(self, stream, eligible):
        scored.append(len(stream.layers))
        return scores(self, stream, eligible)

    whole = tool("prunecomp", *options, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Search, "scores", dying)
        assert tool("prunecomp", *options).status == 130
    (folder,) = work.iterdir()
    (steps,) = folder.glob("prunecomp-*.json")
    assert len(json.loads(steps.read_text())["removed"]) == 2
    monkeypatch.setattr(Search, "scores", counted)
    assert tool("prunecomp", *options, "--plan", "--measure").status == 0
    assert scored == [6, 5, 6, 5, 4, 3]  # a plan neither reads nor writes it
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", die)  # the search has ended, the result is not yet saved
        killed = tool("prunecomp", *options)
    assert killed.status == 130 and "continuing an earlier search (prunecomp) after 2 steps" in killed.stderr
    run = tool("prunecomp", *options)
    assert scored[6:] == [4, 3] and not work.exists()
    expected = dict(whole.report["facts"])
    assert expected.pop("layer_executions") and run.report["facts"] == expected  # the last run ran none
    first, second = ((folder / "model.safetensors").read_bytes() for folder in (run.out, whole.out))
    assert first == second


@pytest.mark.parametrize(
    ("paper", "options", "module", "candidate"),
    [
        ("laco", ["--remove", 3], algorithm, "output_similarity"),
        ("refit", ["--remove", 2], refit_tool, "token_nlls"),
        ("refit", ["--remove", 2], refit_tool, "residual_errors"),
        ("linearpatch", ["--max-perplexity-increase", "50%"], bounded, "token_nlls"),
        ("laco", ["--max-perplexity-increase", "50%"], algorithm, "output_similarity"),
    ],
)
def test_a_stopped_search_computes_no_candidate_again(
    paper, options, module, candidate, tool, tmp_path, monkeypatch, undrawn
):
    """The whole search tells how many there are; the second of two runs computes the rest, to the same weights."""
    compute, calls, stop = getattr(module, candidate), [], None

    def counted(*arguments, **named):
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(candidate)
        return compute(*arguments, **named)

    monkeypatch.setattr(module, candidate, counted)
    options = [*options, "--no-evaluation"]
    if paper == "refit":
        monkeypatch.setattr(refit_tool, "least_set", lambda errors, count: [(2, 4)])
        monkeypatch.setattr(refit_tool.ContiguousBlock, "choose", lambda self, context: [1, 2])
    whole = tool(paper, *options, out=tmp_path / "whole")
    total = len(calls)
    calls.clear()
    with monkeypatch.context() as patch:
        if total > 1:
            stop = total - 1
        else:
            patch.setattr(checkpoint, "save", die)
        stopped = tool(paper, *options)
    assert stopped.status == 130 and "has the last checkpoint of the training or search" in stopped.last_line
    stop = None
    again = tool(paper, *options)
    assert again.status == 0 and len(calls) == total
    first, second = ((run.out / "model.safetensors").read_bytes() for run in (whole, again))
    assert first == second and not (tmp_path / ".out.work").exists()


def test_a_sweep_in_two_runs_leaves_no_checkpoints(tool, tmp_path, monkeypatch, undrawn):
    """Nor do the numbers of layers that the first run has finished."""
    options, scores, scored = ["--metric", "ppl", "--sweep", "2-3"], Search.scores, []
    with monkeypatch.context() as patch:
        patch.setattr(Search, "scores", lambda *a: scored.append(1) or scores(*a))
        patch.setattr(prunecomp_tool, "_shorter", lambda job: die() if scored else None)
        assert tool("prunecomp", *options).status == 130
    assert scored == [1] * 3 and list((tmp_path / ".out.work").iterdir())
    assert tool("prunecomp", *options).status == 0 and not (tmp_path / ".out.work").exists()


def test_checkpoints_of_a_command_with_other_options_stay_and_are_named(tool, tmp_path, monkeypatch):
    work = tmp_path / ".out.work"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", die)
        assert tool("prunecomp", "--metric", "ppl", "--remove", 3, "--no-evaluation").status == 130
    (folder,) = work.iterdir()
    (folder / "large").write_bytes(bytes(2_500_000))
    run = tool("laco", "--remove", 2, "--no-evaluation")
    assert run.status == 0 and list(work.iterdir()) == [folder]
    assert f"{work} (2.5 MB) has checkpoints of commands with other options" in run.stderr
    finished = tool("prunecomp", "--metric", "ppl", "--remove", 3, "--no-evaluation", "--force")
    assert finished.status == 0 and "other options" not in finished.stderr and not work.exists()


def test_a_model_that_was_pruned_before_says_so(tool, tmp_path):
    once = tool("prunecomp", "--layers", "3,1", out=tmp_path / "once")
    twice = tool("refit", "--remove", 1, model=once.out, out=tmp_path / "twice")
    before = twice.report["made_from"]
    assert once.report["made_from"] is None
    assert (before["paper"], before["removed"], before["layers"]) == ("prunecomp", [3, 1], {"before": 6, "after": 4})
    note = "had already lost 3, 1 of 6 layers of tiny (prunecomp): 'original' here is that model"
    assert note in twice.card and note in twice.stdout


def test_the_card_says_which_part_of_a_text_was_measured_and_in_which_dtype(tool, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text())
    shared = tool("refit", "--remove", 1, out=tmp_path / "shared").card
    apart = tool("refit", "--remove", 1, "--test", other, "--dtype", "bfloat16", out=tmp_path / "apart").card
    assert "test text: text.txt (of text.txt the last tenth, which is no calibration text)" in shared
    assert "test text: other.txt, sequences" in apart
    assert "stored in float32, computed in float32" in shared and "computed in bfloat16" in apart
    assert "the median and range of " in shared or "Times are left out: " in shared  # on a loaded machine


def test_tensors_that_are_stored_wider_than_most_are_named(tool, tmp_path, make_tiny, write_checkpoint):
    model = write_checkpoint(tmp_path / "model", model=make_tiny("llama").to(torch.bfloat16))
    alike = tool("refit", "--remove", 1, model=model, out=tmp_path / "alike")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].float() * 1.001
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    mixed = tool("refit", "--remove", 1, model=model, out=tmp_path / "mixed")
    note = "1 tensor stored in a wider dtype are saved in bfloat16, as most are: model.norm.weight"
    assert note in " ".join(mixed.report["notes"]) and "wider" not in " ".join(alike.report["notes"])


def test_only_what_a_run_wrote_itself_is_removed(tool, tmp_path):
    (tmp_path / ".out.work").mkdir()
    (tmp_path / ".out.work" / "thesis.tex").write_text("mine")
    assert tool("prunecomp", "--remove", 1, "--no-evaluation").status == 0
    assert (tmp_path / ".out.work" / "thesis.tex").read_text() == "mine"


def test_a_refused_training_leaves_nothing(tool, tmp_path):
    options = ["--remove", 2, "--metric", "reverse-order", "--data", "standin", "--no-evaluation"]
    run = tool("reassessing", *options, "--finetune", "partial", "--train-at-interface", "--last", 1)
    assert run.status == 2 and not list(tmp_path.iterdir())
    assert "cannot fine-tune 1 layers from 4 on: the model has 4 left; train fewer" in run.stderr


def test_a_test_text_is_the_calibration_text_however_it_is_spelt(tool, text, tmp_path):
    odd = text.parent / ".." / text.parent.name / text.name
    first, second = (
        tool("prunecomp", "--remove", 1, "--test", path, out=tmp_path / name).report["evaluation"]["before"]
        for name, path in (("plain", text), ("odd", odd))
    )
    assert first["perplexity"] == second["perplexity"]


def test_a_card_is_text_whatever_a_broken_model_writes():
    assert _quoted("a\x00b\x1b[1m\n`c`") == "`a\ufffdb\ufffd[1m 'c'`"
