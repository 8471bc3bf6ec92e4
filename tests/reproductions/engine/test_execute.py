"""Recipes are applied step by step, each found by its name, on a small model."""

import copy
import dataclasses
import json
from functools import partialmethod

import pytest
import torch
from tools import measure_missing

from common.calibration import corpora
from common.models import loading
from common.models.surgery import remove_layers
from common.pruning import pipeline, steps
from common.pruning.pipeline import Context
from common.pruning.recipe import _STEPS, Recipe, Repair, Selection, Training, register, registered_steps
from common.pruning.steps import Given
from common.records.results import Store
from common.utils.errors import UserError
from reproductions import measurements
from reproductions.engine import execute
from reproductions.render import show
from reproductions.spec import registry, subjects
from reproductions.spec.registry import Column, Row, Table


@pytest.fixture
def small(monkeypatch, tiny_llama, tiny_tokenizer):
    tiny_llama.source = {"name": "small", "revision": None}
    monkeypatch.setattr(loading, "load", lambda *a, **k: (tiny_llama, tiny_tokenizer))
    return tiny_llama


TEXT = {"corpus": "counted", "sampler": "counted", "count": 2, "length": 20, "seed": 0}


def recipe(**fields) -> Recipe:
    return Recipe(model="small", profile="paper", weights="none", **fields)


@pytest.fixture
def registered(monkeypatch):
    """Steps registered in a test are removed after it."""
    monkeypatch.setattr("common.pruning.recipe._STEPS", dict(_STEPS))


def test_a_name_is_registered_once(registered):
    assert {"sleb", "bi", "window", "given", "laco"} <= registered_steps("selection").keys()
    with pytest.raises(ValueError, match="selection 'sleb' is taken by common.pruning.steps.Sleb"):
        register("sleb")(type("Other", (Selection,), {}))
    assert all(callable(entry.measure) for entry in measurements.benchmarks().values())
    with pytest.raises(ValueError, match="benchmark 'removed' is taken by reproductions.measurements.general"):
        measurements.benchmark("removed")(print)


def test_steps_come_in_order_and_their_findings_reach_the_record(small, registered):
    seen = []

    @register("mend")
    @dataclasses.dataclass(frozen=True)
    class Mend(Repair):
        def apply(self, context):
            seen.append(("repair", context.removed, len(context.decoder.layers)))
            remove_layers(context.model, context.removed)

    @register("study")
    @dataclasses.dataclass(frozen=True)
    class Study(Training):
        def apply(self, context):
            seen.append(("train", len(context.decoder.layers)))
            context.details["steps"] = 3

    layers = len(small.model.layers)
    prepared = execute.prepare(recipe(selection=Given((2, 1)), repair=Mend(), training=Study()))
    assert seen == [("repair", [2, 1], layers), ("train", layers - 2)]
    assert prepared.details["removed"] == [2, 1] and prepared.details["steps"] == 3
    assert execute.benchmark(prepared, "removed") == ({"count": 2}, {}, {})


def test_options_are_typed_and_what_is_left_out_or_unknown_is_named():
    selection = {"method": "sleb", "count": 2, "calibration": {"corpus": "a", "length": 8}}
    step = recipe(selection=selection).step("selection")
    assert (step.count, step.calibration.length, step.calibration.seed) == (2, 8, None)
    assert list(step.reads()) == [("corpus", "a")]
    for part, fields, message in (
        (
            "selection",
            {"method": "sleb", "coutn": 2},
            "unknown option of the selection sleb 'coutn'; did you mean 'count'",
        ),
        ("selection", {"method": "sleb", "count": 2}, "the selection sleb lacks 'calibration'"),
        ("calibration", {"corpus": "a", "text": "b"}, "unknown option of the calibration 'text'"),
    ):
        with pytest.raises(UserError, match=message):
            recipe(**{part: fields}).step(part)


def test_sleb_runs_as_many_samples_at_once_as_the_device_likes(small, monkeypatch):
    monkeypatch.setattr(corpora, "texts", lambda _: ["the layers of a model are removed"] * 40)
    monkeypatch.setattr(corpora, "digest", lambda _: "none")
    monkeypatch.setattr(Context, "batch_size", 3)
    sizes = set()
    small.model.layers[0].register_forward_pre_hook(lambda _, inputs: sizes.add(len(inputs[0])))
    lines = {"corpus": "any", "length": 16, "count": 40, "seed": 0}
    execute.prepare(recipe(selection={"method": "sleb", "count": 1, "calibration": lines}))
    assert max(sizes) == 3


