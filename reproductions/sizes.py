"""How much of a benchmark is asked: all of its items, or the first 500, which its name then says.

Full test sets take a small machine most of an hour a row. So tables that are made for another model than the paper's ask
``arc_easy@first-500`` in place of ``arc_easy``: the first 500 items in lm-eval's order. The two are different measurements
with records of their own. A task of no more than 500 items has one name only, as has what is no task (a perplexity, a
figure's curve).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

FIRST = 500
MARK = f"@first-{FIRST}"
# Items of every task that has more than FIRST, by the name before a benchmark's first '@'; LaCo's from CLUE roughly.
ITEMS = {
    "arc_challenge": 1_172, "arc_easy": 2_376, "boolq": 3_270, "cmmlu": 11_582, "gsm8k": 1_319, "hellaswag": 10_042,
    "mmlu": 14_042, "piqa": 1_838, "race_v2": 1_045, "winogrande": 1_267, "laco_boolq": 3_270, "laco_c3": 3_816,
    "laco_chid": 20_000, "laco_cmmlu": 11_582, "laco_cmnli": 12_000, "laco_commonsense_qa": 1_221,
    "laco_hellaswag": 10_042, "laco_mmlu": 14_042, "laco_piqa": 1_838, "laco_race_h": 3_498, "laco_race_m": 1_436,
    "laco_xsum": 1_000,
}  # fmt: skip
SUBJECTS = {"mmlu": 57, "cmmlu": 67}  # groups: as many items of each, FIRST or a little more in all


def first(benchmark: str) -> str:
    """The name of a benchmark's first items; its own where there are no more of them."""
    return benchmark + MARK if _base(benchmark) in ITEMS else benchmark


def whole(benchmark: str) -> str:
    """The name of the benchmark that asks all items."""
    return benchmark.removesuffix(MARK)


def of_each(benchmark: str) -> int | None:
    """How many items a benchmark asks, of a group of each subject; None: all."""
    if not benchmark.endswith(MARK):
        return None
    return math.ceil(FIRST / SUBJECTS.get(_base(benchmark).removeprefix("laco_"), 1))


def asked(benchmarks: Iterable[str | None]) -> int | None:
    """How many items a table asks of each task; None: all, or it asks no task."""
    return FIRST if any(name and name.endswith(MARK) for name in benchmarks) else None


def share(benchmark: str) -> float:
    """Which part of a benchmark's items is asked."""
    return FIRST / ITEMS[_base(benchmark)] if benchmark.endswith(MARK) else 1.0


def _base(benchmark: str) -> str:
    return benchmark.partition("@")[0]
