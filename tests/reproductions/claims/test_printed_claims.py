"""Claims of the papers, held against the numbers that they print."""

from functools import cache

import pytest

from reproductions.claims import verdicts
from reproductions.spec import registry, reported

# Target -> its claims, and whether the printed numbers support them.
PRINTED = {
    "table1-linearpatch": {
        "patch-s-beats-cut": True,
        "patch-l-beats-cut": True,
        # LLaMA-3-8B, 7/32: LinearPatch[L] retains 73.57, LLM-Pruner 77.12
        "patch-l-beats-sleb-and-llm-pruner": False,
        "abstract-llama-3-8b": True,  # 94.15 - 90.84 is 3.31, not 4; the other 3.64, rounded
    },
    "table7-linearpatch": {"target-40-times-smaller": True},
    "table9-linearpatch": {"s-and-l-agree": True},
    "figure1d-linearpatch": {"rotation-lowers-sigma": True},
    "table1-laco": {"best-on-most-benchmarks": True},
    "table2-laco": {
        "beats-both-baselines": True,
        "over-80-percent-kept": True,
        "ahead-in-four-categories": True,  # in 14 of 16: SliceGPT's Exam. on LLaMA-2-7B is 27.15, LaCo's 25.85
    },
    "table3-laco": {
        "post-training-helps": True,  # 37.46 -> 40.33
        "pruned-again-keeps-70-percent": True,  # 32.40 / 46.55 = 69.6 %
    },
    "table4-laco": {
        "falls-with-size": True,  # but for one step, a slip: 36.13 with 28 layers, 37.46 with 23
        "half-keeps-70-percent": False,  # LLaMA-2-7B: 30.00 / 46.55 = 64.4 % (LC-3)
    },
    "table7-laco": {"above-70-percent": True, "none-below-30-percent": True},
    "table1-reassessing": {"reverse-order-best": True, "six-points-above-ppl": True},
    "table2-reassessing": {"partial-beats-lora": True, "partial-beats-faster-lora": None},
    "tableA-reassessing": {"iterating-has-no-benefit": False},  # 1:1:8 is above one-shot in three of four cases
    "tableB-reassessing": {"data-set-matters": True},
    "tableC-reassessing": {"less-data-declines": True},  # by the printed average, which is a slip
    "tableE-reassessing": {"ten-layers-gain-little": True},
    "tableG-reassessing": {"recipe-lowest-perplexity": True},
    "tableK-reassessing": {"reverse-order-beats-sleb-and-llm-pruner": True},
    **{f"table{number}-reassessing": {"recipe-beats-others": True} for number in "458HI"},
    "table6-reassessing": {"recipe-beats-others-at-each-rate": True},
    "table7-reassessing": {"4-bits-save-memory": False},  # 88.9 %, were it possible at all
}


@cache
def by_printed_numbers(target):
    """Claim -> whether a paper's own table supports it; None: it prints no numbers for the claim."""
    table = registry.get(target)
    content = verdicts.claims(table, [], reported.cells(table.paper, table.number), [], {})
    return {claim["id"].rpartition("/")[2]: claim["reported"] for claim in content["claims"]}


@pytest.mark.parametrize(("target", "verdict_by_claim"), PRINTED.items(), ids=PRINTED)
def test_the_papers_claims_on_its_own_numbers(target, verdict_by_claim, few_replicates):
    assert by_printed_numbers(target).items() >= verdict_by_claim.items()


def test_all_claims_of_prune_and_comps_main_table_hold_and_follow_from_its_numbers(few_replicates):
    assert list(by_printed_numbers("table1-prunecomp").values()) == [True] * 6
    table, cells = registry.get("table1-prunecomp"), reported.cells("prunecomp", "1")
    settings = list(dict.fromkeys(key[:2] for key in cells if not key[1].startswith("0/")))
    assert [claim.by(claim.compare(lambda *key: None, settings)) for claim in table.claims] == [None] * 6
    first = table.claims[0]
    worse = {"CosSim(BI) +Prune&Comp": 1e9}

    def changed(*key):
        return worse.get(key[2], cells[key].value if key in cells else None)

    assert first.by(first.compare(changed, settings)) is False
