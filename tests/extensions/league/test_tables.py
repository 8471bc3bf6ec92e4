"""The league: which rows there are, and what a row says of its cost and of what loads it."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.models.layers.sublayers import present
from common.models.surgery import remove_layers
from common.pruning.calibration_text import SAMPLERS
from common.pruning.pipeline import Context, context_of, run_recipe
from common.pruning.recipe import Recipe
from extensions.documents import standings
from extensions.league import rows
from reproductions import measurements  # noqa: F401 - steps: those that recipes name
from reproductions.measurements import repair as cost
from reproductions.spec import comparisons, registry, steps, subjects  # noqa: F401 - steps: those that recipes name
from reproductions.spec.subjects import TOY

TABLE = registry.get("league")


@pytest.mark.parametrize(
    ("method", "loader", "repaired"),
    [
        (rows.name(rows.BLOCK, rows.NONE), "Transformers, vLLM, llama.cpp", False),
        (rows.name(rows.LORP, rows.GHOSTED), "this project", True),
        (rows.name(rows.UIDL, rows.BIAS), "Transformers, vLLM, llama.cpp", True),
        (rows.name(rows.LEAST_LOSS_BLOCK, rows.GHOSTED), "this project", True),
        (rows.name(rows.LEAST_RESIDUAL, rows.REFIT_FIXED_RIDGE), "Transformers, vLLM, llama.cpp", True),
        (rows.LeagueSpec("", rows.ONE_BY_ONE).method, "Transformers, vLLM, llama.cpp", True),
        (rows.name(rows.DROP, rows.SUBLAYERS), "this project", False),
        (rows.name(rows.SLICES, rows.SLICEGPT), "this project", False),
        (rows.name(rows.MAPS, rows.NBL), "this project", False),
    ],
)
def test_a_row_says_what_it_cost_and_what_loads_it(method, loader, repaired, make_tiny):
    """On a tiny model and random tokens, by the row's own steps."""
    ids = torch.randint(3, 320, (8, 24), generator=torch.Generator().manual_seed(7))
    row = next(row for row in TABLE.rows(TOY) if row.method == method and row.sparsity == "2/16")
    context = context_of(make_tiny("llama"), sequences=ids, selection=row.recipe.selection, repair=row.recipe.repair)
    run_recipe(context)
    parts_of_all = row.spec.repair in (rows.SLICEGPT, rows.NBL)
    assert len(context.model.model.layers) == (6 if parts_of_all else 4) or row.spec.repair == rows.SUBLAYERS
    assert parts_of_all or len(present(context.model)) == 8
    columns = {column.id: column for column in TABLE.columns_for(subjects.TOY)}
    values = {}
    for label in ("calibration-tokens", "seconds", "loaded-by"):
        column = columns[label]
        measured, errors, details = measurements.measure(context, column.benchmark)
        values[label] = details[column.key] if column.text else measured[column.key]
        assert not errors
    assert values["loaded-by"] == loader
    assert values["calibration-tokens"] == (ids.numel() if repaired else 0)
    assert values["seconds"] >= 0


def test_latency_is_a_share_of_the_model_as_it_came(make_tiny, monkeypatch):
    """Layers are counted as they run, in both models: in turns, and the first pass of each does not count."""
    dense, pruned = make_tiny("llama"), make_tiny("llama")
    remove_layers(pruned, [1, 2])
    monkeypatch.setattr(cost.loading, "load", lambda name, device, dtype: (dense, None))
    ran = []
    for name, model in (("pruned", pruned), ("dense", dense)):
        for layer in model.model.layers:
            layer.register_forward_hook(lambda *_, name=name: ran.append(name))
    values, _, details = measurements.measure(context_of(pruned), "latency")
    share = np.median(details["seconds"]) / np.median(details["dense_seconds"])
    assert values == {"of_dense": pytest.approx(share)} and len(details["seconds"]) == cost.PASSES
    sequences, depths = cost.WINDOWS[0], {"pruned": len(pruned.model.layers), "dense": len(dense.model.layers)}
    assert depths["dense"] == depths["pruned"] + 2
    one_turn = [name for name in ("pruned", "dense") for _ in range(sequences * depths[name])]
    assert ran == one_turn * (1 + cost.PASSES)


def test_a_block_reads_its_own_text_where_it_has_one_and_the_repair_the_recipes(make_tiny, tiny_tokenizer, monkeypatch):
    read = []
    ids = torch.randint(3, 320, (8, 24), generator=torch.Generator().manual_seed(0))
    monkeypatch.setitem(SAMPLERS, "of-a-name", lambda context, entry: read.append(entry.corpus) or ids)
    for own, first in ((None, "a"), ("b", "b")):
        chosen = {"method": "window", "count": 2}
        chosen |= {"calibration": {"corpus": own, "sampler": "of-a-name"}} if own else {}
        fields = {"selection": chosen, "repair": rows.REPAIRS[rows.GHOSTED]}
        recipe = Recipe("at hand", "at hand", calibration={"corpus": "a", "sampler": "of-a-name"}, **fields)
        run_recipe(Context(make_tiny("llama"), tiny_tokenizer, recipe, 0, keep=False))
        assert read[0] == first and set(read[1:]) == {"a"}
        read.clear()


