"""The figures of LinearPatch, declared: the dense model's residual stream around a block, and the model without it."""

import math
from collections.abc import Callable, Iterable, Iterator

from reproductions.linearpatch import rows
from reproductions.linearpatch.recipes import models_of
from reproductions.spec import comparisons, printed_rows
from reproductions.spec.columns import RATIO
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.shared_recipes import CALIBRATION
from reproductions.spec.subjects import Subject, recipe

_BLOCK = [Column("start", "magnitudes", "start", compare="exact"), Column("end", "magnitudes", "end", compare="exact")]


def _observed(counts: dict[str, int] | None = None) -> Callable[[Subject, int | None], Iterable[Row]]:
    """Return the rows of dense models looked at around the block that [L] removes.

    counts: layers removed, default the larger.
    """

    def observed(subject: Subject, limit: int | None = None) -> Iterator[Row]:
        settings = [(*facts, removed[0]) for *facts, removed in models_of(subject)]
        if counts is not None:
            settings = rows.model_settings(subject, counts)
        for model, group, layers, count in settings:
            selection = {"method": "observed-window", "count": count, "cosine": "token"}
            fields = {"selection": selection, "calibration": CALIBRATION[subject.profile]}
            yield Row(model, group, f"{count}/{layers}", "observed", recipe(model, subject, limit, **fields))

    return observed


def _figure(number: str, title: str, counts: dict | None, columns: list[Column], **more) -> Table:
    more |= {"draw": f"figures.linearpatch:figure{number}"}
    heading = f"Figure {number}: {title}"
    return printed_rows.declare(
        "linearpatch", f"figure{number}", heading, _observed(counts), lambda profile: columns, **more
    )


# Section 3.3's numbers and Figure 1 are of LLaMA-2-7B without 9 layers.
_FIGURE1 = {"llama-2-7b": 9, "standin": 5}
# Extension: 4 of 16 layers leave more blocks to look at.
_CUTS = {"llama-2-7b": 9, "standin": 4}


def _number(name: str, benchmark: str, key: str, scale: float = 1.0, label: str = "") -> Column:
    return Column(name, benchmark, key, scale=scale, compare="exact", label=label)


_LARGER = Claim(
    "expected-channels-larger",
    "the channels the next layer expects are larger than those it receives (mean ratio above 1)",
    comparisons.between("mean-ratio", 1.0, math.inf),
)

