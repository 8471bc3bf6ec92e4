"""Rendering: every format holds the same numbers, and no measured number passes for a reported one."""

import csv
import io
import json
import re

import pandas
import pytest

from reproductions.render import show, tables


def said(status):
    """A status as the JSON form has it, from its text."""
    label, _, reason = status.partition(": ")
    return {"status": status, "status_id": label.replace(" ", "-")} | ({"reason": reason} if reason else {})


def cell(reported=None, reproduced=None, stderr=None, status="measured"):
    return {"reported": reported, "reproduced": reproduced, "stderr": stderr} | said(status)


def row(model, profile, method, cells, status="measured"):
    line = {"model": model, "sparsity": "4/16", "method": method}
    return line | {"profile": profile, "subject": profile, "cells": cells} | said(status)


def subject(name):
    names = dict.fromkeys(("name", "label", "profile"), name)
    return names | {"dtype": "float32", "origin": "published", "over": {}, "over_tasks": {}}


def without_number(name, status, **fields):
    """A row of the toy model of which no cell has a number."""
    cells = {"Task": cell(status=status), "RP": cell(status=status)}
    return row("toy model", "standin", name, cells, status) | fields


@pytest.fixture
def toy():
    measured = {"Task": cell(reproduced=41.25, stderr=3.0), "RP": cell(reproduced=88.5, stderr=2.5)}
    printed = {"Task": cell(reported=77.77, status="not run"), "RP": cell(reported=66.66, status="not run")}
    rows = [
        row("toy model", "standin", "Dense", measured),
        without_number("LLM-Pruner", "as reported only"),
        without_number("SLEB", "failed: out of memory"),
        row("LLaMA-2-7B", "paper", "Dense", printed, "not run"),
    ]
    claims = [
        {"text": "a & b", "reported": True, "reproduced": None, "by_subject": {"standin": None, "paper": None}},
        {"text": "c", "reported": False, "reproduced": True, "by_subject": {"standin": True, "paper": True}},
    ]
    texts = {"target": "t", "profile": "standin", "title": "A title", "origin": "published", "note": "A note."}
    return texts | {"subjects": [subject("standin")], "columns": ["Task", "RP"], "rows": rows, "claims": claims}


def test_the_toy_model_and_the_paper_never_share_a_table(toy):
    for form in ("terminal", "md", "latex", "html"):
        text = tables.render(toy, form)
        for line in text.splitlines():
            assert not ("41.25" in line and "77.77" in line)
        assert text.index("41.25") < text.index("Reported by the paper") < text.index("77.77")


def test_what_was_not_measured_says_so(toy):
    text = tables.render(toy)
    assert "LLM-Pruner (as reported only)" in text
    assert "failed: out of memory" in text
    assert "published records" in text
    assert "88.50±2.5" in text and "41.25±" not in text


@pytest.mark.parametrize("form", ["terminal", "md", "latex"])
@pytest.mark.parametrize("count", [tables.FOLDED - 1, tables.FOLDED])
def test_rows_without_a_number_are_counted_where_many_follow_one_another(toy, form, count):
    def waiting(sparsity, reason):
        return [without_number(f"{reason} {n}", reason, sparsity=sparsity) for n in range(count)]

    measured = toy["rows"][0] | {"method": "between"}
    failed = [toy["rows"][2] | {"method": f"failed {n}"} for n in range(count)]
    toy["rows"] += [*waiting("5/16", "not run"), measured, *waiting("6/16", "not run"), *failed]
    toy["rows"] += [*waiting("6/16", "not run"), *waiting("6/16", "as reported only")]
    folded, whole = tables.render(toy, form), tables.render(toy, form, every_row=True)
    counted = f"{count} rows (not run)"
    assert folded.count(counted) == (3 if count == tables.FOLDED else 0)
    assert folded.count(f"{count} rows (as reported only)") == (1 if count == tables.FOLDED else 0)
    assert (folded == whole) == (count < tables.FOLDED)
    assert all(f"failed {n}" in folded for n in range(count)) and "between" in folded
    assert all(whole.count(f"not run {n} (not run)") == 3 for n in range(count))
    assert ("--every-row" in folded) == (form == "terminal" and count == tables.FOLDED)
    assert tables.render(toy, "csv") == tables.render(toy, "csv", every_row=True)


