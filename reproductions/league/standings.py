"""The league as Markdown, from records: what each repair comes to, against the best of the rivals, paired over windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from common.paired import interval
from common.results import Store
from reproductions import registry, show
from reproductions.league import rows
from reproductions.settings import Subject

PERPLEXITY, ACCURACY = "PPL AVG", "AVG"
HEADER = ("Removed", "Repair", "after", "of the best rival's perplexity", "accuracy", "checkpoint")
SHORT = (rows.NONE, "LinearPatch's A", "Prune&Comp's factor", rows.REPLACEME, rows.GHOSTED)  # and the best of ours


def entries(store: Store, subject: Subject, target: str = "league") -> list[dict]:
    """The measured rows that have both perplexities; see `show.entries`."""
    table = registry.get(target)
    found = show.entries(table, store, subject, table.rows(subject))
    return [entry for entry in found if PERPLEXITY in entry["scores"]]


def best(found: Iterable[dict]) -> dict[str, dict[str, dict]]:
    """Sparsity -> repair -> its entry after the choice of layers that it is best with; the best repair first."""
    by_count: dict[str, dict[str, dict]] = {}
    for entry in found:
        if entry["dense"]:
            continue
        selection, _, repair = entry["method"].partition(", ")
        if not repair or selection == rows.ONE_BY_ONE.partition(", ")[0]:
            selection, repair = "", entry["method"]
        known = by_count.setdefault(entry["sparsity"], {})
        if repair not in known or entry["scores"][PERPLEXITY] < known[repair]["scores"][PERPLEXITY]:
            known[repair] = entry | {"selection": selection}
    order = sorted(by_count, key=lambda sparsity: int(sparsity.partition("/")[0]))
    return {
        count: dict(sorted(by_count[count].items(), key=lambda pair: pair[1]["scores"][PERPLEXITY])) for count in order
    }


def ratio(entry: dict, rival: dict) -> str:
    """One row's average perplexity as a share of another's, with the 95 % interval: paired over windows, or (~) not."""
    share = entry["scores"][PERPLEXITY] / rival["scores"][PERPLEXITY]
    one, other = (np.asarray(found["replicates"](PERPLEXITY)) for found in (entry, rival))
    if entry["method"] == rival["method"] or one.ndim == 0 or other.ndim == 0:
        return f"{share:.3f}"
    low, high = interval(one / other)
    looked_up = entry["replicates"].func  # the `Resampled` of all rows
    paired = looked_up.paired(tuple((*found["replicates"].args, PERPLEXITY) for found in (entry, rival)))
    return f"{share:.3f} [{low:.3f}, {high:.3f}]" + ("" if paired else "~")


def leads(found: Sequence[dict]) -> list[tuple[str, str, str, list[str]]]:
    """For each number of layers: sparsity, the best of ours as `ratio` of the best rival, that rival, and the rivals that are
    worse than no repair at all."""
    told = []
    for sparsity, repairs in best(found).items():
        ours = next((entry for repair, entry in repairs.items() if repair in rows.OURS), None)
        rivals = [repair for repair in repairs if repair in rows.RIVALS]
        if ours is None or not rivals:
            continue
        order = list(repairs)
        worse = [name for name in rivals if rows.NONE in order and order.index(name) > order.index(rows.NONE)]
        told.append((sparsity, ratio(ours, repairs[rivals[0]]), rivals[0], worse))
    return told


def table(found: Sequence[dict], texts: Sequence[str], short: bool = False) -> str:
    """A Markdown table with the perplexities of these texts.

    short: of the repairs without training only those that a reader knows, and the best of ours.
    """
    header = (*HEADER[:3], *texts, *HEADER[3:])
    lines = ["| " + " | ".join(header) + " |", "| ---: | --- | --- |" + " ---: |" * (len(texts) + 2) + " --- |"]
    for dense in (entry for entry in found if entry["dense"]):
        lines.append(_line(dense | {"selection": ""}, "dense", "", texts))
    for repairs in best(found).values():
        rivals = [entry for repair, entry in repairs.items() if repair in rows.RIVALS]
        ours = next((repair for repair in repairs if repair in rows.OURS), None)
        for repair, entry in repairs.items():
            if not short or repair in SHORT or repair == ours:
                share = ratio(entry, rivals[0]) if rivals else ""
                lines.append(_line(entry, f"**{repair}**" if repair == ours else repair, share, texts))
    return "\n".join(lines)


def _line(entry: dict, repair: str, share: str, texts: Sequence[str]) -> str:
    scores = entry["scores"]
    perplexities = [f"{scores[label]:.1f}" for label in texts]
    accuracy = f"{scores[ACCURACY]:.1f}" if ACCURACY in scores else ""
    loaded = entry["records"].get("loadable", {}).get("details", {}).get("loaded_by", "")
    kind = "plain" if "," in loaded else loaded
    cells = (entry["sparsity"], repair, entry["selection"], *perplexities, share, accuracy, kind)
    return "| " + " | ".join(cells) + " |"


def part(store: Store, subject: Subject, short: bool = False) -> str:
    """The standings of one model under its name; a sentence where nothing of it has been measured."""
    found = entries(store, subject)
    if not any(not entry["dense"] for entry in found):
        return f"Nothing of the league has been measured on {subject.label}."
    columns = registry.get("league").columns_for(subject)
    texts = next(column.of for column in columns if column.label == PERPLEXITY)
    return f"{subject.label}:\n\n{table(found, texts, short)}"
