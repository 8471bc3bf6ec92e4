"""The transcribed numbers (schema, uniqueness) and what the audit makes of them."""

import csv
import json
import math
from dataclasses import replace

import pytest

from reproductions import audit
from reproductions.__main__ import main
from reproductions.audit import repeats, report, scores
from reproductions.audit.engine import VERDICTS, padding
from reproductions.spec import reported
from reproductions.spec.registry import PAPERS

TABLES = [(paper, table) for paper in PAPERS for table in reported.tables(paper)]


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_a_transcribed_table_is_tidy(paper, table):
    path = reported.PAPERS_FOLDER / paper / "reported" / f"table{table}.csv"
    with path.open(newline="") as lines:
        assert tuple(next(csv.reader(lines))) == reported.FIELDS
    numbers = reported.numbers(paper, table)
    assert len({(n.model, n.sparsity, n.method, n.variant, n.column) for n in numbers}) == len(numbers) > 0
    for number in numbers:
        assert number.table == table and number.column
        assert math.isfinite(number.value) or number.text == "nan"
        assert number.stderr is None or number.stderr > 0


# What a reader with a calculator finds: a line has words of one finding's place, numbers and arithmetic.
SLIPS = {
    "linearpatch": """
Table 1, LLaMA-3-8B 7/32 SLEB, CoPa | 45.17 | it repeats the row's BoolQ
Table 11, LLaMA-2-7B 9/32 LLM-Pruner; LLaMA-2-7B 7/32 LLM-Pruner | 20.50 | 16.61 | 83.02
Tables 1, 11, 12, LLaMA-2-13B, SLEB | WIKI-2 7.60 against 8.17 | RP 87.54 | Weighted AVG 32.78
Tables 1, 11, LLaMA-2-13B, LLM-Pruner | WIKI-2 9.28 against 11.05 | PTB 62.84 | RP 86.32
Table 15, Baichuan2-7B 7/32 LinearPatch[S], Weighted AVG | 52.00 | 52.04
Table 1 and 5 | 33.45 | 33.53 | 57.67 | 57.69 | 67.46 | 67.41 | 65.11 | 65.04 | 84.08 | 84.09
Abstract | 4 % | 94.15 - 90.84 = 3.31
Section 4.4 | 2.13 | 61.71 - 59.44 = 2.27
Section 4.4 | 190 | 165 times | 0.094927 / 0.000576
Table 12 | 43.48 < 44.54 | 53.96 < 54.05 | 56.52 < 61.96 | 55.19 < 57.64 | 4 of 8
Table 12, LLaMA-2-7B, LinearPatch[S/L] | better with 9/32 | 43.48 against 40.88
summary's table 1 | 66.74 | 63.06
summary's table 1 | 69.15 | 65.42
summary's table 1 | 70.01 | 66.13
summary's table 2 | 58.62 | 58.31
Hadamard only | 57.68 | 56.52 | H H^T = I
Summary, table 2, LinearPatch + Distillation | 62.42 | 61.71 | 7/32 in Table 1
Table 12, LLaMA-2-7B 7/32, ShortGPT, LLM-Streamline(None), STEM | 31.75 | 958/3018 = 31.74
""",
    "prunecomp": """
LLaMA-2-7B 7/32, CosSim(CL) and Taylor+ | PTB 62.18 and 63.02
CosSim(BI) | 23.57 -> 19.88 | 33.87 -> 22.23 | 23.57 is the row PPL
Qwen3-8B | 5 of 32 | 36 layers
consistently enhances | Qwen3-8B 5/36 PPL 66.81 -> 64.80
Table 2, Qwen3-8B 5/36 PPL, HeSw | 76.06 | 74.93
Caption of Table 3 | CosSim(BI) | 5 metrics
Table 3, LLaMA-3-8B 5/32 Taylor+, Humanities | 37.4 | 37.45 | 1762/4705 | 37.40 is no k/4705
Table 3, LLaMA-3-8B 5/32 CosSim(CL), STEM, Humanities | 53.47 | 1613/3018 = 53.45
LLaMA-2-13B among the models | only in the appendix
24GB V100
Table A3, LLaMA-3-8B 7/32 CosSim(BI) | 9 layers | 7 layers
Table A6 | 64 samples | 128 samples | 256 samples | 3 of 3
Table A5 | 7/32 | 5/32 | 10 of 10
Tables 1, A2 | WG 65.98 | WG 77.29 | PIQA 70.40 | PIQA 70.04
Table A2, LLaMA-2-7B 7/32 Taylor+ +Prune&Comp, BoolQ | 89.00 | it repeats the row's CoPa
""",
    "laco": """
Table 4, LLaMA-2-7B 12.0% LaCo, Reas. | 44.46 | 54.46
Table 4, LLaMA-2-7B 12.0% LaCo, Avg. | 36.13 | 38.27
Table 4, LLaMA-2-7B, LaCo | 27.1% | 12.0% | 37.46 against 36.13
Table 4, LLaMA-2-7B 45.0% LaCo, Avg. | 30.00 | 30.02
Table 1 and 6 and 7 and 10, LLaMA-2-7B 27.1% | layers 23 | layers 22
Tables 6, 7, 10, LLaMA-2-7B 27.1% | 27.1 % with 22 layers left | 30.03
Tables 1, 4, LLaMA-2-7B 27.1% | 27.03
LLaMA-2-13B 49.7% | 20 layers left | 48.74
Baichuan2-13B 24.7% | 22.68
Table 5, row 4 | Llama2-13B | Baichuan2-13B
Table 2 | LLaMA-2-7B Exam. SliceGPT 27.15 > 25.85
""",
    "reassessing": """
Table 4, LLaMA-3-8B 25% ShortGPT (BI), Avg. | 0.3688 | 0.3948
Table 4, LLaMA-3-8B 25% SLEB +LoRA, Avg. | 0.3947 | 0.4735
margin over ShortGPT (BI) | 19.45 | 16.84
LLaMA-3.1-8B-It, margins over | GRASP* | 5.62 | 9.52
Table 5, LLaMA-3-70B, margins over | PIP† | 4.34 | 2.76
Abstract against Table 4, LLaMA-3-8B | 19.45 | 16.99
Table 1, Qwen1.5-7B 8/32 BI +LoRA, Avg. | 0.4190 | 0.4108 | repeats the row's HellaSwag
Table 2, Vicuna-7B-v1.5 8/32 Reverse-order +lm_head, Avg. | 0.4951 | 0.4965 | 0.4113 | about 0.3998
Table 2, LLaMA-3.1-8B-It 8/32 Reverse-order +lm_head, Avg. | 0.5599 | 0.5587
LaCo*, Avg. | 0.4408 | 0.4430 | The cells are right | PIQA 69.80, HeSw 55.69, MMLU 26.45
Table 4, LLaMA-3.1-8B-It 20% LaCo* | PIQA 0.6980 | Tables 1, 9, 10, LLaMA-2-7B 27.1% LaCo | 4 of 4
Table 4, LLaMA-3.1-8B-It, rows of another model | 5.62 to 17.27 | 7.96 to 17.27 | 13.99
Table I, CodeQwen1.5-7B-Chat 20% Ours | 48.72 | 48.17 or 48.78 | 80/164
Table H, Mixtral-8x7B 5/32 Ours | OpenbookQA 0.4321 | 216/500 | 972/1267 | 611/1172
Table N | one-shot +LoRA], HellaSwag | 0.1633 ± 0.0046 | ± 0.0037
Table A, LLaMA-3.1-8B-It 8/32 Reverse-order[one-shot +LoRA], Avg. | 0.5268 | 0.5266 | 0.6243 | 0.6233
Table A, LLaMA-3.1-8B-It 8/32 Reverse-order[1:1:8 +LoRA], Avg. | 0.5438 | 0.5433
Table C, LLaMA-3.1-8B-It 8/32 Reverse-order[0.2 +lm_head & last 3], Avg. | 0.5083 | 0.5645
Section E against Table C | 1.6 points
Table C, LLaMA-3.1-8B-It 8/32 Reverse-order[0.6 +lm_head & last 3], Avg. | 0.5747 | 0.5750
Table E | last 4 | last 7 | 9 of 9
Table K, LLaMA-3.1-8B-It 8/32 SLEB[no fine-tuning], Avg. | 0.4192 | 0.4459
Table K, LLaMA-3-8B 8/32 SLEB[no fine-tuning], Avg. | 0.3689 | 0.4184
Table K, LLaMA-3.1-8B-It 8/32 Reverse-order[no fine-tuning], Avg. | 0.5271 | CMMLU 0.5458 | 0.3458
Table N | one-shot +LoRA], Avg. | HellaSwag 0.3163 | in place of 0.1633
Table N | 1:8:16 +LoRA], Avg. | HellaSwag 0.3160 in place of 0.1630
Table N | Taylor[one-shot +lm_head & last 3], Avg. | 0.4214 | 0.4202
Caption of Table N | 12 | 16
Table L LLaMA-3.1-8B-It 16/32 Taylor | Table O | 1 sample | 5 samples | 10 samples | 8 of 9
Table 1 and J | 0.4796 | 0.36
Table O, LLaMA-3.1-8B-It 8/32 Taylor[30 samples +LoRA], removed layers | layer 26 twice
Taylor[30 samples +LoRA], Avg. | 0.55 | 0.537
Taylor[50 samples +LoRA], Avg. | 0.55 | 0.540
Table 6 | 34.38% | 29.88% | 13 layers
Table 6, LLaMA-3.1-8B, Ours | 0.6650 against 0.6378
Table 7 | 1326.93 MB | 2496.00 MiB
Table 4 and L and P, LLaMA-3.1-8B-It | 0.6295 | 0.6299
Gemma2-7B | 8.54 | gemma-7b
Taylor 0.4796 | see Table H | M
19.16 | see Section E | Table G
""",
}
SLIPS_BY_PAPER = [(paper, line.split(" | ")) for paper, text in SLIPS.items() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("paper", "words"), SLIPS_BY_PAPER)
def test_slips_that_can_be_checked_by_hand_are_found(paper, words):
    texts = [" | ".join((f.where, f.printed, f.recomputed, f.arithmetic)) for f in audit.findings() if f.paper == paper]
    assert [text for text in texts if all(word in text for word in words)]


