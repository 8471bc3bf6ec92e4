"""Write the league as Markdown, from results: each repair against the best of the others, paired over sequences."""

from collections.abc import Iterable, Sequence

import numpy as np

from common.console.text_tables import markdown
from common.evaluation.significance import equivalent, interval
from common.records.results import Store
from extensions.league import rows
from figures.choices import COLUMN as PERPLEXITY
from figures.choices import before, removed
from reproductions.claims.verdicts import MARGIN
from reproductions.render import show
from reproductions.spec import registry
from reproductions.spec.subjects import HEADS, Subject

ACCURACY, FLIPS = "AVG", "flips"
HEADER = ("Removed", "Repair", "selection", "perplexity / best baseline", "accuracy", "flips")
HIGHER, LOWER, EQUIVALENT, INCONCLUSIVE = "higher", "lower", "equivalent", "no significant difference"
ALL_TASKS_ONLY = "*"  # marks a difference that is not significant without the tasks at chance level
# The short table shows so many numbers of layers, and these repairs: the refit's are the tool's, not the best ones here.
FEW = 2
NAMES = {rows.REFIT: "refit", rows.GRAFT_REFIT: "refit with neuron grafting"}  # what the table calls them
SHORT = (*NAMES, rows.NONE, rows.PATCHED, rows.FACTOR, rows.REPLACEME, rows.GHOSTED, rows.PRUNER)
SHORT += (rows.SHIFT, rows.COME, rows.COME_P, rows.OVERREP, rows.TRAINED_PATCH, rows.TRAINED_LAYER)


def entries(store: Store, subject: Subject, target: str = "league") -> list[dict]:
    """Return the measured rows that have both perplexities; see `show.entries`."""
    table = registry.get(target)
    return [e for e in show.entries(table, store, subject, table.rows(subject)) if PERPLEXITY in e["scores"]]


def best(measured: Iterable[dict]) -> dict[str, dict[str, dict]]:
    """Return the best selection of each repair, by sparsity.

    Returns:
        Sparsity -> repair -> its best entry over all selections of layers; the repair of lowest perplexity first.
    """
    by_count: dict[str, dict[str, dict]] = {}
    for entry in measured:
        if entry["dense"]:
            continue
        by_repair, repair = by_count.setdefault(entry["sparsity"], {}), entry["spec"].repair
        if repair not in by_repair or before(entry, by_repair[repair]):
            by_repair[repair] = entry
    order = sorted(by_count, key=lambda sparsity: int(sparsity.partition("/")[0]))
    return {
        count: dict(sorted(by_count[count].items(), key=lambda pair: pair[1]["scores"][PERPLEXITY])) for count in order
    }


def choices(measured: Iterable[dict]) -> tuple[int, int]:
    """Count the selections between layers, and those that come out the same on either half of the sequences.

    One selection is that of a repair at a number of layers, among two different sets of layers or more. Each half has every
    second sequence of each text. The outcome is the same if the same layers are removed.
    """
    rivals: dict[tuple[str, str], list[tuple[dict, list[float]]]] = {}
    for entry in measured:
        if not entry["dense"] and removed(entry) and (halves := _halves(entry)):
            rivals.setdefault((entry["sparsity"], entry["spec"].repair), []).append((entry, halves))
    count = same = 0
    for candidates in rivals.values():
        if any(removed(entry) != removed(candidates[0][0]) for entry, _ in candidates):
            first, second = (min(candidates, key=lambda pair, half=half: pair[1][half])[0] for half in (0, 1))
            count, same = count + 1, same + (removed(first) == removed(second))
    return count, same


def _halves(entry: dict) -> list[float] | None:
    """Return a row's average perplexity on each half of its sequences; None where they were not kept."""
    looked_up, key = entry["replicates"].func, (*entry["replicates"].args, PERPLEXITY)
    texts = [looked_up.outcomes(row.recipe, column) for row, column in looked_up.sources(key)]
    if not texts or any(text is None for text in texts):
        return None
    return [float(np.mean([np.exp(np.mean(text[half::2])) for text in texts])) for half in (0, 1)]


def ratio(entry: dict, rival: dict) -> str:
    """Return one row's average perplexity as a share of another's, with its 95 % interval; ~: not paired over sequences."""
    share = f"{entry['scores'][PERPLEXITY] / rival['scores'][PERPLEXITY]:.3f}"
    if (pair := _replicates(entry, rival, PERPLEXITY)) is None:
        return share
    low, high = interval(pair[0] / pair[1])
    looked_up = entry["replicates"].func  # the `Resampled` of all rows
    paired = looked_up.paired(tuple((*row["replicates"].args, PERPLEXITY) for row in (entry, rival)))
    return f"{share} [{low:.3f}, {high:.3f}]{'' if paired else '~'}"


def _replicates(entry: dict, other: dict, column: str) -> list[np.ndarray] | None:
    """Return two rows' replicates of a column; None if one has none, or for a row and itself."""
    pair = [np.asarray(row["replicates"](column)) for row in (entry, other)]
    return pair if entry["method"] != other["method"] and all(values.ndim for values in pair) else None