def test_layers_that_the_recipes_records_name_are_not_searched_for_again(small, monkeypatch):
    """Every cell of a row describes one model, also where another machine would choose other layers."""
    monkeypatch.setattr(corpora, "digest", lambda _: "none")

    monkeypatch.setattr(loading, "load", lambda *a, **k: (copy.deepcopy(small), None))
    sleb = {"method": "sleb", "count": 2}
    sleb |= {"calibration": {"corpus": "any", "length": 16, "count": 4, "seed": 0}}

    def prepared(selection, **options):
        return execute.prepare(recipe(selection=selection), **options)

    context = prepared(sleb, recorded={"removed": [3, 1]})  # there is no text to search by
    assert context.details == {"removed": [3, 1], "layers": len(small.model.layers), "layer_executions": 0}
    assert len(context.model.model.layers) == len(small.model.layers) - 2
    with pytest.raises(UserError, match="any"):
        prepared(sleb)
    with pytest.raises(UserError, match="calibration"):  # of one pass, which a repair reads too
        prepared({"method": "bi", "count": 2}, recorded={"removed": [3, 1]})


@pytest.mark.parametrize("options", [{"iterative": True}, {"iterative": False}, {"compensate": False}])
def test_a_row_of_prune_and_comp_that_has_records_is_the_same_model_again_without_a_pass(options, small, monkeypatch):
    monkeypatch.setattr(corpora, "digest", lambda _: "none")
    monkeypatch.setattr(loading, "load", lambda *a, **k: (copy.deepcopy(small), None))
    tokens = torch.randint(3, small.config.vocab_size, (4, 16), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(Context, "tokens", lambda context, entry: tokens)
    lines = {"corpus": "any", "sampler": "linearpatch-train", "length": 16, "count": 4, "seed": 0}
    row_recipe = recipe(selection={"method": "prunecomp", "metric": "bi", "count": 2} | options, calibration=lines)
    first = execute.prepare(row_recipe)
    details = json.loads(json.dumps(first.details))
    for name in ("searched", "tokens"):  # neither what is kept on disk nor the text is asked
        monkeypatch.delattr(Context, name)
    again = execute.prepare(row_recipe, recorded=details)
    ours = {name: details[name] for name in ("removed", "factors", "cuts")}
    assert {name: json.loads(json.dumps(again.details[name])) for name in ours} == ours
    for tensor, other in zip(again.model.state_dict().values(), first.model.state_dict().values(), strict=True):
        assert torch.equal(tensor, other)


@pytest.mark.parametrize("step", ["selection", "repair", "training"])
def test_an_unknown_step_is_named(small, step):
    fields = {"selection": {"method": "given", "layers": [1]}} | {step: {"method": "lineapatch", "layers": [1]}}
    with pytest.raises(UserError, match=f"unknown {step} 'lineapatch'"):
        execute.prepare(recipe(**fields))


def test_a_search_is_kept_for_later_runs_and_measuring_anew_makes_it_again(tmp_path, monkeypatch, tiny_llama, caplog):
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path))
    searches = []

    def search(length=2):
        searches.append(length)
        return list(range(length))

    def ask(length=2, facts=None, **options):
        monkeypatch.setattr("common.pruning.pipeline._MADE", set())  # as a later process
        context = Context(tiny_llama, None, recipe(), 0, **options)
        return context.searched("greedy", facts or {"seed": 0}, lambda: search(length), count=length)

    assert ask() == ask() == [0, 1] and searches == [2]
    assert ask(3) == ask(2) == [0, 1, 2] and searches == [2, 3]  # too short: longer, and kept
    assert ask(facts={"seed": 1}) == [0, 1] and len(searches) == 3
    assert ask(force=True) == [0, 1] and len(searches) == 4
    for file in tmp_path.rglob("greedy-*.json"):
        file.write_text("[0,")
    assert ask() == [0, 1] and len(searches) == 5 and "doing its work again" in caplog.text


