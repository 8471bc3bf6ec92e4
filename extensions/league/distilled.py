"""A refit and a short distillation: the effect of a hundred steps of training, with and without the refit."""

from __future__ import annotations

from collections.abc import Iterator

from extensions.league import rows, texts
from extensions.league.tables import AVERAGE
from reproductions.spec import comparisons
from reproductions.spec.registry import Claim, Row, Table
from reproductions.spec.subjects import Subject

STEPS = 100
_TRAINING = {"method": "distilled", "steps": STEPS, "following": 3, "judges": rows.HELD_OUT}
REPAIRS = {rows.DISTILLED: _TRAINING, rows.DISTILLED_REFIT: _TRAINING | {"first": rows.REPAIRS[rows.REFIT]}}
ALONE, BOTH = (rows.name(rows.BLOCK, repair, rows.BOTH) for repair in REPAIRS)
RESIDUAL_BOTH = rows.name(rows.LEAST_RESIDUAL, rows.DISTILLED_REFIT, rows.BOTH)


def distilled(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield no repair, the refit from both texts, and the same with training.

    After the contiguous block; at the largest number also after least-residual selection. The toy model
    reads its own calibration text in all rows.
    """
    yield from rows.original(subject, limit)
    counts = rows.larger_counts(subject)
    repairs = {rows.REFIT: rows.REPAIRS[rows.REFIT]} | REPAIRS
    for count in counts:
        selections = rows.selections(count)
        block, residual = ({"selection": selections[name]} for name in (rows.BLOCK, rows.LEAST_RESIDUAL))
        yield rows.pruned(subject, limit, count, rows.LeagueSpec(rows.BLOCK, rows.NONE), **block)
        if subject.toy:
            for repair, step in repairs.items():
                yield rows.pruned(subject, limit, count, rows.LeagueSpec(rows.BLOCK, repair), repair=step, **block)
            continue
        both = texts.both(subject.profile)
        for repair, step in repairs.items():
            spec = rows.LeagueSpec(rows.BLOCK, repair, rows.BOTH)
            yield rows.reading(subject, limit, count, spec, step=step, corpus=both)
        if count == max(counts):
            yield rows.pruned(subject, limit, count, rows.LeagueSpec(rows.LEAST_RESIDUAL, rows.NONE), **residual)
            calibration = rows.BUDGET[subject.profile] | {"corpus": both}
            for repair in (rows.REFIT, rows.DISTILLED_REFIT):
                spec = rows.LeagueSpec(rows.LEAST_RESIDUAL, repair, rows.BOTH)
                yield rows.pruned(
                    subject, limit, count, spec, repair=repairs[repair], calibration=calibration, **residual
                )


_NONE = (BOTH, texts.NONE), (RESIDUAL_BOTH, texts.RESIDUAL_NONE)
_REFIT = (BOTH, texts.BOTH), (RESIDUAL_BOTH, texts.RESIDUAL_BOTH)
DISTILLED = Table(
    target="league-distilled",
    paper="league",
    number="league-distilled",
    title=f"Extension: a refit and {STEPS} steps of distillation",
    declared=distilled,
    columns=texts.columns,
    full=True,
    claims=(
        Claim(
            "distilled-answers-more-than-none",
            "extension: the refit with 100 steps of distillation is more accurate than no repair",
            comparisons.each_beats(_NONE, column=AVERAGE),
        ),
        Claim(
            "distilled-answers-more-than-refit",
            "extension: the refit with 100 steps of distillation is more accurate than the refit alone",
            comparisons.each_beats(_REFIT, column=AVERAGE),
        ),
        Claim(
            "distilled-lowers-perplexity",
            "extension: the refit with 100 steps of distillation has a lower perplexity than the refit alone",
            comparisons.each_beats(_REFIT, column="PPL AVG", lower=True),
        ),
        Claim(
            "distilled-needs-refit",
            "extension: 100 steps of distillation leave a lower perplexity after a refit than without one",
            comparisons.each_beats(((BOTH, ALONE),), column="PPL AVG", lower=True),
        ),
        Claim(
            "distilled-answers-with-refit",
            "extension: 100 steps of distillation leave more accuracy after a refit than without one",
            comparisons.each_beats(((BOTH, ALONE),), column=AVERAGE),
        ),
    ),
    note=f"{STEPS} steps of four sequences train the last layer before the pruning interface and the three after it towards "
    "the original model's next-token probabilities. Text: WikiText-2 and contexts of HellaSwag's items with their right "
    f"endings in turn (toy model: its own text). Of the 128 sequences {rows.HELD_OUT} judge the training; neither it nor the "
    "refit has read them. The rate is the tool's. No row reads items of the tasks.",
)
