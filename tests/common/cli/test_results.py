"""What the tools say of a result: sizes, the cut alone, a broken model, own layers, plans, sweeps, the card's metadata."""

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
from tools import method_of, module_of
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config

from common import calibration
from common.calibration import massive_activations
from common.cli import Job, main, measure, sweep
from common.cli.card import card as card_of
from common.cli.card import source_facts
from common.evaluation import significance
from common.models import checkpoint
from common.models import loading as models
from common.models.surgery import remove_layers
from common.utils.errors import UserError
from common.utils.signs import signed
from papers import linearpatch, prunecomp
from papers.laco import merge_layers
from papers.linearpatch import tool as linearpatch_tool
from papers.prunecomp.search import Search
from tests.tools import TOOLS, paragraphs

OWN = {"reassessing": ["--finetune", "none"]}


@pytest.fixture(scope="module")
def source(tmp_path_factory, write_checkpoint):
    """A tiny checkpoint and a text file."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "text.txt").write_text(paragraphs())
    return write_checkpoint(folder / "tiny"), folder / "text.txt"


@pytest.fixture(scope="module")
def two_gone(source, tmp_path_factory):
    """`two_gone(paper)`: the result without two layers, made once, and what the command printed."""

    @cache
    def made(paper):
        out = tmp_path_factory.mktemp("two-gone") / paper
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert tool(paper, source, out, "--remove", "2") == 0
        return out, printed.getvalue()

    return made


@pytest.fixture
def undrawn(monkeypatch):
    """A sweep's picture, half a second of its time, is left out."""
    monkeypatch.setattr(sweep, "_draw", lambda path, report: path.write_bytes(b"\x89PNG"))


pytestmark = pytest.mark.usefixtures("short")


def tool(paper, source, out, *more):
    model, text = source
    fixed = ["--model", str(model), "--out", str(out), "--text", str(text)]
    fixed += ["--samples", "4", "--length", "32", "--windows", "4", *OWN.get(paper, [])]
    return main(method_of(paper), [*fixed, *more])


def report_of(out):
    return json.loads((out / "pruning.json").read_text())


def windows(source, last=True):
    """The held-out windows [4, 32] of the text file, or all its tokens."""
    _, tokenizer = checkpoint.load(source[0])
    ids = torch.tensor(tokenizer(source[1].read_text())["input_ids"])
    return ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32) if last else ids


def perplexity(model, source):
    held_out = windows(source)
    with torch.no_grad():
        return model(held_out, labels=held_out).loss.exp().item()


@pytest.mark.parametrize("paper", TOOLS)
def test_the_cut_alone_is_the_dense_model_without_the_layers(paper, source, two_gone):
    out, _ = two_gone(paper)
    report = report_of(out)
    dense = AutoModelForCausalLM.from_pretrained(source[0]).eval()
    assert report["evaluation"]["before"]["perplexity"] == pytest.approx(perplexity(dense, source), rel=1e-4)
    remove_layers(dense, report["facts"]["removed"])
    assert report["evaluation"]["cut"]["perplexity"] == pytest.approx(perplexity(dense, source), rel=1e-4)
    for stage in ("original", "no repair", "repaired"):
        assert stage in (out / "README.md").read_text()


@pytest.mark.parametrize("paper", TOOLS)
def test_a_tool_writes_a_checkpoint_that_loads_plainly_and_its_card(paper, two_gone):
    out, printed = two_gone(paper)
    assert [path.name for path in out.parent.iterdir()] == [paper]  # no leftovers
    report, card = report_of(out), (out / "README.md").read_text()
    removed = report["facts"]["removed"]
    assert len(removed) == len(set(removed)) == 2 and report["layers"] == {"before": 6, "after": 4}
    plain = AutoModelForCausalLM.from_pretrained(out)
    assert plain.config.num_hidden_layers == len(plain.model.layers) == 4
    assert f"{report['evaluation']['after']['perplexity']:.2f}" in card
    assert ("checkpoint.load" in card) == (paper == "linearpatch") == (out / "patches.safetensors").exists()
    assert str(out.parent) not in card and f"python -m {module_of(paper)}" in card
    assert str(out) in printed


def test_the_cut_alone_of_the_official_loop_takes_the_factors_back(source, tmp_path):
    assert tool("prunecomp", source, tmp_path / "out", "--remove", "2", "--fidelity", "code") == 0
    report = report_of(tmp_path / "out")
    dense = AutoModelForCausalLM.from_pretrained(source[0]).eval()
    remove_layers(dense, report["facts"]["removed"])
    assert report["evaluation"]["cut"]["perplexity"] == pytest.approx(perplexity(dense, source), rel=5e-3)


