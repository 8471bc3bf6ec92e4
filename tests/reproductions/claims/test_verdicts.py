"""Verdicts on claims: paired where outcomes are kept, marked where they are not, counted over comparisons."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from stored_records import put, put_outcomes

from common.records.results import Recipe, Store
from reproductions.claims import verdicts as judge
from reproductions.render import show, tables
from reproductions.spec import comparisons
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import TOY

ITEMS = 400
TASKS = [Column(name, name, "acc", scale=100) for name in ("T1", "T2")]
TEXT = Column("PPL", "perplexity@t", "perplexity", compare="perplexity")
AVERAGE = Column("AVG", derived="average", of=("T1", "T2"))
RP = Column("RP", derived="retained", of=("T1", "T2"))
COLUMNS = [*TASKS, TEXT, AVERAGE, RP]


def recipe(name: str) -> Recipe:
    chosen = None if name == "Dense" else {"method": name, "count": 4}
    return Recipe(model="standin", profile="standin", weights="w", dtype="float32", selection=chosen)


@pytest.fixture
def outcomes():
    """Dense, a row, one much better on T1, one that differs from it in a few items; windows of a text likewise."""
    rng = np.random.default_rng(7)
    hard = rng.random(ITEMS)
    base = dict.fromkeys(("T1", "T2"), hard < 0.5)
    better = {"T1": hard < 0.62, "T2": hard < 0.5}
    near = {name: right ^ (rng.random(ITEMS) < 0.01) for name, right in base.items()}
    losses = rng.normal(3.0, 0.6, 50)
    sequences = {"plain": losses, "better": losses - 0.05 + rng.normal(0, 0.02, 50), "near": losses + 1e-4}
    rights = {"Dense": dict.fromkeys(base, hard < 0.8), "plain": base, "better": better, "near": near}
    return rights, sequences | {"Dense": losses - 0.5}


def table(*claims: Claim, rows=("plain", "better", "near")) -> Table:
    declared = [Row("standin", "toy model", "0/16", "Dense", recipe("Dense"), dense=True)]
    declared += [Row("standin", "toy model", "4/16", name, recipe(name)) for name in rows]
    return Table("t", "linearpatch", "none", "A table", lambda *_: declared, lambda _: COLUMNS, claims)


def stored(folder, outcomes, keep=True) -> Store:
    """Records of all rows, with what was right or wrong beside them (`keep`) or without."""
    store = Store(folder, None)
    right, sequences = outcomes
    for name, by_task in right.items():
        for task, values in by_task.items():
            put_outcomes(store, recipe(name), task, {"acc": values}, keep)
        put_outcomes(store, recipe(name), TEXT.benchmark, {"nll": sequences[name]}, keep)
    return store


@pytest.fixture
def build(tmp_path, outcomes):
    """`build(*claims)` -> the table with these claims, as it is shown of the toy model's records."""

    def show_table(*claims, rows=("plain", "better", "near"), outcomes=outcomes, keep=True, folder="records"):
        return show.build(table(*claims, rows=rows), stored(tmp_path / folder, outcomes, keep), TOY)

    return show_table


def judged(content: dict, number: int = 0) -> dict:
    return content["claims"][number]["judged"]["standin"]


def answers(**right) -> tuple[dict, dict]:
    """Outcomes of rows that are right on the same items of both tasks, and read all texts alike."""
    by_task = {name: dict.fromkeys(("T1", "T2"), outcomes) for name, outcomes in right.items()}
    return by_task, dict.fromkeys(right, np.linspace(2, 4, 50))


def claim(check, **options) -> Claim:
    return Claim("id", "a claim", check, **options)


def beats(ours, *others, column="T1", **options) -> Claim:
    return claim(comparisons.beats(ours, *others, column=column, **options))


SETTING = ("m", "1")
BETTER = beats("better", "plain")


def listed(check, **numbers) -> list[comparisons.Comparison]:
    """The comparisons of a check on numbers in one column, x, of one setting."""
    return check(lambda model, sparsity, method, column: numbers.get(method), [SETTING])


