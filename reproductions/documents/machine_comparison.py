"""Compare two machines' rounding: one model's answers and perplexities, from records of a CPU and of a GPU.

A part of a test set that one machine measured by itself is held against the same items of the whole that the other measured.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np

from common.pruning.recipe import Recipe
from common.records.results import Record
from common.utils.errors import plural
from reproductions.measurements import partial_records
from reproductions.render.evidence import Loaded
from reproductions.spec import steps, subsets


def text(store: Loaded) -> str:
    """State how many answers of a task differ between machines, and by how much accuracies and perplexities do."""
    tasks: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    perplexities = []
    for name, record, outcomes, other, other_outcomes in _pairs(store):
        if name.startswith("perplexity"):
            perplexities.append(100 * abs(other.values["perplexity"] / record.values["perplexity"] - 1))
        for metric in sorted({"acc", "acc_norm", "score"} & outcomes.keys() & other_outcomes.keys()):
            here, there = outcomes[metric], other_outcomes[metric]
            shift = 100 * float(np.mean(there) - np.mean(here))
            tasks[f"{name}, {metric}"].append((int(np.sum(here != there)), len(here), shift))
    lines = []
    if tasks:
        shares = {
            name: 100 * sum(differing for differing, *_ in models) / sum(count for _, count, _ in models)
            for name, models in tasks.items()
        }
        shifts = [[shift for *_, shift in models] for models in tasks.values()]
        mean = max(abs(statistics.mean(shifts_of_task)) for shifts_of_task in shifts)
        lowest, highest = (f"{end(shares.values()):.1f} % ({end(shares, key=shares.get)})" for end in (min, max))
        lines = [
            f"- {_range(list(map(len, shifts)))} answered each task on both machines, pruned models counted.",
            f"- Of a task's answers between {lowest} and {highest} differ.",
            f"- The accuracy of one model differs by at most {max(map(abs, chain(*shifts))):.1f} points.",
            f"- Averaged over the models of a task it differs by at most {mean:.1f}.",
        ]
    if perplexities:
        median, largest = statistics.median(perplexities), max(perplexities)
        lines.append(
            f"- {len(perplexities)} perplexities differ by {median:.2f} % (median) and at most {largest:.2f} %."
        )
    return "\n".join(lines) or "Not measured yet."


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
        if (part := partial_records.part(store, recipe, record.benchmark)) is not None:
            yield name, record, store.items(recipe, record.benchmark), *part


def _range(counts: list[int]) -> str:
    """Return "3 models" or "3 to 5 models", from the least and the most."""
    if min(counts) == max(counts):
        return plural(counts[0], "model")
    return f"{min(counts)} to {max(counts)} models"


def _device(record: Record) -> str | None:
    return record.provenance.get("device")