def _entry(sparsity, spec, sequences):
    """A row as standings read it; windows: the mean loss of each, of two texts."""

    def resampled(model, count, name, column):
        drawn = np.random.default_rng(0).integers(0, len(sequences[0]), (1000, len(sequences[0])))
        return np.mean([np.exp(np.asarray(text)[drawn].mean(1)) for text in sequences], 0)

    resampled.paired = lambda keys: True
    resampled.sources = lambda key: [(SimpleNamespace(recipe=text), text) for text in range(len(sequences))]
    resampled.outcomes = lambda recipe, text: sequences[text]
    scores = {label: float(np.exp(np.mean(text))) for label, text in zip("AB", sequences, strict=True)}
    method = spec.method if spec else "Dense"
    line = {"sparsity": sparsity, "method": method, "spec": spec, "dense": spec is None, "records": {}}
    scores["PPL AVG"] = (scores["A"] + scores["B"]) / 2
    return line | {"scores": scores, "over": {"AVG": 8}, "replicates": partial(resampled, "m", sparsity, method)}


def test_of_choices_of_the_same_layers_the_one_stands_for_a_repair_of_which_more_was_measured():
    """Two machines' perplexities of one model differ by rounding, which chooses nothing."""
    base = np.random.default_rng(1).normal(3, 0.5, (2, 40))

    def after(selection, shift, layers, **more):
        entry = _entry("2/9", rows.LeagueSpec(selection, rows.GHOSTED), base + shift)
        entry["scores"] |= more
        return entry | {"records": {"perplexity": {"details": {"removed": layers}}}}

    other = after(rows.LOWEST_BI, 0.1, [2, 7])
    halves = [after(name, shift, []) for name, shift in ((rows.DROP, 0.2), (rows.FINERCUT, 0.0))]
    for entry, removed in zip(halves, (["attention 3"], ["attention 4"]), strict=True):
        entry["records"]["perplexity"]["details"]["halves"] = removed
    for entries, stands in (
        ([after(rows.BLOCK, 0.0, [3, 4], AVG=40.0), after(rows.UIDL, -1e-4, [4, 3])], rows.BLOCK),
        ([after(rows.UIDL, -1e-4, [4, 3]), after(rows.BLOCK, 0.0, [3, 4], AVG=40.0)], rows.BLOCK),
        ([after(rows.BLOCK, 0.0, [3, 4], AVG=40.0), other, after(rows.UIDL, -1e-4, [3, 5])], rows.UIDL),
        (halves, rows.FINERCUT),
    ):
        (repairs,) = standings.best(entries).values()
        assert repairs[rows.GHOSTED]["spec"].selection == stands


def test_a_choice_is_the_same_where_both_halves_of_the_sequences_select_the_same_layers():
    base = np.random.default_rng(1).normal(3, 0.5, (2, 40))
    every_second = np.arange(40) % 2 * 0.4

    def after(selection, sequences, layers, repair=rows.GHOSTED):
        entry = _entry("2/9", rows.LeagueSpec(selection, repair), sequences)
        return entry | {"records": {"perplexity": {"details": {"removed": layers}}}}

    block = after(rows.BLOCK, base + 0.2, [3, 4])
    for others, counted in (
        ([after(rows.UIDL, base, [2, 7])], (1, 1)),
        ([after(rows.UIDL, base + every_second, [2, 7])], (1, 0)),  # better on the first half, worse on the second
        ([after(rows.UIDL, base + every_second, [4, 3])], (0, 0)),  # the same layers: nothing is selected
        ([after(rows.UIDL, base, [2, 7], rows.REPLACEME)], (0, 0)),
        ([after(rows.UIDL, base, [2, 7]), after(rows.LORP, base + every_second - 0.1, [1, 2])], (1, 0)),
    ):
        assert standings.choices([_entry("0/9", None, base), block, *others]) == counted


