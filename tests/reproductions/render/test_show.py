"""The dense gate of `show`, and the table of tables: a row is compared only where the dense model matches."""

import json
import math
from dataclasses import replace

import pytest
from stored_records import put

import reproductions.spec.steps  # noqa: F401 - recipes are spelled as these spell them, from whichever file is read first
from common.records.results import NOWHERE, PUBLISHED, Recipe, Store
from reproductions.linearpatch.trained import FFN_KL
from reproductions.render import show, tables
from reproductions.spec import registry, reported
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import PAPER, PROFILES, PUBLISHED_MODELS, of_model

DENSE = Recipe(model="llama-2-7b", profile="paper", weights="w", dtype="float16")
PRUNED = replace(DENSE, selection={"method": "bi", "count": 7})
OTHER = replace(PRUNED, model="llama-3-8b")
SHAPE = Recipe(model="llama-2-7b", profile="paper", weights="shape only", selection={"method": "any", "count": 7})
ROWS = [
    Row("llama-2-7b", "LLaMA-2-7B", "0/32", "Dense", DENSE, dense=True),
    Row("llama-2-7b", "LLaMA-2-7B", "7/32", "ShortGPT", PRUNED, shapes=SHAPE),
    Row("llama-2-7b", "LLaMA-2-7B", "7/32", "SLEB", None),
    Row("llama-3-8b", "LLaMA-3-8B", "7/32", "ShortGPT", OTHER),
]
COLUMNS = [
    Column("Ratio", "parameters", "ratio", scale=100, compare="exact", weight_free=True),
    Column("PIQA", "piqa", "acc_norm", scale=100),
]


def table_of(rows, columns) -> Table:
    return Table("t", "linearpatch", "1", "title", lambda *_: rows, lambda _: columns)


def shown(tmp_path, dense: float, *, ratio: float = 0.2102, pruned: bool = True) -> dict:
    """LinearPatch's Table 1 in part, with these measurements, and LLaMA-2-7B's rows by method."""
    store = Store(tmp_path, None)
    values = [(DENSE, "piqa", {"acc_norm": dense}), (OTHER, "piqa", {"acc_norm": 0.5})]
    values += [(PRUNED, "piqa", {"acc_norm": 0.704})] if pruned else []
    values += [(SHAPE, "parameters", {"ratio": ratio})]
    for recipe, benchmark, value in values:
        put(store, recipe, benchmark, value, dict.fromkeys(value, 0.01))
    content = show.build(table_of(ROWS, COLUMNS), store, PAPER)
    by_method = {"Dense": ("LLaMA-2-7B", "0/32", "Dense"), "ShortGPT": ("LLaMA-2-7B", "7/32", "ShortGPT")}
    by_key = {(row["model"], row["sparsity"], row["method"]): row for row in content["rows"]}
    return content | {name: by_key[key] for name, key in by_method.items()}


def test_where_the_dense_model_matches_rows_are_compared(tmp_path):
    content = shown(tmp_path, 0.7911)  # as printed
    assert content["Dense"]["cells"]["PIQA"]["status"] == "match"
    assert content["ShortGPT"]["cells"]["PIQA"]["status"] == "match"
    assert not any("gate" in row for row in content["rows"])


def test_where_the_dense_model_differs_every_measured_row_of_it_says_so(tmp_path):
    content = shown(tmp_path, 0.75)  # 4 standard errors away
    assert content["Dense"]["cells"]["PIQA"]["status"] == "differs"
    assert content["ShortGPT"]["gate"] == "not comparable yet: the dense model differs in PIQA"
    # Nothing is claimed of rows without a measurement, of the dense row itself, or of other models.
    assert [row for row in content["rows"] if "gate" in row] == [content["ShortGPT"]]
    for form in ("terminal", "md"):
        text = tables.render(content, form)
        assert "the dense model differs in PIQA" in text and "per word instead of per token" in text


@pytest.mark.parametrize(
    ("dense", "options", "status"), [(0.75, {"pruned": False}, "match"), (0.7911, {"ratio": 0.5}, "differs")]
)
def test_cells_that_need_no_weights_are_never_gated(tmp_path, dense, options, status):
    """A row with only its ratio is comparable whatever the dense model scores, and a wrong ratio gates nothing."""
    content = shown(tmp_path, dense, **options)
    assert content["ShortGPT"]["cells"]["Ratio"]["status"] == status
    assert not any("gate" in row for row in content["rows"])