@pytest.mark.parametrize("paper", TOOLS)
@pytest.mark.parametrize(
    "name, dtype", [("gemma2", torch.bfloat16), ("llama", torch.float16), ("llama", torch.float32)]
)
def test_what_is_saved_is_smaller_and_has_the_dtype_it_came_in(
    paper, name, dtype, source, two_gone, tmp_path, make_tiny, write_checkpoint
):
    if (paper, name) == ("refit", "gemma2"):
        pytest.skip("refused: tests/extensions/refit/test_method.py")
    if dtype == torch.float32:
        model, out = source[0], two_gone(paper)[0]
    else:
        model, out = write_checkpoint(tmp_path / "model", model=make_tiny(name).to(dtype)), tmp_path / "out"
        assert tool(paper, (model, source[1]), out, "--remove", "3") == 0
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
    assert report["evaluation"]["after"]["perplexity"] == pytest.approx(perplexity(loaded, source), rel=1e-4)


@pytest.mark.parametrize("times, status", [(0.5, 3), (1e9, 0)])
def test_a_broken_model_is_said_to_be_so_and_kept(times, status, source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "BROKEN", times)
    assert tool("linearpatch", source, tmp_path / "out", "--remove", "2") == status
    card, printed = (tmp_path / "out" / "README.md").read_text(), capsys.readouterr()
    for text in (card, printed.out, printed.err):
        assert ("this model is broken: its perplexity is" in text) == (status == 3)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.num_hidden_layers == 4


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_a_repair_that_is_worse_than_none_is_said_to_be(factor, source, tmp_path, monkeypatch, capsys):
    def scaled(job):
        job.chosen([2])
        remove_layers(job.model, [2])
        job.model.lm_head.weight.data.mul_(factor)
        return {"removed": [2]}

    method = linearpatch_tool.METHOD
    monkeypatch.setattr(linearpatch_tool, "METHOD", type(method)(**{**vars(method), "apply": scaled}))
    assert tool("linearpatch", source, tmp_path / "out", "--remove", "1") == 0
    evaluation = report_of(tmp_path / "out")["evaluation"]
    assert (evaluation["after"]["perplexity"] > evaluation["cut"]["perplexity"]) == (factor > 1)
    losses_by_stage = [evaluation[stage]["window_nlls"] for stage in ("cut", "after")]
    assert [math.exp(sum(losses) / len(losses)) for losses in losses_by_stage] == pytest.approx(
        [evaluation[stage]["perplexity"] for stage in ("cut", "after")], rel=1e-4
    )
    against, change = evaluation["against_cut"], evaluation["after"]["perplexity"] / evaluation["cut"]["perplexity"] - 1
    assert against["change"] == pytest.approx(100 * change, abs=0.01) and against["low"] <= against["change"]
    card = (tmp_path / "out" / "README.md").read_text()
    change, low, high = (signed(against[key], "+.1f") for key in ("change", "low", "high"))
    assert f"against no repair: {change} % [{low}, {high}]" in card
    for text in (card, capsys.readouterr().out):
        assert ("worse than the same layers left out" in text) == (factor > 1)


def test_a_cut_that_breaks_the_pattern_of_attentions_is_said_to():
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
    windowed = Qwen2Config(**small, use_sliding_window=True, max_window_layers=3)
    assert windowed.layer_types[2:4] == ["full_attention", "sliding_attention"]
    assert note(windowed, [1, 3]) is note(windowed, [2]) is None


def test_a_result_is_called_worse_beyond_the_noise_alone():
    cut = {"window_nlls": [2.0, 3.0, 4.0, 5.0]}
    for shift, is_worse in (([0.1, 0.1, 0.1, 0.1], True), ([0.9, -0.3, 0.2, -0.4], False), ([-0.1] * 4, False)):
        against = measure.change_by_repair(cut, {"window_nlls": [a + b for a, b in zip(cut["window_nlls"], shift)]})
        assert (measure.worse_than_no_repair(against) is not None) == is_worse
    low, high = scipy.stats.ttest_1samp([0.9, -0.3, 0.2, -0.4], 0).confidence_interval(0.95)
    assert significance.student([0.9, -0.3, 0.2, -0.4]) == pytest.approx((low, high))
    for single in ({"window_nlls": [1.0]}, {"window_nlls": [math.inf, 2.0]}):
        assert measure.change_by_repair({"window_nlls": [1.0, 2.0][: len(single["window_nlls"])]}, single) == {}
    assert measure.change_by_repair({}, {}) == {} and measure.worse_than_no_repair({}) is None


