"""What a benchmark script hands over beside what it prints: its ratios, for benchmarks/README.md (`benchmarks/run.py`)."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

# Names the file that ratios are appended to, a line of JSON each; without it nothing is handed over.
VARIABLE = "LAYERLAB_RATIOS"


@dataclass(frozen=True)
class Ratio:
    """One line of the page.

    what, measured: in words, with units. ratio: to the baseline. most, least: the goal for it, where one is stated.
    dtype: what was computed in; "": nothing was, executions were counted.
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
        """Whether the goal is reached; None where there is none."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or self.ratio <= self.most) and (self.least is None or self.ratio >= self.least)


def in_turns(ways: Mapping[str, Callable[[], object]], repeats: int = 3) -> tuple[dict[str, float], dict[str, object]]:
    """Return the median seconds of each way, and what it returned last: they take turns, after one round that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    returned: dict[str, object] = {}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            returned[name] = way()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}, returned


def hand_over(*ratios: Ratio) -> None:
    """Append ratios to the file that the environment names, with the threads that torch computes on."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    torch = sys.modules.get("torch")  # a script that counts does not load it
    threads = torch.get_num_threads() if torch else None
    with Path(name).open("a") as file:
        for ratio in ratios:
            file.write(json.dumps(asdict(ratio) | {"threads": threads if ratio.dtype else None}) + "\n")