@pytest.mark.parametrize("kind", ["retained", "retained-average"])
def test_a_dense_score_of_zero_leaves_the_rest_of_the_table_to_be_shown(tmp_path, monkeypatch, kind):
    """As after a quick look at two items of each task."""
    monkeypatch.setitem(globals(), "COLUMNS", [*COLUMNS, Column("RP", derived=kind, of=("PIQA",))])
    cells = shown(tmp_path, 0.0)["ShortGPT"]["cells"]
    assert cells["RP"]["status"] == "the dense model scores 0" and cells["PIQA"]["reproduced"] == pytest.approx(70.4)
    assert shown(tmp_path, 0.8)["ShortGPT"]["cells"]["RP"]["reproduced"] == pytest.approx(88.0)


@pytest.mark.parametrize(("off", "status"), [(0.0199, "match"), (0.0201, "differs")])
def test_two_standard_errors_are_the_limit(tmp_path, off, status):
    assert shown(tmp_path, 0.7911 - off)["Dense"]["cells"]["PIQA"]["status"] == status


def test_a_training_that_diverged_is_shown_as_such(tmp_path):
    """LinearPatch, Table 4: an FFN trained on logits by KL. The record has the scores of its last good state."""
    store = Store(tmp_path, None)
    table = registry.get("table4-linearpatch")
    verdicts = {}
    for status in ("finished", "diverged"):
        training = {"status": status, "reason": "the loss of step 7 is nan"}
        for row in table.rows(PAPER, None):
            details = {"training": training if row.method == FFN_KL else {"status": "finished"}}
            for column in table.columns("paper"):
                if row.recipe and column.benchmark:
                    put(store, row.recipe, column.benchmark, {column.key: 0.5}, details=details)
        shown = show.build(table, store, PAPER)
        cells = {row["method"]: row["cells"] for row in shown["rows"]}[FFN_KL]
        claims = {claim["id"]: claim["reproduced"] for claim in shown["claims"]}
        verdicts[status] = claims["linearpatch/t4/ffn-on-logits-diverges"]
    assert verdicts == {"finished": False, "diverged": True}
    assert cells["WIKI-2"]["reproduced"] is None and cells["QA RP"]["status"] == "diverged: the loss of step 7 is nan"
    assert cells["Ratio"]["reproduced"] == 50  # needs no training


@pytest.mark.parametrize("profile", ["paper", "standin"])
def test_a_value_that_is_not_finite_is_shown_as_diverged(tmp_path, profile):
    """And so are the averages over it; its row's other cells stay."""
    store = Store(tmp_path, None)
    recipe = replace(PRUNED, dtype="float16" if profile == "paper" else "float32")
    texts = {"WIKI-2": math.inf, "C4": math.nan, "PTB": 1e200, "StdLib": 12.5}
    for name, value in texts.items():
        error = {"perplexity": math.inf if name == "PTB" else 0.1}
        put(store, recipe, f"perplexity@{name}", {"perplexity": value}, error)
    columns = [Column(name, f"perplexity@{name}", "perplexity", compare="perplexity") for name in texts]
    columns.append(Column("AVG", derived="average", of=("StdLib", "C4")))
    columns.append(Column("RP", derived="retained", of=("StdLib",)))
    rows = [ROWS[1], replace(ROWS[1], method="Dense", sparsity="0/32", dense=True)]
    content = show.build(table_of(rows, columns), store, PROFILES[profile])
    cells = content["rows"][0]["cells"]
    diverged = [name for name, cell in cells.items() if cell["status"] == "diverged" and cell["reproduced"] is None]
    assert diverged == ["WIKI-2", "C4", "AVG"]
    assert (cells["PTB"]["reproduced"], cells["PTB"]["stderr"]) == (1e200, None)
    assert (cells["StdLib"]["reproduced"], cells["RP"]["reproduced"]) == (12.5, 100)
    for form in tables.FORMATS:
        text = tables.render(content, form)
        assert text.count("diverged") >= 3 and "1" + "0" * 20 not in text
        assert "inf" not in text.lower() and "nan" not in text.lower()


