"""Graft the neurons of a removed layer that writes the massive activation, with a refit and without."""

from __future__ import annotations

from collections.abc import Iterator

from extensions.league import rows
from extensions.league.answers import MEASURED_TASKS
from extensions.league.blocks import SHARES as EVERY
from extensions.league.tables import AVERAGE, with_average
from extensions.league.texts import TEST_TASKS
from reproductions.spec import comparisons
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

# LinearPatch's number of layers, and the league's largest: [L] takes that layer at both.
SHARES = ((8, 30), rows.SHARES[-1])
# The rivals, too: each as it is, and by what the model shows that has the neurons in their new place.
RIVALS_TO_GRAFT = (rows.FACTOR, rows.PATCHED, rows.REPLACEME, rows.GHOSTED)
THEN = "graft-{}"
BEFORE = {rows.NONE: None, rows.REFIT: rows.REPAIRS[rows.REFIT]}
NONE, REFIT = (rows.name(rows.BLOCK, repair) for repair in BEFORE)
GRAFT, BOTH = (rows.name(rows.BLOCK, repair) for repair in rows.GRAFTS)
RESIDUAL_REFIT = rows.name(rows.LEAST_RESIDUAL, rows.REFIT)
CHOSEN_BOTH = rows.name(rows.LEAST_RESIDUAL_GRAFTED, rows.GRAFT_REFIT)


def grafts(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield the rows with and without neuron grafting.

    By number of layers: least-residual selection without and with grafting. At the larger numbers also the contiguous block,
    which contains the layer of the massive activation, with no repair, the refit and other repairs.
    """
    if subject.printed:
        return
    yield from rows.original(subject, limit)
    larger = subject.counts(*SHARES, toy=rows.TOY_COUNTS[2:])
    for count in subject.counts(*EVERY, toy=rows.TOY_COUNTS):
        after = {rows.LEAST_RESIDUAL: BEFORE, rows.LEAST_RESIDUAL_GRAFTED: rows.GRAFTS}
        if count in larger:
            rivals = {rival: rows.REPAIRS[rival] for rival in RIVALS_TO_GRAFT}
            grafted = {THEN.format(rival): {"method": "graft", "then": step} for rival, step in rivals.items()}
            after = {rows.BLOCK: BEFORE | rows.GRAFTS | rivals | grafted} | after
        selections = rows.selections(count) | {rows.LEAST_RESIDUAL_GRAFTED: rows.grafted_selection(count)}
        for selection, repairs in after.items():
            for repair, step in repairs.items():
                fields = {"selection": selections[selection], "repair": step}
                yield rows.pruned(subject, limit, count, rows.LeagueSpec(selection, repair), **fields)


def columns(profile: str) -> list[Column]:
    """Return the league's texts and some tasks."""
    return with_average(profile, TEST_TASKS if profile == "paper" else MEASURED_TASKS[profile])


_GRAFTED = ((GRAFT, NONE), (BOTH, REFIT))
_RIVALS_GRAFTED = (
    (rows.name(rows.BLOCK, THEN.format(rival)), rows.name(rows.BLOCK, rival)) for rival in RIVALS_TO_GRAFT
)

GRAFTS = Table(
    target="league-graft",
    paper="league",
    number="league-graft",
    title="Extension: grafting the neurons that write the massive activation",
    declared=grafts,
    columns=columns,
    claims=(
        Claim(
            "carried-lowers-perplexity",
            "extension: after the contiguous block, neuron grafting lowers the perplexity of no repair, the refit and "
            "every baseline",
            comparisons.each_beats((*_GRAFTED, *_RIVALS_GRAFTED), column="PPL AVG", lower=True),
        ),
        Claim(
            "chosen-with-them-lowers-perplexity",
            "extension: with the refit, the least-residual set selected with grafting has a lower perplexity",
            comparisons.beats(CHOSEN_BOTH, RESIDUAL_REFIT, column="PPL AVG", lower=True),
        ),
        Claim(
            "carried-answers-more",
            "extension: neuron grafting is more accurate than no repair after the contiguous block",
            comparisons.beats(GRAFT, NONE, column=AVERAGE),
        ),
        Claim(
            "carried-refit-answers-more",
            "extension: neuron grafting with the refit is more accurate than the refit alone",
            comparisons.beats(BOTH, REFIT, column=AVERAGE),
        ),
        Claim(
            "chosen-with-them-answers-more",
            "extension: with the refit, the least-residual set selected with grafting is more accurate than the one without",
            comparisons.beats(CHOSEN_BOTH, RESIDUAL_REFIT, column=AVERAGE),
        ),
    ),
    note="The contiguous block contains the layer that writes the first token's massive activation. The "
    "least-residual set spares it. "
    "Neuron grafting: the neurons that write it are copied into the last layer before the interface, in place of as "
    "many that it "
    "uses least. The toy model has no massive activation, so nothing is grafted there.",
)
