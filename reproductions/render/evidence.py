"""Every record, and which tables' rows it stands behind: what the report and the lists of values are made from."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from common.console.progress import track
from common.records.results import NOWHERE, PUBLISHED, Recipe, Record, Store, user_folder
from reproductions.render import show
from reproductions.spec import coverage, registry
from reproductions.spec import subjects as settings
from reproductions.spec.registry import Row, Table
from reproductions.spec.subjects import PAPER, TOY, Subject

log = logging.getLogger(__name__)
_FIELDS = {field.name for field in fields(Recipe)}


class Loaded(Store):
    """A store that reads every result once; later changes on disk are not seen.

    Args:
        user: The folder of the user's results; None: the published results alone.
        published: The folder of published results.
    """

    def __init__(self, user: Path | None = None, published: Path = PUBLISHED) -> None:
        super().__init__(user or NOWHERE, published)
        self._records: dict[tuple[str, str, str, str], Record] = {}
        self._outcomes: dict[tuple[str, str], dict] = {}
        paths = sorted(user.glob("*/*/*/**/*.json")) if user else []  # a model's name may have slashes
        published = (Record(**fields, origin="published") for fields in self.published)
        for record in (*published, *map(self.read_file, paths)):
            key = record and (record.recipe["profile"], record.recipe["model"], record.recipe_hash, record.benchmark)
            if record is not None and (record.status == "ok" or key not in self._records):
                self._records[key] = record

    def get(self, recipe: Recipe, benchmark: str) -> Record | None:
        """Return the result of a recipe on a benchmark."""
        return self._records.get((recipe.profile, recipe.model, recipe.hash, benchmark))

    def items(self, recipe: Recipe, benchmark: str) -> dict:
        """Return the outcomes per item, which are read once, because several tables show the same result."""
        key = (recipe.hash, benchmark)
        if key not in self._outcomes:
            self._outcomes[key] = super().items(recipe, benchmark)
        return self._outcomes[key]

    def __iter__(self) -> Iterator[Record]:
        """Iterate over every record, by model, recipe and benchmark."""
        return iter(record for _, record in sorted(self._records.items()))


@dataclass(frozen=True)
class Shown:
    """A row of a table of one subject that shows a recipe's numbers. shape: only its weight-free columns."""

    target: str
    subject: str
    row: Row
    shape: bool = False


def known(record: Record) -> bool:
    """Return whether this version knows the fields of a result's recipe; otherwise say that the result is left out."""
    if unknown := sorted(record.recipe.keys() - _FIELDS):
        log.warning(
            "%s of %s is left out: its recipe is another version's (%s)", record.benchmark, record.recipe_hash, unknown
        )
    return not unknown


class Evidence:
    """The results of a store by recipe, and the tables built from them.

    Attributes:
        records: Recipe's hash -> benchmark -> result.
        subjects: Target -> its subjects, the paper's models last.
        shown: Recipe's hash -> rows that show it, in the tables' order.
    """

    def __init__(self, store: Loaded) -> None:
        self.store = store
        self.records: dict[str, dict[str, Record]] = {}
        for record in filter(known, store):
            self.records.setdefault(record.recipe_hash, {})[record.benchmark] = record
        self.shown: dict[str, list[Shown]] = {}
        subjects = [TOY, *map(settings.of_model, settings.PUBLISHED_MODELS), PAPER]
        self.subjects = {target: [*show.published(table, store), PAPER] for target, table in registry.targets().items()}
        for target, table in registry.targets().items():
            for subject in filter(self.subjects[target].__contains__, subjects):
                benchmarks = {column.benchmark for column in coverage.columns(table, store, subject)}
                for row in table.rows(subject, None):
                    self._note(target, subject, row, benchmarks)

    def _note(self, target: str, subject: Subject, row: Row, benchmarks: set[str | None]) -> None:
        for recipe, shape in ((row.recipe, False), (row.shapes, True)):
            if recipe is not None and benchmarks & self.records.get(recipe.hash, {}).keys():
                self.shown.setdefault(recipe.hash, []).append(Shown(target, subject.name, row, shape))

    @cached_property
    def tables(self) -> dict[str, tuple[Table, list[Subject], dict]]:
        """Return target -> its table, its subjects (the paper's models last), and its JSON form."""
        built = {}
        for target, table in track(registry.targets().items(), "building tables", unit="table", each=True):
            subjects = self.subjects[target]
            built[target] = table, subjects, show.build(table, self.store, subjects)
        return built

    def recipe(self, digest: str) -> Recipe:
        """Return the recipe behind a hash."""
        return Recipe(**next(iter(self.records[digest].values())).recipe)

    def removed(self, digest: str) -> tuple[list[int] | None, int | None]:
        """Return (removed layers, layers of the original model) from a recipe's results; None if none states them."""
        for record in self.records[digest].values():
            # LinearPatch's figures call one of their curves layers
            if "removed" in record.details and isinstance(layers := record.details.get("layers"), int):
                return list(record.details["removed"] or []), layers
        return None, None

    def method(self, digest: str) -> str:
        """Return a recipe's name in the first table that shows it, or else its steps."""
        places = self.shown.get(digest)
        if places:
            return places[0].row.name
        steps = [getattr(self.recipe(digest), part) for part in ("selection", "repair", "training")]
        return ", ".join(step["method"] for step in steps if step) or "Dense"

    def share(self, digest: str) -> str:
        """Return a recipe's removed layers as n/N; '' if neither its results nor a table state them.

        Some recipes remove no entire layer: they remove parts of layers, or measure blocks left out. For these a
        table's row states n.
        """
        removed, layers = self.removed(digest)
        if removed and layers:
            return f"{len(removed)}/{layers}"
        in_table = next((place.row.sparsity for place in self.shown.get(digest, [])), "")
        return in_table or (f"0/{layers}" if layers else "")


def gathered(own: bool = True) -> Evidence:
    """Return the evidence on disk. own: with the user's results, which have priority over the published ones."""
    return Evidence(Loaded(user_folder() if own else None))
