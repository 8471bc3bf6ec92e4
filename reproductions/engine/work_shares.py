"""Missing cells in shares that processes and batch jobs take: recipes of one model and one calibration, the longest first.

Recipes that share a calibration share its pass, and often the search, so a share is a (model, calibration) group. One that
is longer than its part of the whole, with so many processes, is cut into pieces: into recipes, and a recipe that is
too long by itself and trains nothing into its benchmarks. What a piece then repeats (loading the weights; the pass is
kept on disk, and waited for) is counted before it is cut.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reproductions.engine import costs
from reproductions.engine.runner import Work

# Of what every process has to do on average: no piece that can be cut is longer. Larger pieces end farther apart, smaller
# ones load more often (benchmarks/cluster.py).
LARGEST = 0.15
# A recipe's benchmarks are measured apart only in parts so many times as long as preparing its model, which each repeats.
PREPARING = 4


@dataclass(frozen=True)
class Share:
    """What one process does in one go. cost: see `reproductions.engine.costs`."""

    title: str
    work: tuple[Work, ...]
    cost: float

    @property
    def cells(self) -> int:
        """How many records it is to leave."""
        return sum(len(entry.benchmarks) for entry in self.work)


def shares(work: Sequence[Work], processes: int) -> list[Share]:
    """The work for so many processes, the longest share first."""
    groups = _groups(work)
    most = LARGEST * sum(costs.of(group) for group in groups) / max(1, processes)
    pieces = [piece for group in groups for piece in (_cut(group, most) if processes > 1 else [group])]
    found = [Share(_title(piece), tuple(piece), costs.of(piece)) for piece in pieces]
    return sorted(found, key=lambda share: -share.cost)


def _groups(work: Sequence[Work]) -> list[list[Work]]:
    groups: dict[tuple[str, str], list[Work]] = {}
    for entry in work:
        calibration = json.dumps(entry.recipe.calibration, sort_keys=True, default=dict)
        groups.setdefault((entry.recipe.model, calibration), []).append(entry)
    return list(groups.values())


def _cut(group: list[Work], most: float) -> list[list[Work]]:
    """Pieces of a group of at most so much work each, where they can be made so small."""
    pieces: list[list[Work]] = []
    for entry in sorted((part for whole in group for part in _parts(whole, most)), key=lambda e: -costs.of([e])):
        room = (piece for piece in pieces if costs.of([*piece, entry]) <= most and not _has(piece, entry))
        piece = next(room, None)
        if piece is None:
            pieces.append([entry])
        else:
            piece.append(entry)
    return pieces


def _has(piece: Sequence[Work], entry: Work) -> bool:
    """Whether the recipe is there already: its model would be prepared twice."""
    return any(other.recipe.hash == entry.recipe.hash for other in piece)


def _parts(entry: Work, most: float) -> list[Work]:
    """A recipe as it is, or its benchmarks apart where it is too long; preparing it stays a small part of each part."""
    most = max(most, PREPARING * costs.of([replace(entry, benchmarks=[])]))
    if costs.of([entry]) <= most:
        return [entry]
    parts: list[Work] = []
    for benchmark in sorted(entry.benchmarks, key=lambda name: -costs.benchmark(entry.recipe, name)):
        cost = costs.benchmark(entry.recipe, benchmark)
        part = next((p for p in parts if costs.of([p]) + cost <= most), None)
        if part is None:
            parts.append(replace(entry, benchmarks=[benchmark]))
        else:
            part.benchmarks.append(benchmark)
    return parts


def _title(work: Sequence[Work]) -> str:
    first = work[0].recipe
    text = (first.calibration or {}).get("corpus", "no calibration")
    recipes = "1 recipe" if len(work) == 1 else f"{len(work)} recipes"
    return f"{first.model}, {text}: {recipes}, {sum(len(entry.benchmarks) for entry in work)} cells"