def table(measured: Sequence[dict], texts: Sequence[str]) -> str:
    """Return a Markdown table of well-known repairs and of the refit, with most layers removed.

    Args:
        measured: The rows of one model, as `entries` returns them.
        texts: Columns of perplexities to show.
    """
    header = [*HEADER[:3], *texts, HEADER[3], f"{HEADER[4]} of {measured[0]['over'][ACCURACY]}", *HEADER[5:]]
    lines = [_line(dense, "dense", ("", ""), texts) for dense in measured if dense["dense"]]
    pruned = [entry for entry in measured if entry["spec"]]
    unrepaired = {(e["sparsity"], e["spec"].selection): e for e in pruned if e["spec"].repair == rows.NONE}
    for repairs in list(best(measured).values())[-FEW:]:
        rivals = [entry for repair, entry in repairs.items() if repair in rows.TRAINING_FREE]
        for repair, entry in repairs.items():
            if repair in SHORT:
                share = ratio(entry, rivals[0]) if rivals else ""
                label = f"**{NAMES[repair]}**" if repair in NAMES else entry["spec"].repaired
                verdict = answers(entry, unrepaired.get((entry["sparsity"], entry["spec"].selection)))
                lines.append(_line(entry, label, (share, verdict), texts))
    return markdown(header, lines, "rll" + "r" * (len(texts) + 3))


def answers(entry: dict, unrepaired: dict | None) -> str:
    """Compare a row's accuracy with no repair of the same layers; '' if one of them has none.

    Significant differences come first; otherwise equivalent, if two one-sided tests place the difference within
    `MARGIN` points. A significant one is marked (`ALL_TASKS_ONLY`) if it is not so over the tasks that the original model
    answers above chance level: elsewhere a preference for one of the answers may decide.
    """
    if unrepaired is None or not all(ACCURACY in row["scores"] for row in (entry, unrepaired)):
        return ""
    if (pair := _replicates(entry, unrepaired, ACCURACY)) is None:
        return ""
    difference = pair[0] - pair[1]
    low, high = interval(difference)
    if low > 0 or high < 0:
        verdict = HIGHER if low > 0 else LOWER
        return verdict if _of_known_tasks(entry, unrepaired) == verdict else verdict + ALL_TASKS_ONLY
    return EQUIVALENT if equivalent(difference, MARGIN) else INCONCLUSIVE


def _of_known_tasks(entry: dict, unrepaired: dict) -> str:
    """Return `HIGHER` or `LOWER` by the tasks on which the original model is above chance level; '' if neither."""
    looked_up, key = entry["replicates"].func, (*entry["replicates"].args, ACCURACY)
    known = [task.id for _, task in looked_up.sources(key) if task.id not in looked_up.at_chance_level]
    if not known:
        return ""
    low, high = interval(sum(entry["replicates"](task) - unrepaired["replicates"](task) for task in known))
    return HIGHER if low > 0 else LOWER if high < 0 else ""


def _line(entry: dict, repair: str, words: tuple[str, str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return one row of `table`; words: its perplexity and its accuracy against others."""
    scores = entry["scores"]
    perplexities = [f"{scores[label]:.1f}" for label in texts]
    accuracy = f"{scores[ACCURACY]:.1f}" if ACCURACY in scores else ""
    selected = entry["spec"].selected.removesuffix(" (extension)") if entry["spec"] else ""
    share, verdict = words
    accuracy += f" ({verdict})" if verdict not in ("", INCONCLUSIVE) else ""
    flips = f"{scores[FLIPS]:.1f}" if FLIPS in scores else ""
    return (entry["sparsity"], repair, selected, *perplexities, share, accuracy, flips)


def parts(store: Store, subjects: Sequence[Subject]) -> dict[str, str]:
    """Return the part `standings` of docs/league.md: each measured model's short table, and the names of the others."""
    entries_of = {subject: entries(store, subject) for subject in subjects}
    measured = [subject for subject in subjects if not all(entry["dense"] for entry in entries_of[subject])]
    tables = [
        f"{subject.label}{_stable(entries_of[subject])}:\n\n{table(entries_of[subject], _texts(subject))}"
        for subject in measured
    ]
    missing = [
        f"{HEADS[subject.name]} has no results here yet. `python -m reproductions run league --model {subject.name}` "
        "measures it."
        for subject in subjects
        if subject not in measured
    ]
    return {"standings": "\n\n".join([*tables, *missing])}


def _stable(measured: Sequence[dict]) -> str:
    """Return how many selections stay the same where half of the sequences chooses; '' where none was chosen."""
    count, same = choices(measured)
    return (
        f". Both halves of the sequences select the same layers in {same} of {count} cases (a repair of `make league` at one "
        "number of layers)"
        if count
        else ""
    )


def _texts(subject: Subject) -> tuple[str, ...]:
    """Return the columns that the average perplexity is of."""
    return next(column.of for column in registry.get("league").columns_for(subject) if column.id == PERPLEXITY)
