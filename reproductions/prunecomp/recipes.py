"""The paper's settings as recipes, and the rows of its tables."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from common.records.results import Recipe
from reproductions.spec import printed_rows, reported, shape_recipes, subjects
from reproductions.spec.registry import Row
from reproductions.spec.subjects import PAPER, Subject

# What the paper calls a metric -> its name in recipes.
METRICS = {"CosSim(BI)": "bi", "CosSim(CL)": "cl", "PPL": "ppl", "Taylor+": "taylor+", "Mag+": "mag+"}
# What a row adds to its metric -> (chosen anew after every removal, compensated).
VARIANTS = {
    "": (False, False),
    "+IterPrune": (True, False),
    "+MagComp": (False, True),
    "+MagComp +IterPrune": (True, True),
    "+Prune&Comp": (True, True),
}
# "128 sequences with a length of 2048 tokens from the WikiText-2 dataset are randomly selected", by the official code's
# sampler. The toy model, a thousandth of the size, gets 32 sequences of its context.
CROPS = {
    "paper": {"corpus": "wikitext2-train", "sampler": "prunecomp-train", "length": 2048, "count": 128, "seed": 0},
    "standin": {"corpus": "standin-calibration", "sampler": "prunecomp-train", "length": 256, "count": 32, "seed": 0},
}
# Of any other model a choice reads a thirty-second of that: an iterative PPL reads it some hundred times.
CROPS["small"] = CROPS["paper"] | {"length": 256, "count": 32}
# The official code's own: for BI factors from twice as many crops, SLEB's lines for PPL, ten C4 crops for Taylor+.
CODE_LINES = {
    "paper": {
        "corpus": "wikitext2-train",
        "sampler": "lines",
        "length": 2048,
        "count": 128,
        "seed": 0,
        "shuffle": "datasets",
    },
    "standin": {"corpus": "standin-calibration", "sampler": "lines", "length": 256, "count": 48, "seed": 0},
}
CODE_LINES["small"] = CODE_LINES["paper"] | {"length": 256, "count": 32}
CODE_TAYLOR = {
    "paper": {"corpus": "c4-train", "sampler": "documents", "length": 2048, "count": 10},
    "standin": CROPS["standin"] | {"count": 10, "seed": 2},
}
CODE_TAYLOR["small"] = CODE_TAYLOR["paper"] | {"length": 256}


# LLaMA-3-8B's (the first where a table has one), and LLaMA-2-7B's in the appendix.
SHARES = ((7, 32), (5, 32))
APPENDIX_SHARES = ((9, 32), (7, 32))
# Table A6.
SAMPLES = {"paper": (64, 128, 256), "small": (16, 32, 64), "standin": (16, 32, 64)}


@dataclass(frozen=True)
class RepairSpec:
    """Specification of a row: a metric of METRICS, one of VARIANTS, and, if a table varies them, calibration samples."""

    metric: str
    variant: str = ""
    samples: int | None = None

    @property
    def method(self) -> str:
        """Return the row's id, as the paper prints it."""
        name = reported.row_name(self.metric, self.variant)
        return f"{name} {self.samples} samples" if self.samples else name


def selection(size: str, metric: str, count: int, variant: str, fidelity: str = "paper") -> dict:
    """Return a recipe's selection. CL removes one block at once, so it is never iterated."""
    iterative, compensate = VARIANTS[variant]
    step = {"method": "prunecomp", "metric": METRICS[metric], "count": count}
    step |= {"iterative": iterative and metric != "CosSim(CL)", "compensate": compensate}
    if fidelity == "code":
        calibrations = {"CosSim(BI)": CROPS[size], "PPL": CODE_LINES[size], "Taylor+": CODE_TAYLOR[size]}
        if metric in calibrations:
            step["calibration"] = calibrations[metric]
    return step


def recipe(
    model: str, subject: Subject, limit: int | None, spec: RepairSpec | None, count: int, fidelity: str = "paper"
) -> Recipe:
    """Return the recipe of a row; of the original model for count 0."""
    if not count:
        return subjects.recipe(model, subject, limit)
    calibration = dict(CROPS[subject.size])
    if fidelity == "code" and spec.metric == "CosSim(BI)":
        calibration["count"] *= 2
    if spec.samples:
        calibration["count"] = spec.samples
    fields = {"selection": selection(subject.size, spec.metric, count, spec.variant, fidelity)}
    return subjects.recipe(model, subject, limit, **fields, calibration=calibration, fidelity=fidelity)