def test_a_patch_on_massive_tokens_names_the_option_that_spares_them(source, tmp_path, monkeypatch, capsys):
    norms = massive_activations.Norms(6)
    for layer in range(6):
        hidden = torch.ones(2, 8, 4)
        hidden[:, 0] *= 50 if layer >= 3 else 1
        norms.add(layer, hidden)
    job = SimpleNamespace(shared={"norms": norms})
    massive = [linearpatch_tool._massive_at(job, removed) for removed in ([2], [3], [1, 4, 5], [1, 2])]
    assert massive == [False, True, True, False] and not linearpatch_tool._massive_at(SimpleNamespace(shared={}), [4])
    for more, is_noted in ((("--acts-on", "ordinary"), False), ((), True)):
        monkeypatch.setattr(linearpatch_tool, "_massive_at", lambda job, removed: True)
        assert tool("linearpatch", source, tmp_path / f"out{is_noted}", "--remove", "2", *more) == 0
        assert ("compare --acts-on ordinary" in capsys.readouterr().out) == is_noted


def test_a_result_that_is_no_number_is_broken_and_valid_json(source, tmp_path, monkeypatch):
    def spoil(job):
        job.chosen([2])
        remove_layers(job.model, [2])
        job.model.model.norm.weight.data.fill_(float("nan"))
        return {"removed": [2]}

    method = linearpatch_tool.METHOD
    monkeypatch.setattr(linearpatch_tool, "METHOD", type(method)(**{**vars(method), "apply": spoil}))
    assert tool("linearpatch", source, tmp_path / "out", "--remove", "1") == 3
    content = (tmp_path / "out" / "pruning.json").read_text()
    report = json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["evaluation"]["after"]["perplexity"] is None and "not finite" in report["broken"]
    assert "model-index" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name, more",
    [("model.layers.3.mlp.up_proj", []), ("model.embed_tokens", ["--stream"]), ("lm_head", ["--stream"])],
)
def test_weights_that_are_no_numbers_are_named(
    name, more, value, source, tmp_path, make_tiny, write_checkpoint, capsys
):
    model = make_tiny()
    model.get_submodule(name).weight.data[0, 0] = value
    folder = write_checkpoint(tmp_path / "model", model=model)
    assert tool("linearpatch", (folder, source[1]), tmp_path / "out", "--remove", "1", *more) == 2
    assert f"NaN or infinite weights in {name}.weight;" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dense_model_that_gives_no_numbers_is_refused(source, tmp_path, make_tiny, write_checkpoint, capsys):
    model = make_tiny()
    model.model.norm.weight.data.fill_(3e38)  # finite weights, infinite logits
    folder = write_checkpoint(tmp_path / "model", model=model)
    assert tool("laco", (folder, source[1]), tmp_path / "out", "--remove", "1") == 2
    assert "the model's own perplexity is not finite, before anything is removed" in capsys.readouterr().err


def test_own_layers_go(source, tmp_path):
    for paper in TOOLS:
        assert tool(paper, source, tmp_path / paper, "--layers", "2-3,1" if paper == "prunecomp" else "1,3-4") == 0
        report = report_of(tmp_path / paper)
        assert sorted(report["facts"]["removed"]) == ([1, 2, 3] if paper == "prunecomp" else [1, 3, 4])
    ids = windows(source, last=False)
    merged = AutoModelForCausalLM.from_pretrained(source[0]).eval()
    merge_layers(merged, 2, 2, "code")
    merge_layers(merged, 0, 1, "code")
    scaled = AutoModelForCausalLM.from_pretrained(source[0]).eval()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "laco")
    assert all(torch.equal(a, b) for a, b in zip(merged.parameters(), saved.parameters(), strict=True))
    report = report_of(tmp_path / "prunecomp")
    prunecomp.repeat(scaled, [2, 3, 1], report["facts"]["factors"])
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "prunecomp")
    assert torch.equal(saved(ids[None, :64]).logits, scaled(ids[None, :64]).logits)
    plain, _ = checkpoint.load(tmp_path / "linearpatch")
    assert [patch.position for patch in detach_patches(plain)] == [1, 2]