def test_a_difference_on_one_task_has_mcnemars_p_and_a_paired_interval(build, outcomes):
    verdict = judged(build(BETTER))
    (comparison,) = verdict["comparisons"]
    better, plain = (outcomes[0][name]["T1"] for name in ("better", "plain"))
    apart = better.astype(float) - plain
    assert verdict["verdict"] == "supported" and comparison["paired"]
    assert verdict["difference"] == pytest.approx(100 * apart.mean())
    mcnemar = stats.binomtest(int((better & ~plain).sum()), int((better != plain).sum()))
    assert comparison["p"] == pytest.approx(mcnemar.pvalue)
    half = 100 * 1.96 * apart.std(ddof=1) / math.sqrt(ITEMS)
    ends = [verdict["difference"] - half, verdict["difference"] + half]
    assert comparison["interval"] == pytest.approx(ends, abs=0.12 * half)


@pytest.mark.parametrize(("apart", "verdicts"), [(5, ["inconclusive"] * 2), (6, ["supported", "contradicted"])])
def test_few_items_that_differ_are_judged_by_mcnemar_though_the_interval_leaves_zero_out(build, apart, verdicts):
    """Five of 400 items, all for the one: a fair coin falls so in 2 of 32 cases; six: in 2 of 64."""
    items, one = np.arange(ITEMS), np.arange(ITEMS) < 200
    outcomes = answers(Dense=items < 300, a=one, b=one | (items >= ITEMS - apart))
    content = build(beats("b", "a"), beats("a", "b"), rows=("a", "b"), outcomes=outcomes)
    assert judged(content)["interval"][0] > 0
    assert judged(content)["comparisons"][0]["p"] == pytest.approx(2 / 2**apart)
    assert [judged(content, number)["verdict"] for number in (0, 1)] == verdicts


def test_rows_that_have_answered_all_are_compared_by_all_where_the_table_shows_a_part(tmp_path):
    """On the first 500 items the better row is behind; a third row has answered no more than these."""
    rng, names = np.random.default_rng(5), ("Dense", "plain", "better", "near")
    hard = rng.random(2000)
    right = {name: hard < share for name, share in zip(names, (0.9, 0.5, 0.62, 0.51))}
    right["better"][:500] = hard[:500] < 0.45
    store, part = Store(tmp_path, None), Column("PIQA", "piqa@first-500", "acc", scale=100)
    for name, outcome in right.items():
        put_outcomes(store, recipe(name), "piqa@first-500", {"acc": outcome[:500]})
        if name != "near":
            put_outcomes(store, recipe(name), "piqa", {"acc": outcome})
    columns = [part, Column("RP", derived="retained", of=("PIQA",))]
    claims = [
        beats("better", "plain", column="PIQA"),
        beats("better", "plain", column="RP"),
        beats("better", "plain", "near", column="PIQA"),
    ]
    shown = replace(table(*claims), columns=lambda _: columns)
    content = show.build(shown, store, TOY)
    assert content["rows"][2]["cells"]["PIQA"]["reproduced"] == pytest.approx(100 * right["better"][:500].mean())
    share = {name: outcome.mean() for name, outcome in right.items()}
    ahead, retained, both = (judged(content, number) for number in range(3))
    assert (ahead["verdict"], ahead["whole"], ahead["paired"]) == ("supported", ["PIQA"], True)
    assert ahead["difference"] == pytest.approx(100 * (share["better"] - share["plain"]))
    assert retained["difference"] == pytest.approx(100 * (share["better"] - share["plain"]) / share["Dense"])
    part_of = {name: outcome[:500].mean() for name, outcome in right.items()}
    assert (both["verdict"], both["whole"]) == ("contradicted", [])
    assert both["difference"] == pytest.approx(100 * (part_of["better"] - part_of["near"]))
    assert "2 comparisons use all items of PIQA" in tables.render(content)
    assert ahead["shares_records_with"] == [2, 3] and both["shares_records_with"] == [1, 2]


def test_without_outcomes_the_interval_is_that_of_independent_rows_and_marked(build):
    content = build(BETTER, keep=False)
    verdict = judged(content)
    half = 1.96 * math.hypot(*(content["rows"][number]["cells"]["T1"]["stderr"] for number in (1, 2)))
    assert verdict["paired"] is False and "p" not in verdict["comparisons"][0]
    ends = [verdict["difference"] - half, verdict["difference"] + half]
    assert verdict["interval"] == pytest.approx(ends, abs=0.1 * half)
    assert "(unpaired)" in tables.render(content) and "Unpaired: outcomes per item" in tables.render(content)
    paired = tables.render(build(BETTER, folder="with outcomes"))
    assert "]~" not in paired and "not paired" not in paired