def test_rows_without_a_number_are_counted_below_those_with_one(toy):
    """Of as many layers removed, wherever they stand."""
    waiting = [without_number(f"w{n}", "not run") for n in range(4)]
    measured = [row("toy model", "standin", f"m{n}", {"Task": cell(reproduced=50.0 + n)}) for n in range(3)]
    toy["rows"] = [waiting[0], measured[0], waiting[1], waiting[2], measured[1], waiting[3], measured[2]]
    names = re.findall(r"^4/16 +(m\d|w\d|4 rows \(not run\))", tables.render(toy), re.MULTILINE)
    assert names == ["m0", "m1", "m2", "4 rows (not run)"]


def test_the_terminal_leaves_columns_without_a_result_out_and_names_them(toy):
    for line in toy["rows"]:
        line["cells"]["Untried"] = cell(status="not run")
        line["cells"]["Lacking"] = cell(status="no data: no network")
    hint = "Columns without a result are left out: Untried. --every-row shows them."
    folded, whole = tables.render(toy), tables.render(toy, every_row=True)
    assert hint in folded and folded.count("Untried") == folded.count(hint) and "Lacking" in folded
    assert hint not in whole and "Untried" in whole
    assert all("Untried" in tables.render(toy, form) for form in ("md", "csv", "json"))


def test_hints_name_the_variable_where_make_asks(toy, monkeypatch):
    toy["rows"] += [without_number(f"w{n}", "not run") for n in range(4)]
    assert "--every-row lists them" in tables.render(toy)
    monkeypatch.setenv("LAYERLAB_MAKE", "1")
    assert "EVERY_ROW=1 lists them; csv and json hold them, too." in tables.render(toy)


@pytest.mark.parametrize("form", ["terminal", "md", "latex", "html"])
def test_of_some_columns_a_row_says_only_what_these_lack(toy, form):
    lines = toy["rows"]
    for line in lines:
        line["dense"] = False
    lines[1]["cells"] = {"Task": cell(status="diverged"), "RP": cell(status="not run")}
    lines[2]["cells"] = {"RP": cell(status="none"), "Task": cell(status="failed: out of memory")}
    lines.append(row("toy model", "standin", "Other", {"RP": cell(status="no value")}, "no value"))
    task, rp = (show.of_columns(toy, {name}) for name in ("Task", "RP"))

    def statuses(content):
        return {line["method"]: line["status"] for line in content["rows"] if line["subject"] == "standin"}

    assert statuses(task) == {"Dense": "measured", "LLM-Pruner": "diverged", "SLEB": "failed: out of memory"}
    assert statuses(rp) == {"Dense": "measured", "LLM-Pruner": "not run", "Other": "no value"}
    text = tables.render(rp, form)
    assert "LLM-Pruner (not run)" in text and "SLEB" not in text and "memory" not in text and "41.25" not in text
    assert "There is no row to show." in tables.render(show.of_columns(toy, {"neither"}), form)


def test_a_row_of_which_nothing_is_to_be_measured_names_no_reason(toy):
    toy["rows"].append(row("toy model", "standin", "Whole", {"Task": cell(status="none")}, "measured"))
    assert re.search(r"Whole *$", tables.render(toy), re.MULTILINE)


def test_the_terminal_counts_claims_that_have_no_number(toy):
    nothing = {"reported": None, "reproduced": None, "by_subject": {"standin": None}}
    nothing |= {"judged": {"standin": {"verdict": "not tested", "reason": "no results", "comparisons": []}}}
    toy["claims"] += [nothing | {"text": text} for text in ("untried", "untested")]
    folded, whole = tables.render(toy), tables.render(toy, every_row=True)
    assert "Not shown: 2 claims without a number. --every-row shows all." in folded and "untried" not in folded
    assert "Not shown" not in whole and "3. untried" in whole and "4. untested" in whole
    assert "untried" in tables.render(toy, "md")
    toy["claims"] = toy["claims"][2:]
    assert "1. untried" in tables.render(toy)  # where no claim has any, all are listed
    of_some_rows = tables.render(toy, given="--row 'x*'")
    assert "untried" not in of_some_rows and "Not shown: 2 claims without a number." in of_some_rows


