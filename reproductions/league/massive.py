"""Windows that keep the layer which writes massive activations, against the window of the highest cosine."""

from __future__ import annotations

from collections.abc import Iterator

from reproductions import checks
from reproductions.columns import tasks
from reproductions.league import rows
from reproductions.league.answers import ASKED, AVERAGE
from reproductions.league.tables import perplexities
from reproductions.registry import Claim, Column, Row, Table
from reproductions.settings import Subject, recipe

SHARES, STANDIN_COUNTS = ((8, 30), (9, 30)), (4, 5)
KEEPING = "[L] without massive layers (ours)"
REPAIRS = (rows.NONE, rows.PATCHED, rows.GHOSTED, rows.REPLACEME, rows.REFIT_LONG)


def massive(subject: Subject, limit: int | None = None) -> list[Row]:
    """No repair and the leaders after [L], and after the best window without the layers that write massive activations; on
    the stand-in, which has none, after [L] alone."""
    if subject.printed:
        return []
    model, label, layers = subject.model, subject.label, subject.layers
    found = [Row(model, label, f"0/{layers}", "Dense", recipe(model, subject, limit), dense=True)]
    for count in subject.counts(*SHARES, standin=STANDIN_COUNTS):
        for method, fields in _fields(subject, count):
            found.append(Row(model, label, f"{count}/{layers}", method, recipe(model, subject, limit, **fields)))
    return found


def _fields(subject: Subject, count: int) -> Iterator[tuple[str, dict]]:
    usual = rows.selections(count)["[L]"]
    for choice, selection in (("[L]", usual), (KEEPING, usual | {"keep_massive": True})):
        if choice == KEEPING and subject.standin:
            continue
        for repair in REPAIRS:
            step = rows.REPAIRS[repair]
            fields = {"selection": selection} | ({"repair": step} if step else {})
            yield rows.name(choice, repair), fields | {"calibration": rows.BUDGET[subject.profile]}


def columns(profile: str) -> list[Column]:
    """The league's texts, some of its tasks with their average, and which layers went."""
    scores = {column.label: column for column in tasks(profile)}
    asked = ASKED[profile]
    return [
        *perplexities(profile),
        *(scores[task] for task in asked),
        Column(AVERAGE, derived="average", of=asked),
        Column("removed layers", "removed", "removed", text=True),
    ]


def _better(column: str, lower: bool = False) -> checks.Check:
    """With each repair, and without one, the window that keeps the layers is better than [L]."""
    return checks.every(
        *(checks.beats(rows.name(KEEPING, one), rows.name("[L]", one), column=column, lower=lower) for one in REPAIRS)
    )


MASSIVE = Table(
    target="league-massive",
    paper="league",
    number="league-massive",
    title="Ours: windows that keep the layer which writes massive activations",
    declared=massive,
    columns=columns,
    claims=(
        Claim("ours: keeping the layers that write massive activations lowers perplexity, whatever the repair",
              _better("PPL AVG", lower=True)),
        Claim("ours: keeping them answers more questions, with each repair and without", _better(AVERAGE)),
        Claim("ours: where they are kept, matrices at the cut lower perplexity",
              checks.every(*(
                  checks.beats(rows.name(KEEPING, one), rows.name(KEEPING, rows.NONE), column="PPL AVG", lower=True)
                  for one in (rows.GHOSTED, rows.REPLACEME)
              ))),
    ),
    note="[L]: the window of the highest token cosine. Without massive layers: of the windows without a layer after which "
    "some token's norm is ten times as large a multiple of the median one's as before it. A cosine averaged over tokens does "
    "not see such a layer: it changes the first token alone.",
)  # fmt: skip
