"""The numbers the papers print: one CSV file per table in ``papers/<paper>/reported``, one number a row, as printed.

Reads only. Doubts about a value stand in its ``flag``; what the arithmetic says about it is the audit's business.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common.utils import csv_rows

PAPERS_FOLDER = Path(__file__).resolve().parents[2] / "papers"
DENSE = ("Dense", "Dense*")  # rows of a model that nothing was removed from
FIELDS = ("table", "model", "sparsity", "method", "variant", "column", "value", "stderr", "flag")


@dataclass(frozen=True)
class Number:
    """One printed number. ``text`` is its printed form, ``value`` its value (NaN if NaN is printed)."""

    paper: str
    table: str
    model: str
    sparsity: str
    method: str
    variant: str
    column: str
    text: str
    stderr: float | None
    flag: str

    @property
    def value(self) -> float:
        """Return the printed number."""
        return float(self.text)

    @property
    def half_unit(self) -> float:
        """Return half a unit of the last printed digit, the largest error by rounding."""
        mantissa, _, exponent = self.text.lower().partition("e")
        return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return (model, sparsity, method, variant)."""
        return self.model, self.sparsity, self.method, self.variant


@cache
def numbers(paper: str, table: str) -> tuple[Number, ...]:
    """Return every number of a table, in printed order; none for figures and for tables of this project."""
    path = PAPERS_FOLDER / paper / "reported" / f"table{table}.csv"
    if not path.exists():
        return ()
    return tuple(
        Number(
            paper, *(line[name] for name in FIELDS[:7]), float(line["stderr"]) if line["stderr"] else None, line["flag"]
        )
        for line in csv_rows.read(path)
    )


def tables(paper: str) -> list[str]:
    """Return the tables of a paper that have been transcribed, in the paper's order (1, 2, 10, A, A1, text)."""

    def order(name: str) -> tuple:
        return tuple((part.isdigit(), int(part) if part.isdigit() else part) for part in re.findall(r"\d+|\D+", name))

    names = [path.stem.removeprefix("table") for path in (PAPERS_FOLDER / paper / "reported").glob("table*.csv")]
    return sorted(names, key=lambda name: (not name[0].isdigit(), len(re.match(r"\D*", name)[0]), order(name)))


def row_name(method: str, variant: str) -> str:
    """Return the name of a row: ``LinearPatch[L]``, ``PPL +Prune&Comp``."""
    if not variant:
        return method
    return f"{method} {variant}" if variant.startswith("+") else f"{method}[{variant}]"


def row_names(number: Number) -> Iterator[tuple[str, str]]:
    """Yield (variant, row name) of each row of a number; one printed for several variants (``S/L``) serves each."""
    for variant in number.variant.split("/"):
        yield variant, row_name(number.method, variant)


@cache
def cells(paper: str, table: str) -> dict[tuple[str, str, str, str], Number]:
    """Return (model, sparsity, row name, column) -> number."""
    return {
        (number.model, number.sparsity, name, number.column): number
        for number in numbers(paper, table)
        for _, name in row_names(number)
    }


def columns(paper: str, table: str) -> list[str]:
    """Return the columns of a table, in printed order."""
    return list(dict.fromkeys(number.column for number in numbers(paper, table)))