def test_why_there_is_no_data_is_said_below_the_table_not_in_the_column_of_methods(toy):
    reason = "no data: could not fetch dataset someone/something: no network; fetch it on a machine that has one"
    cells = {"Task": cell(status=reason)}
    toy["rows"] += [row("toy model", "standin", f"row {n}", cells, reason) for n in range(5)]
    for every_row in (False, True):
        text = tables.render(toy, every_row=every_row)
        assert text.count("someone/something") == 1 and f"Task: {reason}" in text
        assert ("5 rows (no data)" in text) != every_row and ("row 3 (no data)" in text) == every_row


def test_csv_and_json_hold_every_cell(toy):
    lines = list(csv.DictReader(io.StringIO(tables.render(toy, "csv"))))
    assert len(lines) == 8
    names = {"model": "toy model", "sparsity": "4/16", "method": "Dense", "column": "Task", "status": "measured"}
    numbers = {"reported": "", "reproduced": "41.25", "stderr": "3.0", "low": "", "high": ""}
    assert lines[0] == names | numbers | {"row_id": ""}
    assert json.loads(tables.render(toy, "json")) == toy


def test_several_tables_are_one_document(toy):
    other = toy | {"target": "u", "rows": toy["rows"][:1]}
    assert json.loads(tables.render([toy, other], "json")) == [toy, other]
    assert json.loads(tables.render([toy], "json")) == [toy]
    lines = list(csv.DictReader(io.StringIO(tables.render([toy, other], "csv"))))
    assert [line["target"] for line in lines] == ["t"] * 8 + ["u"] * 2
    alone = tables.render(toy, "csv").splitlines() + tables.render(other, "csv").splitlines()[1:]
    assert [",".join(line.split(",")[1:]) for line in tables.render([toy, other], "csv").splitlines()] == alone
    for form in ("terminal", "md", "latex", "html"):
        text = tables.render([toy, other], form)
        assert text == tables.render(toy, form) + "\n" + tables.render(other, form)


def test_the_paper_profile_shows_both_and_the_difference(toy):
    toy["subjects"] = [subject("paper")]
    toy["rows"] = [row("LLaMA-2-7B", "paper", "Dense", {"Task": cell(77.77, 77.5, 1.0, "match"), "RP": cell(66.66)})]
    text = tables.render(toy)
    assert "77.77 | 77.50±1.00 (-0.27)" in text
    assert "66.66" in text


def test_latex_and_markdown_escape_what_would_break_them(toy):
    toy["rows"][0]["method"] = "A_b & 50%"
    assert r"A\_b \& 50\%" in tables.render(toy, "latex")
    toy["subjects"] = [subject("paper")]
    toy["rows"] = [row("M", "paper", "x", {"Task": cell(1.0, 2.0), "RP": cell(1.0)})]
    markdown = [line for line in tables.render(toy, "md").splitlines() if line.startswith("| M ")]
    assert markdown[0].replace("\\|", "").count("|") == 6


def test_html_is_read_back_with_every_number_and_character(toy):
    toy["rows"][0]["method"] = "<b> & [L]"
    [measured, printed, claims] = pandas.read_html(io.StringIO(tables.render(toy, "html")))
    assert measured["Method"][0] == "<b> & [L]" and measured["Task"][0] == "41.25"
    assert float(printed["RP"][0]) == 66.66 and claims.iloc[0, 0] == "1. a & b"


