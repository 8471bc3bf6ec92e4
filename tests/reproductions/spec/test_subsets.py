"""The first 500 items of a task: who is asked them, and that they are the first that the full test set asks."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hub_mirror import write_mmlus, write_task
from stored_records import put

from common.evaluation import harness
from common.pruning.pipeline import Context
from common.records.results import Recipe, Store
from reproductions.engine import execute, fetch, runner
from reproductions.engine.runner import missing
from reproductions.engine.work import Work
from reproductions.render import show, tables
from reproductions.spec import columns, coverage, registry, subsets
from reproductions.spec import subjects as settings
from reproductions.spec.registry import Column, Row

SMOLLM = settings.of_model("smollm2-135m-instruct")
SUBJECTS = {"anatomy": 7, "virology": 9}


@pytest.fixture
def few(monkeypatch):
    """Six items stand for the 500, of tasks that have a dozen."""
    monkeypatch.setattr(subsets, "FIRST", 6)


@pytest.mark.parametrize("task", ["piqa", "arc_easy"])
def test_the_first_items_are_those_that_the_full_set_begins_with(task, mirror, tmp_path, prepared, few):
    write_task(tmp_path / "hub", task, 13)
    whole_values, _, whole_details, whole = execute.benchmark(prepared, task)
    values, errors, details, outcomes = execute.benchmark(prepared, subsets.smaller(task))
    documents = harness.load_tasks([task])[task].eval_docs
    assert (whole_details["items"], details["items"]) == (len(documents), 6)
    assert prepared.recipe.limit is None
    for metric in ("acc", "acc_norm"):
        assert np.array_equal(outcomes[metric], whole[metric][:6]) and len(whole[metric]) == 13
        assert values[metric] == np.mean(whole[metric][:6])
    limited = Context(prepared.model, prepared.tokenizer, Recipe(model="small", profile="paper", limit=2), 1)
    assert execute.benchmark(limited, subsets.smaller(task))[2]["items"] == 2


def test_of_a_group_as_many_of_each_subject(mirror, tmp_path, prepared, monkeypatch, few):
    write_mmlus(tmp_path / "hub", SUBJECTS)
    monkeypatch.setattr(harness, "members", lambda group: [f"{group}_{subject}" for subject in SUBJECTS])
    monkeypatch.setattr(subsets, "SUBJECTS", {"mmlu": len(SUBJECTS)})
    for name, base in (("mmlu@first-500", "mmlu"), ("laco_mmlu@first-500", "laco_mmlu")):
        assert subsets.smaller(base) == name
        details = execute.benchmark(prepared, name)[2]
        assert [subject["n"] for subject in details["subjects"].values()] == [3, 3]


@pytest.mark.parametrize(("name", "subjects"), [("mmlu@hendrycks", 57), ("laco_mmlu", 57), ("laco_cmmlu", 67)])
def test_all_subjects_together_ask_500_items_and_with_one_less_of_each_they_would_not(name, subjects):
    size = subsets.of_each(subsets.smaller(name))
    assert size * subjects >= 500 > (size - 1) * subjects


def test_full_test_sets_are_the_papers_models_and_table_1s():
    def asked(target, subject):
        return {column.label: column.benchmark for column in registry.get(target).columns_for(subject)}

    table2 = asked("table2-prunecomp", SMOLLM)
    assert table2["ARC-e"] == "arc_easy@first-500" and table2["HeSw"] == "hellaswag@first-500"
    assert (table2["CoPa"], table2["WSC"], table2["Ratio"], table2["AVG"]) == ("copa", "wsc273", "parameters", None)
    assert asked("table3-prunecomp", SMOLLM)["STEM"] == "mmlu@hendrycks@first-500"
    assert asked("table1-laco", SMOLLM)["CMMLU"] == "laco_cmmlu@first-500"
    assert asked("table1-reassessing", SMOLLM)["OpenbookQA"] == "openbookqa"  # has 500
    for target in registry.targets():
        papers, toy = (asked(target, subject) for subject in (settings.PAPER, settings.TOY))
        # of HellaSwag the items after the first 500 are calibration text there
        read_whole = [name for name in (*papers.values(), *toy.values()) if target != "league-answers"]
        assert not any(name and name != subsets.whole(name) for name in read_whole)
        for label, name in asked(target, SMOLLM).items():
            if name is not None and name != subsets.whole(name):
                assert name.startswith("perplexity") == name.endswith(subsets.TOKENS_MARK)
            assert label not in papers or name is None or subsets.whole(name) == subsets.whole(papers[label])
    qwen = settings.of_model("qwen2.5-coder-0.5b-instruct")  # of so large a model parts, there, too
    assert asked("table1-linearpatch", qwen)["ARC-e"] == "arc_easy@first-500"
    assert asked("table1-linearpatch", replace(qwen, full_test_sets=True))["ARC-e"] == "arc_easy"
    for target in ("table1-linearpatch", "table11-linearpatch", "table13-linearpatch", "table14-linearpatch"):
        assert not any(name and name != subsets.whole(name) for name in asked(target, SMOLLM).values())
    assert asked("table1-prunecomp", SMOLLM)["PTB"] == "perplexity@linearpatch-ptb@49152-tokens"
    whole = replace(SMOLLM, paper_budget=True)
    assert asked("table1-prunecomp", whole)["PTB"] == "perplexity@linearpatch-ptb"
    wholes = {label: name and subsets.whole(name) for label, name in table2.items()}
    assert asked("table2-prunecomp", whole) == asked("table2-prunecomp", replace(SMOLLM, full_test_sets=True)) == wholes
    same, other = (
        {row.recipe.hash for row in registry.get("table1-prunecomp").rows(subject) if row.recipe}
        for subject in (replace(SMOLLM, full_test_sets=True), whole)
    )
    assert same == {row.recipe.hash for row in registry.get("table1-prunecomp").rows(SMOLLM) if row.recipe} != other


def test_a_choice_reads_less_of_a_model_that_is_not_the_papers():
    """Of the calibration's sizes none is left at the paper's, whatever the fidelity; ``full`` gives back all of them."""
    table = registry.get("tableA3-prunecomp")
    for subject, tokens in ((SMOLLM, 32 * 256), (replace(SMOLLM, paper_budget=True), 128 * 2048)):
        recipes = {row.method: row.recipe for row in table.rows(subject)}
        assert recipes["PPL/text"].calibration["count"] * recipes["PPL"].calibration["length"] == tokens
        for name in ("PPL", "Taylor+"):
            entry = recipes[name].selection["calibration"]
            assert entry["count"] == (10 if name == "Taylor+" else tokens // entry["length"])
            assert entry["length"] == (256 if tokens < 10_000 else 2048)


def test_a_full_record_is_not_that_of_the_first_items(tmp_path):
    store, table = Store(tmp_path, None), registry.get("table2-prunecomp")
    dense = next(row for row in table.rows(SMOLLM) if row.dense).recipe

    def left():
        return next(w.benchmarks for w in missing([table], store, SMOLLM) if w.recipe == dense)

    put(store, dense, "piqa", {"acc_norm": 0.7})
    assert "piqa@first-500" in left()
    put(store, dense, "piqa@first-500", {"acc_norm": 0.6})
    assert "piqa@first-500" not in left()
    full, cut = (show.build(registry.get(t), store, SMOLLM) for t in ("table1-linearpatch", "table2-prunecomp"))
    for content, value, size in ((full, 70, ""), (cut, 60, "first 500 items of each task")):
        row = next(row for row in content["rows"] if row["dense"] and row["subject"] == SMOLLM.name)
        assert row["cells"]["PIQA"]["reproduced"] == pytest.approx(value)
        assert content["subjects"][0]["size"] == size
    for form in ("terminal", "md"):
        assert "first 500 items of each task" in tables.render(cut, form)
        assert "first 500 items" not in tables.render(full, form)
    assert json.loads(tables.render(cut, "json"))["subjects"][0]["size"].startswith("first 500")
    both = show.build(registry.get("table4-linearpatch"), store, SMOLLM)
    assert both["subjects"][0]["size"] == "first 500 items of each task"  # of what has a number
    nothing = show.build(registry.get("table4-linearpatch"), Store(tmp_path / "none", None), SMOLLM)
    assert nothing["subjects"][0]["size"] == "first 500 items of each task, 49,152 tokens of each text"


def test_a_table_reads_a_task_whole_once_all_that_answered_it_did(tmp_path):
    store, table = Store(tmp_path, None), registry.get("table2-prunecomp")
    rows = [row for row in table.rows(SMOLLM) if row.sparsity in ("0/30", "7/30")][:3]

    def measure(row, benchmark, value):
        put(store, row.recipe, benchmark, {"acc_norm": value})

    def shown():
        content = show.build(table, store, SMOLLM)
        lines = {(row["sparsity"], row["method"]): row["cells"]["PIQA"]["reproduced"] for row in content["rows"]}
        names = [(row.sparsity, row.method) for row in rows]
        entries = {(e["sparsity"], e["method"]): e for e in show.entries(table, store, SMOLLM, rows)}
        benchmarks = {column.label: column.benchmark for column in coverage.columns(table, store, SMOLLM)}
        entry = entries[names[1]]
        assert entry["scores"]["PIQA"] == lines[names[1]] and benchmarks["PIQA"] in entry["records"]
        return [lines[name] for name in names], content["subjects"][0]["size"]

    def forced():
        work = missing([table], store, SMOLLM, force=True)
        return {name for entry in work for name in entry.benchmarks if "piqa" in name}

    for row in rows:
        measure(row, "piqa@first-500", 0.25)
    measure(rows[0], "piqa", 0.75)
    measure(rows[1], "piqa", 0.5)
    assert shown() == ([25, 25, 25], "first 500 items of each task") and forced() == {"piqa@first-500"}
    measure(rows[2], "piqa", 0.125)
    assert shown() == ([75, 50, 12.5], "") and forced() == {"piqa"}  # what is measured anew is what is shown
    measure(rows[1], "hellaswag@first-500", 0.5)
    assert shown()[1] == "first 500 items of HeSw"


def test_rows_that_answered_more_are_compared_by_all_that_they_answered_alike(tmp_path):
    """Wholes answered by the dense row and others: A by a, b, c; B by b, c, d; C by d, whom none is like."""
    store, answered = Store(tmp_path, None), {"A": "abc", "B": "bcd", "C": "d"}
    recipes = {name: Recipe("m", "paper", selection={"method": name, "count": 1}) for name in "Dabcd"}
    rows = [Row("m", "m", "4/16", name, recipe, dense=name == "D") for name, recipe in recipes.items()]
    for label, names in answered.items():
        for name in f"D{names}":
            put(store, recipes[name], label, {"acc": 0.5})
    comparable = coverage.more_items([Column(label, label + subsets.MARK, "acc") for label in answered], rows, store)
    columns_by_methods = {
        "".join(row.method for row in own): {label: column.benchmark for label, column in by_label.items()}
        for by_label, own in comparable
    }
    assert columns_by_methods == {"Dabc": {"A": "A"}, "Dbcd": {"B": "B"}, "Dbc": {"A": "A", "B": "B"}}
    assert len(comparable[-1][1]) == 3  # what fewer rows have answered comes last


def test_what_reads_a_benchmarks_name_knows_its_size(monkeypatch):
    two_choices = ["piqa", "piqa@first-500"]
    assert columns.chance([*two_choices, "perplexity@linearpatch-ptb"]) == dict.fromkeys(two_choices, 0.5)
    mmlu = ["mmlu", "mmlu@hendrycks", "mmlu@hendrycks@first-500", "mmlu@standin-options-1"]
    assert columns.chance([*mmlu, "docstring_generation@1"]) == dict.fromkeys(mmlu, 0.25)
    loaded = []
    monkeypatch.setattr(harness, "load_tasks", lambda tasks: loaded.extend(tasks))
    monkeypatch.setattr(fetch, "_mmlu", loaded.append)
    for name in ("piqa@first-500", "mmlu@hendrycks@first-500"):
        fetch._benchmark(name)
    assert loaded == ["piqa", "hendrycks"]
    absent = fetch.Lacking(benchmarks={"race_v2@first-500": "no network"})
    assert fetch.summary(absent, [registry.get("table2-prunecomp")]).startswith("no data for Race-h: no network")


def test_every_task_that_tables_ask_has_a_known_size():
    """A task that is neither counted nor known to be small would be asked in full unnoticed."""
    small = {"copa", "humaneval", "laco_wsc_g", "laco_wsc_p", "openbookqa", "openbookqa_written", "wsc273"}
    asked = [column for table in registry.targets().values() for column in table.columns(settings.PAPER.profile)]
    names = {column.benchmark.partition("@")[0] for column in asked if column.benchmark}
    tasks = {name for name in names if name.endswith("mmlu") or harness._folder(name)}
    assert tasks - small == tasks & subsets.ITEMS.keys()


def test_work_is_measured_under_the_name_that_was_asked(few, mirror, tmp_path, prepared, monkeypatch):
    write_task(tmp_path / "hub", "piqa", 8)
    monkeypatch.setattr(execute, "prepare", lambda recipe, **options: prepared)
    store, name = Store(tmp_path / "own", None), "piqa@first-500"
    assert runner.measured([Work(prepared.recipe, "row", [name])], store, execute) == 0
    record = store.get(prepared.recipe, name)
    assert (record.status, record.details["items"], record.recipe["limit"]) == ("ok", 6, None)
    assert len(store.items(prepared.recipe, name)["acc_norm"]) == 6
    assert store.get(prepared.recipe, "piqa") is None


def test_what_is_trained_of_another_model_sees_less_and_what_is_at_hand():
    """Rates, samples and texts of SmolLM2's trained rows; `full` trains on as much as the paper."""

    def trained(target, method, subject):
        return next(row.recipe for row in registry.get(target).rows(subject) if row.method == method)

    whole = replace(SMOLLM, paper_budget=True)
    for subject, samples, length in ((SMOLLM, 500, 256), (whole, 5000, None)):
        patch = trained("table2-linearpatch", "LinearPatch[L +FT]", subject).repair
        assert (patch["samples"], patch.get("length")) == (samples, length)
    for subject, rate, rows in ((SMOLLM, 1e-4, 960), (whole, None, None)):
        arm = trained("table2-reassessing", "Reverse-order +LoRA", subject).training
        assert (arm["settings"].get("learning_rate"), arm["data"].get("count")) == (rate or 1e-5, rows)
        assert arm["data"]["source"] == "standin"  # Alpaca is not at hand for it
    without_text = trained("table2-reassessing", "Reverse-order +LoRA", replace(SMOLLM, text=None)).training
    assert without_text["data"]["source"] == "alpaca-cleaned"
    data = trained("table3-laco", "LaCo +post train", SMOLLM).training["data"]
    assert (data["corpus"], data["validation"]) == ("wikitext2-tokenised-validation", "ptb-validation")
