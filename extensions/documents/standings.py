"""The league as Markdown, from records: what each repair comes to, against the best of the rivals, paired over sequences."""

from collections.abc import Iterable, Sequence

import numpy as np

from common.console.text_tables import markdown
from common.evaluation.significance import equivalent, interval
from common.records.results import Store
from extensions.league import rows
from figures.choices import COLUMN as PERPLEXITY
from figures.choices import before
from reproductions.claims.verdicts import MARGIN
from reproductions.render import show
from reproductions.spec import registry
from reproductions.spec.subjects import Subject

ACCURACY, FLIPS = "AVG", "flips"
HEADER = ("Removed", "Repair", "selection", "perplexity / best baseline", "accuracy", "flips")
HIGHER, LOWER, EQUIVALENT, INCONCLUSIVE = "higher", "lower", "equivalent", "no significant difference"
# The short table shows so many numbers of layers, the best of ours, and:
FEW = 2
SHORT = (rows.NONE, rows.PATCHED, rows.FACTOR, rows.REPLACEME, rows.GHOSTED, rows.PRUNER)
SHORT += (rows.SHIFT, rows.COME, rows.OVERREP)


def entries(store: Store, subject: Subject, target: str = "league") -> list[dict]:
    """Return the measured rows that have both perplexities; see `show.entries`."""
    table = registry.get(target)
    found = show.entries(table, store, subject, table.rows(subject))
    return [entry for entry in found if PERPLEXITY in entry["scores"]]


def best(found: Iterable[dict]) -> dict[str, dict[str, dict]]:
    """Sparsity -> repair -> its entry after the choice of layers that it is best with; the best repair first."""
    by_count: dict[str, dict[str, dict]] = {}
    for entry in found:
        if entry["dense"]:
            continue
        known, repair = by_count.setdefault(entry["sparsity"], {}), entry["spec"].repair
        if repair not in known or before(entry, known[repair]):
            known[repair] = entry
    order = sorted(by_count, key=lambda sparsity: int(sparsity.partition("/")[0]))
    return {
        count: dict(sorted(by_count[count].items(), key=lambda pair: pair[1]["scores"][PERPLEXITY])) for count in order
    }


def compared(entry: dict, rival: dict) -> tuple[float, tuple[float, float] | None, bool]:
    """Return one row's average perplexity as a share of another's, its 95 % interval, and whether that is paired."""
    share = entry["scores"][PERPLEXITY] / rival["scores"][PERPLEXITY]
    one, other = (np.asarray(found["replicates"](PERPLEXITY)) for found in (entry, rival))
    if entry["method"] == rival["method"] or one.ndim == 0 or other.ndim == 0:
        return share, None, False
    looked_up = entry["replicates"].func  # the `Resampled` of all rows
    paired = looked_up.paired(tuple((*found["replicates"].args, PERPLEXITY) for found in (entry, rival)))
    return share, interval(one / other), paired


def ratio(entry: dict, rival: dict) -> str:
    """Return `compared` in words; ~: not paired over sequences."""
    share, ends, paired = compared(entry, rival)
    return f"{share:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]" + ("" if paired else "~") if ends else f"{share:.3f}"


def table(found: Sequence[dict], texts: Sequence[str]) -> str:
    """Return a Markdown table of well-known repairs without training and of the best of ours, with most layers removed.

    Args:
        found: The rows of one model, as `entries` returns them.
        texts: Columns of perplexities to show.
    """
    header = [*HEADER[:3], *texts, HEADER[3], f"{HEADER[4]} of {found[0]['over'][ACCURACY]}", *HEADER[5:]]
    lines = [_line(dense, "dense", ("", ""), texts) for dense in found if dense["dense"]]
    alone = {(e["sparsity"], e["spec"].selection): e for e in found if e["spec"] and e["spec"].repair == rows.NONE}
    for repairs in list(best(found).values())[-FEW:]:
        rivals = [entry for repair, entry in repairs.items() if repair in rows.TRAINING_FREE]
        ours = next((repair for repair in repairs if repair in rows.OURS), None)
        for repair, entry in repairs.items():
            if repair in SHORT or repair == ours:
                share = ratio(entry, rivals[0]) if rivals else ""
                label = entry["spec"].repaired
                verdict = answers(entry, alone.get((entry["sparsity"], entry["spec"].selection)))
                lines.append(_line(entry, f"**{label}**" if repair == ours else label, (share, verdict), texts))
    return markdown(header, lines, "rll" + "r" * (len(texts) + 3))


def answers(entry: dict, alone: dict | None) -> str:
    """Return how a row's accuracy compares with no repair of the same layers; '' where one of them has none.

    Significant differences first; else equivalent where two one-sided tests place the difference within `MARGIN` points.
    """
    if alone is None or entry["method"] == alone["method"] or not all(ACCURACY in e["scores"] for e in (entry, alone)):
        return ""
    one, other = (np.asarray(found["replicates"](ACCURACY)) for found in (entry, alone))
    if one.ndim == 0 or other.ndim == 0:
        return ""
    low, high = interval(one - other)
    if low > 0 or high < 0:
        return HIGHER if low > 0 else LOWER
    return EQUIVALENT if equivalent(one - other, MARGIN) else INCONCLUSIVE


def _line(entry: dict, repair: str, words: tuple[str, str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return one row of `table`; words: its perplexity and its accuracy against others."""
    scores = entry["scores"]
    perplexities = [f"{scores[label]:.1f}" for label in texts]
    accuracy = f"{scores[ACCURACY]:.1f}" if ACCURACY in scores else ""
    selected = entry["spec"].selected if entry["spec"] else ""
    share, verdict = words
    accuracy += f" ({verdict})" if verdict not in ("", INCONCLUSIVE) else ""
    flips = f"{scores[FLIPS]:.1f}" if FLIPS in scores else ""
    return (entry["sparsity"], repair, selected, *perplexities, share, accuracy, flips)


def parts(store: Store, subjects: Sequence[Subject]) -> dict[str, str]:
    """Return the part `standings` of docs/league.md: each measured model's short table, and the names of the others."""
    found = {subject: entries(store, subject) for subject in subjects}
    measured = [subject for subject in subjects if not all(entry["dense"] for entry in found[subject])]
    tables = [f"{subject.label}:\n\n{table(found[subject], _texts(subject))}" for subject in measured]
    missing = "; ".join(subject.label for subject in subjects if subject not in measured)
    return {"standings": "\n\n".join([*tables, *([f"`league` was not measured on: {missing}."] if missing else [])])}


def _texts(subject: Subject) -> tuple[str, ...]:
    """Return the columns that the average perplexity is of."""
    return next(column.of for column in registry.get("league").columns_for(subject) if column.id == PERPLEXITY)