@pytest.mark.parametrize("paper", TOOLS)
def test_a_plan_says_what_would_go_and_writes_nothing(paper, source, two_gone, tmp_path, capsys):
    assert tool(paper, source, tmp_path / "out", "--remove", "2", "--plan", "--measure") == 0
    planned = capsys.readouterr().out
    assert not list(tmp_path.iterdir()) and "nothing was written" in planned
    out, printed = two_gone(paper)
    removed = sorted(report_of(out)["facts"]["removed"])
    assert f"layers to remove: {', '.join(map(str, removed))}\n" in planned
    perplexities = [line for line in printed.splitlines() if line.startswith("perplexity:")]
    assert perplexities[0] in planned.splitlines()


def test_a_plan_tells_the_time_of_training_and_does_not_train(source, tmp_path, capsys):
    assert tool("linearpatch", source, tmp_path / "out", "--remove", "2", "--plan", "--measure", "--distill", "8") == 0
    assert "of training, whose effect is not in these numbers" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("paper", TOOLS)
def test_a_sweep_is_single_runs_side_by_side(paper, source, two_gone, tmp_path, capsys, request):
    if paper != "linearpatch":
        request.getfixturevalue("undrawn")
    single, _ = two_gone(paper)
    capsys.readouterr()
    assert tool(paper, source, tmp_path / "sweep", "--sweep", "2,3") == 0
    with (tmp_path / "sweep" / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["removed"] for row in rows] == ["2", "3"]
    assert tool(paper, source, tmp_path / "3", "--remove", "3") == 0
    for row, folder in zip(rows, (single, tmp_path / "3"), strict=True):
        report = report_of(folder)
        assert list(map(int, row["layers"].split())) == report["facts"]["removed"]
        for column, stage in (("cut_alone", "cut"), ("repaired", "after")):
            assert float(row[column]) == pytest.approx(report["evaluation"][stage]["perplexity"], rel=1e-5)
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "sweep" / "sweep.md").read_text() in capsys.readouterr().out
    assert not list((tmp_path / "sweep").glob("*.safetensors"))
    assert tool(paper, source, tmp_path / "sweep", "--sweep", "1") == 2  # not without --force
    assert tool(paper, source, tmp_path / "sweep", "--sweep", "1", "--force") == 0
    assert tool(paper, source, tmp_path / "sweep", "--remove", "1", "--force") == 2  # nor by something else
    assert tool(paper, source, tmp_path / "3", "--sweep", "1", "--force") == 2
    printed = capsys.readouterr().err
    assert "holds a sweep, which --force does not replace by a checkpoint" in printed
    assert "holds a checkpoint, which --force does not replace by a sweep" in printed


def test_a_sweep_keeps_what_it_measured_whatever_stops_it(source, tmp_path, monkeypatch, capsys):
    """A number that cannot be had has its reason in its row; what stops the process leaves the rows before it."""
    apply = linearpatch_tool.METHOD.apply

    def failing(error, count):
        def applied(job):
            if job.count == count:
                raise error
            return apply(job)

        return replace(linearpatch_tool.METHOD, apply=applied)

    fixed = ["--model", str(source[0]), "--text", str(source[1]), "--samples", "4", "--length", "32", "--windows", "4"]
    out = tmp_path / "sweep"
    assert main(failing(UserError("not so | many"), 3), [*fixed, "--out", str(out), "--sweep", "2-4"]) == 0
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    assert [(row["removed"], row["repaired"] is None, row["reason"]) for row in rows] == [
        (2, False, None), (3, True, "not so | many"), (4, False, None)]  # fmt: skip
    assert r"| 3 |  |  | not so \| many |" in capsys.readouterr().out
    with pytest.raises(ZeroDivisionError):
        main(failing(ZeroDivisionError(), 2), [*fixed, "--out", str(tmp_path / "b"), "--sweep", "2-4"])
    assert [row["removed"] for row in json.loads((tmp_path / "b" / "sweep.json").read_text())["rows"]] == [3, 4]
    assert main(failing(UserError("none"), 2), [*fixed, "--out", str(tmp_path / "c"), "--sweep", "2"]) == 2
    assert not (tmp_path / "c").exists()