def test_averages_are_stratified_by_task_and_retained_ones_know_the_dense_model(build, outcomes):
    """A loop over replicates that draws each task's items by themselves, and forms the retained performance anew."""
    verdict = judged(build(beats("better", "plain", column="RP")))
    right, rng, naive = outcomes[0], np.random.default_rng(3), []
    for _ in range(1500):
        chosen = {task: rng.integers(0, ITEMS, ITEMS) for task in ("T1", "T2")}
        share = {name: {t: right[name][t][chosen[t]].mean() for t in chosen} for name in ("Dense", "plain", "better")}
        retained = {n: np.mean([100 * share[n][t] / share["Dense"][t] for t in chosen]) for n in ("plain", "better")}
        naive.append(retained["better"] - retained["plain"])
    low, high = np.percentile(naive, (2.5, 97.5))
    assert verdict["interval"] == pytest.approx([low, high], abs=0.1 * (high - low)) and verdict["paired"]


def test_what_is_retained_is_paired_only_where_the_dense_models_outcomes_are_kept_too(tmp_path, outcomes):
    claims, store = [beats("better", "plain", column=column) for column in ("T1", "RP")], stored(tmp_path, outcomes)
    for dense_outcomes in (True, False):
        content = show.build(table(*claims), store, TOY)
        assert [judged(content, number)["paired"] for number in (0, 1)] == [True, dense_outcomes]
        store.path(recipe("Dense"), "T1").with_suffix(".npz").unlink(missing_ok=True)


def test_what_the_dense_model_retains_of_itself_has_no_error(build):
    """It is 100 % whatever it scores; what a pruned row retains has the errors of both, on each of two tasks."""
    items = np.arange(ITEMS)
    content = build(rows=("a",), outcomes=answers(Dense=items < 300, a=items < 200))
    dense, pruned = (row["cells"]["RP"] for row in content["rows"][:2])
    assert dense["reproduced"] == pytest.approx(100) and dense["stderr"] is None
    relative = [(1 - p) / p / (ITEMS - 1) for p in (0.5, 0.75)]
    assert pruned["stderr"] == pytest.approx(100 * 0.5 / 0.75 * math.sqrt(sum(relative) / 2))


def test_against_several_rows_every_one_has_to_be_beaten(build, outcomes):
    """Ten rivals that are equal but for chance: the best of ten replicates would be above the best of what they replicate."""
    rng, right, sequences = np.random.default_rng(11), *outcomes
    rivals = [f"rival {number}" for number in range(10)]
    for name in rivals:
        right[name] = {task: values ^ (rng.random(ITEMS) < 0.1) for task, values in right["plain"].items()}
        sequences[name] = sequences["plain"]
    claims = [*(beats("better", name) for name in rivals), beats("better", *rivals)]
    content = build(*claims, rows=("better", *rivals))
    *single_verdicts, together = (claim["judged"]["standin"] for claim in content["claims"])
    assert {verdict["verdict"] for verdict in single_verdicts} == {"supported"} == {together["verdict"]}
    worst = min(single_verdicts, key=lambda verdict: verdict["slack"])
    assert all(together[key] == worst[key] for key in ("difference", "interval", "what"))
    beaten = judged(build(beats("plain", "near", "better")))
    assert beaten["verdict"] == "contradicted" and "against better" in beaten["what"]


def of_two_tasks(folder, shares, *claims, more_columns=()) -> dict:
    """A table of rows with these shares of right answers in BoolQ and PIQA, or with none yet."""
    columns = [Column(name, name, "acc", scale=100) for name in ("boolq", "piqa")]
    columns += [Column("AVG", derived="average"), Column("KNOWN", derived="average", exclude_chance_tasks=True)]
    columns += [Column("RP", derived="retained"), *more_columns]
    rows = [Row("standin", "toy model", "", name, recipe(name), dense=name == "Dense") for name in shares]
    store = Store(folder, None)
    for name, by_task in shares.items():
        for task, share in zip(("boolq", "piqa"), by_task):
            put(store, recipe(name), task, {"acc": share}, {"acc": 0.025})
    declared = Table("t", "linearpatch", "none", "A table", lambda *_: rows, lambda _: columns, claims)
    return show.build(declared, store, TOY)