FIGURES = [
    _figure(
        "1a",
        "magnitudes per channel around the removed block",
        _FIGURE1,
        [*_BLOCK, _number("mean-ratio", "magnitudes", "ratio_plain", label="mean ratio")],
        claims=(_LARGER,),
    ),
    _figure(
        "1b",
        "magnitudes after scaling, and perplexity as the scales are varied",
        _FIGURE1,
        [
            *_BLOCK,
            *(
                _number(f"perplexity-{key}", "alpha", f"perplexity_{key}", label=f"PPL, {name}")
                for name, key in (("no repair", "none"), ("+d", "d"), ("+A", "A"))
            ),
            *(
                _number(f"best-alpha-{key}", "alpha", f"best_alpha_{key}", label=f"best alpha, {name}")
                for name, key in (("no repair", "none"), ("+d", "d"), ("+A", "A"))
            ),
        ],
        claims=(
            Claim(
                "d-lowers-perplexity",
                "scaling by d lowers perplexity",
                comparisons.column_below("perplexity-d", "perplexity-none"),
            ),
            Claim(
                "alpha-is-one",
                "the scales d are best as they are (best alpha between 0.95 and 1.05)",
                comparisons.between("best-alpha-d", 0.95, 1.05),
            ),
        ),
    ),
    _figure(
        "1c",
        "magnitudes per token before the rotation",
        _FIGURE1,
        [
            *_BLOCK,
            _number("largest-token", "magnitudes", "peak_plain", label="largest / median token"),
            _number("sigma_d", "magnitudes", "sigma_plain"),
        ],
        claims=(
            Claim(
                "massive-tokens",
                "massive tokens: the largest is at least ten times the median one",
                comparisons.between("largest-token", 10.0, math.inf),
            ),
        ),
        note="A token's magnitude is its largest |X| over channels. The paper's massive tokens are above 1000.",
    ),
    _figure(
        "1d",
        "magnitudes per token after the rotation",
        _FIGURE1,
        [
            *_BLOCK,
            _number("largest-token", "magnitudes", "peak_rotated", label="largest / median token"),
            _number("sigma_d", "magnitudes", "sigma_plain"),
            _number("sigma_d, rotated", "magnitudes", "sigma_rotated"),
        ],
        claims=(
            Claim(
                "rotation-lowers-sigma",
                "the rotation lowers sigma_d",
                comparisons.column_below("sigma_d, rotated", "sigma_d"),
                only_reported=True,
            ),
        ),
        note="On other models than the paper's the claim is not judged: the mean of 1 / |X| and of its square are infinite "
        "where a channel's density at zero is positive, so sigma_d is ruled by the few entries nearest zero and grows with "
        "the text.",
    ),
    _figure(
        "3",
        "magnitudes per layer, the removed ones shaded",
        None,
        [*_BLOCK, _number("mean-ratio", "magnitudes", "ratio_plain", label="mean ratio")],
        claims=(_LARGER,),
    ),
    _figure(
        "4",
        "the best factor at every pruning interface against what each estimator predicts (extension)",
        _CUTS,
        [
            _number("cuts", "cut-factors", "cuts", label="interfaces"),
            _number("ratio-off", "cut-factors", "off_ratio", label="error of the ratio"),
            _number("least-squares-off", "cut-factors", "off_least_squares", label="error of least squares"),
            _number("alike-at-end-off", "cut-factors", "off_alike_at_end", label="error of the output-matching factor"),
            _number("patch-helps", "cut-factors", "helps_ratio", 100, label="A lowers PPL, % of interfaces"),
            _number("error-tells", "cut-factors", "told", 100, label="predicted by the error of A, % of interfaces"),
            _number("matrix-helps", "cut-factors", "helps_matrix", 100, label="matrix lowers PPL, %"),
            _number("matrix-best", "cut-factors", "matrix_best", 100, label="matrix is best, %"),
        ],
        claims=(
            Claim(
                "least-squares-nearer-than-ratio",
                "extension: on average over the pruning interfaces, least squares is nearer to the best factor than "
                "the ratio of magnitudes",
                comparisons.column_below("least-squares-off", "ratio-off"),
            ),
            Claim(
                "alike-at-end-nearest",
                "extension: the factor that makes the last hidden states most similar to the dense model's is nearer "
                "than either",
                comparisons.all_of(
                    comparisons.column_below("alike-at-end-off", "least-squares-off"),
                    comparisons.column_below("alike-at-end-off", "ratio-off"),
                ),
            ),
            Claim(
                "matrix-best-at-every-cut",
                "extension: the least-squares matrix is the best repair at every pruning interface",
                comparisons.between("matrix-best", 99.9, 100.1),
            ),
        ),
        note="Error of an estimator: mean |log(predicted factor / best factor)| over the pruning interfaces. Output-matching "
        "factor: with it, on calibration text, the states after the final norm have the highest mean cosine with the dense "
        "model's. Predicted: A lowers perplexity if it leaves less of the weighted error |x A - y| on calibration text than "
        "doing nothing, and only then. Intervals are over the blocks, which overlap, so they are too narrow.",
    ),
    printed_rows.declare(
        "linearpatch",
        "figure5",
        "Figure 5: loss while the patch and LLM-Streamline's networks are trained (extension)",
        lambda subject, limit=None: [row for row in rows.what_is_trained(subject, limit) if not row.dense],
        lambda profile: [RATIO],  # any benchmark that Table 4 measures: the curve is in all of its records
        draw="figures.linearpatch:figure5",
    ),
]
