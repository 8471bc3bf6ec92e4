"""Vary the calibration text of a repair: plain text, items of a task that is not measured, and both."""

from __future__ import annotations

from collections.abc import Iterator

from common.pruning.recipe import MIXED
from extensions.league import rows
from extensions.league.answers import MEASURED_TASKS, TASK_TEXT
from extensions.league.tables import AVERAGE, perplexities, with_average
from reproductions.spec import comparisons
from reproductions.spec.columns import tasks
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

_FROM_ITEMS, _BOTH = (rows.LeagueSpec(rows.BLOCK, rows.REFIT, text) for text in (rows.ITEMS, rows.BOTH))
_RESIDUAL_NONE, _RESIDUAL_BOTH = (
    rows.LeagueSpec(rows.LEAST_RESIDUAL, rows.NONE),
    rows.LeagueSpec(rows.LEAST_RESIDUAL, rows.REFIT, rows.BOTH),
)
# The second is what `extensions.refit` does where it is told nothing.
_GRAFT, _TOOL_DEFAULT = (
    rows.LeagueSpec(rows.LEAST_RESIDUAL_GRAFTED, rows.GRAFT),
    rows.LeagueSpec(rows.LEAST_RESIDUAL_GRAFTED, rows.GRAFT_REFIT, rows.BOTH),
)
# The same without first tokens in the fits.
_WITHOUT, _TOOL_WITHOUT = rows.WITHOUT.format(rows.REFIT), rows.WITHOUT.format(rows.GRAFT_REFIT)
_BOTH_WITHOUT = rows.LeagueSpec(rows.BLOCK, _WITHOUT, rows.BOTH)
_TOOL_DEFAULT_WITHOUT = rows.LeagueSpec(rows.LEAST_RESIDUAL_GRAFTED, _TOOL_WITHOUT, rows.BOTH)
NONE, PLAIN, PLAIN_WITHOUT = (rows.name(rows.BLOCK, repair) for repair in (rows.NONE, rows.REFIT, _WITHOUT))
FROM_ITEMS, BOTH, RESIDUAL_NONE, RESIDUAL_BOTH, TOOL_DEFAULT = (
    spec.method for spec in (_FROM_ITEMS, _BOTH, _RESIDUAL_NONE, _RESIDUAL_BOTH, _TOOL_DEFAULT)
)
BOTH_WITHOUT, TOOL_DEFAULT_WITHOUT = _BOTH_WITHOUT.method, _TOOL_DEFAULT_WITHOUT.method
# Tasks of more than a thousand items whose text no row reads; BoolQ's are mostly answered by one word or the other.
TEST_TASKS = ("ARC-c", "ARC-e", "PIQA", "WG")