def test_what_is_retained_leaves_out_what_the_dense_model_guesses(tmp_path):
    """Two choices, and 400 items: above chance level is above 55 of 100."""
    inside = comparisons.all_of(*(comparisons.between(name, 0, 100, "plain") for name in ("boolq", "piqa")))
    claims = (claim(inside), claim(inside, exclude_chance_tasks=True))
    content = of_two_tasks(tmp_path, {"Dense": (0.54, 0.70), "plain": (0.62, 0.63)}, *claims)
    values = {label: cell["reproduced"] for label, cell in content["rows"][1]["cells"].items()}
    assert [values[label] for label in ("RP", "AVG", "KNOWN")] == pytest.approx([100 * 63 / 70, 62.5, 63])
    assert content["subjects"][0]["over"] == {"KNOWN": 1, "RP": 1}
    assert content["subjects"][0]["over_tasks"] == {"KNOWN": ["piqa"], "RP": ["piqa"]}
    assert "Averages on the toy model: KNOWN and RP over piqa." in tables.render(content)
    assert "KNOWN and RP leave boolq out" in tables.render(content)
    assert [len(judged(content, number)["comparisons"]) for number in (0, 1)] == [2, 1]


def test_where_the_dense_model_only_guesses_nothing_is_retained(tmp_path):
    shares = {"Dense": (0.5, 0.5), "plain": (0.4, 0.4), "not run yet": ()}
    content = of_two_tasks(tmp_path, shares, more_columns=[Column("of PIQA", derived="retained", of=("piqa",))])
    for row in content["rows"][:2]:
        cells = row["cells"]
        at_chance = {label for label, cell in cells.items() if cell["status"] == "the dense model only guesses"}
        assert at_chance == {"KNOWN", "RP"} and cells["RP"]["reproduced"] is None
    assert cells["AVG"]["reproduced"] == pytest.approx(40) and cells["of PIQA"]["reproduced"] == pytest.approx(80)
    assert content["rows"][2]["cells"]["RP"]["status"] == "not run" and content["subjects"][0]["over"] == {}
    text = tables.render(content)
    assert text.count(" guesses") == 4 and "KNOWN and RP leave boolq and piqa out" in text


def test_perplexities_are_paired_by_sequence(build, outcomes):
    """Windows vary twelve times as much as the rows differ: only pairing shows the difference."""
    lower_perplexity = beats("better", "plain", column="PPL", lower=True)
    verdict = judged(build(lower_perplexity))
    gap = outcomes[1]["better"] - outcomes[1]["plain"]
    assert verdict["verdict"] == "supported" and verdict["unit"] == "%"
    assert verdict["difference"] == pytest.approx(100 * math.expm1(gap.mean()), abs=0.01)
    half = 1.96 * gap.std(ddof=1) / math.sqrt(len(gap))
    ends = [100 * math.expm1(gap.mean() + sign * half) for sign in (-1, 1)]
    assert verdict["interval"] == pytest.approx(ends, abs=0.15 * (ends[1] - ends[0]))
    unpaired = judged(build(lower_perplexity, keep=False, folder="without outcomes"))
    assert unpaired["verdict"] == "inconclusive" and unpaired["interval"][0] < -15 and unpaired["interval"][1] > 5


