"""The paper profile's grid over 1, 8 and 64 processes, simulated: time to the last record against the ideal.

    python benchmarks/cluster.py

A stub stands for measuring: a cell takes the seconds that its model's size and its test set's tokens give on one GPU, times a
factor drawn once for each cell (log-normal, sigma 0.3), since estimates err; the shares are made from the estimates. Each
process takes the next share when it is done, as `run --workers` and a SLURM array do. A share loads its model for every
recipe; the first of a (model, calibration) group makes the calibration pass, and the others wait for it. Ideal: what one
process needs in all, over the number of processes; no less than the longest recipe that cannot be cut.
"""

from __future__ import annotations

import heapq
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from common.records.results import Store
from common.utils.command_line import Parser
from common.utils.ratios import Ratio, hand_over
from reproductions.engine import costs, runner
from reproductions.engine.work_shares import Share, shares
from reproductions.spec import registry, subjects

PROCESSES = (1, 8, 64)
RATE = 2 * 1e12 / 4e14 / 1e12  # seconds of a parameter's token: two operations at 4e14 a second
SIGMA = 0.3


def factor(*key: str) -> float:
    """How far off the estimate of one piece of work is; the same in every simulation."""
    return random.Random("|".join(key)).lognormvariate(0, SIGMA)


def seconds(share: Share) -> float:
    """Of a share, but for its calibration pass."""
    total = 0.0
    for entry in share.work:
        recipe = entry.recipe
        total += costs.loading(recipe) + costs.preparing(recipe) * factor(recipe.hash)
        total += sum(costs.benchmark(recipe, b) * factor(recipe.hash, b) for b in entry.benchmarks)
    return RATE * total


def group(share: Share) -> tuple[str, str]:
    """What shares have in common that share a calibration pass."""
    recipe = share.work[0].recipe
    return recipe.model, json.dumps(recipe.calibration, sort_keys=True, default=dict)


def makespan(found: list[Share], processes: int) -> float:
    """When the last of the processes, which take the shares in order, is done."""
    free, calibrated = [0.0] * processes, {}
    heapq.heapify(free)
    for share in found:
        start = heapq.heappop(free)
        ready = calibrated.setdefault(group(share), start + RATE * costs.calibration(share.work[0].recipe))
        heapq.heappush(free, max(start, ready) + seconds(share))
    return max(free)


def indivisible(entry: runner.Work) -> float:
    """A recipe's preparation with its longest cell: no number of processes makes it shorter."""
    longest = max(entry.benchmarks, key=lambda name: costs.benchmark(entry.recipe, name))
    return seconds(Share("", (replace(entry, benchmarks=[longest]),), 0))


def simulate(work: list[runner.Work], title: str) -> None:
    """Print a grid's size, and a line for each number of processes."""
    alone, bound = makespan(shares(work, 1), 1), max(map(indivisible, work))
    cells = sum(len(entry.benchmarks) for entry in work)
    print(f"{title}: {len(work)} recipes, {cells:,} cells; the longest recipe takes {bound / 3600:.2f} h")
    for processes in PROCESSES:
        found = shares(work, processes)
        took, ideal = makespan(found, processes), max(alone / processes, bound)
        print(
            f"{processes:3} processes: {len(found):4} shares, {took / 3600:7.2f} h, ideal {ideal / 3600:7.2f} h, "
            f"{took / ideal - 1:+.1%}"
        )
        what = f"{title}, {processes} processes (simulated): time to the last record"
        goal = {"most": 1.1} if processes == max(PROCESSES) else {}
        hand_over(
            Ratio(
                what, f"{took / 3600:.2f} h", took / ideal, "ideal, no less than the longest recipe", dtype="", **goal
            )
        )


def main() -> None:
    """Simulate the whole grid, and what is left without recipes longer than a 64th of it, which bound it by themselves."""
    Parser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as empty:
        work = runner.missing(list(registry.targets().values()), Store(Path(empty)), subjects.PAPER)
    simulate(work, "paper profile")
    part = makespan(shares(work, 1), 1) / max(PROCESSES)
    simulate(
        [entry for entry in work if indivisible(entry) <= part], f"without recipes longer than {part / 3600:.2f} h"
    )


if __name__ == "__main__":
    main()
