"""Printed numbers as replicates: against the standard errors of shares, and of what follows from them, in closed form."""

import math

import numpy as np
import pytest

from common.evaluation import scores
from reproductions.audit.engine import LM_EVAL
from reproductions.claims import verdicts
from reproductions.claims.printed_replicates import Printed
from reproductions.render import claim_verdicts
from reproductions.spec import registry, reported

SETTING = ("LLaMA-3-8B", "5/32", "LinearPatch[L]")
DENSE = ("LLaMA-3-8B", "0/32", "Dense")


def errors(numbers):
    """Of shares of so many questions, in per cent."""
    return {task: math.sqrt(value * (100 - value) / LM_EVAL[task]) for task, value in numbers.items()}


def test_a_score_varies_as_a_share_of_so_many_questions_around_what_is_printed():
    drawn, cells = Printed(registry.get("table1-linearpatch")), reported.cells("linearpatch", "1")
    for task in ("HeSw", "CoPa"):
        value = cells[*SETTING, task].value
        replicates = drawn(*SETTING, task)
        assert np.mean(replicates) == pytest.approx(value, abs=0.1)
        assert np.std(replicates) == pytest.approx(errors({task: value})[task], rel=0.05)


@pytest.mark.parametrize(
    ("target", "table", "setting", "dense", "kind"),
    [
        ("table1-linearpatch", "1", SETTING, DENSE, "mean-of-ratios"),
        ("table2-prunecomp", "2", ("Qwen3-8B", "7/36", "Taylor+"), ("Qwen3-8B", "0/36", "Dense"), "ratio-of-means"),
    ],
)
def test_what_is_retained_varies_as_its_scores_do_by_the_papers_measure(target, table, setting, dense, kind):
    paper = registry.get(target).paper
    drawn, cells = Printed(registry.get(target)), reported.cells(paper, table)
    tasks = [task for task in LM_EVAL if (*setting, task) in cells]
    own, whole = ({task: cells[*row, task].value for task in tasks} for row in (setting, dense))
    expected = scores.retained_performance_stderr(own, whole, errors(own), errors(whole), kind)
    replicates = drawn(*setting, "RP")
    assert np.std(replicates) == pytest.approx(expected, rel=0.1)
    assert np.mean(replicates) == pytest.approx(cells[*setting, "RP"].value, abs=0.1)


def test_rows_share_the_dense_models_draw_and_nothing_else():
    drawn = Printed(registry.get("table1-linearpatch"))
    other = ("LLaMA-3-8B", "5/32", "LLM-Streamline(None)")
    first, second = drawn(*SETTING, "HeSw"), drawn(*other, "HeSw")
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert 0 < np.corrcoef(drawn(*SETTING, "RP"), drawn(*other, "RP"))[0, 1] < 0.9
    assert drawn(*SETTING, "HeSw") is first


def test_without_a_number_of_questions_it_is_the_number_and_without_a_number_none():
    drawn = Printed(registry.get("table1-prunecomp"))
    cell = ("LLaMA-3-8B", "5/32", "PPL", "WIKI-2")
    assert drawn(*cell) == reported.cells("prunecomp", "1")[cell].value
    assert drawn("no model", *cell[1:]) is None


def test_a_claim_counts_the_comparisons_that_hold_for_the_whole_interval():
    """Half a point of HellaSwag's 10,042 questions is inconclusive, ten are not; what varies in nothing is not counted."""
    table = registry.get("table1-linearpatch")
    claim = next(claim for claim in table.claims if claim.id == "patch-s-beats-cut")
    cells = reported.cells("linearpatch", "1")

    def printed(*key):
        return cells[key].value if key in cells else None

    settings = verdicts.pruned((model, sparsity, name.startswith("Dense")) for model, sparsity, name, _ in cells)
    drawn = Printed(table)
    compared = zip(claim.compare(printed, settings), claim.compare(drawn, settings))
    verdict = verdicts.judged(claim, [(*pair, drawn) for pair in compared])
    for comparison in verdict["comparisons"]:
        low, high = comparison["interval"]
        assert low < comparison["difference"] < high and not comparison["paired"]
        assert (comparison["verdict"] == verdicts.SUPPORTED) == (low > 0)
    holding = sum(comparison["interval"][0] > 0 for comparison in verdict["comparisons"])
    content = verdicts.claims(table, [], cells, [], {})["claims"]
    result = next(judged for judged in content if judged["id"] == table.claim_id(claim))
    assert result["reported_beyond"] == [holding, len(verdict["comparisons"])]
    varies = registry.get("table11-linearpatch")
    for judged in verdicts.claims(varies, [], reported.cells("linearpatch", "11"), [], {})["claims"]:
        assert judged["reported_beyond"] == [0, 0] and all(verdict is None for *_, verdict in judged["reported_of"])


def test_a_row_that_a_paper_prints_for_two_methods_counts_once():
    """LLaMA-2's windows are what ShortGPT takes, too: four of LinearPatch's six settings have one row for both choices."""
    cells = reported.cells("linearpatch", "1")
    content = verdicts.claims(registry.get("table1-linearpatch"), [], cells, [], {})["claims"]
    unpatched = [claim for claim in content if claim["id"].endswith("-beats-cut")]
    assert [claim["reported_counts"] for claim in unpatched] == [[6, 6], [6, 6]]
    retained = [
        {key[:2]: cell.value for key, cell in cells.items() if key[2:] == (f"LinearPatch[{choice}]", "RP")}
        for choice in "SL"
    ]
    alike = retained[0].items() & retained[1].items()
    counted = claim_verdicts.count_significant(unpatched)
    assert len(alike) == 4 and counted.startswith(f"all {12 - len(alike)} comparisons support it, ")


def printed_claim(reported, names, holds, verdicts=(None,) * 4):
    comparisons = zip(names, holds, verdicts, strict=False)
    return {"reported": reported, "reported_of": [list(comparison) for comparison in comparisons]}


ALL = printed_claim(True, "abcd", [True] * 4, ["supported"] * 2 + ["inconclusive"] * 2)
MOST = printed_claim(False, "efgh", [False, True, True, True])  # vary in nothing
NONE = printed_claim(False, "ij", [False, False], ["contradicted", "inconclusive"])


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ([ALL], "all 4 comparisons support it, 2 significant"),
        ([ALL, MOST], "7 of 8 comparisons support it, not enough, 2 of 4 significant"),
        ([MOST], "3 of 4 comparisons support it, not enough"),
        ([NONE], "0 of 2 comparisons support it, 0 significant, 1 significantly against"),
        ([MOST, NONE], "3 of 6 comparisons support it, not enough, 0 of 2 significant, 1 significantly against"),
    ],
)
def test_counts_say_what_is_significant_and_of_how_many_where_not_all_vary(claims, said):
    assert claim_verdicts.count_significant(claims) == said
    verdict = "supported" if claims == [ALL] else "contradicted"
    assert len(claims) > 1 or claim_verdicts.in_print_of_table(claims[0]) == f"{verdict} ({said})"