@pytest.mark.parametrize(
    "selection",
    [
        {"method": "sleb", "calibration": TEXT},
        {"method": "blockpruner"},
        {"method": "finercut"},
        {"method": "prunecomp", "metric": "bi"},
        {"method": "prunecomp", "metric": "ppl", "compensate": False},
    ],
)
def test_a_greedy_search_that_is_killed_continues_with_its_next_step(tmp_path, monkeypatch, make_tiny, selection):
    monkeypatch.setitem(pipeline.SAMPLERS, "counted", lambda *_: torch.arange(3, 43).reshape(2, 20))
    monkeypatch.setattr(steps, "lines", lambda *_: torch.arange(3, 43).reshape(2, 20))
    written, keep = [], Context._write_work

    def killed(self, path, content, after=None):
        keep(self, path, content)
        written.append(path.name)
        if after == len(written):
            raise KeyboardInterrupt

    def chosen(after, folder):
        written.clear()
        monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path / folder))
        monkeypatch.setattr(pipeline, "_MADE", set())
        monkeypatch.setattr(Context, "_write_work", partialmethod(killed, after=after))
        chosen_recipe = Recipe("tiny", "paper", selection=selection | {"count": 3}, calibration=TEXT)
        context = Context(make_tiny(), None, chosen_recipe, 0)
        context.recipe.step("selection").apply(context)
        return context.details, len(written)

    expected, whole = chosen(None, "whole")
    with pytest.raises(KeyboardInterrupt):
        chosen(whole - 2, "killed")  # after its second step: what follows is the third, and all that it has found
    assert chosen(None, "killed") == (expected, 2)


def test_a_recipe_has_a_folder_of_its_own_which_measuring_anew_empties_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path))
    monkeypatch.setattr("common.pruning.pipeline._MADE", set())
    folder, other = (Context(None, None, own, 0).folder for own in (recipe(), recipe(fidelity="code")))
    assert folder == Context(None, None, recipe(), 0).folder != other
    assert all(path.is_dir() and path.is_relative_to(tmp_path) for path in (folder, other))
    (folder / "earlier").touch()
    monkeypatch.setattr("common.pruning.pipeline._MADE", set())
    again = Context(None, None, recipe(), 0, force=True)
    assert not list(again.folder.iterdir())
    (again.folder / "new").touch()
    assert (again.folder / "new").exists()  # what this very run made stays


def test_text_cells_and_pictures_come_from_records(small, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    from figures import style

    drawn = []

    def draw(entries, profile):
        drawn.append((entries, profile))
        return plt.figure()

    monkeypatch.setattr(style, "draw_for_test", draw, raising=False)
    columns = [Column("layers", "removed", "removed", text=True), Column("n", "removed", "count")]

    def rows(subject, limit):
        given = recipe(selection={"method": "given", "layers": [2, 1]}, limit=limit)
        return [Row("small", "small", "2/4", "given", given)]

    drawing = {"draw": "figures.style:draw_for_test"}
    table = Table("figure9-test", "linearpatch", "figure 9", "", rows, lambda profile: columns, **drawing)
    store, subject = Store(tmp_path, None), dataclasses.replace(subjects.PAPER, dtype="float32")
    assert show.drawn(table, store, subject) == []
    assert measure_missing([table], store, subject, execute) == 0
    row = show.build(table, store, subject)["rows"][0]
    assert row["cells"]["layers"] | {"text": "2 1", "status": "measured"} == row["cells"]["layers"]
    assert row["cells"]["n"]["reproduced"] == 2 and row["status"] == "measured"
    monkeypatch.setattr(style, "DRAWN", tmp_path)
    paths = show.drawn(table, store, subject)
    assert [path.name for path in paths] == ["figure9-test-paper.svg"]
    assert measure_missing([table], store, subject, execute, limit=2) == 0
    quick = show.drawn(table, store, subject, limit=2, forms=("png", "pdf"))
    assert [path.name for path in quick] == [f"figure9-test-paper-limit2.{form}" for form in ("png", "pdf")]

    def full(*_, **__):
        raise OSError(28, "No space left on device", "figures/x.svg")

    monkeypatch.setattr(style, "save", full)
    with pytest.raises(UserError, match="cannot write the picture to figures/x.svg: No space left on device; free"):
        show.drawn(table, store, subject)
    assert drawn[0][0][0]["records"]["removed"]["details"]["removed"] == [2, 1]
    assert registry.get("table1-linearpatch").draw is None
