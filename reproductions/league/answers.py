"""Why answers do not follow perplexity: the league's leaders, by the scale of their logits and by right and wrong endings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reproductions import checks
from reproductions.columns import tasks
from reproductions.league import rows
from reproductions.registry import Claim, Column, Row, Table
from reproductions.settings import Subject, recipe

# Two of them once more, calibrated on items of a task that are not among those asked.
FROM_TASK, TASK_TEXT = ", from other items of HellaSwag", "hellaswag-after-500"
AGAIN = (rows.PATCHED, rows.REFIT_LONG)
REPAIRS = (rows.PATCHED, rows.REPLACEME, rows.GHOSTED, rows.REFIT_LONG)
# Tasks that give one context several endings and are judged per character; the text beside them.
ASKED = {"paper": ("HeSw", "ARC-e", "PIQA"), "standin": ("Continue", "ParType", "ParText")}
TEXTS = {"paper": ("WIKI-2", "league-wikitext2"), "standin": ("Learning", "standin-learning-quarter")}
SCALED, FACTOR = "{}, logits scaled", "{}, best factor"
RIGHT, WRONG, GAP = "{}, right", "{}, wrong", "{}, gap"


def answers(subject: Subject, limit: int | None = None) -> list[Row]:
    """The league's rows of the leaders and of no repair, after [L] and [S], at its larger numbers of layers; not on the
    stand-in, whose league is calibrated on text like its questions, two of them calibrated on text like HellaSwag's."""
    shown = {rows.name(selection, repair) for selection in ("[L]", "[S]") for repair in (rows.NONE, *REPAIRS)}
    counts = subject.counts(*rows.SHARES[2:], standin=rows.STANDIN_COUNTS[2:]) if not subject.printed else ()
    sparsities = {f"{count}/{subject.layers}" for count in counts}
    found = rows.league(subject, limit)
    found = [row for row in found if row.dense or (row.method in shown and row.sparsity in sparsities)]
    return found + ([] if subject.standin else list(_from_task(subject, limit, counts[:1])))


def _from_task(subject: Subject, limit: int | None, counts: Sequence[int]) -> Iterator[Row]:
    budget = rows.BUDGET[subject.profile]
    for count in counts:
        selection = rows.selections(count)["[L]"] | {"calibration": budget}
        for repair in AGAIN:
            fields = {"repair": rows.REPAIRS[repair], "calibration": budget | {"corpus": TASK_TEXT}}
            made = recipe(subject.model, subject, limit, selection=selection, **fields)
            name = rows.name("[L]", repair + FROM_TASK)
            yield Row(subject.model, subject.label, f"{count}/{subject.layers}", name, made)


def columns(profile: str) -> list[Column]:
    """Perplexity, the same at the best factor on the logits, and of each task its score and the losses of its endings."""
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
            found.append(Column(name.format(task), endings, key, compare="exact"))
    return found


def _better(columns_: list[str], lower: bool = False) -> checks.Check:
    """Each repair against no repair, after each choice, in each of the columns."""
    return checks.every(
        *(
            checks.beats(rows.name(selection, repair), rows.name(selection, rows.NONE), column=column, lower=lower)
            for selection in ("[L]", "[S]")
            for repair in REPAIRS
            for column in columns_
        )
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
              _better([GAP.format(task) for task in _ASKED])),
        Claim("ours: they answer more questions", _better(_ASKED)),
        Claim("ours: calibrated on other items of HellaSwag, they widen its gap", checks.every(
            *(checks.beats(rows.name("[L]", repair + FROM_TASK), rows.name("[L]", rows.NONE), column=GAP.format("HeSw"))
              for repair in AGAIN))),
    ),
    note="The league's rows. Logits scaled: perplexity at the best one factor on all logits, half of the windows by "
    "the factor that is best on the other half, and vice versa. Right, wrong: the mean loss of the right ending and of the "
    "wrong ones, in nats per character, by which these tasks pick; gap: wrong less right.",
)  # fmt: skip
