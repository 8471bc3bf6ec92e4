"""Hand over the ratios of a benchmark script for benchmarks/README.md (`benchmarks/run.py`)."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

# Names the file that ratios are appended to, a line of JSON each; without it they are printed alone.
VARIABLE = "LAYERLAB_RATIOS"


@dataclass(frozen=True)
class Ratio:
    """One line of the page.

    what, measured: in words, with units. ratio: to the baseline. most, least: the goal, if one is stated. dtype: type
    of the computation; "" if only executions were counted.
    """

    what: str
    measured: str
    ratio: float
    baseline: str
    most: float | None = None
    least: float | None = None
    dtype: str = "float32"

    @property
    def met(self) -> bool | None:
        """Return whether the goal is reached; None without a goal."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or self.ratio <= self.most) and (self.least is None or self.ratio >= self.least)


def in_turns(ways: Mapping[str, Callable[[], object]], repeats: int = 3) -> tuple[dict[str, float], dict[str, object]]:
    """Return the median seconds of each way, and its last return value; the ways take turns, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    returned: dict[str, object] = {}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            returned[name] = way()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}, returned


def race(subject: str, baseline: str, naive: Callable[[], tuple], own: Callable[[], tuple]) -> None:
    """Hand over what a search saves against a naive one, the ``baseline``: layer executions and time.

    ``naive`` and ``own`` return the outcome and the layer executions.

    Raises:
        SystemExit: the outcomes differ.
    """
    seconds, returned = in_turns({"naive": naive, "own": own})
    (expected, naive_executions), (outcome, executions) = returned["naive"], returned["own"]
    if outcome != expected:
        raise SystemExit(f"{subject}: the outcome {outcome} differs from the naive one, {expected}")
    hand_over(
        Ratio(f"{subject}: layer executions", str(executions), executions / naive_executions, baseline, dtype=""),
        Ratio(f"{subject}: time", f"{seconds['own']:.1f} s", seconds["own"] / seconds["naive"], baseline),
    )


def hand_over(*ratios: Ratio) -> None:
    """Print ratios and append them to the file that the environment names, with the threads that torch computes on."""
    torch = sys.modules.get("torch")  # a script that counts does not load it
    for ratio in ratios:
        print(f"{ratio.what}: {ratio.measured}; {ratio.ratio:.3g} of {ratio.baseline}", flush=True)
        if name := os.environ.get(VARIABLE):
            threads = torch.get_num_threads() if torch and ratio.dtype else None
            with Path(name).open("a") as file:
                file.write(json.dumps(asdict(ratio) | {"threads": threads}) + "\n")
