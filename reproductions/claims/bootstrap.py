"""The cells of a table as replicates: what they would have been on other items, from the outcomes kept beside records."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from common.evaluation import significance
from common.pruning.recipe import Recipe
from common.records.results import Record, Store
from common.utils.errors import UserError
from reproductions.claims import derived_columns
from reproductions.claims.derived_columns import Score, Scored
from reproductions.spec import subsets
from reproductions.spec.comparisons import Named
from reproductions.spec.registry import Column, Row

Key = tuple[str, str, str, str]  # group, sparsity, method, column's id
Number = float | np.ndarray


def matches_outcomes(record: Record, key: str, outcomes: np.ndarray) -> bool:
    """Return whether a result's value is the mean of outcomes [items] (for a perplexity: its exponential).

    Outcomes of another measurement (older files name no result), or a value that is no mean of them, are no evidence
    for it.
    """
    if not len(outcomes) or key not in record.values:
        return False
    mean = np.mean(outcomes, dtype=np.float64)
    return bool(np.isclose(np.exp(mean) if key == "perplexity" else mean, record.values[key], rtol=1e-4, atol=1e-9))


class CachedLookup:
    """Lookup of a claim that computes each cell's value once. labels: labels of the ids in comparisons, if any."""

    labels: Mapping[Named, str] = {}

    def __init__(self) -> None:
        self._values: dict[Key, Number | None] = {}

    def __call__(self, group: str, sparsity: str, method: str, column: str) -> Number | None:
        """Return a cell's value, made once."""
        key = (group, sparsity, method, column)
        if key not in self._values:
            self._values[key] = self._value(key)
        return self._values[key]

    def _value(self, key: Key) -> Number | None:
        raise NotImplementedError

    def read_whole(self, keys: Iterable[Key]) -> list[str]:
        """Return the labels of columns behind several cells that use all items where the table shows a part."""
        return []