def texts(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return no repair and the rows that are calibrated on other texts, after the contiguous block.

    The toy model has none, because its calibration text is like its tasks. At the largest number also after
    least-residual selection on the repair's text, without and with neuron grafting.
    """
    return rows.larger(subject, limit, (NONE, PLAIN, PLAIN_WITHOUT), lambda count: _others(subject, limit, count))


def both(profile: str) -> str:
    """Return the corpus that alternates the league's text with a task's items."""
    return MIXED.join((rows.BUDGET[profile]["corpus"], TASK_TEXT))


def _others(subject: Subject, limit: int | None, count: int) -> Iterator[Row]:
    mixed = both(subject.profile)
    for spec, corpus in ((_FROM_ITEMS, TASK_TEXT), (_BOTH, mixed)):
        yield rows.reading(subject, limit, count, spec, corpus=corpus)
    yield rows.reading(subject, limit, count, _BOTH_WITHOUT, step=rows.WITHOUT_FIRST[_WITHOUT], corpus=mixed)
    if count == max(subject.counts(*rows.SHARES, toy=rows.TOY_COUNTS)):
        residual = {"selection": rows.selections(count)[rows.LEAST_RESIDUAL]}
        grafted = {"selection": rows.grafted_selection(count)}
        read = {"calibration": rows.BUDGET[subject.profile] | {"corpus": mixed}}
        fields_by_spec = {
            _RESIDUAL_NONE: residual,
            _RESIDUAL_BOTH: residual | read | {"repair": rows.REPAIRS[rows.REFIT]},
            _GRAFT: grafted | {"repair": rows.GRAFTS[rows.GRAFT]},
            _TOOL_DEFAULT: grafted | read | {"repair": rows.GRAFTS[rows.GRAFT_REFIT]},
            _TOOL_DEFAULT_WITHOUT: grafted | read | {"repair": rows.GRAFTS[rows.GRAFT_REFIT] | {"first": False}},
        }
        for spec, fields in fields_by_spec.items():
            yield rows.pruned(subject, limit, count, spec, **fields)


def columns(profile: str) -> list[Column]:
    """Return the league's texts, tasks whose items no row reads, and their average.

    For the toy model, whose rows all read text like its tasks, some tasks and the texts.
    """
    if profile == "standin":
        scores = {column.id: column for column in tasks(profile)}
        return [*perplexities(profile), *(scores[task] for task in MEASURED_TASKS[profile])]
    return with_average(profile, TEST_TASKS, "AVG of tasks not read")


TEXTS = Table(
    target="league-texts",
    paper="league",
    number="league-texts",
    title="Extension: what a repair is calibrated on",
    declared=texts,
    draw="figures.texts:draw",
    columns=columns,
    full=True,
    claims=(
        Claim(
            "plain-text-beats-cut",
            "extension: calibrated on plain text, the refit is more accurate than no repair on tasks that it did not read",
            comparisons.beats(PLAIN, NONE, column=AVERAGE),
        ),
        Claim(
            "items-beat-cut",
            "extension: calibrated on a task's items, the refit is more accurate than no repair on other tasks",
            comparisons.beats(FROM_ITEMS, NONE, column=AVERAGE),
        ),
        Claim(
            "both-texts-beat-cut",
            "extension: calibrated on both texts, the refit is more accurate than no repair on tasks that it did not read",
            comparisons.each_beats(((BOTH, NONE), (RESIDUAL_BOTH, RESIDUAL_NONE)), column=AVERAGE),
        ),
        Claim(
            "both-texts-beat-plain-text",
            "extension: from both texts the refit is more accurate on tasks that it did not read than from plain text",
            comparisons.beats(BOTH, PLAIN, column=AVERAGE),
        ),
        Claim(
            "both-texts-without-first-beat-cut",
            "extension: from both texts, and without first tokens in the fits, the refit is more accurate than no repair",
            comparisons.beats(BOTH_WITHOUT, NONE, column=AVERAGE),
        ),
        Claim(
            "without-first-beats-with-first",
            "extension: without first tokens in the fits the refit is more accurate than with them",
            comparisons.each_beats(
                ((PLAIN_WITHOUT, PLAIN), (BOTH_WITHOUT, BOTH), (TOOL_DEFAULT_WITHOUT, TOOL_DEFAULT)), column=AVERAGE
            ),
        ),
        Claim(
            "least-left-cut-beats-l-cut",
            "extension: without repair, the least-residual set is more accurate than the contiguous block",
            comparisons.beats(RESIDUAL_NONE, NONE, column=AVERAGE),
        ),
        Claim(
            "least-left-refit-beats-l-refit",
            "extension: from both texts the refit is more accurate after the least-residual set than after the block",
            comparisons.beats(RESIDUAL_BOTH, BOTH, column=AVERAGE),
        ),
        Claim(
            "carried-beats-left",
            "extension: with neuron grafting, and layers selected with it, the refit is more accurate than without",
            comparisons.beats(TOOL_DEFAULT, RESIDUAL_BOTH, column=AVERAGE),
        ),
        Claim(
            "both-texts-keep-perplexity",
            "extension: from both texts the refit's perplexity is as low as from plain text, within 5 %",
            comparisons.beats(BOTH, PLAIN, column="PPL AVG", lower=True, within=0.05),
        ),
    ),
    note="The league's rows, and the same refit of the same layers from as many sequences of other text: contexts of "
    "HellaSwag's items with their right endings, all but the first 500, and one sequence of each text in turn. The tasks are "
    "asked whole; no row reads items of theirs. The least-residual set with grafting and both texts is close "
    "to what `extensions.refit` does by itself: its sequences are of 2,048 tokens, and its choice reads 16 tokens a channel. "
    "Rows without first tokens were added after `make league` had shown that they help.",
)
