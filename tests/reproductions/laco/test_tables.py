"""LaCo's tables: rows and settings against the printed ones, claims, and the paper profile rehearsed without a hub."""

import json

import datasets
import pytest
import torch
from hub_mirror import saved_llama

from common.calibration import corpora
from common.models import loading
from common.pruning.pipeline import Context
from common.records.results import Recipe, Record, Store
from figures import laco as drawing
from papers import laco
from papers.laco.sentences import draw
from reproductions import measurements  # noqa: F401 - steps: those recipes name
from reproductions.__main__ import main
from reproductions.laco.claims import BASELINES, above
from reproductions.laco.recipes import CODE
from reproductions.render import show  # noqa: F401 - steps: those recipes name
from reproductions.spec import registry, reported, steps, subjects  # noqa: F401 - steps: those recipes name
from reproductions.spec.statuses import NOT_RUN, REFUSED

FIGURES = ("laco-distances", "laco-outputs", "laco-uncorrelated")
TABLES = ("1", "2", "3", "4", "5", "6", "7", "9", "10")


@pytest.mark.parametrize("number", [*TABLES, "8"])
@pytest.mark.parametrize("profile", subjects.PROFILES)
def test_what_is_ours_says_so_and_every_other_row_says_why_it_is_not_there(number, profile):
    known = {name for other in TABLES for *_, name, _ in reported.cells("laco", other)}
    for row in registry.get(f"table{number}-laco").rows(profile, None):
        if row.method not in known:
            assert row.extension and "(extension)" in row.name
        if row.recipe is None:
            assert row.status != NOT_RUN
            assert row.method == "Dense" or row.model == "baichuan2-13b" and row.status == REFUSED


def test_recipes_carry_the_printed_hyperparameters():
    """Tables 5 and 6 -> the recipes of the rows they belong to, in every table."""
    layers, settings = {}, {}
    for key, number in reported.cells("laco", "4").items():
        if key[3] == "layers":
            layers[key[:2]] = int(number.value)
    for name, value in (("6", None), ("5", "")):
        for (model, sparsity, _, column), number in reported.cells("laco", name).items():
            settings.setdefault((model, sparsity if value is None else value), {})[column] = number.value
    checked = 0
    for number in ("1", "2", "4", "5", "6", "7", "10"):
        for row in registry.get(f"table{number}-laco").rows("paper", None):
            if row.recipe is None or row.recipe.selection is None or row.method in BASELINES:
                continue
            main_row = number in "1257" or (row.label, row.sparsity) not in settings
            printed = settings[row.label, "" if main_row else row.sparsity]
            chosen = row.recipe.selection
            assert {name: chosen[name] for name in "CLHIT"} == {name: printed[name] for name in "CLHIT"}
            assert chosen["merge"] == row.recipe.fidelity == ("code" if row.method.endswith(CODE) else "paper")
            checked += 1
    assert checked == 2 * (3 + 3 + 6 + 3 + 6 + 3 + 6)


def claims_of(target, capsys):
    assert main(["show", target, "--profile", "paper", "--format", "json"]) == 0
    return {
        claim["id"].rpartition("/")[2]: claim["reported"] for claim in json.loads(capsys.readouterr().out)["claims"]
    }


def test_the_papers_claims_on_its_own_numbers(capsys):
    assert claims_of("table1-laco", capsys)["best-on-most-benchmarks"] is True
    claims = claims_of("table2-laco", capsys)
    assert claims["beats-both-baselines"] is True and claims["over-80-percent-kept"] is True
    # Table 2, LLaMA-2-7B: SliceGPT's Exam. is 27.15, LaCo's 25.85.
    assert claims["ahead-in-four-categories"] is True  # in 14 of 16
    claims = claims_of("table3-laco", capsys)
    assert claims["post-training-helps"] is True  # 37.46 -> 40.33
    assert claims["pruned-again-keeps-70-percent"] is True  # 32.40 / 46.55 = 69.6 %
    claims = claims_of("table4-laco", capsys)
    # but for one step: 36.13 with 28 layers, 37.46 with 23 (a slip, see the audit)
    assert claims["falls-with-size"] is True
    assert claims["half-keeps-70-percent"] is False  # LLaMA-2-7B: 30.00 / 46.55 = 64.4 % (LC-3)
    claims = claims_of("table7-laco", capsys)
    assert claims["above-70-percent"] is True
    # Table 7: no percentage of LaCo is below 30; 42.42 is its least.
    assert claims["none-below-30-percent"] is True
    shares = {key: n.value for key, n in reported.cells("laco", "7").items() if key[2] == "LaCo"}
    assert min(value for key, value in shares.items() if key[3] not in ("layers", "ratio %")) == 42.42


SENTENCE = "The stream of layer {} is scaled and the layers of a model are removed."