def test_standings_compare_each_repair_after_its_best_selection_with_the_best_baseline():
    rng = np.random.default_rng(1)
    base = rng.normal(3, 0.5, (2, 40))
    entries = [
        _entry("0/9", None, base),
        _entry("2/9", rows.LeagueSpec(rows.LOWEST_BI, rows.GHOSTED), base + 0.2),
        _entry("2/9", rows.LeagueSpec(rows.BLOCK, rows.GHOSTED), base + 0.1),
        _entry("2/9", rows.LeagueSpec(rows.BLOCK, rows.REPLACEME), base + 0.3),
        _entry("2/9", rows.LeagueSpec(rows.UIDL, rows.REFIT), base + 0.05),
        _entry("2/9", rows.LeagueSpec(rows.UIDL, rows.ATTENTION), base + 0.04),
        _entry("2/9", rows.LeagueSpec("", rows.ONE_BY_ONE), base + 0.6),
        _entry("2/9", rows.LeagueSpec(rows.BLOCK, rows.NONE), base + 0.7),
    ]
    text = standings.table(entries, "AB")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    assert [(line[1], line[2]) for line in lines] == [
        ("dense", ""),
        ("**refit**", "UIDL"),
        (rows.LABELS[rows.GHOSTED], "contiguous block"),
        (rows.LABELS[rows.REPLACEME], "contiguous block"),
        (rows.LABELS[rows.NONE], "contiguous block"),
    ]
    # one shift of every window's loss is one factor of every replicate: the interval is the factor
    for line, shift in zip(lines[1:], (-0.05, 0.0, 0.2, 0.6), strict=True):
        share = f"{np.exp(shift):.3f}"
        assert line[5] == (share if shift == 0 else f"{share} [{share}, {share}]")
    more = [_entry(f"{count}/9", rows.LeagueSpec(rows.BLOCK, rows.NONE), base + count) for count in (1, 3, 4)]
    longer = standings.table(entries + more, "AB")
    assert [count for count in range(9) if f"| {count}/9 |" in longer] == [0, 3, 4]
    assert lines[0][3:5] == [f"{np.exp(text.mean()):.1f}" for text in base]


def _answered(repair, replicates, at_chance_level=()):
    """A row as `standings.answers` reads it; replicates: of each task, and AVG is their mean."""

    def resampled(method, column):
        return np.mean(list(replicates.values()), 0) if column == "AVG" else replicates[column]

    resampled.sources = lambda key: [(None, SimpleNamespace(id=task)) for task in replicates]
    resampled.at_chance_level = frozenset(at_chance_level)
    return {"method": repair, "scores": {"AVG": 50.0}, "replicates": partial(resampled, repair)}


@pytest.mark.parametrize(
    ("mean", "error", "verdict"),
    [(1.5, 0.5, "higher"), (-1.5, 0.5, "lower"), (0.2, 0.4, "equivalent"), (0.2, 0.9, "no significant difference")],
)
def test_an_accuracy_is_compared_with_no_repair_of_the_same_layers(mean, error, verdict):
    drawn = np.random.default_rng(0).standard_normal(20000)
    entry, alone = (
        _answered(repair, {"task": 50 + by})
        for repair, by in ((rows.GHOSTED, mean + error * drawn + drawn), (rows.NONE, drawn))
    )
    assert standings.answers(entry, alone) == verdict
    assert standings.answers(alone, alone) == standings.answers(entry, None) == ""
    assert standings.answers(entry | {"scores": {}}, alone) == ""


@pytest.mark.parametrize(
    ("known", "unknown", "verdict"),
    [(-3, -3, "lower"), (0, -9, "lower*"), (3, -13, "lower*"), (0, 9, "higher*"), (4, 9, "higher")],
)
def test_a_difference_by_tasks_at_chance_level_alone_is_marked(known, unknown, verdict):
    """Both tasks' differences are normal with error 1: their mean's is .71, and 1.96 errors of either are known."""
    drawn = np.random.default_rng(0).standard_normal((2, 20000))
    alone = _answered(rows.NONE, {"ARC-e": np.full(20000, 50.0), "BoolQ": np.full(20000, 50.0)})
    ours = {"ARC-e": 50 + known + drawn[0], "BoolQ": 50 + unknown + drawn[1]}
    assert standings.answers(_answered(rows.GHOSTED, ours, ["BoolQ"]), alone) == verdict
    assert standings.answers(_answered(rows.GHOSTED, ours), alone) == verdict.rstrip("*")
    assert standings.answers(_answered(rows.GHOSTED, ours, ["BoolQ", "ARC-e"]), alone) == verdict.rstrip("*") + "*"


def test_one_of_several_is_chosen_by_another_column_than_the_one_it_is_judged_by():
    numbers = {("[S]", "PPL"): 10, ("[S]", "RP"): 50, ("[L]", "PPL"): 9, ("[L]", "RP"): 40, ("rival", "RP"): 45}
    check = comparisons.lowest_beats(["[S]", "[L]"], ["rival", "absent"], "RP", by="PPL")

    def compared():
        return check(lambda model, sparsity, method, column: numbers.get((method, column)), [("m", "7/30")])

    (comparison,) = compared()
    assert comparison.difference == -5 and not comparison.holds and comparison.cells[0] == ("m", "7/30", "[L]", "RP")
    del numbers["[L]", "RP"]  # the best one has no number to judge: nothing is said of a worse one
    assert compared() == []
    del numbers["[L]", "PPL"]
    (comparison,) = compared()
    assert comparison.difference == 5 and comparison.holds
    del numbers["[S]", "RP"]
    assert compared() == []
