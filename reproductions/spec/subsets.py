"""How much of a benchmark is asked: all of it, or a part that a small machine reads in minutes, which its name then says.

Full test sets and texts take a small machine most of an hour a row. So tables that are made for another model than the
paper's (`settings.Subject.small`) ask

    ``arc_easy@first-500`` in place of ``arc_easy``: the first 500 items in lm-eval's order;
    ``perplexity@linearpatch-ptb@49152-tokens`` in place of ``perplexity@linearpatch-ptb``: as many of its windows as hold
    49,152 tokens, evenly spread over the text.

A part and its whole are different measurements with records of their own (where the whole's outcomes are kept, the part's
are among them: `reproductions.measurements.partial_records`). Where all rows of a table have a whole, the table reads
that (`read`); where some have, claims compare these by it (`more`). A task of no more than 500 items has one name only,
as has a figure's curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.records.results import Store
    from reproductions.spec.registry import Column, Row, Table
    from reproductions.spec.subjects import Subject

FIRST = 500
MARK = f"@first-{FIRST}"
TOKENS = 49_152
TOKENS_MARK = f"@{TOKENS}-tokens"
# Items of every task that has more than FIRST, by the name before a benchmark's first '@'; LaCo's from CLUE roughly.
ITEMS = {
    "arc_challenge": 1_172, "arc_easy": 2_376, "boolq": 3_270, "cmmlu": 11_582, "gsm8k": 1_319, "hellaswag": 10_042,
    "mmlu": 14_042, "piqa": 1_838, "race_v2": 1_045, "winogrande": 1_267, "laco_boolq": 3_270, "laco_c3": 3_816,
    "laco_chid": 20_000, "laco_cmmlu": 11_582, "laco_cmnli": 12_000, "laco_commonsense_qa": 1_221,
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
    """The name of a benchmark's part; its own where it is small enough."""
    base, _, argument = benchmark.partition("@")
    if base == "perplexity":
        return benchmark + TOKENS_MARK if argument in TEXTS else benchmark
    return benchmark + MARK if of_task(benchmark) in ITEMS else benchmark


def whole(benchmark: str) -> str:
    """The name of the benchmark that asks all of it."""
    return benchmark.removesuffix(MARK).removesuffix(TOKENS_MARK)


def of_each(benchmark: str) -> int | None:
    """How many items a benchmark asks, of a group of each subject; None: all."""
    if not benchmark.endswith(MARK):
        return None
    return math.ceil(FIRST / SUBJECTS.get(of_task(benchmark).removeprefix("laco_"), 1))


def tokens(benchmark: str) -> int | None:
    """How many tokens of its text a perplexity reads; None: all."""
    return TOKENS if benchmark.endswith(TOKENS_MARK) else None


def read(table: Table, store: Store, subject: Subject, limit: int | None = None) -> list[Column]:
    """A table's columns as its records are read: whole, where every row that has answered the part has answered the whole.

    So rows that are compared have answered the same items. The dense row's records are those of many tables: alone it
    changes no column.
    """
    columns = table.columns_for(subject)
    names = {column.benchmark for column in columns if column.benchmark}
    parts = {name for name in names if name != whole(name)}
    rows = table.rows(subject, limit) if parts else []
    known = {name: whole(name) for name in parts if _answered(rows, store, name)}
    return [replace(column, benchmark=known.get(column.benchmark, column.benchmark)) for column in columns]


def more(columns: Sequence[Column], rows: Sequence[Row], store: Store) -> list[tuple[dict[str, Column], list[Row]]]:
    """By which rows can be compared by more items than a table shows: columns to be read whole, by label, and these rows.

    One entry for each set of rows, the dense one and at least two others, that have answered all of the same columns; sets of
    fewer rows, which have answered more, come last.
    """
    having: dict[str, frozenset[int]] = {}
    parts = {
        column.label: column for column in columns if column.benchmark and column.benchmark != whole(column.benchmark)
    }
    for label, column in parts.items():
        name = whole(column.benchmark)
        having[label] = frozenset(
            n for n, row in enumerate(rows) if row.recipe is not None and _measured(row, store, name)
        )
    groups = set(having.values())
    groups |= {one & other for one, other in combinations(groups, 2)}
    found = []
    for group in sorted(groups, key=lambda group: (-len(group), sorted(group))):
        answering = [rows[number] for number in sorted(group)]
        if any(row.dense for row in answering) and sum(not row.dense for row in answering) > 1:
            known = {
                label: replace(parts[label], benchmark=whole(parts[label].benchmark))
                for label in having
                if group <= having[label]
            }
            found.append((known, answering))
    return found


def _answered(rows: Sequence[Row], store: Store, part: str) -> bool:
    """Whether the rows that have a record of a part, more than the dense one, have one of the whole."""
    found = False
    for row in rows:
        if row.recipe is None:
            continue
        if _measured(row, store, whole(part)):
            found = found or not row.dense
        elif _measured(row, store, part):
            return False
    return found


def _measured(row: Row, store: Store, benchmark: str) -> bool:
    record = store.get(row.recipe, benchmark)
    return record is not None and record.status == "ok"


def asked(columns: Iterable[Column]) -> str:
    """How much of tasks and texts columns ask, in words; '' where they ask all."""
    names = {column.benchmark: column.label for column in columns if column.benchmark}
    found = [
        (f"first {FIRST} items", "task", _which(names, of_each)),
        (f"{TOKENS:,} tokens", "text", _which(names, tokens)),
    ]
    return ", ".join(f"{part} of {which or f'each {kind}'}" for part, kind, which in found if which is not None)


def _which(names: dict[str, str], part: Callable[[str], int | None]) -> str | None:
    """The labels of the benchmarks that ask a part; '' where all do that could, None where none does."""
    parts = [name for name in names if part(name)]
    wholes = [name for name in names if not part(name) and part(smaller(name))]
    return (", ".join(names[name] for name in parts) if wholes else "") if parts else None


def share(benchmark: str) -> float:
    """Which part of a benchmark is asked, roughly for a text."""
    if tokens(benchmark):
        return TOKENS / TEXTS[whole(benchmark).partition("@")[2]]
    return FIRST / ITEMS[of_task(benchmark)] if of_each(benchmark) else 1.0


def of_task(benchmark: str) -> str:
    """The task that a benchmark asks: ``hellaswag`` of ``hellaswag@first-500`` and of ``endings@hellaswag``."""
    return benchmark.removeprefix("endings@").partition("@")[0]
