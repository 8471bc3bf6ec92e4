"""A table's printed numbers as replicates: what they might have been on as many other items.

The papers print no outcomes, so two rows' scores are drawn independently, each with the standard error of a share of so
many items. The rows answered the same ones, and what both find hard cancels in their difference: it varies less than
here. So what is beyond this noise is as a rule beyond that of the pairs, too; of the rest nothing is said.
"""

import math

import numpy as np

from common.evaluation import significance
from reproductions import audit
from reproductions.audit.engine import scale
from reproductions.claims import derived_columns
from reproductions.claims.bootstrap import CachedLookup, Key, Number
from reproductions.spec import reported
from reproductions.spec.registry import Table
from reproductions.spec.subjects import PAPER


class Printed(CachedLookup):
    """Lookup of [REPLICATES] values of a printed cell whose number of items is known, or that follows from such cells.

    Other cells give the number itself; None if nothing is printed.
    """

    def __init__(self, table: Table) -> None:
        super().__init__()
        self._cells = reported.cells(table.paper, table.number)
        self._columns = {column.id: column for column in table.columns_for(PAPER)}
        self._questions = audit.questions(table.paper, table.number)
        self._dense = {model: (sparsity, name) for model, sparsity, name, _ in self._cells if name in reported.DENSE}

    def _value(self, key: Key) -> Number | None:
        number = self._cells.get(key)
        if number is None or not math.isfinite(number.value):
            return None if number is None else number.value
        column = self._columns.get(key[3])
        if column is not None and column.derived:
            return self._derived(key, column, number.value)
        if key[3] not in self._questions:
            return number.value
        share = min(max(number.value / scale(number), 0.0), 1.0)
        error = scale(number) * math.sqrt(share * (1 - share) / self._questions[key[3]])
        return significance.normal_means("/".join((number.paper, number.table, *key)), number.value, error)

    def _derived(self, key: Key, column, value: float) -> Number:
        """Return replicates around the printed value that vary as the derivation from other columns does."""
        model, sparsity, method, _ = key
        rows = [(sparsity, method), self._dense.get(model, (sparsity, method))]
        tasks = column.of or [label for label, c in self._columns.items() if c.benchmark and c.compare == "accuracy"]
        parts = [{name: self(model, *row, name) for name in tasks} for row in rows]
        if not tasks or not all(np.ndim(part) for row in parts for part in row.values()):
            return value
        middle = derived_columns.combine(column, *({name: part.mean() for name, part in row.items()} for row in parts))
        return value + derived_columns.combine(column, *parts) - middle

    def paired(self, keys: tuple[Key, ...]) -> bool:
        """Return False, because no outcomes are printed."""
        return False

    def sources(self, key: Key) -> list:
        """Return no sources, because no results are behind a printed cell."""
        return []
