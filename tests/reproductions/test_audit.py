"""The transcribed numbers (schema, uniqueness) and what the audit makes of them."""

import csv
import json
import math

import pytest

from reproductions import audit, reported
from reproductions.__main__ import main
from reproductions.audit import counts, report
from reproductions.audit.findings import PAPER_NAMES, VERDICTS
from reproductions.registry import PAPERS

TABLES = [(paper, table) for paper in PAPERS for table in reported.tables(paper)]


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_a_transcribed_table_is_tidy(paper, table):
    path = reported.PAPERS_FOLDER / paper / "reported" / f"table{table}.csv"
    with path.open(newline="") as lines:
        assert tuple(next(csv.reader(lines))) == reported.FIELDS
    found = reported.numbers(paper, table)
    assert len({(n.model, n.sparsity, n.method, n.variant, n.column) for n in found}) == len(found) > 0
    for number in found:
        assert number.table == table and number.column
        assert math.isfinite(number.value) or number.text == "nan"
        assert number.stderr is None or number.stderr > 0


@pytest.mark.parametrize("paper", PAPERS)
def test_every_numeric_table_is_there(paper):
    wanted = {
        "linearpatch": {str(n) for n in (*range(1, 8), *range(9, 16))} | {"text", "summary1", "summary2"},
        "prunecomp": {*"1234", *(f"A{n}" for n in range(1, 7))},
        "laco": {*"12345679", "10"},
        "reassessing": {*"12345678", *"ABCDEFGHIJKLMNOP"},
    }
    assert wanted[paper] <= set(reported.tables(paper))


# What a reader with a calculator finds: (part of the place, what the cells give).
KNOWN = [
    ("Abstract", "3.31"),
    ("Section 4.4", "165 times"),
    ("Section 4.4", "2.27"),
    ("Table 15, Baichuan2-7B 7/32 LinearPatch[S], Weighted AVG", "52.04"),
    ("Table 4, LLaMA-2-7B 12.0% LaCo, Reas.", "54.46"),
    ("Table 4, LLaMA-2-7B 12.0% LaCo, Avg.", "38.27"),
    ("Table 1, Qwen1.5-7B 8/32 BI +LoRA, Avg.", "0.4108"),
    ("Table 4, LLaMA-3-8B 25% ShortGPT (BI), Avg.", "0.3948"),
    ("Table 4, LLaMA-3-8B 25% SLEB +LoRA, Avg.", "0.4735"),
    ("Table C, LLaMA-3.1-8B-It 8/32 Reverse-order[0.2 +lm_head & last 3], Avg.", "0.5645"),
    ("margin over ShortGPT (BI)", "16.84 points"),
    ("last 4 and", "two different rows"),
    ("LLM-Pruner", "two different rows"),
    ("LLaMA-3-8B 7/32 SLEB, CoPa", "CoPa 45.00 or 46.00"),
]


@pytest.mark.parametrize(("where", "recomputed"), KNOWN)
def test_slips_that_can_be_checked_by_hand_are_found(where, recomputed):
    assert [f for f in audit.findings() if where in f.where and f.recomputed == recomputed]


def test_findings_are_named_once_and_have_a_verdict():
    found = audit.findings()
    assert len({f.name for f in found}) == len(found)
    assert {f.paper for f in found} <= set(PAPER_NAMES)
    assert all(f.verdict in VERDICTS and f.printed and f.recomputed and f.arithmetic for f in found)


def test_possible_counts_against_all_counts():
    number = reported.numbers("linearpatch", "1")[0]
    for n in (100, 273, 1172):
        printable = {f"{100 * k / n:.2f}" for k in range(n + 1)}
        for text in ("45.17", "45.00", "80.59", "80.60", "46.25"):
            made = reported.Number(**{**number.__dict__, "text": text})
            assert counts.possible(made, n) == (text in printable)


def test_the_report_in_the_repository_is_the_current_one(capsys):
    assert report.PATH.read_text(encoding="utf-8") == report.as_markdown(audit.findings())
    assert main(["audit", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(audit.findings())


def test_a_table_names_the_finding_at_its_cell(capsys):
    assert main(["show", "table1-linearpatch", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    row = next(r for r in rows if (r["model"], r["sparsity"], r["method"]) == ("LLaMA-3-8B", "7/32", "SLEB"))
    names = {f.name: f for f in audit.findings()}
    assert "CoPa" in names[row["cells"]["CoPa"]["audit"][0]].printed