def test_a_sweep_that_was_stopped_goes_on_by_the_same_command_alone(source, tmp_path, monkeypatch, capsys, undrawn):
    """To the numbers of one that was not; nothing is measured twice, and not from what changed since."""
    apply, applied = linearpatch_tool.METHOD.apply, []

    def counted(job):
        applied.append(job.count)
        if job.count == stop:
            raise KeyboardInterrupt
        return apply(job)

    method, text = replace(linearpatch_tool.METHOD, apply=counted), tmp_path / "text.txt"
    text.write_text(source[1].read_text())
    fixed = ["--model", str(source[0]), "--text", str(text), "--samples", "4", "--length", "32", "--windows", "4"]

    def run(out, *more):
        return main(method, [*fixed, "--out", str(tmp_path / out), "--sweep", "2-4", *more])

    stop = 3
    assert run("stopped") == 130 and applied == [4, 3]
    assert "Not measured yet: 2, 3. The same command continues" in (tmp_path / "stopped" / "sweep.md").read_text()
    assert run("stopped", "--seed", "7") == 2 and "holds a sweep" in capsys.readouterr().err
    stop = None
    assert run("stopped") == 0 and applied == [4, 3, 3, 2]
    assert run("whole") == 0
    rows = [json.loads((tmp_path / name / "sweep.json").read_text())["rows"] for name in ("stopped", "whole")]
    assert rows[0] == rows[1] and [row["removed"] for row in rows[0]] == [2, 3, 4]
    assert run("stopped") == 2  # finished
    stop = 2
    assert run("changed") == 130
    text.write_text(source[1].read_text() + "more of it\n" * 50)
    assert run("changed") == 2 and "model or texts have changed since" in capsys.readouterr().err


def test_a_sweep_holds_one_model_at_a_time(source, tmp_path, monkeypatch, undrawn):
    load, models_read, alive = models.load, [], []

    def loading(*arguments, **options):
        gc.collect()
        alive.append(sum(reference() is not None for reference in models_read))
        loaded = load(*arguments, **options)
        models_read.append(weakref.ref(loaded[0]))
        return loaded

    monkeypatch.setattr(models, "load", loading)
    for paper in ("refit", "prunecomp", "linearpatch"):
        assert tool(paper, source, tmp_path / paper, "--sweep", "1-3") == 0
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


def test_distillation_changes_the_patch_and_nothing_else(source, tmp_path):
    for name, more in (("plain", []), ("distilled", ["--distill", "6"])):
        assert tool("linearpatch", source, tmp_path / name, "--layers", "2-3", *more) == 0
    plain, distilled = (checkpoint.load(tmp_path / name)[0] for name in ("plain", "distilled"))
    first, second = (detach_patches(model)[0] for model in (plain, distilled))
    assert first.position == second.position == 2
    assert not torch.equal(first.module.weight, second.module.weight)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), distilled.parameters(), strict=True))
    report = report_of(tmp_path / "distilled")
    assert report["facts"]["training"]["steps"] == 6
    assert any(note.startswith("distilled on 6 sequences") for note in report["notes"])


def test_cosine_and_estimator_reach_the_method(source, tmp_path):
    options = ["--remove", "2", "--cosine", "channel", "--estimator", "least-squares", "--patch", "diagonal"]
    assert tool("linearpatch", source, tmp_path / "out", *options) == 0
    model, tokenizer = checkpoint.load(source[0])
    crops = calibration.sample_crops(
        torch.tensor(tokenizer(source[1].read_text())["input_ids"]),
        length=32,
        count=4,
        seed=2,
    )
    linearpatch.prune(model, crops, 2, cosine="channel", estimator="least-squares", kind="diagonal")
    saved, _ = checkpoint.load(tmp_path / "out")
    expected, stored = (detach_patches(m)[0] for m in (model, saved))
    assert expected.position == stored.position and torch.equal(expected.module.weight, stored.module.weight)


def test_laco_takes_a_threshold_in_place_of_a_number(source, tmp_path, capsys):
    assert tool("laco", source, tmp_path / "out", "--threshold", "-1", "--combine", "2") == 0
    report = report_of(tmp_path / "out")
    assert report["facts"]["threshold"] == -1 and report["layers"]["after"] == 6 - len(report["facts"]["removed"]) < 6
    assert tool("laco", source, tmp_path / "none", "--threshold", "1") == 2
    assert "no merge is so similar (the most similar was" in capsys.readouterr().err