def shape(model: str, number: reported.Number) -> Recipe | None:
    """Return the shape recipe of a printed number; None if it names no removed layers.

    Compensation is fused into the weights and adds no parameters.
    """
    count = printed_rows.removed_layers(number)
    return shape_recipes.recipe(model, count) if count else None


def _rows_of(
    subject: Subject, specs: Sequence[RepairSpec], limit: int | None, counts: Sequence[int], dense: bool = True
) -> list[Row]:
    """Return the rows of one model that loses so many layers."""
    counts_and_specs = [(0, None)] if dense else []
    counts_and_specs += [(n, spec) for n in counts for spec in specs]
    return [row(subject.model, subject.group, subject.layers, subject, limit, spec, n) for n, spec in counts_and_specs]


def row(
    model: str, group: str, layers: int, subject: Subject, limit: int | None, spec: RepairSpec | None, n: int
) -> Row:
    """Return the row of a model that loses n layers; spec: None for the original model."""
    row_recipe = recipe(model, subject, limit, spec, n)
    return Row(model, group, f"{n}/{layers}", spec.method if spec else "Dense", row_recipe, dense=not n, spec=spec)


def _printed_rows(number: str, limit: int | None, shape=None) -> Iterator[Row]:
    """Return every printed row with its recipe."""
    for row in printed_rows.rows("prunecomp", number, shape=shape):
        count, spec = int(row.sparsity.partition("/")[0]), None if row.dense else RepairSpec(*row.printed)
        yield replace(row, recipe=recipe(row.model, PAPER, limit, spec, count), spec=spec)


PAIRS = [RepairSpec(metric, variant) for metric in METRICS for variant in ("", "+Prune&Comp")]
PARTS = [RepairSpec("CosSim(BI)", variant) for variant in ("", "+IterPrune", "+MagComp", "+MagComp +IterPrune")]
ABLATION = [spec.method for spec in PARTS]


def rows(
    number: str,
    specs: Sequence[RepairSpec],
    toy: tuple[int, ...] = (5, 4),
    shape=None,
    dense: bool = True,
    shares: tuple[tuple[int, int], ...] = SHARES,
) -> Callable:
    """Return the rows of a table: as printed, or the same methods on one model.

    toy: numbers of layers that the toy model, with 16, loses. shares: the same for any other model, as many.
    """

    def declared(subject: Subject, limit: int | None) -> list[Row]:
        if subject.printed:
            return _printed_rows(number, limit, shape)
        removed = subject.counts(*shares[: len(toy)], toy=toy)
        return _rows_of(subject, specs, limit, removed, dense)

    return declared


def order_rows(number: str) -> Callable:
    """Return the lists of Tables A3 and A4, by the official code's settings and then by the paper's text."""

    def declared(subject: Subject, limit: int | None) -> Iterator[Row]:
        printed = rows(number, PAIRS, dense=False)(subject, limit)
        for row in printed:
            count = int(row.sparsity.partition("/")[0])
            code = recipe(row.model, subject, limit, row.spec, count, "code")
            yield replace(row, recipe=code)
            labels = {"name": f"{row.name} (by the paper's text; extension)", "extension": True, "printed": None}
            yield replace(row, method=f"{row.method}/text", shapes=None, **labels)

    return declared


def size_rows(subject: Subject, limit: int | None) -> list[Row]:
    """Return the rows of Table A6: BI with Prune&Comp, by the number of calibration samples."""
    specs = {spec.method: spec for spec in (RepairSpec("CosSim(BI)", "+Prune&Comp", n) for n in SAMPLES[subject.size])}
    if not subject.printed:
        return rows("A6", specs.values(), (5,), shares=SHARES[1:])(subject, limit)
    rows_with_counts = [(row, int(row.sparsity.partition("/")[0])) for row in printed_rows.rows("prunecomp", "A6")]
    return [
        replace(row, recipe=recipe(row.model, PAPER, limit, specs[row.method], count), spec=specs[row.method])
        for row, count in rows_with_counts
    ]