def test_averages_leave_out_what_only_the_dense_row_has_run(tmp_path):
    """Its records are many tables': a row that answers two tasks of three has an average over two, as has the dense one."""
    store = Store(tmp_path, None)
    pairs = {"one": (0.5, 0.4), "two": (0.7, 0.6), "three": (0.9, None)}
    for name, shares in pairs.items():
        for recipe, share in zip((DENSE, PRUNED), shares, strict=True):
            if share is not None:
                put(store, recipe, name, {"acc": share}, {"acc": 0.01})
    columns = [Column(name, name, "acc", scale=100) for name in pairs] + [Column("AVG", derived="average")]
    table = table_of(ROWS[:2], columns)
    content = show.build(table, store, PAPER)
    averages = [row["cells"]["AVG"]["reproduced"] for row in content["rows"]]
    assert averages == pytest.approx([60, 50]) and content["subjects"][0]["over"] == {"AVG": 2}
    assert content["subjects"][0]["over_tasks"] == {"AVG": ["one", "two"]}
    assert "Averages on the paper's models: AVG over one and two." in tables.render(content)
    put(store, PRUNED, "three", {"acc": 0.8})
    averages = [row["cells"]["AVG"]["reproduced"] for row in show.build(table, store, PAPER)["rows"]]
    assert averages == pytest.approx([70, 60])


def test_a_task_that_few_rows_have_run_yet_takes_no_row_its_average(tmp_path):
    """Of five pruned rows some have answered a task that takes hours: the averages wait until two thirds of them have."""
    store = Store(tmp_path, None)
    recipes = [DENSE, *(replace(PRUNED, selection={"method": "reverse", "count": count}) for count in range(1, 6))]
    for recipe in recipes:
        put(store, recipe, "short", {"acc": 0.5}, {"acc": 0.01})
    columns = [Column(name, name, "acc", scale=100) for name in ("short", "long")] + [Column("AVG", derived="average")]
    rows = [replace(ROWS[1], method=str(number), recipe=recipe) for number, recipe in enumerate(recipes)]
    rows[0] = replace(rows[0], dense=True)
    table = table_of(rows, columns)

    def averages():
        return [row["cells"]["AVG"]["reproduced"] for row in show.build(table, store, PAPER)["rows"]]

    for number, recipe in enumerate(recipes[:5]):
        put(store, recipe, "long", {"acc": 0.7}, {"acc": 0.01})
        assert averages() == ([50] * 6 if number < 4 else [60] * 5 + [None])


@pytest.mark.parametrize("paper", registry.PAPERS)
def test_every_reported_number_is_shown(paper):
    """The cells against the CSV files."""
    store = Store(NOWHERE)
    for name, table in registry.targets().items():
        if table.paper != paper:
            continue
        shown = show.build(table, store, PAPER, claims=False)["rows"]
        cells = [(row, label, cell) for row in shown for label, cell in row["cells"].items()]
        if table.number in reported.tables(table.paper):
            numbers = reported.cells(table.paper, table.number)
            keys = [(row["model"], row["sparsity"], row["method"], label) for row, label, _ in cells]
            reached = {id(numbers[key]) for key in keys if key in numbers}
            assert len(reached) == len(reported.numbers(table.paper, table.number)), name


@pytest.mark.parametrize("value", [0.0012345, 0.0142, 0.0999, 0.58441, 1.6349, 24.06, 2771.112])
def test_seconds_have_three_significant_digits(value):
    digits = show._significant(value)
    assert float(f"{value:.{digits}f}") == pytest.approx(float(f"{value:.3g}"), rel=5e-3)
    assert len(f"{value:.{digits}f}".replace(".", "").lstrip("0")) == max(3, len(str(int(value))))


def test_a_heading_says_that_rows_read_other_texts_too():
    table, subject = registry.get("league-texts"), of_model("smollm2-135m-instruct")
    read = {name for row in table.rows(subject) for _, name in row.recipe.reads()}
    text = tables.render(show.build(table, Store(NOWHERE), subject, claims=False), "md")
    assert len(read) > 1 and "with rare words masked, or on the text that a row names" in text


@pytest.mark.parametrize("model", [*PUBLISHED_MODELS, "standin"])
def test_a_heading_names_the_calibration_text_where_it_is_not_the_papers(model):
    recipes = map(json.loads, (PUBLISHED / model / "recipes.jsonl").read_text().splitlines())
    corpora = {entry["recipe"]["calibration"]["corpus"] for entry in recipes if entry["recipe"]["calibration"]}
    content = show.build(registry.get("table1-linearpatch"), Store(NOWHERE), of_model(model), claims=False)
    said = "calibrated on WikiText-2's validation split" in tables.render(content, "md")
    assert said == ("wikitext2-tokenised-validation" in corpora) == (model != "standin")