class Resampled(CachedLookup):
    """Lookup of one subject's rows of a table: [REPLICATES] values of a cell, or its single value.

    All rows' replicates use the same draws of a benchmark's items, and different benchmarks use independent draws
    (`common.evaluation.significance`). Without outcomes per item they are normal with the result's standard error, and
    independent of other recipes; such a cell is not `paired`. A cell without a standard error is one number. whole: ids
    of the columns that use all items where the table shows a part.
    """

    def __init__(self, store: Store, rows: Scored, columns: list[Column], whole: Collection[str] = ()) -> None:
        super().__init__()
        self._whole = whole
        self._store = store
        self._scored = rows
        self._rows = {row.key: (row, scores) for row, _, scores in rows}
        self._columns = {column.id: column for column in columns}
        self._outcomes: dict[tuple[str, str, str | None], np.ndarray | None] = {}
        self._names_of: dict[tuple[str, str], list[str]] = {}

    @cached_property
    def labels(self) -> dict[Named, str]:
        """Return the labels of the rows' groups and methods, and of the columns."""
        rows = [row for row, _, _ in self._scored]
        labels = {Named("group", row.group): row.label for row in rows}
        labels |= {Named("method", row.method): row.name for row in rows}
        return labels | {Named("column", name): column.label for name, column in self._columns.items()}

    @cached_property
    def at_chance_level(self) -> frozenset[str]:
        """Return the ids of tasks on which the original model is at chance level, and of columns derived from them alone."""
        models = {row.model for row, _, _ in self._scored}
        columns = list(self._columns.values())
        tasks = {label for model in models for label in derived_columns.at_chance_level(columns, model, self._scored)}
        return frozenset(tasks | {column.id for column in columns if column.of and tasks.issuperset(column.of)})

    def shown(self, group: str, sparsity: str, method: str, column: str) -> float | None:
        """Return a cell's number as the table shows it; None if there is none."""
        _, scores = self._rows.get((group, sparsity, method), (None, {}))
        score = scores.get(column)
        return score.value if isinstance(score, Score) and not self._columns[column].hidden else None

    def _value(self, key: Key) -> Number | None:
        row, scores = self._rows.get(key[:3], (None, {}))
        score = scores.get(key[3])
        if not isinstance(score, Score):
            return None
        column = self._columns[key[3]]
        if column.derived is None:
            return self._measured_value(row, column, score)
        if column.derived == derived_columns.FLIPS:
            names = self._names(column, row.model)
            return 100 * np.mean([self._flip_means(row, self._columns[name]) for name in names], 0)
        wholes = self._parts(row, column, self._dense(row))
        try:
            return derived_columns.combine(column, self._parts(row, column, row), wholes)
        except UserError:  # the dense model scores 0 on some draw of very few items
            return score.value

    def _parts(self, row: Row, column: Column, of: Row) -> dict[str, Number]:
        """Return what a derived column of a row follows from, in that row or in the dense one."""
        names = self._names(column, row.model)
        return {name: self(*of.key, name) for name in names}

    def _names(self, column: Column, model: str) -> list[str]:
        """Return the columns that a derived one follows from in a model's rows."""
        place = (column.id, model)
        if place not in self._names_of:
            self._names_of[place], _ = derived_columns.parts(column, list(self._columns.values()), model, self._scored)
        return self._names_of[place]

    def _dense(self, row: Row) -> Row:
        return next((other for other, _, _ in self._scored if other.dense and other.model == row.model), row)

    def _measured_value(self, row: Row, column: Column, score: Score) -> Number:
        recipe = row.recipe
        if score.stderr is None or recipe is None:
            return score.value
        means = self._means(recipe, column)
        if means is None:
            name = f"{recipe.hash}/{column.benchmark}/{column.key}"
            return significance.normal_means(name, score.value, score.stderr)
        return column.scale * means

    def _means(self, recipe: Recipe, column: Column) -> np.ndarray | None:
        """Return replicates of a value from its outcomes per item; None where there are none."""
        outcomes = self.outcomes(recipe, column)
        if outcomes is None:
            return None
        name = f"{column.benchmark}/{recipe.limit}"
        means = significance.resampled_means(name, outcomes, self._beside(recipe, column))
        return np.exp(means) if column.key == "perplexity" else means

    def _beside(self, recipe: Recipe, column: Column) -> Iterator[np.ndarray]:
        """Yield the outcomes of a column in the rows measured on the same items."""
        for row, _, scores in self._scored:
            if row.recipe is not None and row.recipe.limit == recipe.limit and isinstance(scores.get(column.id), Score):
                outcomes = self.outcomes(row.recipe, column)
                if outcomes is not None:
                    yield outcomes

    def outcomes(self, recipe: Recipe, column: Column) -> np.ndarray | None:
        """Return the outcomes [items] whose mean is a column's value (for a perplexity: its log).

        None if a result does not have them.
        """
        place = (recipe.hash, column.benchmark, column.key)
        if place not in self._outcomes:
            self._outcomes[place] = self._checked_outcomes(recipe, column)
        return self._outcomes[place]

    def flipped(self, row: Row, task: Column) -> np.ndarray | None:
        """Return the items on which only one of a row and the original model is right, bool [items].

        None if one of them has no outcomes of these items.
        """
        own, original = (side.recipe and self.outcomes(side.recipe, task) for side in (row, self._dense(row)))
        return None if own is None or original is None or len(own) != len(original) else own != original

    def _flip_means(self, row: Row, task: Column) -> np.ndarray:
        """Return replicates of the share of flips, from the same draws as the task's accuracy."""
        rows = (other for other, _, _ in self._scored if other.recipe and other.recipe.limit == row.recipe.limit)
        beside = (flips for flips in (self.flipped(other, task) for other in rows) if flips is not None)
        return significance.resampled_means(f"{task.benchmark}/{row.recipe.limit}", self.flipped(row, task), beside)

    def _checked_outcomes(self, recipe: Recipe, column: Column) -> np.ndarray | None:
        outcomes = self._store.items(recipe, column.benchmark).get("nll" if column.key == "perplexity" else column.key)
        record = self._store.get(recipe, column.benchmark)
        valid = outcomes is not None and record is not None and matches_outcomes(record, column.key, outcomes)
        return outcomes if valid else None

    def sources(self, key: Key) -> list[tuple[Row, Column]]:
        """Return the rows and columns whose results are behind a cell, including the original model's."""
        row, scores = self._rows.get(key[:3], (None, {}))
        if row is None or row.recipe is None or not isinstance(scores.get(key[3]), Score):
            return []
        column = self._columns[key[3]]
        if column.derived is None:
            return [(row, column)]
        of = [row] if column.derived == "average" else [row, self._dense(row)]
        names = self._names(column, row.model)
        return [source for side in of for name in names for source in self.sources((*side.key, name))]

    def paired(self, keys: tuple[Key, ...]) -> bool:
        """Return whether all varying cells come from outcomes per item, of equally many items of each score."""
        counts: dict[tuple[str, str], set[int]] = {}
        for row, column in (source for key in keys if np.ndim(self(*key)) for source in self.sources(key)):
            outcomes = self.outcomes(row.recipe, column)
            # a benchmark may have two scores, of which one counts fewer items
            counts.setdefault((column.benchmark, column.key), set()).add(0 if outcomes is None else len(outcomes))
        return all(len(sizes) == 1 and 0 not in sizes for sizes in counts.values())

    def records(self, keys: tuple[Key, ...]) -> set[tuple[str, str]]:
        """Return (recipe's hash, benchmark) of the results behind several cells, without the original model's.

        A part of a benchmark counts as the whole.
        """
        sources = [source for key in keys for source in self.sources(key)]
        return {(row.recipe.hash, subsets.whole(column.benchmark)) for row, column in sources if not row.dense}

    def columns(self, keys: Iterable[Key]) -> set[str]:
        """Return the ids of the columns behind several cells."""
        return {column.id for key in keys for _, column in self.sources(key)}

    def read_whole(self, keys: Iterable[Key]) -> list[str]:
        """Return the labels of columns behind several cells that use all items where the table shows a part.

        They come in the table's order.
        """
        ids = self.columns(keys)
        return [self._columns[name].label for name in self._whole if name in ids]
