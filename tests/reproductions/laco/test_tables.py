"""LaCo's tables: rows and settings against the printed ones, claims, and the paper profile rehearsed without a hub."""

import json

import pytest
import torch
from stored_records import put

from common.calibration import corpora
from common.pruning.pipeline import Context
from common.records.results import Recipe, Store
from figures import laco as drawing
from papers import laco
from papers.laco.sentences import draw
from reproductions import measurements  # noqa: F401 - steps: those recipes name
from reproductions.laco.claims import BASELINES, above
from reproductions.laco.recipes import CODE
from reproductions.render import show  # noqa: F401 - steps: those recipes name
from reproductions.spec import registry, reported, steps, subjects  # noqa: F401 - steps: those recipes name
from reproductions.spec.subjects import PAPER, TOY

FIGURES = ("laco-distances", "laco-outputs", "laco-uncorrelated")


def test_recipes_carry_the_printed_hyperparameters():
    """Tables 5 and 6 -> the recipes of the rows they belong to, in every table."""
    settings = {}
    for name, value in (("6", None), ("5", "")):
        for (model, sparsity, _, column), number in reported.cells("laco", name).items():
            settings.setdefault((model, sparsity if value is None else value), {})[column] = number.value
    checked = 0
    for number in ("1", "2", "4", "5", "6", "7", "10"):
        for row in registry.get(f"table{number}-laco").rows(PAPER, None):
            if row.recipe is None or row.recipe.selection is None or row.method in BASELINES:
                continue
            main_row = number in "1257" or (row.label, row.sparsity) not in settings
            printed = settings[row.label, "" if main_row else row.sparsity]
            chosen = row.recipe.selection
            assert {name: chosen[name] for name in "CLHIT"} == {name: printed[name] for name in "CLHIT"}
            assert chosen["merge"] == row.recipe.fidelity == ("code" if row.method.endswith(CODE) else "paper")
            checked += 1
    assert checked == 2 * (3 + 3 + 6 + 3 + 6 + 3 + 6)


SENTENCE = "The stream of layer {} is scaled and the layers of a model are removed."


def test_post_training_is_shared_and_pruning_again_counts_original_layers(
    make_tiny, tiny_tokenizer, monkeypatch, tmp_path
):
    monkeypatch.setattr(corpora, "texts", lambda name: [SENTENCE.format(i) for i in range(60)])
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path))
    selection = {"method": "laco", "C": 2, "L": 1, "H": 6, "I": 1, "merge": "code", "layers": 5}
    data = {"corpus": "a", "validation": "b", "tokens": 640, "length": 16, "seed": 0}
    training = {"method": "laco-posttrain", "data": data}
    training["settings"] = {"batch": 4, "micro_batch": 4, "learning_rate": 1e-3, "evaluate_every": 5, "save_every": 5}
    calibration = {"corpus": "a", "sentences": 4, "seed": 0}
    collapsed = []
    for again in (None, {"C": 2, "I": 1, "merge": "code", "layers": 3}):
        repeated = training | ({"reprune": again} if again else {})
        recipe = Recipe("tiny", "standin", "w", selection, None, repeated, calibration)
        prepared = Context(make_tiny(), tiny_tokenizer, recipe, 1)
        prepared.details["layers"] = 6
        recipe.step("selection").apply(prepared)
        before = [p.clone() for p in prepared.model.parameters()]
        recipe.step("training").apply(prepared)
        collapsed.append((prepared, before))
    (trained, before), (pruned, _) = collapsed
    assert trained.model.config.num_hidden_layers == 5 and pruned.model.config.num_hidden_layers == 3
    assert any(not torch.equal(a, b) for a, b in zip(before, trained.model.parameters()))
    values, _, _ = measurements.measure(trained, "laco-training")
    assert values["steps"] == 10 and values["last"] < values["first"]
    # One training for both: the folder of the second holds nothing of its own.
    assert len(list(tmp_path.glob("tiny/*/report.json"))) == 1
    # Collapsing the trained model directly gives the same; positions in it map back to original layers.
    sentences = draw(corpora.texts("a"), 4, 0)
    removed = laco.collapse_to(trained.model, tiny_tokenizer, sentences, 3, C=2, I=1, merge="code").removed
    left = [layer for layer in range(6) if layer not in trained.details["removed"]]
    assert pruned.details["removed"] == trained.details["removed"] + [left[position] for position in removed]
    assert all(torch.equal(a, b) for a, b in zip(trained.model.parameters(), pruned.model.parameters()))
    values, _, _ = measurements.measure(pruned, "laco-search")
    assert (values["H"], values["layers"], values["merges"]) == (5, 3, 2)


