"""Compare two machines' rounding: one model's answers and perplexities, from records of a CPU and of a GPU.

A part of a test set that one machine measured by itself is held against the same items of the whole that the other measured.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from common.console.text_tables import markdown
from common.pruning.recipe import Recipe
from common.records.results import Record
from common.utils.signs import signed
from reproductions.measurements import partial_records
from reproductions.render.evidence import Loaded
from reproductions.spec import steps, subsets


def text(store: Loaded) -> str:
    """Return a line a task: models, answers, how many differ in %, and the change of accuracy in points.

    The change is the mean with the least and the most. A sentence on perplexities follows.
    """
    tasks: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    perplexities = []
    for name, record, outcomes, other, theirs in _pairs(store):
        if name.startswith("perplexity"):
            perplexities.append(100 * abs(other.values["perplexity"] / record.values["perplexity"] - 1))
        for metric in sorted({"acc", "acc_norm", "score"} & outcomes.keys() & theirs.keys()):
            mine, its = outcomes[metric], theirs[metric]
            shift = 100 * float(np.mean(its) - np.mean(mine))
            tasks[f"{name} ({metric})"].append((int(np.sum(mine != its)), len(mine), shift))
    if not tasks and not perplexities:
        return "Not measured yet."
    lines = []
    for name, found in sorted(tasks.items()):
        differing, answers, shifts = (list(column) for column in zip(*found, strict=True))
        share, ends = 100 * sum(differing) / sum(answers), (statistics.mean(shifts), min(shifts), max(shifts))
        mean, least, most = (signed(end, "+.1f") for end in ends)
        lines.append([name, len(found), sum(answers), f"{share:.1f}", f"{mean} [{least}, {most}]"])
    told = markdown(["Task", "models", "answers", "differ, %", "accuracy, points: mean [least, most]"], lines, "lrrrr")
    if perplexities:
        told += (
            f"\n\n{len(perplexities)} perplexities differ by {statistics.median(perplexities):.2f} % (median) and at most "
            f"{max(perplexities):.2f} %."
        )
    return told


def _pairs(store: Loaded) -> Iterator[tuple[str, Record, dict, Record, dict]]:
    """Yield (task or text, a part measured by itself, its outcomes, the same part of the whole, its outcomes)."""
    for record in store:
        name = subsets.whole(record.benchmark)
        if name == record.benchmark or record.status != "ok" or "part_of" in record.provenance:
            continue
        recipe = Recipe(**record.recipe)
        whole = store.get(recipe, name)
        if whole is None or whole.status != "ok" or _device(whole) == _device(record) or steps.trains(recipe):
            continue
        if (found := partial_records.part(store, recipe, record.benchmark)) is not None:
            yield name, record, store.items(recipe, record.benchmark), *found


def _device(record: Record) -> str | None:
    return record.provenance.get("device")