def test_what_matters_to_someone_citing_comes_first():
    headlines = [f.headline for f in audit.findings() if f.headline]
    assert 8 <= len(headlines) <= 20
    top = report.as_markdown(audit.findings()).partition("## LinearPatch")[0]
    assert all(report._plain(headline) in top for headline in headlines)


def test_numbers_that_are_right_at_the_digits_printed_are_no_findings():
    """Prune&Comp's 18.2 and 21.7 are 18.247 and 21.740, cut to one digit."""
    cells = {cell for finding in audit.findings() for cell in finding.cells}
    for table, model, sparsity, mean in (("1", "LLaMA-3-8B", "7/32", 18.247), ("A1", "LLaMA-2-13B", "8/40", 21.740)):
        number = reported.cells("prunecomp", table)[model, sparsity, "PPL", "AVG"]
        assert number.text == f"{mean:.1f}"
        assert ("prunecomp", table, model, sparsity, "PPL", "AVG") not in cells


def test_a_row_under_another_model_is_found_among_all_pairs():
    """Against LaCo's numbers rounded here; and rows that differ in one score are no copies."""
    pairs, tally = repeats.copies()
    places = [(copy["PIQA"].paper, copy["PIQA"].row, source["PIQA"].table) for copy, source in pairs]
    row = ("LLaMA-3.1-8B-It", "20%", "LaCo*", "")
    assert set(places) == {("reassessing", row, table) for table in ("1", "9", "10")}
    copy, source = pairs[0]
    for task, number in copy.items():
        assert number.value in {round(source[task].value / 100 + step, 3) for step in (-4e-5, 4e-5)}
    assert tally[4] == 3 and tally[3] == 0 and tally.total() > 30_000
    other = repeats.measured(copy | {"PIQA": replace(copy["PIQA"], text="0.6970")})
    assert repeats.agreeing(other, repeats.measured(source)) == [task for task in copy if task != "PIQA"]


