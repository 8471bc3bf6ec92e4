"""What a table is made of, and which tables there are. Declarations only: nothing here computes or loads a model."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.errors import unknown
from common.results import Recipe

PROFILES = ("standin", "paper")
PAPERS = ("linearpatch", "prunecomp", "laco", "reassessing")
MODULES = ("reproductions.linearpatch",)

# A claim looks cells up by (model label, sparsity, method, column) and gets None where there is no number.
Lookup = Callable[[str, str, str, str], float | None]


@dataclass(frozen=True)
class Column:
    """A column: its label and where its number comes from.

    benchmark, key: the record's benchmark and value. derived: ``average`` or ``retained`` (over the accuracy columns)
    in their place. scale: what a value is multiplied by to be shown (accuracies are stored as shares). compare: how a
    reproduced number is held against a reported one: ``accuracy`` within two standard errors, ``exact`` to 0.01.
    """

    label: str
    benchmark: str | None = None
    key: str | None = None
    derived: str | None = None
    scale: float = 1.0
    compare: str = "accuracy"


@dataclass(frozen=True)
class Row:
    """A row: what it is called, and the recipe behind it (None: ``status`` says why there is none)."""

    model: str  # registry name
    label: str  # as the table prints it
    sparsity: str
    method: str
    recipe: Recipe | None
    status: str = "not run"
    dense: bool = False


@dataclass(frozen=True)
class Claim:
    """A statement the paper draws from a table. ``check`` sees one side's numbers and the (model, sparsity) settings.

    It returns None where the numbers it needs are missing. ``only_reported``: it names the paper's own numbers.
    """

    text: str
    check: Callable[[Lookup, list[tuple[str, str]]], bool | None]
    only_reported: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a paper. ``reported`` is the number of the table in the paper's CSV files."""

    target: str
    paper: str
    number: str
    title: str
    rows: Callable[[str, int | None], list[Row]]  # (profile, limit) -> rows
    columns: Callable[[str], list[Column]]
    claims: tuple[Claim, ...] = ()
    note: str = ""


@lru_cache(maxsize=1)
def targets() -> dict[str, Table]:
    """Every target by name."""
    found = {}
    for module in MODULES:
        found |= {table.target: table for table in importlib.import_module(module).TABLES}
    return found


def get(target: str) -> Table:
    """The table of a target.

    Raises:
        UserError: there is none; the nearest names are given.
    """
    if target not in targets():
        raise unknown("target", target, targets())
    return targets()[target]


@dataclass(frozen=True)
class Reported:
    """One number as the paper prints it; ``flag`` holds doubts."""

    value: float
    flag: str


def reported_numbers(paper: str, number: str) -> dict[tuple[str, str, str, str], Reported]:
    """(model, sparsity, method, column) -> number. A row that is printed for several variants (``S/L``) serves each."""
    path = Path(__file__).resolve().parents[1] / "papers" / paper / "reported" / f"table{number}.csv"
    found = {}
    with path.open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            number = Reported(float(line["value"]), line["flag"])
            for variant in line["variant"].split("/"):
                method = f"{line['method']}[{variant}]" if variant else line["method"]
                key = (line["model"], line["sparsity"], method, line["column"])
                found[key] = number
    return found
