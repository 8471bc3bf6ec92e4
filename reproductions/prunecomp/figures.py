"""The figures of Prune&Comp, declared: what the parts of the method do to perplexity, and each layer's magnitude gain."""

import math

from reproductions.prunecomp.columns import perplexity_columns
from reproductions.prunecomp.recipes import ABLATION, CROPS, PARTS, SHARES, row
from reproductions.spec import comparisons, printed_rows, subjects
from reproductions.spec.registry import Claim, Column, Lookup, Row
from reproductions.spec.subjects import Subject

# Figure 1 is of LLaMA-3-8B, 5 and 7 of 32 layers pruned; Figure 2 of both LLaMA models.
_FIGURE1 = ("llama-3-8b", "LLaMA-3-8B", 32, (5, 7))
_FIGURE2 = (_FIGURE1[:3], ("llama-2-7b", "LLaMA-2-7B", 32))


def _figure1_rows(subject: Subject, limit: int | None) -> list[Row]:
    model, group, layers, counts = _FIGURE1
    if not subject.printed:
        model, group, layers = subject.model, subject.group, subject.layers
        counts = sorted(subject.counts(*SHARES, toy=(4, 5)))
    counts_and_specs = [(0, None), *((count, spec) for count in counts for spec in PARTS)]
    return [row(model, group, layers, subject, limit, spec, count) for count, spec in counts_and_specs]


def _figure2_rows(subject: Subject, limit: int | None) -> list[Row]:
    drawn = _FIGURE2 if subject.printed else [(subject.model, subject.group, subject.layers)]
    fields = {"calibration": CROPS[subject.size]}
    return [
        Row(model, group, f"0/{layers}", "Dense", subjects.recipe(model, subject, limit, **fields))
        for model, group, layers in drawn
    ]


def _more_layers_for_less(cell: Lookup, settings: comparisons.Pairs) -> list[comparisons.Comparison]:
    """Compare the larger removal with both parts with the smaller one without either; it should be lower."""
    if len(settings) < 2:
        return []
    fewer, more = sorted(settings, key=lambda setting: int(setting[1].partition("/")[0]))[:2]
    plain, both = (*fewer, ABLATION[0], "AVG"), (*more, ABLATION[-1], "AVG")
    if cell(*plain) is None or cell(*both) is None:
        return []
    return [comparisons.against(more, (both, cell(*both)), [(plain, cell(*plain))], lower=True)]


FIGURES = [
    printed_rows.declare(
        "prunecomp",
        "figure1",
        "Figure 1: average perplexity by what is done and how many layers are removed",
        _figure1_rows,
        perplexity_columns,
        claims=(
            Claim(
                "more-layers-lower-perplexity",
                "more layers pruned with Prune&Comp, yet lower perplexity than fewer without",
                _more_layers_for_less,
            ),
        ),
        note="Layers are selected by CosSim(BI). Baseline: one-shot, no repair.",
        draw="figures.prunecomp:figure1",
    ),
    printed_rows.declare(
        "prunecomp",
        "figure2",
        "Figure 2: magnitude gain of each layer",
        _figure2_rows,
        lambda profile: [
            Column("largest-gain", "magnitude-gains", "largest", compare="exact", label="largest gain of a layer, %"),
            Column("least-gain", "magnitude-gains", "least", compare="exact", label="smallest gain of a layer, %"),
        ],
        claims=(
            Claim(
                "every-layer-gains",
                "every layer gains magnitude",
                comparisons.between("least-gain", 0, math.inf, "Dense", strict=True),
            ),
        ),
        note="Eq. 3: the mean over channels and sequences of the ratio of L1 norms, less one.",
        draw="figures.prunecomp:figure2",
    ),
]
