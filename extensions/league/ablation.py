"""Find the cause of the refit's gain: one option at a time, from the regression of CoMe's public code to the refit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from extensions.league import rows
from extensions.league.tables import AVERAGE, perplexities, with_average
from extensions.league.texts import TEST_TASKS
from reproductions.spec import comparisons
from reproductions.spec.columns import FEW
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

_ALL = rows.ABLATION | rows.VARIANTS
STEPS = {name: step for name, (_, step) in _ALL.items()}
LABELS = {name: label.removeprefix("+ ") for name, (label, _) in _ALL.items()}
COME = next(iter(rows.ABLATION))  # the regression of CoMe's public code
# Each with what it is compared with.
COMPARED = (*pairwise(rows.ABLATION), *((rows.REFIT, variant) for variant in rows.VARIANTS))


def ablation(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield the rows of the refit's ablation.

    These are the original model and, for each larger number of layers of the league, [L]'s block with no repair and
    with every variant of the refit.
    """
    yield from rows.original(subject, limit)
    for count in rows.larger_counts(subject):
        block = rows.selections(count)[rows.BLOCK]
        for repair, step in ({rows.NONE: None} | STEPS).items():
            spec = rows.LeagueSpec(rows.BLOCK, repair)
            yield rows.pruned(subject, limit, count, spec, selection=block, repair=step)


def draws(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield the same block repaired by every variant from five draws of the league's text."""
    yield from rows.original(subject, limit)
    for count in rows.larger_counts(subject):
        for repair, step in STEPS.items():
            for seed in rows.SEEDS:
                spec = rows.LeagueSpec(rows.BLOCK, repair, rows.FIRST, seed)
                text = {"corpus": rows.BUDGET[subject.profile]["corpus"], "seed": seed}
                yield rows.reading(subject, limit, count, spec, step=step, **text)


def columns(profile: str) -> list[Column]:
    """Return the league's texts, tasks of which no row reads items, and their average."""
    return with_average(profile, TEST_TASKS if profile == "paper" else FEW)


def _both(repair: str, before: str) -> tuple[str, str]:
    return rows.name(rows.BLOCK, repair), rows.name(rows.BLOCK, before)


def _each_draw_lower(repair: str, before: str) -> comparisons.Check:
    pairs = [
        tuple(rows.name(rows.BLOCK, variant, rows.FIRST, seed) for variant in (repair, before)) for seed in rows.SEEDS
    ]
    return comparisons.each_beats(pairs, column="PPL AVG", lower=True)


NOTE = (
    "After the contiguous block. The first row is the regression of CoMe's public code: it refits o_proj and down_proj of "
    "the one layer after the removed ones. The target is the sum of what the same sub-layers there and in the removed "
    "ones added in the original model. The ridge is 1 % of the mean eigenvalue and pulls towards 0. That code removes one "
    "layer at a time; here the block is removed at once. Each later row changes one more option, up to the "
    "league's refits. The last two rows each change the league's refit in one way."
)
ABLATION = Table(
    target="ablation-league",
    paper="league",
    number="ablation-league",
    title="Extension: what the refit's gain is due to",
    declared=ablation,
    columns=columns,
    claims=(
        *(
            Claim(
                f"{repair}-lowers-perplexity",
                f"extension: lower perplexity with {LABELS[repair]}",
                comparisons.beats(*_both(repair, before), column="PPL AVG", lower=True),
            )
            for before, repair in COMPARED
        ),
        *(
            Claim(
                f"{repair}-answers-more",
                f"extension: higher accuracy with {LABELS[repair]}",
                comparisons.beats(*_both(repair, before), column=AVERAGE),
            )
            for before, repair in COMPARED
        ),
        Claim(
            "refit-lowers-perplexity-of-come",
            "extension: the refit leaves a lower perplexity than the regression of CoMe's public code",
            comparisons.beats(*_both(rows.REFIT, COME), column="PPL AVG", lower=True),
        ),
        Claim(
            "refit-answers-more-than-come",
            "extension: the refit is more accurate than the regression of CoMe's public code",
            comparisons.beats(*_both(rows.REFIT, COME), column=AVERAGE),
        ),
    ),
    note=NOTE,
)
DRAWS = Table(
    target="ablation-league-seeds",
    paper="league",
    number="ablation-league-seeds",
    title="Extension: what the refit's gain is due to, from five draws of the text",
    declared=draws,
    columns=perplexities,
    claims=tuple(
        Claim(
            f"{repair}-lowers-perplexity",
            f"extension: from every measured draw lower perplexity with {LABELS[repair]}",
            _each_draw_lower(repair, before),
        )
        for before, repair in COMPARED
    ),
    note=NOTE,
)