@pytest.fixture
def rehearsal(mirror, tmp_path, monkeypatch, tiny_tokenizer):
    """A 32-layer checkpoint and a shard of Wikipedia in the mirror; records in a folder of their own."""
    folder = saved_llama(tmp_path / "hub" / "models" / "meta-llama" / "Llama-2-7b-hf", tiny_tokenizer, heads=2)
    shard = tmp_path / "hub" / "datasets" / "wikimedia" / "wikipedia" / corpora.get("wikipedia-en").data_file
    shard.parent.mkdir(parents=True)
    datasets.Dataset.from_dict({"text": [SENTENCE.format(i) for i in range(30)]}).to_parquet(shard)
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "results"))
    return folder


def test_the_paper_profile_collapses_offline_on_a_mirror(rehearsal, capsys):
    command = ["table5-laco", "--profile", "paper", "--model", "llama-2-7b", "--dtype", "float32"]
    assert main(["run", *command, "--device", "cpu", "--no-show"]) == 0
    capsys.readouterr()
    assert main(["show", *command, "--format", "json"]) == 0
    rows = {row["method"]: row["cells"] for row in json.loads(capsys.readouterr().out)["rows"]}
    model, tokenizer = loading.load("llama-2-7b")
    sentences = draw([SENTENCE.format(i) for i in range(30)], 10, 0)
    for method, merge in (("LaCo", "paper"), ("LaCo, code's merge (extension)", "code")):
        model, tokenizer = loading.load("llama-2-7b")
        report = laco.collapse(model, tokenizer, sentences, C=4, T=0.65, merge=merge)
        cells = rows[method]
        assert (cells["layers"]["reproduced"], cells["attempts (extension)"]["reproduced"]) == (
            report.layers,
            len(report.trace),
        )
        assert [cells[name]["reproduced"] for name in "CLHIT"] == [4, 1, 32, 2, 0.65]
    assert rows["LaCo"]["C"]["status"] == "match" and rows["LaCo"]["T"]["reported"] == 0.65


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
        recipe = Recipe(
            "tiny", "standin", "w", selection, None, training | ({"reprune": again} if again else {}), calibration
        )
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
    removed = laco.collapse_to(
        trained.model, tiny_tokenizer, draw(corpora.texts("a"), 4, 0), 3, C=2, I=1, merge="code"
    ).removed
    left = [layer for layer in range(6) if layer not in trained.details["removed"]]
    assert pruned.details["removed"] == trained.details["removed"] + [left[position] for position in removed]
    assert all(torch.equal(a, b) for a, b in zip(trained.model.parameters(), pruned.model.parameters()))
    values, _, _ = measurements.measure(pruned, "laco-search")
    assert (values["H"], values["layers"], values["merges"]) == (5, 3, 2)


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
    axes = drawing.figure4([entry], "standin").axes[0]
    shown = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    for name in ("q_proj", "k_proj", "v_proj", "up_proj", "down_proj"):
        assert shown[name] == distances[name]["distance"]
    details = records["laco-outputs"]["details"]
    apart = records["laco-uncorrelated"]["details"]
    left, right = ({line.get_label(): list(line.get_ydata()) for line in axes.lines}
                   for axes in drawing.figure5([entry], "standin").axes)  # fmt: skip
    expected = {"measured": details["adjacent"], drawing.ORTHOGONAL: apart["adjacent"]}
    assert left == {drawing.ADJACENT[name][0]: values for name, values in expected.items()}
    assert right.pop("Eq. 1 if uncorrelated") == apart["windows"]
    assert right == {drawing.WINDOWS[name][0]: values for name, values in details["windows"].items()}
    assert records["laco-outputs"]["values"]["norm_uncorrelated"] == pytest.approx(7**0.5)  # m = 3
    trace = [attempt for attempt in records["laco-search"]["details"]["laco"][0]["trace"] if attempt["similarity"]]
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
    numbers = {
        ("m", "2/16", "A"): 30,
        ("m", "4/16", "A"): 20,
        ("m", "2/16", rival): 35,
        ("m", "4/16", rival): 10,
        ("m", "3/16", other): 5,
    }
    settings = [("m", f"{n}/16") for n in (2, 3, 4)]

    def cell(model, sparsity, method, column):
        return numbers.get((model, sparsity, method))

    differences = {c.cells[0][1]: c.difference for c in above("A", (rival,), "Avg.")(cell, settings)}
    assert differences == {"2/16": -5, "4/16": 10}
    both = above("A", (rival, other), "Avg.")(cell, settings)
    assert [len(c.parts) for c in both] == [2, 2] and {c.parts[1].difference for c in both} == {25, 15}
    assert [len(c.parts) for c in above("A", (other, "no baseline"), "Avg.")(cell, settings)] == [0, 0]


def test_a_training_whose_losses_are_in_no_record_is_not_called_one_that_was_not_run(tmp_path):
    table, store = registry.get("figure3-laco"), Store(tmp_path, None)
    done, other = table.rows("standin")
    assert done.recipe != other.recipe
    scored = {"status": "ok", "values": {"acc": 0.5}, "details": {"removed": [1, 2]}}
    store.put(Record(done.recipe.__dict__, done.recipe.hash, "docstring_section@1", **scored), done.recipe)
    cells = [line["cells"]["last loss (mean of ten)"] for line in show.build(table, store, "standin")["rows"]]
    assert [cell["status"] for cell in cells[:2]] == ["no record: trained; its loss was not recorded", "not run"]