def test_a_row_padded_with_zeros_is_read_to_the_digit_before():
    first = reported.numbers("reassessing", "1")[0]
    padded = [replace(first, text=text) for text in ("0.6980", "0.5570", "0.2650", "0.2520")]
    assert padded[0].half_unit + padding(padded) == pytest.approx(0.0005)
    assert padding(padded[:3]) == 0
    assert padding([*padded, first]) == 0 != padded[0].half_unit


@pytest.mark.parametrize("module", audit.MODULES, ids=lambda module: module.PAPER.name)
def test_a_declared_table_is_transcribed_and_has_the_column(module):
    """A check of a table that is not there would find nothing."""
    paper = module.PAPER
    for rule in paper.rules:
        for table in rule.tables:
            assert rule.column in reported.columns(paper.name, table)
    for declared, sizes in paper.questions:
        for table in declared:
            assert sizes.keys() & set(reported.columns(paper.name, table))
    for declared, (column, _) in paper.summaries.items():
        for table in declared:
            assert column in reported.columns(paper.name, table)
    for table in (*paper.lists, *(name for names in paper.lists.values() for name in names), *paper.shares):
        assert reported.numbers(paper.name, table)


def test_findings_have_a_verdict_and_keep_their_names():
    """Every finding is in the list of names, which no two share, and a retired name is not given again."""
    findings, known = audit.findings(), audit.names()
    assert len(set(known.values())) == len(known)
    assert {audit.key(f): f.name for f in findings}.items() <= known.items()
    assert set(known.values()) - {f.name for f in findings} == {"PC-7", "PC-8", "PC-9"}
    assert len({f.name for f in findings}) == len(findings)
    assert {f.paper for f in findings} <= set(PAPERS)
    assert all(f.verdict in VERDICTS and f.printed and f.recomputed and f.arithmetic for f in findings)


def test_possible_counts_against_all_counts():
    number = reported.numbers("linearpatch", "1")[0]
    for n in (100, 273, 1172):
        printable = {f"{100 * k / n:.2f}" for k in range(n + 1)}
        for text in ("45.17", "45.00", "80.59", "80.60", "46.25"):
            assert scores.possible(replace(number, text=text), n) == (text in printable)


def test_the_report_in_the_repository_is_the_current_one(capsys):
    assert report.PATH.read_text(encoding="utf-8") == report.as_markdown(audit.findings())
    assert main(["audit", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(audit.findings())


def test_a_table_names_the_finding_at_its_cell(show_json, few_replicates):
    rows = {(row["model"], row["sparsity"], row["method"]): row for row in show_json("table1-linearpatch")["rows"]}
    row = rows["LLaMA-3-8B", "7/32", "SLEB"]
    names = {f.name: f for f in audit.findings()}
    assert "CoPa" in names[row["cells"]["CoPa"]["audit"][0]].printed
