"""Extension: the grid, every metric with every repair, one-shot and iterative, in one table that no paper has."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from common.records.results import Recipe
from reproductions.prunecomp.claims import each_better
from reproductions.prunecomp.columns import perplexity_columns
from reproductions.prunecomp.recipes import CROPS, METRICS, RepairSpec, recipe
from reproductions.spec import subjects
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.shared_recipes import PATCH, PLAIN, least_squares
from reproductions.spec.subjects import Subject

# Repairs that are not fused: patches by LinearPatch's estimators and by least squares.
PATCHES = {
    "A": PATCH,
    "matrix-least-squares": least_squares("matrix"),
    "d": PLAIN,
    "d-least-squares": least_squares("diagonal"),
}
REPAIRS = ("none", "factor", *PATCHES)
# Repair -> what its rows call it.
LABELS = {
    "none": "no repair",
    "factor": "factor alpha",
    "A": "patch A",
    "matrix-least-squares": "least-squares matrix",
    "d": "scales d",
    "d-least-squares": "least-squares scales",
}
SCHEDULES = ("one-shot", "iterative")
# The rows that are LinearPatch's and Prune&Comp's own.
KNOWN = {
    ("CosSim(BI)", "one-shot", "A"): "LinearPatch[S]",
    ("CosSim(CL)", "one-shot", "A"): "LinearPatch[L]",
    ("CosSim(CL)", "one-shot", "factor"): "Prune&Comp",
}
VARIANTS = {
    ("one-shot", "none"): "",
    ("one-shot", "factor"): "+MagComp",
    ("iterative", "none"): "+IterPrune",
    ("iterative", "factor"): "+Prune&Comp",
}
MODEL = ("llama-3-8b", "LLaMA-3-8B", 32, (7,))


@dataclass(frozen=True)
class GridCell:
    """A row of the grid: one of METRICS, of SCHEDULES and of REPAIRS."""

    metric: str
    schedule: str
    repair: str

    @property
    def method(self) -> str:
        """Return the row's id."""
        return f"{METRICS[self.metric]}/{self.schedule}/{self.repair}"

    @property
    def label(self) -> str:
        """Return the row's label, with the paper's name for a paper's method."""
        prunecomp = "Prune&Comp" if (self.schedule, self.repair) == ("iterative", "factor") else ""
        paper = KNOWN.get((self.metric, self.schedule, self.repair), prunecomp)
        return f"{self.metric}, {self.schedule}, {LABELS[self.repair]}" + (f" ({paper})" if paper else "")


def grid_recipe(model: str, count: int, subject: Subject, limit: int | None, cell: GridCell) -> Recipe:
    """Return the recipe of one cell of the grid.

    The repairs ``none`` and ``factor`` are Prune&Comp's recipes. With an iterative schedule, a patch is fitted to the
    model as pruned so far.
    """
    metric, schedule, repair = cell.metric, cell.schedule, cell.repair
    if repair in ("none", "factor"):
        return recipe(model, subject, limit, RepairSpec(metric, VARIANTS[schedule, repair]), count)
    selection = {
        "method": "prunecomp-metric" if schedule == "one-shot" else "iterated-patch",
        "metric": METRICS[metric],
        "count": count,
    }
    patch = PATCHES[repair]
    fields = {"selection": selection, "repair": patch, "calibration": CROPS[subject.size]}
    if schedule == "iterative":
        selection["patch"] = {key: value for key, value in patch.items() if key != "method"}
        fields.pop("repair")
    return subjects.recipe(model, subject, limit, **fields)


def rows(subject: Subject, limit: int | None) -> Iterator[Row]:
    """Yield the rows of the grid: the original model, then all repairs, schedules and metrics.

    CL removes one block at once, so it has no iterative rows.
    """
    model, group, layers, counts = MODEL
    if not subject.printed:
        model, group, layers = subject.model, subject.group, subject.layers
        counts = subject.counts((7, 32), toy=5)
    yield Row(model, group, f"0/{layers}", "Dense", subjects.recipe(model, subject, limit), dense=True)
    for count, repair, schedule, metric in itertools.product(counts, REPAIRS, SCHEDULES, METRICS):
        if (schedule, metric) != ("iterative", "CosSim(CL)"):
            cell = GridCell(metric, schedule, repair)
            cell_recipe = grid_recipe(model, count, subject, limit, cell)
            yield Row(model, group, f"{count}/{layers}", cell.method, cell_recipe, name=cell.label, spec=cell)


def columns(profile: str) -> list[Column]:
    """Return perplexities, their average, and the removed layers."""
    return [*perplexity_columns(profile), Column("removed", "removed", "removed", text=True, label="removed layers")]


def _pairs(first: tuple[str, str], second: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the rows that differ in schedule and repair alone, for every metric that has both."""
    iterated = [metric for metric in METRICS if metric != "CosSim(CL)" or "iterative" not in (first[0], second[0])]
    return [(GridCell(metric, *first).method, GridCell(metric, *second).method) for metric in iterated]


_BOTH = [pair for schedule in SCHEDULES for pair in _pairs((schedule, "none"), (schedule, "factor"))]
_PATCHED = [pair for schedule in SCHEDULES for pair in _pairs((schedule, "factor"), (schedule, "A"))]
_FITTED = [pair for schedule in SCHEDULES for pair in _pairs((schedule, "A"), (schedule, "matrix-least-squares"))]
_ITERATED = [pair for repair in REPAIRS for pair in _pairs(("one-shot", repair), ("iterative", repair))]

GRID = Table(
    target="grid",
    paper="prunecomp",
    number="grid",
    title="Extension: every metric with every repair, one-shot and iterative",
    declared=rows,
    columns=columns,
    claims=(
        Claim(
            "factor-beats-none",
            "extension: the factor lowers perplexity for every metric and schedule measured",
            each_better(_BOTH),
        ),
        Claim(
            "patch-beats-factor",
            "extension: LinearPatch's A lowers perplexity further than the factor, wherever both are measured",
            each_better(_PATCHED),
        ),
        Claim(
            "matrix-beats-patch",
            "extension: a least-squares matrix lowers perplexity further than A, wherever both are measured",
            each_better(_FITTED),
        ),
        Claim(
            "iterative-beats-one-shot",
            "extension: selecting anew after each removal lowers perplexity wherever both are measured",
            each_better(_ITERATED),
        ),
    ),
    note=(
        "AVG is the average perplexity of the texts. Factor alpha is Prune&Comp's, fused into the weights. Scales d and "
        "patch A stand at every interface and are LinearPatch's ratios, per channel and per rotated channel. Least squares "
        "brings the residual stream before the interface nearest to that after it. Iterative rows repair each removal before "
        "the next selection, with statistics of the model pruned so far. One-shot rows use those of the original model."
    ),
    draw="figures.prunecomp:grid",
)
