"""Take a benchmark whole, or a part that a small machine reads in minutes, which its name then says.

Full test sets and texts take a small machine most of an hour a row. So tables that are made for another model than the
paper's (`subjects.Subject.small`) ask

    ``arc_easy@first-500`` in place of ``arc_easy``: the first 500 items in lm-eval's order;
    ``perplexity@linearpatch-ptb@49152-tokens`` in place of ``perplexity@linearpatch-ptb``: as many of its sequences as hold
    49,152 tokens, evenly spread over the text.

A part and its whole are different measurements with records of their own. Where the whole's outcomes are kept, the part's
are among them: `reproductions.measurements.partial_records`. Where all rows of a table have a whole, the table reads that
(`reproductions.spec.coverage.columns`); where some have, claims compare these by it (`coverage.more_items`). A task of no
more than 500 items has one name only, as has a figure's curve.
"""

import math
from collections.abc import Callable, Iterable
from typing import Protocol

FIRST = 500
MARK = f"@first-{FIRST}"
TOKENS = 49_152
TOKENS_MARK = f"@{TOKENS}-tokens"
# Items of every task that has more than FIRST, by the name before a benchmark's first '@'; LaCo's from CLUE roughly.
ITEMS = {
    "arc_challenge": 1_172, "arc_easy": 2_376, "arc_easy_written": 2_376, "boolq": 3_270, "cmmlu": 11_582, "gsm8k": 1_319,
    "hellaswag": 10_042, "mmlu": 14_042, "piqa": 1_838, "race_v2": 1_045, "winogrande": 1_267, "laco_boolq": 3_270,
    "laco_c3": 3_816, "laco_chid": 20_000, "laco_cmmlu": 11_582, "laco_cmnli": 12_000, "laco_commonsense_qa": 1_221,
    "laco_hellaswag": 10_042, "laco_mmlu": 14_042, "laco_piqa": 1_838, "laco_race_h": 3_498, "laco_race_m": 1_436,
    "laco_xsum": 1_000,
}  # fmt: skip
SUBJECTS = {"mmlu": 57, "cmmlu": 67}  # groups: as many items of each, FIRST or a little more in all
# Tokens of the texts that are longer than TOKENS, by the protocol of a perplexity, roughly.
TEXTS = {
    "linearpatch-wikitext2": 330_000, "linearpatch-ptb": 100_000, "linearpatch-c4": 520_000,
    "reassessing-wikitext2": 330_000, "reassessing-ptb": 100_000,
}  # fmt: skip


def smaller(benchmark: str) -> str:
    """Return the name of a benchmark's part; the benchmark itself if it is a part, or small enough."""
    if benchmark != whole(benchmark):
        return benchmark
    base, _, argument = benchmark.partition("@")
    if base == "perplexity":
        return benchmark + TOKENS_MARK if argument in TEXTS else benchmark
    return benchmark + MARK if of_task(benchmark) in ITEMS else benchmark


def whole(benchmark: str) -> str:
    """Return the name of the whole benchmark that a part belongs to."""
    return benchmark.removesuffix(MARK).removesuffix(TOKENS_MARK)


def of_each(benchmark: str) -> int | None:
    """Return the number of items that a benchmark measures, in a group of each subject; None: all."""
    if not benchmark.endswith(MARK):
        return None
    return math.ceil(FIRST / SUBJECTS.get(_group(benchmark), 1))


def tokens(benchmark: str) -> int | None:
    """Return the number of tokens that a perplexity reads of its text; None: all."""
    return TOKENS if benchmark.endswith(TOKENS_MARK) else None


class _Column(Protocol):
    label: str
    benchmark: str | None


def described(columns: Iterable[_Column]) -> str:
    """Describe how much of tasks and texts columns measure; '' if all."""
    names = {column.benchmark: column.label for column in columns if column.benchmark}
    tasks = {name: label for name, label in names.items() if _group(name) not in SUBJECTS}
    of_subject = {_group(name): size for name in names.keys() - tasks.keys() if (size := of_each(name))}
    parts = [
        (f"first {FIRST} items", "task", _labels_of_parts(tasks, of_each)),
        *((f"first {size} items", "", f"each {group.upper()} subject") for group, size in sorted(of_subject.items())),
        (f"{TOKENS:,} tokens", "text", _labels_of_parts(tasks, tokens)),
    ]
    return ", ".join(f"{size} of {labels or f'each {kind}'}" for size, kind, labels in parts if labels is not None)


def _labels_of_parts(names: dict[str, str], part: Callable[[str], int | None]) -> str | None:
    """Return the labels of the benchmarks that ask a part; '' where all do that could, None where none does."""
    partial = [name for name in names if part(name)]
    wholes = [name for name in names if not part(name) and part(smaller(name))]
    return (", ".join(names[name] for name in partial) if wholes else "") if partial else None


def of_task(benchmark: str) -> str:
    """Return the task of a benchmark: ``hellaswag`` of ``hellaswag@first-500`` and of ``endings@hellaswag``."""
    return benchmark.removeprefix("endings@").partition("@")[0]


def _group(benchmark: str) -> str:
    return of_task(benchmark).removeprefix("laco_")