def test_laco_merges_as_the_official_code_unless_told(source, tmp_path):
    for name, more in (("default", []), ("code", ["--merge", "code"]), ("paper", ["--merge", "paper"])):
        assert tool("laco", source, tmp_path / name, "--layers", "2-3", *more) in (0, 3)
    saved = {name: AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("default", "code", "paper")}
    weights = {name: model.model.layers[1].mlp.up_proj.weight for name, model in saved.items()}
    assert torch.equal(weights["default"], weights["code"]) and not torch.equal(weights["default"], weights["paper"])


def test_the_card_has_what_the_hub_reads(source, tmp_path, write_checkpoint, monkeypatch):
    monkeypatch.setattr(measure, "BATCHES", (1, 2))
    model = write_checkpoint(tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: apache-2.0\nlanguage:\n- en\n---\n# A model\n")
    assert tool("linearpatch", (model, source[1]), tmp_path / "out", "--remove", "2") == 0
    card, report = (tmp_path / "out" / "README.md").read_text(), report_of(tmp_path / "out")
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "apache-2.0" and front["pipeline_tag"] == "text-generation"
    assert "base_model" not in front  # a directory is no model of the hub
    result = front["model-index"][0]["results"][0]
    assert result["dataset"]["name"] == "text.txt" and result["task"]["type"] == "text-generation"
    value = result["metrics"][0]["value"]
    assert value == pytest.approx(report["evaluation"]["after"]["perplexity"], rel=1e-4)
    assert card.count("- prompt: ") == 3 and card.count("  - this model: ") == 3
    for label in ("time to first token, batch 1 (ms)", "time per further token, batch 2 (ms)"):
        assert label in card


def test_a_field_that_the_card_lacks_is_no_empty_text(two_gone):
    report = report_of(two_gone("linearpatch")[0])
    del report["computed_in"]
    with pytest.raises(jinja2.UndefinedError, match="computed_in"):
        card_of(method_of("linearpatch"), report)


@pytest.mark.parametrize(
    "name, expected", [("llama-2-7b", "meta-llama/Llama-2-7b-hf"), ("org/model", "org/model"), ("standin", None)]
)
def test_the_base_model_is_named_as_the_hub_does(name, expected, tmp_path):
    assert source_facts(name, tmp_path).get("base_model") == expected


def test_a_model_out_of_a_wheel_has_the_licence_of_the_one_that_it_was(tmp_path):
    expected = {"base_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "license": "apache-2.0"}
    assert source_facts("smollm2-135m-instruct", tmp_path) == expected


def die(*unused, **named):
    raise KeyboardInterrupt


def test_a_training_that_was_killed_is_found_by_the_same_command_alone(source, tmp_path, monkeypatch, capsys):
    rows = [
        {"instruction": f"Count to {n}.", "input": "", "output": " ".join(map(str, range(n)))} for n in range(2, 22)
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["--remove", "2", "--finetune", "partial", "--last", "1", "--data", str(tmp_path / "data.jsonl")]
    options += ["--batch", "4", "--no-evaluation"]

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", die)  # the training has ended, the result is not yet saved
        assert tool("reassessing", source, tmp_path / "out", *options) == 130
    assert str(tmp_path / ".out.work") in capsys.readouterr().err
    (folder,) = (tmp_path / ".out.work").iterdir()
    first = json.loads((folder / "report.json").read_text())
    assert tool("reassessing", source, tmp_path / "other", *options, "--learning-rate", "1e-3") == 0
    assert tool("reassessing", source, tmp_path / "out", *options) == 0
    assert report_of(tmp_path / "out")["facts"]["training"]["seconds"] == first["seconds"]  # not trained again
    assert not (tmp_path / ".out.work").exists()


def test_a_search_that_was_killed_goes_on_by_the_same_command(source, tmp_path, monkeypatch, capsys):
    options = ["--metric", "ppl", "--remove", "4", "--no-evaluation"]
    scored, scores = [], Search.scores

    def dying(self, stream, eligible):
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(len(stream.layers))
        return scores(self, stream, eligible)

    assert tool("prunecomp", source, tmp_path / "whole", *options) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Search, "scores", dying)
        assert tool("prunecomp", source, tmp_path / "out", *options) == 130
    (folder,) = (tmp_path / ".out.work").iterdir()
    (steps,) = folder.glob("prunecomp-*.json")
    assert len(json.loads(steps.read_text())["removed"]) == 2

    def counted(self, stream, eligible):
        scored.append(len(stream.layers))
        return scores(self, stream, eligible)

    monkeypatch.setattr(Search, "scores", counted)
    assert tool("prunecomp", source, tmp_path / "out", *options, "--plan", "--measure") == 0
    assert scored == [6, 5, 6, 5, 4, 3]  # a plan neither reads nor writes it
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", die)  # the search has ended, the result is not yet saved
        assert tool("prunecomp", source, tmp_path / "out", *options) == 130
    assert "continuing an earlier search (prunecomp) after 2 steps" in capsys.readouterr().err
    assert tool("prunecomp", source, tmp_path / "out", *options) == 0
    assert scored[6:] == [4, 3] and not (tmp_path / ".out.work").exists()
    facts, expected = (report_of(tmp_path / out)["facts"] for out in ("out", "whole"))
    assert expected.pop("layer_executions") and facts == expected  # the last run ran none
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_model_that_was_pruned_before_says_so(source, tmp_path, capsys):
    assert tool("prunecomp", source, tmp_path / "once", "--layers", "3,1") == 0
    assert tool("refit", (tmp_path / "once", source[1]), tmp_path / "twice", "--remove", "1") == 0
    assert report_of(tmp_path / "once")["made_from"] is None
    before = report_of(tmp_path / "twice")["made_from"]
    assert (before["paper"], before["removed"], before["layers"]) == ("prunecomp", [3, 1], {"before": 6, "after": 4})
    note = "had already lost 3, 1 of 6 layers of tiny (prunecomp): 'original' here is that model"
    assert note in (tmp_path / "twice" / "README.md").read_text() and note in capsys.readouterr().out


def test_the_card_says_which_part_of_a_text_was_measured_and_in_which_dtype(source, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(source[1].read_text())
    assert tool("refit", source, tmp_path / "shared", "--remove", "1") == 0
    assert tool("refit", source, tmp_path / "apart", "--remove", "1", "--test", str(other), "--dtype", "bfloat16") == 0
    shared, apart = ((tmp_path / name / "README.md").read_text() for name in ("shared", "apart"))
    assert "test text: text.txt (of text.txt the last tenth, which is no calibration text)" in shared
    assert "test text: other.txt, sequences" in apart
    assert "stored in float32, computed in float32" in shared and "computed in bfloat16" in apart
    assert "the median and range of " in shared or "Times are left out: " in shared  # on a loaded machine


def test_tensors_that_are_stored_wider_than_most_are_named(source, tmp_path, make_tiny, write_checkpoint):
    model = write_checkpoint(tmp_path / "model", model=make_tiny("llama").to(torch.bfloat16))
    weights = load_file(model / "model.safetensors")
    assert tool("refit", (model, source[1]), tmp_path / "alike", "--remove", "1") == 0
    weights["model.norm.weight"] = weights["model.norm.weight"].float() * 1.001
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert tool("refit", (model, source[1]), tmp_path / "mixed", "--remove", "1") == 0
    notes = {name: " ".join(report_of(tmp_path / name)["notes"]) for name in ("alike", "mixed")}
    assert "1 tensor stored in a wider dtype are saved in bfloat16, as most are: model.norm.weight" in notes["mixed"]
    assert "wider" not in notes["alike"]


def test_only_what_a_run_made_itself_is_removed(source, tmp_path):
    (tmp_path / ".out.work").mkdir()
    (tmp_path / ".out.work" / "thesis.tex").write_text("mine")
    assert tool("prunecomp", source, tmp_path / "out", "--remove", "1", "--no-evaluation") == 0
    assert (tmp_path / ".out.work" / "thesis.tex").read_text() == "mine"


def test_a_refused_training_leaves_nothing(source, tmp_path, capsys):
    options = ["--remove", "2", "--metric", "reverse-order", "--data", "standin", "--no-evaluation"]
    options += ["--finetune", "partial", "--train-at", "cut", "--last", "1"]
    assert tool("reassessing", source, tmp_path / "out", *options) == 2
    assert "cannot fine-tune 1 layers from 4 on" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_test_text_is_the_calibration_text_however_it_is_spelt(source, tmp_path):
    model, text = source
    odd = text.parent / ".." / text.parent.name / text.name
    texts = []
    for name, place in ((text, "plain"), (odd, "odd")):
        assert tool("prunecomp", source, tmp_path / place, "--remove", "1", "--test", str(name)) == 0
        texts.append(report_of(tmp_path / place)["evaluation"]["before"]["perplexity"])
    assert texts[0] == texts[1]
