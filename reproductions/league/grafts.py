"""Where the layer goes that writes the massive activation: its neurons carried over, with a refit and without."""

from __future__ import annotations

from reproductions import checks
from reproductions.columns import tasks
from reproductions.league import rows
from reproductions.league.answers import ASKED
from reproductions.league.tables import perplexities
from reproductions.league.texts import UNREAD
from reproductions.registry import Claim, Column, Row, Table
from reproductions.settings import Subject, recipe

SHARES = (
    (8, 30),
    rows.SHARES[-1],
)  # LinearPatch's number of layers, and the league's largest: [L] takes that layer at both
CARRIED = "neurons carried over (ours)"
CARRIED_REFIT = "neurons carried over, refitted, 3 layers, ridge from held-out text (ours)"
REPAIRS = {
    rows.NONE: None,
    CARRIED: {"method": "graft"},
    rows.REFIT_LONG: rows.REPAIRS[rows.REFIT_LONG],
    CARRIED_REFIT: rows.REPAIRS[rows.REFIT_LONG] | {"graft": True},
}
NONE, GRAFT, REFIT, BOTH = (rows.name("[L]", repair) for repair in REPAIRS)
LEFT_NONE, LEFT_REFIT = (rows.name(rows.LEAST_LEFT, repair) for repair in (rows.NONE, rows.REFIT_LONG))
AFTER = {"[L]": tuple(REPAIRS), rows.LEAST_LEFT: (rows.NONE, rows.REFIT_LONG)}
AVERAGE = "AVG of tasks"


def grafts(subject: Subject, limit: int | None = None) -> list[Row]:
    """Dense, and by number of layers [L]'s window with the neurons carried over or not, refitted or not, beside the set of
    least left, which spares their layer."""
    if subject.printed:
        return []
    model, label, layers = subject.model, subject.label, subject.layers
    found = [Row(model, label, f"0/{layers}", "Dense", recipe(model, subject, limit), dense=True)]
    for count in subject.counts(*SHARES, standin=rows.STANDIN_COUNTS[2:]):
        for selection, repairs in AFTER.items():
            fields = {"selection": rows.selections(count)[selection], "calibration": rows.BUDGET[subject.profile]}
            for repair in repairs:
                step = {"repair": REPAIRS[repair]} if REPAIRS[repair] else {}
                made = recipe(model, subject, limit, **fields, **step)
                found.append(Row(model, label, f"{count}/{layers}", rows.name(selection, repair), made))
    return found


def columns(profile: str) -> list[Column]:
    """The league's texts and some tasks."""
    scores = {column.label: column for column in tasks(profile)}
    asked = UNREAD if profile == "paper" else ASKED[profile]
    return [*perplexities(profile), *(scores[task] for task in asked), Column(AVERAGE, derived="average", of=asked)]


def _lower(better: str, worse: str) -> checks.Check:
    return checks.beats(better, worse, column="PPL AVG", lower=True)


GRAFTS = Table(
    target="league-graft",
    paper="league",
    number="league-graft",
    title="Ours: the neurons that write the massive activation, carried over",
    declared=grafts,
    columns=columns,
    claims=(
        Claim("ours: carried over, they lower the perplexity of the cut", _lower(GRAFT, NONE)),
        Claim("ours: carried over, they lower that of the refit", _lower(BOTH, REFIT)),
        Claim("ours: with them [L]'s window is lower than the set of least left, as cuts", _lower(GRAFT, LEFT_NONE)),
        Claim("ours: the same, refitted", _lower(BOTH, LEFT_REFIT)),
        Claim(
            "ours: carried over, they answer more of the tasks than the cut alone",
            checks.beats(GRAFT, NONE, column=AVERAGE),
        ),
        Claim(
            "ours: carried over and refitted, the same against the refit",
            checks.beats(BOTH, REFIT, column=AVERAGE),
        ),
    ),
    note="[L]'s window takes the layer that writes the first token's massive activation; the set of least left spares it. "
    "Carried over: the neurons that write it are copied into the last layer before the cut, in the place of as many that it "
    "uses least. The stand-in has no massive activation: nothing is carried over there.",
)
