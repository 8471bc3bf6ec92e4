"""Explain why accuracy does not follow perplexity: by the scale of logits, and by right and wrong endings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from extensions.league import rows
from extensions.league.tables import AVERAGE
from reproductions.spec import comparisons, subsets
from reproductions.spec.columns import perplexity, tasks
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

# Two of them once more, calibrated on items of a task that are not among those asked.
READ_TASK, TASK_TEXT = "hellaswag", "hellaswag-after-500"
AGAIN = (rows.PATCHED, rows.REFIT)
REPAIRS = (rows.PATCHED, rows.REPLACEME, rows.GHOSTED, rows.REFIT)
# Tasks that give one context several endings and are judged per character; the text beside them.
MEASURED_TASKS = {"paper": ("HeSw", "ARC-e", "PIQA"), "standin": ("Continue", "ParType", "ParText")}
TEXTS = {"paper": ("WIKI-2", "league-wikitext2"), "standin": ("Learning", "standin-learning-quarter")}
SCALED, FACTOR = "{}/scaled", "{}/factor"
NATS = "nats per 1,000 characters"
RIGHT, WRONG, GAP = "{}/right", "{}/wrong", "{}/gap"


def answers(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the league's rows of the leaders and of no repair, after [L] and [S], at its larger numbers of layers.

    Two of them are calibrated on text like HellaSwag's. The toy model has none, because its league is calibrated on
    text like its tasks.
    """
    shown = {
        rows.name(selection, repair) for selection in (rows.BLOCK, rows.LOWEST_BI) for repair in (rows.NONE, *REPAIRS)
    }
    specs = [rows.LeagueSpec(rows.BLOCK, repair, rows.ITEMS) for repair in AGAIN]

    def calibrated_on_items(count: int) -> Iterator[Row]:
        return (rows.reading(subject, limit, count, spec, corpus=TASK_TEXT) for spec in specs)

    return rows.larger(subject, limit, shown, calibrated_on_items)


def columns(profile: str) -> list[Column]:
    """Return perplexity, the same at the best factor on the logits, and of each task the score and the losses.

    Losses of endings are in nats per 1,000 characters. Of HellaSwag all read the first items alone, because some rows
    are calibrated on the others.
    """
    label, protocol = TEXTS[profile]
    scaled, exact = f"scaled@{protocol}", {"compare": "exact"}
    shown = [
        perplexity(label, protocol),
        Column(SCALED.format(label), scaled, "perplexity", compare="perplexity", label=f"{label}, logits scaled"),
        Column(FACTOR.format(label), scaled, "factor", label=f"{label}, best factor", **exact),
    ]
    scores = {column.id: column for column in tasks(profile)}
    for task in MEASURED_TASKS[profile]:
        if scores[task].benchmark == READ_TASK:
            scores[task] = replace(scores[task], benchmark=subsets.smaller(scores[task].benchmark))
        endings = f"endings@{scores[task].benchmark}"
        shown.append(scores[task])
        for name, key in ((RIGHT, "right"), (WRONG, "wrong"), (GAP, "gap")):
            label = f"{scores[task].label}, {key}"
            shown.append(Column(name.format(task), endings, key, scale=1000, label=label, **exact))
    return [*shown, Column(AVERAGE, derived="average", of=MEASURED_TASKS[profile], label="AVG of these")]


def _better(columns_: list[str], **how) -> comparisons.Check:
    """Compare each repair with no repair, after each choice, in each of the columns; how: options of `beats`."""
    return comparisons.all_of(
        *(
            comparisons.beats(rows.name(selection, repair), rows.name(selection, rows.NONE), column=column, **how)
            for selection in (rows.BLOCK, rows.LOWEST_BI)
            for repair in REPAIRS
            for column in columns_
        )
    )


def _from_task_better(column: str, repairs: Sequence[str] = AGAIN, text: bool = False, **how) -> comparisons.Check:
    """Compare a repair calibrated on a task's other items with no repair, or (`text`) with the league's text."""
    pairs = [
        (rows.name(rows.BLOCK, repair, rows.ITEMS), rows.name(rows.BLOCK, repair if text else rows.NONE))
        for repair in repairs
    ]
    return comparisons.each_beats(pairs, column=column, **how)


_TEXT_LABELS = [label for label, _ in TEXTS.values()]
_TASK_NAMES = [task for tasks_ in MEASURED_TASKS.values() for task in tasks_]

ANSWERS = Table(
    target="league-answers",
    paper="league",
    number="league-answers",
    title="Extension: why accuracy does not follow perplexity",
    declared=answers,
    draw="figures.answers:draw",
    columns=columns,
    claims=(
        Claim("repairs-lower-perplexity", "extension: repairs lower perplexity", _better(_TEXT_LABELS, lower=True)),
        Claim(
            "repairs-lower-scaled-perplexity",
            "extension: repairs lower perplexity apart from the scale of the logits",
            _better([SCALED.format(label) for label in _TEXT_LABELS], lower=True),
        ),
        Claim(
            "right-endings-likelier",
            "extension: repairs make right endings more likely",
            _better([RIGHT.format(task) for task in _TASK_NAMES], lower=True),
        ),
        Claim(
            "gap-widens",
            "extension: repairs widen the gap between right and wrong endings",
            _better([GAP.format(task) for task in _TASK_NAMES], unit=NATS),
        ),
        Claim("more-answers", "extension: repairs raise accuracy", _better([AVERAGE])),
        Claim(
            "from-items-gap-widens",
            "extension: calibrated on other items of HellaSwag, repairs widen its gap",
            _from_task_better(GAP.format("HeSw"), unit=NATS),
        ),
        Claim(
            "from-items-refit-answers-more",
            "extension: calibrated on other items of HellaSwag, the refit raises accuracy",
            _from_task_better(AVERAGE, [rows.REFIT]),
        ),
        Claim(
            "from-items-beats-from-text",
            "extension: repairs are more accurate if calibrated on other items of HellaSwag than on the league's text",
            _from_task_better(AVERAGE, text=True),
        ),
    ),
    note="The league's rows. Logits scaled: perplexity at the best one factor on all logits, half of the sequences by "
    "the factor that is best on the other half, and vice versa. Right, wrong: the mean loss of the right ending and of the "
    "wrong ones, in nats per 1,000 characters, by which these tasks pick; gap: wrong less right.",
)