def test_two_scores_of_one_benchmark_need_not_count_the_same_items(tmp_path):
    """As exact match, of all items, and ROUGE, of those that have a summary."""
    columns = [Column(key, "both", key, scale=100) for key in ("all", "some")] + [Column("AVG", derived="average")]
    declared = [Row("standin", "toy model", "4/16", name, recipe(name)) for name in ("plain", "better")]
    hard, store = np.random.default_rng(1).random(ITEMS), Store(tmp_path, None)
    for row, share in zip(declared, (0.5, 0.6), strict=True):
        put_outcomes(store, row.recipe, "both", {"all": hard < share, "some": (hard < share)[: ITEMS // 2]})
    claims = (beats("better", "plain", column="AVG"),)
    both = Table("t", "linearpatch", "none", "A table", lambda *_: declared, lambda _: columns, claims)
    (comparison,) = judged(show.build(both, store, TOY))["comparisons"]
    assert comparison["paired"] and comparison["verdict"] == "supported"


def test_comparisons_are_counted_and_a_claim_says_how_many_it_needs(build):
    pairs = [("better", "plain"), ("near", "plain"), ("plain", "better"), ("better", "near")]
    check = comparisons.all_of(*(comparisons.beats(*pair, column="T1") for pair in pairs))
    content = build(claim(check), *(claim(check, enough=lambda holding, of, n=n: holding >= n) for n in (2, 3)))
    for number, verdict in enumerate(("contradicted", "supported", "inconclusive")):
        result = judged(content, number)
        assert result["verdict"] == verdict
        assert result["counts"] == {"supported": 2, "contradicted": 1, "inconclusive": 1}
        assert result["difference"] == min(comparison["difference"] for comparison in result["comparisons"])
    # the same comparisons three times
    assert content["chance"]["standin"] == {"comparisons": 4, "by_chance": pytest.approx(0.1), "others": 0}
    assert "(2 supported, 1 contradicted, 1 inconclusive); worst case: " in tables.render(content)


def test_a_claim_of_more_than_zero_is_not_counted_among_what_chance_alone_would_fail(build):
    setting = ("toy model", "4/16")
    claims = [claim(comparisons.ahead_by(setting, "better", "plain", "T1", least)) for least in (0, 5, -5)]
    assert build(*claims)["chance"]["standin"] == {"comparisons": 2, "by_chance": pytest.approx(0.05), "others": 1}


def test_one_against_several_may_fail_by_chance_by_each_of_them(build):
    """Three rivals at 2.5 % each, in one comparison."""
    rng, hard = np.random.default_rng(3), np.random.default_rng(7).random(ITEMS)
    rivals = {f"r{number}": (hard < 0.5) ^ (rng.random(ITEMS) < 0.1) for number in range(3)}
    outcomes = answers(Dense=hard < 0.9, ours=hard < 0.6, **rivals)
    content = build(beats("ours", *rivals), rows=("ours", *rivals), outcomes=outcomes)
    chance = {"comparisons": 1, "by_chance": pytest.approx(3 * 0.025), "others": 0}
    assert content["chance"]["standin"] == chance


def test_the_same_outcomes_under_another_name_are_no_further_comparison(build, outcomes):
    """Two choices of layers may be one: what is compared with both counts once, and the one with the other not at all."""
    for kind in outcomes:
        kind["twin"] = kind["better"]
    claims = [
        claim(comparisons.all_of(*(comparisons.beats(name, "plain", column="T1") for name in ("better", "twin")))),
        beats("twin", "better", column="PPL", lower=True, within=0.01),
        beats("better", "plain", "near", "twin"),
    ]
    content = build(*claims, rows=("plain", "better", "near", "twin"))
    assert [len(judged(content, number)["comparisons"]) for number in range(3)] == [1, 0, 1]
    assert judged(content, 1)["reason"] == "the same outcomes"
    assert judged(content, 0)["comparisons"][0]["against"] == 1 and judged(content, 2)["comparisons"][0]["against"] == 2
    assert judge.together(judged(content, number) for number in (0, 0))["compared"] == 1


def test_the_same_outcomes_may_fail_a_claim_of_more(build, outcomes):
    """Nothing ahead of nothing: not by four points; and nothing right is below any threshold."""
    for kind in outcomes:
        kind["twin"] = kind["better"]
    outcomes[0]["none"], outcomes[1]["none"] = dict.fromkeys(("T1", "T2"), np.zeros(ITEMS, bool)), outcomes[1]["plain"]
    claims = [
        claim(comparisons.ahead_by(("toy model", "4/16"), "twin", "better", "T1", 4)),
        claim(comparisons.between("T1", 30, math.inf, "none")),
        claim(comparisons.all_of(*(comparisons.between("T1", least, math.inf, "plain") for least in (30, 40)))),
    ]
    content = build(*claims, rows=("plain", "better", "near", "twin", "none"))
    assert [judged(content, number)["verdict"] for number in range(3)] == ["contradicted", "contradicted", "supported"]
    assert len(judged(content, 2)["comparisons"]) == 2
    assert len(judge.distinct(judged(content, number) for number in (2, 2))) == 2


def test_no_benefit_is_that_of_a_margin(build, outcomes):
    """Behind by no more than so many points: where plain numbers are, and by all of the interval."""
    behind = 100 * float(np.mean(outcomes[0]["better"]["T1"]) - np.mean(outcomes[0]["plain"]["T1"]))
    margins = (0, behind - 0.01, behind + 0.01, 40)
    content = build(*(beats("plain", "better", within=margin) for margin in margins))
    assert [claim["by_subject"]["standin"] for claim in content["claims"]] == [False, False, True, True]
    verdicts = ["contradicted", "inconclusive", "inconclusive", "supported"]
    assert [judged(content, number)["verdict"] for number in range(4)] == verdicts


def test_claims_that_share_records_say_so_but_for_the_dense_models(build):
    claims = [
        beats("better", "plain", column="RP"),
        beats("near", "plain"),
        claim(comparisons.between("T2", 0, 100, "near")),
        claim(comparisons.between("RP", 0, 100, "near")),
    ]
    content = build(*claims)
    shared = [judged(content, number)["shares_records_with"] for number in range(4)]
    assert shared == [[2], [1, 4], [4], [2, 3]]
    assert "Claims 1, 2, 3 and 4 partly use the same results" in tables.render(content)
    judged(content, 3)["verdict"] = "not tested"  # the terminal hides the claim, and with it what 3 shares records with
    assert "Claims 1 and 2 partly use the same results" in tables.render(content)
    assert "Claims 1, 2, 3 and 4 partly use the same results" in tables.render(content, every_row=True)


@pytest.mark.parametrize("other", ["not the record's", "of fewer items"])
def test_other_outcomes_are_not_paired(tmp_path, outcomes, other):
    store, own = stored(tmp_path, outcomes), recipe("better")
    if other == "of fewer items":
        put_outcomes(store, own, "T1", {"acc": outcomes[0]["better"]["T1"][: ITEMS // 2]})
    else:
        np.savez_compressed(store.path(own, "T1").with_name("T1.npz"), acc=np.ones(ITEMS, bool))
    verdict = judged(show.build(table(BETTER), store, TOY))
    assert verdict["paired"] is False and "p" not in verdict["comparisons"][0]


def test_what_is_missing_or_exact_has_no_interval(build):
    check = comparisons.beats("better", "plain", column="T1")
    content = build(beats("absent", "plain"), claim(check, only_reported=True))
    assert [judged(content, n)["verdict"] for n in (0, 1)] == ["not tested"] * 2
    assert [judged(content, n)["reason"] for n in (0, 1)] == ["no results", "about the paper's own numbers"]
    assert content["chance"]["standin"]["comparisons"] == 0 and "interval" not in tables.render(content)


@pytest.mark.parametrize(
    "interval, verdict", [((-2, 2), True), ((-4, 2), None), ((3.5, 9), False), ((-9, -3.5), False), ((-9, 9), None)]
)
def test_a_range_is_held_against_the_whole_interval(interval, verdict):
    inside = comparisons.alike_within("", 0.0, "points", (), 3)
    outside = comparisons.Comparison("", 0.0, "points", (), -3, 3, inside=False)
    assert inside.verdict(*interval) is verdict
    assert outside.verdict(*interval) is (None if verdict is None else not verdict)
    assert inside.holds and not outside.holds


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_the_ends_of_a_range_belong_to_it_where_it_is_closed(closed, inside):
    comparison = comparisons.Comparison("x", 0.0, "", (), low=0, high=2, closed=closed, inside=inside)
    assert comparison.holds is replace(comparison, difference=2.0).holds is (closed == inside)
    assert comparison.verdict(0, 2) is (inside if closed else None)
    assert comparison.verdict(0.5, 1.5) is inside and comparison.verdict(2.5, 3) is (not inside)
    assert comparison.verdict(1, 3) is None


def test_ahead_by_asks_for_a_share_less_where_less_is_better():
    """9.5 against 10 is 5 % less: enough for 4, too little for 6."""
    for ours, theirs, least, holds in (
        (9.5, 10, 0, True),
        (9.5, 10, 4, True),
        (9.5, 10, 6, False),
        (10, 9.5, 0, False),
    ):
        check = comparisons.ahead_by(SETTING, "ours", "theirs", "x", least, lower=True)
        (comparison,) = listed(check, ours=ours, theirs=theirs)
        assert comparison.holds is holds and comparison.difference == pytest.approx(100 * (ours / theirs - 1))


def test_how_steady_numbers_are_is_told_in_shares_of_the_first():
    """125 is 25 % off 100, and 75 too; of the other number it would be 20 and 33 %."""
    numbers = {"a": 100.0, "b": 125.0, "c": 75.0}
    for within, holds in ((0.26, True), (0.24, False)):
        compared = listed(comparisons.steady("abc", ["x"], within), **numbers)
        assert [comparison.difference for comparison in compared] == pytest.approx([25, -25])
        assert [comparison.holds for comparison in compared] == [holds, holds]
    assert listed(comparisons.steady("ad", ["x"], 0.5), **numbers) == []


@pytest.mark.parametrize(("lower", "ours", "nearest"), [(False, "b", 7 - 5), (True, "a", 100 * (3 / 4 - 1))])
def test_the_best_of_several_is_held_against_every_other(lower, ours, nearest):
    """Ours are 3 and 7, theirs 5 and 4; a third has no number."""
    (comparison,) = listed(comparisons.best_of("abc", "st", "x", lower=lower), a=3.0, b=7.0, s=5.0, t=4.0)
    assert [[key[2] for key in part.cells] for part in comparison.parts] == [[ours, "s"], [ours, "t"]]
    assert comparison.holds and comparison.difference == pytest.approx(nearest)


def test_a_ratio_is_the_first_methods_number_over_the_seconds():
    for least, holds in ((8, True), (8.1, False)):
        (comparison,) = listed(comparisons.ratio_of("m", "big", "small", "x", least), big=40.0, small=5.0)
        assert comparison.difference == 8 and comparison.holds is holds
    assert listed(comparisons.ratio_of("m", "big", "absent", "x", 1), big=40.0) == []


def test_every_format_has_verdict_difference_and_interval(build):
    content = build(BETTER)
    verdict = judged(content)
    low, high = (f"{end:+.1f}".replace("-", "−") for end in verdict["interval"])
    assert verdict["difference"] > 0
    sentence = f"supported: {verdict['difference']:.1f} points more, 95 % CI {low} to {high}"
    assert all(sentence in tables.render(content, form) for form in ("terminal", "md"))
    written = json.loads(tables.render(content, "json"))["claims"][0]
    assert (written["verdict"], written["interval"]) == ("supported", verdict["interval"])
    assert written["difference"] == verdict["difference"] and written["reproduced"] is True
    (line,) = [row for row in csv.DictReader(io.StringIO(tables.render(content, "csv"))) if row["column"] == "claim"]
    assert (line["model"], line["method"], line["status"]) == ("standin", "a claim", "supported")
    assert [float(line[key]) for key in ("reproduced", "low", "high")] == [verdict["difference"], *verdict["interval"]]


def test_rows_that_gave_the_same_on_every_item_were_not_compared(build, outcomes):
    for kind in outcomes:
        kind["near"] = kind["plain"]
    content = build(
        beats("near", "plain", column="AVG"),
        beats("near", "plain", column="PPL", lower=True),
        claim(comparisons.all_of(*(comparisons.beats(name, "plain", column="T1") for name in ("near", "better")))),
        claim(comparisons.steady(["plain", "near"], ["T1"], 0.01)),
        beats("better", "near", "plain"),
        beats("near", "plain", "better"),
    )
    verdicts = [judged(content, number)["verdict"] for number in range(6)]
    assert verdicts == ["not tested"] * 2 + ["supported"] * 3 + ["contradicted"]
    assert {judged(content, number)["reason"] for number in (0, 1)} == {"the same outcomes"}
    assert sum(judged(content, 2)["counts"].values()) == 1
