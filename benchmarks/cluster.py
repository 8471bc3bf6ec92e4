"""The paper profile's grid over 1, 8 and 64 workers, simulated: `python benchmarks/cluster.py`.

A recipe takes the seconds that published records of the same benchmarks give, in proportion to the parameters, times a
factor drawn once for each recipe (log-normal, sigma 0.3), since estimates err. A cell of unknown time takes as long as the
mean of its model's known ones. Each worker takes the next recipe when it is done, as `run --workers` and a SLURM array do,
in the order of the estimates. Ideal: what one worker needs in all, over the number of workers; no less than the longest
recipe, which one worker measures.
"""

import heapq
import random
from collections.abc import Sequence
from statistics import mean

from common.records.results import NOWHERE, Store
from common.utils.ratios import Ratio, hand_over
from reproductions.engine import expected_time, runner
from reproductions.engine.work import Work
from reproductions.spec import registry, subjects

WORKERS = (1, 8, 64)
SIGMA = 0.3
GOAL = 1.15


def durations(work: Sequence[Work], store: Store) -> list[float]:
    """Return the true seconds of each recipe."""
    estimates = [expected_time.expected([entry], store) for entry in work]
    cell_seconds: dict[str, list[float]] = {}
    for entry, (seconds, unknown) in zip(work, estimates):
        if cells := len(entry.benchmarks) - unknown:
            cell_seconds.setdefault(entry.recipe.model, []).append(seconds / cells)
    times = []
    for entry, (seconds, unknown) in zip(work, estimates):
        factor = random.Random(entry.recipe.hash).lognormvariate(0, SIGMA)
        times.append(factor * (seconds + unknown * mean(cell_seconds.get(entry.recipe.model, [0.0]))))
    return times


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Return the time at which the last of the workers, which take the recipes in order, is done."""
    free = [0.0] * workers
    for recipe_seconds in seconds:
        heapq.heapreplace(free, free[0] + recipe_seconds)
    return max(free)


def simulate(seconds: Sequence[float], title: str) -> None:
    """Print a line for each number of workers; ``seconds`` are in the order in which recipes are taken."""
    for workers in WORKERS:
        took, ideal = makespan(seconds, workers), max(sum(seconds) / workers, max(seconds))
        subject = f"{title}, {workers} workers (simulated): time to the last record"
        goal = GOAL if workers == max(WORKERS) else None
        against = "ideal, no less than the longest recipe"
        hand_over(Ratio(subject, f"{took / 3600:.2f} h", took / ideal, against, most=goal, dtype=""))


def main() -> None:
    """Simulate the entire grid, and the rest without recipes longer than a 64th of it, which bound it by themselves."""
    store = Store(NOWHERE)
    work = runner.missing(list(registry.targets().values()), Store(NOWHERE, None), subjects.PAPER)
    seconds = durations(expected_time.longest_first(work, store), store)
    simulate(seconds, "paper profile")
    part = sum(seconds) / max(WORKERS)
    simulate([duration for duration in seconds if duration <= part], f"without recipes longer than {part / 3600:.0f} h")


if __name__ == "__main__":
    main()
