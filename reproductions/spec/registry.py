"""Declare tables and list them. Nothing here computes or loads a model."""

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from common.records.results import Recipe
from common.utils.errors import UserError, unknown
from reproductions.spec import subsets
from reproductions.spec.changes import Changes
from reproductions.spec.statuses import NOT_RUN, Status
from reproductions.spec.subjects import Subject

PAPERS = {"linearpatch": "LinearPatch", "prunecomp": "Prune&Comp", "laco": "LaCo", "reassessing": "Reassessing"}
SHARES = ("acc", "acc_norm")  # keys of values that are shares of 1
BETTER = {"kl": "lower", "same_top": "higher"}  # of keys that are compared exactly
LEAGUE = "league"  # an extension, of no paper
TITLES = PAPERS | {LEAGUE: "League (extension)"}
MODULES = (*(f"reproductions.{name}" for name in PAPERS), "extensions.league")

# A claim looks cells up by (group, sparsity, method, column's id) and gets None where there is no number.
Lookup = Callable[[str, str, str, str], float | None]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        id: Id, which never changes: the paper's name of the column, or one of this project.
        benchmark: The result's benchmark. Without it and ``derived`` the column is only declared, and its cells say so.
        key: The result's value.
        derived: Instead of a benchmark: ``average``, ``retained`` (mean of ratios to the original model's row),
            ``retained-average`` (ratio of averages) or ``flips`` (mean share of items that only one of the row and the
            original model has right, in percent).
        of: Columns that a derived one is over; none: all accuracy columns.
        only: ``printed`` for the paper's models alone, ``one model`` for other models alone.
        hidden: Measured for derived columns, but not shown.
        exclude_chance_tasks: An average leaves out tasks on which the measured original model is at chance, as retained
            accuracy does (`derived_columns.at_chance_level`).
        scale: Factor of the shown value (accuracies are stored as shares).
        compare: Comparison with a reported number: ``accuracy`` within two standard errors, ``perplexity`` within 1 %,
            ``exact`` to the printed digits.
        weight_free: The number follows from the model's shape (see Row.shapes).
        shape_only: Only rows whose recipe is a shape recipe have the number.
        text: The cell is the result's detail of that key, not a number.
        unit: ``s`` for seconds, shown with three significant digits.
        label: Label for people (default: the id).
    """

    id: str
    benchmark: str | None = None
    key: str | None = None
    derived: str | None = None
    scale: float = 1.0
    compare: str = "accuracy"
    weight_free: bool = False
    shape_only: bool = False
    text: bool = False
    of: tuple[str, ...] = ()
    hidden: bool = False
    exclude_chance_tasks: bool = False
    only: str = ""
    label: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.id)

    @property
    def better(self) -> str:
        """Return ``higher`` or ``lower``, the better direction of the column's numbers, or ''."""
        if self.key in BETTER:
            return BETTER[self.key]
        if self.text or self.weight_free or self.compare == "exact":
            return ""
        if self.compare == "perplexity":
            return "lower"
        return "higher" if self.scale == 100 or self.derived is not None else ""

    def members(self, columns: "Sequence[Column]") -> list[str]:
        """Return the ids of a table's columns that this derived one is over."""
        return list(self.of) or [c.id for c in columns if c.benchmark and c.compare == "accuracy"]


@dataclass(frozen=True)
class Row:
    """A row of a table: ids that never change, labels for people, and its recipe.

    Claims, audit and printed numbers identify a row by group, sparsity and method.

    Attributes:
        model: Registry name.
        group: The model as the paper prints it, else its registry name; followed by `variant` if a table has a model's
            rows twice.
        sparsity: Removed layers as n/N, or as printed.
        method: The row as the paper prints it (`reported.row_name`), or an id of this project.
        recipe: The recipe; None if ``status`` says why there is none.
        status: Reason for the missing recipe.
        dense: Whether it is the original model's row.
        shapes: Recipe of the model's shape alone, for the weight-free columns.
        name: Label of the method (default: the method).
        label: Label of the group, which `Table.rows` fills in for a model that is not the paper's.
        variant: Distinguishes a model's rows in a table that has them twice.
        extension: Whether the row is in no paper.
        printed: Method and variant in the paper's CSV files.
        spec: The row's distinctive settings as fields: a specification of the paper's package, for recipes and figures.
    """

    model: str
    group: str
    sparsity: str
    method: str
    recipe: Recipe | None
    status: Status = NOT_RUN
    dense: bool = False
    shapes: Recipe | None = None
    name: str = ""
    label: str = ""
    variant: str = ""
    extension: bool = False
    printed: tuple[str, str] | None = None
    spec: object = None

    def __post_init__(self) -> None:
        for field, default in (("name", self.method), ("label", self.group)):
            if not getattr(self, field):
                object.__setattr__(self, field, default)

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the identity of the row in its table: group, sparsity, method."""
        return self.group, self.sparsity, self.method

    @property
    def id(self) -> str:
        """Return the key as one word: ``llama-2-7b/9-32/linearpatch[l]``."""
        return "/".join(re.sub(r"[^\w.+*†‡\[\]()&-]+", "-", part.lower()) for part in self.key if part)


@dataclass(frozen=True)
class Claim:
    """A statement the paper draws from a table.

    Attributes:
        id: Id among the claims of its table (see `Table.claim_id`), which never changes; the text may.
        text: The statement.
        compare: Function from one side's numbers and the (model, sparsity) settings to the comparisons of the claim
            (`reproductions.spec.comparisons.Comparison`); none if numbers are missing.
        only_reported: It is about the paper's printed numbers alone.
        exclude_chance_tasks: Comparisons of tasks on which the measured original model is at chance level are left out,
            as in averages (`derived_columns.at_chance_level`).
        enough: Function from (comparisons that hold, all of them) to whether the claim does; None: all have to.
    """

    id: str
    text: str
    compare: Callable[[Lookup, list[tuple[str, str]]], list]
    only_reported: bool = False
    exclude_chance_tasks: bool = False
    enough: Callable[[int, int], bool] | None = None

    def suffices(self, holding: int, comparisons: int) -> bool:
        """Return whether the claim holds with ``holding`` of the comparisons."""
        return self.enough(holding, comparisons) if self.enough else holding == comparisons

    def by(self, comparisons: list) -> bool | None:
        """Return whether these comparisons, by the numbers themselves, make the claim hold; None without comparisons."""
        return self.suffices(sum(c.holds for c in comparisons), len(comparisons)) if comparisons else None


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper, or of this project's league (LEAGUE).

    ``number`` is the number of the table in the paper's CSV files, if it is there. draw: ``module:function`` that draws
    a figure from its results, see `reproductions.render.show.drawn`. full: any model of up to 300 million parameters
    reads its tasks and texts whole, not only the paper's models and the toy model (see `reproductions.spec.subsets`).
    """

    target: str
    paper: str
    number: str
    title: str
    declared: Callable[[Subject, int | None], Iterable[Row]]  # (subject, limit) -> rows
    columns: Callable[[str], list[Column]]  # profile -> columns
    claims: tuple[Claim, ...] = ()
    note: str = ""
    draw: str | None = None
    full: bool = False

    @property
    def id(self) -> str:
        """Return a short name that never changes: ``linearpatch/t1``, ``league/answers``."""
        name = self.target.removesuffix(f"-{self.paper}").removeprefix(f"{self.paper}-")
        short = re.sub(r"^(t)able|^(f)igure(?!-)", r"\1\2", name)
        return f"{self.paper}/{short.lower()}"

    def claim_id(self, claim: Claim) -> str:
        """Return a claim's name among all claims: ``linearpatch/t1/patch-l-beats-cut``."""
        return f"{self.id}/{claim.id}"

    def rows(self, subject: Subject, limit: int | None = None) -> list[Row]:
        """Return the declared rows of a subject, without repetition, in its type of numbers.

        With a user's changes these are the original models' rows, and those whose recipes they change.
        """
        rows_by_key = {row.key: row for row in self.declared(subject, limit)}
        rows = [_labelled(_in_type(row, subject.dtype), subject) for row in rows_by_key.values()]
        return _changed(rows, subject.changes) if subject.changes else rows

    def columns_for(self, subject: Subject) -> list[Column]:
        """Return the columns of a subject's rows, whole or in parts."""
        excluded = "one model" if subject.printed else "printed"
        columns = [c for c in self.columns(subject.profile) if c.only != excluded]
        # What a paper prints as a share of 1 is in percent where nothing is compared with its digits.
        if not subject.printed:
            columns = [replace(c, scale=100) if c.key in SHARES and c.scale == 1 else c for c in columns]
        if (self.full and not subject.large) or subject.full_test_sets or not subject.small:
            return columns
        return [replace(c, benchmark=subsets.smaller(c.benchmark)) if c.benchmark else c for c in columns]


def _in_type(row: Row, dtype: str) -> Row:
    """Return the row as it is measured in this type; what needs no weights has none."""
    if row.recipe is None or row.recipe.dtype == dtype or row.recipe == row.shapes:
        return row  # most are declared in it: reading all steps of a recipe again takes time
    return replace(row, recipe=replace(row.recipe, dtype=dtype))


def _changed(rows: list[Row], changes: Changes) -> list[Row]:
    """Return the dense rows, and the others with changed recipes, without those that have nothing to change."""
    changed_rows = []
    for row in rows:
        recipe = changes.of(row.recipe) if row.recipe is not None and row.recipe != row.shapes else row.recipe
        if row.dense or recipe != row.recipe:
            changed_rows.append(replace(row, recipe=recipe, shapes=row.shapes if row.dense else None))
    return changed_rows


def _labelled(row: Row, subject: Subject) -> Row:
    """Return the row with its model's label; a paper's own model is called as it is printed."""
    if subject.printed:
        return row
    return replace(row, label=subject.label + (f" [{row.variant}]" if row.variant else ""))


@lru_cache(maxsize=1)
def targets() -> dict[str, Table]:
    """Return every target by name."""
    tables = {}
    for module in MODULES:
        tables |= {table.target: table for table in importlib.import_module(module).TABLES}
    return tables


_SKETCH = "a drawing of the method without numbers"
NO_TARGETS = {
    "table8-linearpatch": "download links of the models (docs/models.md has those used here)",
    "figure1-linearpatch": "four panels, targets of their own: figure1a-linearpatch to figure1d-linearpatch",
    "figure2-linearpatch": _SKETCH,
    "figure3-prunecomp": _SKETCH,
    "figure4-prunecomp": _SKETCH,
    "figure1-laco": _SKETCH,
    "figure2-laco": _SKETCH,
}  # tables and figures of the papers that have no target, and what is in them


def get(target: str, other_names: Sequence[str] = ()) -> Table:
    """Return the table of a target. ``other_names`` are further ones that may have been meant.

    Raises:
        UserError: there is none; the message gives the nearest names.
    """
    if target in NO_TARGETS:
        raise UserError(f"{target} is no target: the paper's holds {NO_TARGETS[target]}")
    if target not in targets():
        command = "`make help`" if other_names else "`python -m reproductions list`"
        raise unknown("target", target, [*targets(), *other_names], f"{command} prints all")
    return targets()[target]
