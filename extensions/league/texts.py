"""What a repair is calibrated on: the refit from plain text, from a task's items that are not asked, and from both."""

from __future__ import annotations

from collections.abc import Iterator

from common.pruning.recipe import MIXED
from extensions.league import rows
from extensions.league.answers import ASKED, FROM_TASK, TASK_TEXT
from extensions.league.tables import perplexities
from reproductions.spec import comparisons
from reproductions.spec.columns import tasks
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

AVERAGE = "AVG of tasks not read"
FROM_BOTH = ", from both texts"
NONE, PLAIN = (rows.name("[L]", repair) for repair in (rows.NONE, rows.REFIT_LONG))
ASKING, BOTH = PLAIN + FROM_TASK, PLAIN + FROM_BOTH
LEFT_NONE, LEFT = (rows.name(rows.LEAST_LEFT, repair) for repair in (rows.NONE, rows.REFIT_LONG))
LEFT_BOTH = LEFT + FROM_BOTH
CARRIED, CARRIED_REFIT = (rows.name(rows.WITH_THEM, repair) for repair in rows.GRAFTS)
TOOLS = CARRIED_REFIT + FROM_BOTH  # what `extensions.refit` does where it is told nothing
# Tasks of more than a thousand items whose text no row reads; BoolQ's are mostly answered by one word or the other.
UNREAD = ("ARC-c", "ARC-e", "PIQA", "WG")


def texts(subject: Subject, limit: int | None = None) -> list[Row]:
    """After [L], at the league's larger numbers of layers: no repair and the refit of the league, and the refit from other
    texts; these not on the stand-in, whose calibration text is like its questions. At the largest also after the set of
    least left, chosen on the repair's own text, without the neurons carried over and with them."""
    return rows.larger(subject, limit, (NONE, PLAIN), lambda count: _others(subject, limit, count))


def _others(subject: Subject, limit: int | None, count: int) -> Iterator[Row]:
    both = MIXED.join((rows.BUDGET[subject.profile]["corpus"], TASK_TEXT))
    for method, corpus in ((ASKING, TASK_TEXT), (BOTH, both)):
        yield rows.reading(subject, limit, count, rows.REFIT_LONG, method, corpus=corpus)
    if count == max(subject.counts(*rows.SHARES, standin=rows.STANDIN_COUNTS)):
        steps = {"repair": rows.REPAIRS[rows.REFIT_LONG]}, {"repair": rows.GRAFTS[rows.CARRIED_REFIT]}
        left, carried = {"selection": rows.selections(count)[rows.LEAST_LEFT]}, {"selection": rows.with_them(count)}
        read = {"calibration": rows.BUDGET[subject.profile] | {"corpus": both}}
        found = {
            LEFT_NONE: left,
            LEFT_BOTH: left | steps[0] | read,
            CARRIED: carried | {"repair": rows.GRAFTS[rows.CARRIED]},
            TOOLS: carried | steps[1] | read,
        }
        for method, fields in found.items():
            yield rows.pruned(subject, limit, count, method, **fields)


def columns(profile: str) -> list[Column]:
    """The league's texts, tasks that are not read, and their average; on the stand-in, which reads text like its questions in
    every row, some tasks beside the texts."""
    scores = {column.label: column for column in tasks(profile)}
    if profile == "standin":
        return [*perplexities(profile), *(scores[task] for task in ASKED[profile])]
    unread = [scores[task] for task in UNREAD]
    return [*perplexities(profile), *unread, Column(AVERAGE, derived="average", of=UNREAD)]


TEXTS = Table(
    target="league-texts",
    paper="league",
    number="league-texts",
    title="Ours: what a repair is calibrated on",
    declared=texts,
    draw="figures.texts:draw",
    columns=columns,
    full=True,
    claims=(
        Claim("ours: from plain text the refit answers more of the tasks that it did not read than the cut alone",
              comparisons.beats(PLAIN, NONE, column=AVERAGE)),
        Claim("ours: from a task's items it answers more of the other tasks than the cut alone",
              comparisons.beats(ASKING, NONE, column=AVERAGE)),
        Claim("ours: from both texts it answers more of the tasks that it did not read than the cut alone",
              comparisons.every(*(comparisons.beats(refitted, cut, column=AVERAGE)
                             for refitted, cut in ((BOTH, NONE), (LEFT_BOTH, LEFT_NONE))))),
        Claim("ours: from both texts it answers more of them than from plain text",
              comparisons.beats(BOTH, PLAIN, column=AVERAGE)),
        Claim("ours: the cut alone answers more of them after the set of least left than after [L]",
              comparisons.beats(LEFT_NONE, NONE, column=AVERAGE)),
        Claim("ours: from both texts the refit does, too",
              comparisons.beats(LEFT_BOTH, BOTH, column=AVERAGE)),
        Claim("ours: with the neurons carried over, and layers chosen with them, it answers more than without",
              comparisons.beats(TOOLS, LEFT_BOTH, column=AVERAGE)),
        Claim("ours: from both texts its perplexity is as low as from plain text, within 5 %",
              comparisons.beats(BOTH, PLAIN, column="PPL AVG", lower=True, within=0.05)),
    ),
    note="The league's rows, and the same refit of the same layers from as many windows of other text: contexts of "
    "HellaSwag's items with their right endings, all but the first 500, and one window of each text in turn. The tasks are "
    "asked whole; no row reads items of theirs. The set of least left with the neurons carried over and both texts is close "
    "to what `extensions.refit` does by itself: its windows are of 2,048 tokens, and its choice reads 16 tokens a channel.",
)  # fmt: skip
