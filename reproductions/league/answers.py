"""Why answers do not follow perplexity: the league's leaders, by the scale of their logits and by right and wrong endings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.recipe import MIXED
from reproductions import checks
from reproductions.columns import QUESTIONS, tasks
from reproductions.league import rows
from reproductions.registry import Claim, Column, Row, Table
from reproductions.settings import Subject, recipe

# Two of them once more, calibrated on items of a task that are not among those asked; one on half as many beside the
# league's text.
FROM_TASK, TASK_TEXT = ", from other items of HellaSwag", "hellaswag-after-500"
FROM_BOTH = ", from both texts"
AGAIN = {FROM_TASK: (rows.PATCHED, rows.REFIT_LONG), FROM_BOTH: (rows.REFIT_LONG,)}
REPAIRS = (rows.PATCHED, rows.REPLACEME, rows.GHOSTED, rows.REFIT_LONG)
# Tasks that give one context several endings and are judged per character; the text beside them.
ASKED = {"paper": ("HeSw", "ARC-e", "PIQA"), "standin": ("Continue", "ParType", "ParText")}
# Of all tasks those that no repair here was calibrated on.
UNREAD = tuple(task for task in QUESTIONS if task != "HeSw")
TEXTS = {"paper": ("WIKI-2", "league-wikitext2"), "standin": ("Learning", "standin-learning-quarter")}
SCALED, FACTOR = "{}, logits scaled", "{}, best factor"
AVERAGE, RETAINED = "AVG of these", "RP of tasks not read"
NATS = "nats per 1,000 characters"
RIGHT, WRONG, GAP = "{}, right", "{}, wrong", "{}, gap"


def answers(subject: Subject, limit: int | None = None) -> list[Row]:
    """The league's rows of the leaders and of no repair, after [L] and [S], at its larger numbers of layers; not on the
    stand-in, whose league is calibrated on text like its questions, some of them from other texts (`AGAIN`)."""
    shown = {rows.name(selection, repair) for selection in ("[L]", "[S]") for repair in (rows.NONE, *REPAIRS)}
    counts = subject.counts(*rows.SHARES[2:], standin=rows.STANDIN_COUNTS[2:]) if not subject.printed else ()
    sparsities = {f"{count}/{subject.layers}" for count in counts}
    league = rows.league(subject, limit)
    found = [row for row in league if row.method in shown and row.sparsity in sparsities]
    again = [] if subject.standin else list(_again(subject, limit, counts))
    return [row for row in league if row.dense] + sorted(
        [*found, *again], key=lambda row: int(row.sparsity.partition("/")[0])
    )


def _again(subject: Subject, limit: int | None, counts: Sequence[int]) -> Iterator[Row]:
    budget = rows.BUDGET[subject.profile]
    texts = {FROM_TASK: TASK_TEXT, FROM_BOTH: MIXED.join((budget["corpus"], TASK_TEXT))}
    for count in counts:
        selection = rows.selections(count)["[L]"] | {"calibration": budget}
        for text, repairs in AGAIN.items():
            for repair in repairs:
                fields = {"repair": rows.REPAIRS[repair], "calibration": budget | {"corpus": texts[text]}}
                made = recipe(subject.model, subject, limit, selection=selection, **fields)
                name = rows.name("[L]", repair + text)
                yield Row(subject.model, subject.label, f"{count}/{subject.layers}", name, made)


def columns(profile: str) -> list[Column]:
    """Perplexity, the same at the best factor on the logits, and of each task its score and the losses of its endings, in
    nats per 1,000 characters."""
    label, protocol = TEXTS[profile]
    found = [
        Column(label, f"perplexity@{protocol}", "perplexity", compare="perplexity"),
        Column(SCALED.format(label), f"scaled@{protocol}", "perplexity", compare="perplexity"),
        Column(FACTOR.format(label), f"scaled@{protocol}", "factor", compare="exact"),
    ]
    scores = {column.label: column for column in tasks(profile)}
    for task in ASKED[profile]:
        endings = f"endings@{scores[task].benchmark}"
        found.append(scores[task])
        for name, key in ((RIGHT, "right"), (WRONG, "wrong"), (GAP, "gap")):
            found.append(Column(name.format(task), endings, key, scale=1000, compare="exact"))
    found.append(Column(AVERAGE, derived="average", of=ASKED[profile]))
    if profile == "standin":
        return found
    return [
        *found,
        *(scores[task] for task in UNREAD if task not in ASKED[profile]),
        Column(RETAINED, derived="retained", of=UNREAD),
    ]


def _better(columns_: list[str], **how) -> checks.Check:
    """Each repair against no repair, after each choice, in each of the columns; how: options of `checks.beats`."""
    return checks.every(
        *(
            checks.beats(rows.name(selection, repair), rows.name(selection, rows.NONE), column=column, **how)
            for selection in ("[L]", "[S]")
            for repair in REPAIRS
            for column in columns_
        )
    )


def _reading(text: str, column: str, repairs: Sequence[str] = (), against: str | None = None, **how) -> checks.Check:
    """What is calibrated on another text against no repair, or the same repair from the text ``against``; '' is the league's.

    repairs: those of `AGAIN` that are meant; none: all.
    """
    pairs = [(repair + text, rows.NONE if against is None else repair + against) for repair in repairs or AGAIN[text]]
    return checks.every(
        *(checks.beats(*(rows.name("[L]", one) for one in pair), column=column, **how) for pair in pairs)
    )


_TEXT_LABELS = [label for label, _ in TEXTS.values()]
_ASKED = [task for asked in ASKED.values() for task in asked]

ANSWERS = Table(
    target="league-answers",
    paper="league",
    number="league-answers",
    title="Ours: why answers do not follow perplexity",
    declared=answers,
    draw="figures.answers:draw",
    columns=columns,
    claims=(
        Claim("ours: repairs lower perplexity", _better(_TEXT_LABELS, lower=True)),
        Claim("ours: they do with the scale of the logits set aside",
              _better([SCALED.format(label) for label in _TEXT_LABELS], lower=True)),
        Claim("ours: they make right endings likelier", _better([RIGHT.format(task) for task in _ASKED], lower=True)),
        Claim("ours: they widen the gap between right and wrong endings",
              _better([GAP.format(task) for task in _ASKED], unit=NATS)),
        Claim("ours: they answer more questions", _better([AVERAGE])),
        Claim("ours: calibrated on other items of HellaSwag, they widen its gap",
              _reading(FROM_TASK, GAP.format("HeSw"), unit=NATS)),
        Claim("ours: calibrated on other items of HellaSwag, the refit answers more questions",
              _reading(FROM_TASK, AVERAGE, [rows.REFIT_LONG])),
        Claim("ours: calibrated on other items of HellaSwag, they answer more than calibrated on the league's text",
              _reading(FROM_TASK, AVERAGE, against="")),
        Claim("ours: calibrated on other items of HellaSwag, the refit retains more of the tasks that it did not read",
              _reading(FROM_TASK, RETAINED, [rows.REFIT_LONG])),
        Claim("ours: calibrated on both texts, the refit retains more of the tasks that it did not read",
              _reading(FROM_BOTH, RETAINED)),
        Claim("ours: calibrated on both texts, the refit answers more questions", _reading(FROM_BOTH, AVERAGE)),
    ),
    note="The league's rows. Logits scaled: perplexity at the best one factor on all logits, half of the windows by "
    "the factor that is best on the other half, and vice versa. Right, wrong: the mean loss of the right ending and of the "
    "wrong ones, in nats per 1,000 characters, by which these tasks pick; gap: wrong less right.",
)  # fmt: skip