def lines_of(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


def test_figures_show_what_the_benchmarks_record(make_tiny, tiny_tokenizer, monkeypatch):
    monkeypatch.setattr(corpora, "texts", lambda name: [SENTENCE.format(i) for i in range(30)])
    selection = {"method": "laco", "C": 2, "L": 1, "H": 6, "I": 1, "merge": "code", "T": 0.5}
    recipe = Recipe("tiny", "standin", "w", selection, calibration={"corpus": "a", "sentences": 4, "seed": 0})
    prepared = Context(make_tiny(), tiny_tokenizer, recipe, 1)
    results = {name: measurements.measure(prepared, name) for name in FIGURES}
    recipe.step("selection").apply(prepared)
    results["laco-search"] = measurements.measure(prepared, "laco-search")
    records = {
        name: json.loads(json.dumps({"values": values, "details": prepared.details | details}))
        for name, (values, _, details) in results.items()
    }
    for record in records.values():
        record["recipe"] = {"selection": {"merge": "paper"}}
    entry = {"model": "toy model", "sparsity": "1/6", "method": "LaCo", "dense": False, "records": records}
    distances = records["laco-distances"]["details"]["distances"]
    assert records["laco-distances"]["values"]["largest"] == max(max(d["distance"]) for d in distances.values())
    shown = lines_of(drawing.figure4([entry], "standin").axes[0])
    for name in ("q_proj", "k_proj", "v_proj", "up_proj", "down_proj"):
        assert shown[name] == distances[name]["distance"]
    details = records["laco-outputs"]["details"]
    apart = records["laco-uncorrelated"]["details"]
    left, right = map(lines_of, drawing.figure5([entry], "standin").axes)
    expected = {"measured": details["adjacent"], drawing.ORTHOGONAL: apart["adjacent"]}
    assert left == {drawing.ADJACENT[name][0]: values for name, values in expected.items()}
    assert right.pop("Eq. 1 if uncorrelated") == apart["windows"]
    assert right == {drawing.BLOCKS[name][0]: values for name, values in details["windows"].items()}
    assert records["laco-outputs"]["values"]["norm_uncorrelated"] == pytest.approx(7**0.5)  # m = 3
    trace = records["laco-search"]["details"]["laco"][0]["trace"]
    assert records["laco-search"]["values"]["attempts"] == len(trace)
    trace = [attempt for attempt in trace if attempt["similarity"]]
    accepted, rejected, threshold = drawing.search([entry], "standin").axes[0].lines
    assert list(accepted.get_xdata()) == [attempt["l"] for attempt in trace if attempt["accepted"]]
    assert list(rejected.get_ydata()) == [attempt["similarity"] for attempt in trace if not attempt["accepted"]]
    assert set(threshold.get_ydata()) == {0.5}
    report = {"losses": [3.0, 2.0, 1.5], "validation": [[2, 1.8], [3, 1.7]]}
    entry["records"]["laco-training"] = {"values": {}, "details": {"training": report}}
    curve, dots = drawing.figure3([entry], "standin").axes[0].lines[:2]  # then what breaks the axis
    assert list(curve.get_ydata()) == report["losses"] and list(dots.get_xdata()) == [2, 3]
    drawing.plt.close("all")


def test_a_rival_with_as_many_layers_gone_is_the_one_compared_with():
    """Of a rival that has none so (a baseline of the paper's), all rows."""
    rival, other = BASELINES
    numbers = {("2/16", "A"): 30, ("4/16", "A"): 20, ("2/16", rival): 35, ("4/16", rival): 10, ("3/16", other): 5}
    settings = [("m", f"{n}/16") for n in (2, 3, 4)]

    def cell(model, sparsity, method, column):
        return numbers.get((sparsity, method))

    differences = {c.cells[0][1]: c.difference for c in above("A", (rival,), "Avg.")(cell, settings)}
    assert differences == {"2/16": -5, "4/16": 10}
    both = above("A", (rival, other), "Avg.")(cell, settings)
    assert [len(c.parts) for c in both] == [2, 2] and {c.parts[1].difference for c in both} == {25, 15}
    assert [len(c.parts) for c in above("A", (other, "no baseline"), "Avg.")(cell, settings)] == [0, 0]


def test_a_training_whose_losses_are_in_no_record_is_not_called_one_that_was_not_run(tmp_path):
    table, store = registry.get("figure3-laco"), Store(tmp_path, None)
    done, other = table.rows(TOY)
    assert done.recipe != other.recipe
    put(store, done.recipe, "docstring_section@1", {"acc": 0.5}, details={"removed": [1, 2]})
    cells = [line["cells"]["last loss (mean of ten)"] for line in show.build(table, store, TOY)["rows"]]
    assert [cell["status"] for cell in cells[:2]] == ["no record: trained; its loss was not recorded", "not run"]