def test_the_terminal_shows_the_best_of_as_many_removed_layers_bold_and_verdicts_in_colours(toy):
    numbers = [("Dense", 60.0, 9.0), ("A", 41.0, 21.0), ("B", 42.0, 22.0), ("C", 42.0, 23.0)]
    toy["rows"] = []
    for name, higher, lower in numbers:
        cells = {"Task": cell(reproduced=higher), "PPL": cell(reproduced=lower), "n": cell(reproduced=5.5)}
        toy["rows"].append(row("toy model", "standin", name, cells) | {"dense": name == "Dense"})
    toy["rows"].append(row("toy model", "standin", "D", {"Task": cell(reproduced=1.0)}) | {"sparsity": "8/16"})
    toy["better"] = {"Task": "higher", "PPL": "lower"}
    text = tables.render(toy, colours=True, width=80)
    assert re.findall(r"\x1b\[1m *(\d+\.\d+)\x1b", text) == ["21.00", "42.00", "42.00"]
    assert re.search(r"\x1b\[32m *supported", text) and re.search(r"\x1b\[31m *contradicted", text)
    assert f"\x1b[1m{toy['title']}" in text
    assert "\x1b" not in tables.render(toy)


@pytest.mark.parametrize("form", ["terminal", "md"])
def test_a_table_says_first_how_many_cells_are_of_the_papers_models(toy, form):
    toy["own_models"] = {"measured": 0, "cells": 132}
    text = tables.render(toy, form)
    assert text.index("A title") < text.index("own models: 0 of 132 cells") < text.index("41.25")


def test_counts_from_shapes_do_not_read_as_reproduced_scores(toy):
    toy["own_models"] = {"measured": 0, "cells": 2}
    toy["rows"].append(row("LLaMA-2-7B", "paper", "SLEB", {"Ratio": cell(20.0, 20.0, None, "match")}))
    text = tables.render(toy)
    assert "Compared with the paper" not in text
    assert "Nothing of this is a reproduced score" in text and "1 match the printed numbers, 0 differ" in text
    assert "Ratio" not in tables.render(toy, reported=False)  # of another model the paper reports nothing
    toy["own_models"]["measured"] = 1
    assert "Compared with the paper: 1 cells match" in tables.render(toy)


def test_rows_that_the_paper_does_not_report_are_not_among_its_own(toy):
    empty = {"Task": cell(status="not run"), "RP": cell(status="not run")}
    toy["rows"] += [row("LLaMA-2-7B", "paper", f"ours {n}", empty, "not run") for n in range(6)]
    assert "6 rows" not in tables.render(toy) and "ours" not in tables.render(toy)


@pytest.mark.parametrize("every_row", [False, True])
def test_the_sign_of_no_result_is_explained_where_a_cell_has_it(toy, every_row):
    toy["rows"] += [without_number(f"row {n}", "not run") for n in range(9)]
    *table, notes = tables.render(toy | {"claims": []}, every_row=every_row).partition("A note.")[::2]
    shown = any("·" in line.split() for line in "".join(table).splitlines())
    assert shown == every_row == ("·: no result on the toy model." in notes)
    assert f"{'·' if every_row else 'Left out above'}: no result on the toy model. `python -m repro" in notes


def test_what_was_not_run_names_the_command_with_its_target_and_model(toy):
    other = subject("paper") | {"name": "a-model", "label": "A Model"}
    toy |= {"subjects": [subject("standin"), other], "claims": []}
    missing = {"Task": cell(status="not run"), "RP": cell(reproduced=1.0)}
    toy["rows"].append(row("A Model", "paper", "Dense", missing, "not run") | {"subject": "a-model", "dense": True})
    text = tables.render(toy)
    assert "Left out above: no result on A Model. `python -m reproductions run t --model a-model` measures it" in text
    assert "no result on standin" not in text
    narrowed = tables.render(toy, given="--row 'x*' --limit 4")  # does not measure the original model
    assert "`python -m reproductions run t --model a-model --row Dense --limit 4` measures it" in narrowed
    reason = "no data: could not fetch x; `python -m reproductions fetch TARGET`"
    missing["Task"] |= {"status": reason, "status_id": "no-data"}
    assert "`python -m reproductions fetch t`" in tables.render(toy)
