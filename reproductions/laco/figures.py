"""LaCo's figures, declared: 3 (post-training), 4 and 5 (layer similarity), and ours: every attempt of the search."""

import math

from common.records.results import Recipe
from reproductions.laco import recipes
from reproductions.laco.recipes import CODE, DENSE, LACO, MAIN, NAMES, TRAINED, collapsed, one_model, trained, unmerged
from reproductions.spec import comparisons, printed_rows
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.shared_recipes import sentences
from reproductions.spec.subjects import Subject, recipe

LABELS = {"llama-2-7b": "LLaMA-2-7B", "llama-2-13b": "LLaMA-2-13B"}
SENTENCES = 20  # section 4.2


def _dense(subject: Subject, limit: int | None, **fields) -> list[Row]:
    """Return the dense model; of the paper's two the one whose weights can be loaded."""
    if subject.printed:
        model = "llama-2-7b"
        return [Row(model, LABELS[model], "", DENSE, recipe(model, subject, limit, **fields), dense=True)]
    return one_model(subject, [(subject.layers, DENSE, recipe(subject.model, subject, limit, **fields))])


def _printed(model: str, method: str, recipe: Recipe) -> Row:
    """Return a row of one of the paper's models."""
    labels = {"name": NAMES.get(method, ""), "extension": method in NAMES}
    return Row(model, LABELS[model], "", method, recipe, **labels)


def _similarity_rows(subject: Subject, limit: int | None) -> list[Row]:
    return _dense(subject, limit, calibration=sentences(subject.profile, SENTENCES))


def _training_rows(subject: Subject, limit: int | None) -> list[Row]:
    rows = []
    for merge, name in (("paper", ""), ("code", CODE)):
        if subject.printed:
            rows.append(_printed("llama-2-7b", TRAINED + name, trained("llama-2-7b", subject, limit, merge)))
        else:
            row_recipe = trained(subject.model, subject, limit, merge)
            rows += one_model(subject, [(recipes.main_left(subject), TRAINED + name, row_recipe)])
    return rows


def _search_rows(subject: Subject, limit: int | None) -> list[Row]:
    if not subject.printed:
        rows = []
        lefts = sorted(recipes.lefts(subject), reverse=True)[1:] or [recipes.main_left(subject)]
        for merge, name in (("paper", ""), ("code", CODE)):
            rows += [(left, LACO + name, collapsed(subject.model, subject, limit, left, merge)) for left in lefts]
        return one_model(subject, [*rows, (recipes.main_left(subject), recipes.UNMERGED, unmerged(subject, limit))])
    return [
        _printed(model, LACO + name, collapsed(model, subject, limit, MAIN[model], merge))
        for model in LABELS
        for merge, name in (("paper", ""), ("code", CODE))
    ]


def _figure(name: str, title: str, rows, columns: list[Column], claims=(), note: str = "") -> Table:
    draw = f"figures.laco:{name.removeprefix('figure-')}"
    return printed_rows.declare("laco", name, title, rows, lambda profile: columns, claims, note, draw=draw)


FIGURES = [
    _figure(
        "figure3",
        "Figure 3: loss curves of post-training",
        _training_rows,
        [
            Column("tokens", "laco-training", "millions", label="tokens (M)"),
            Column("steps", "laco-training", "steps"),
            Column("first-loss", "laco-training", "first", label="first loss"),
            Column("last-loss", "laco-training", "last", label="last loss (mean of ten)"),
            Column("validation-loss", "laco-training", "validation", label="validation loss"),
            Column("seconds", "laco-training", "seconds", unit="s"),
        ],
        note="The toy model's run is short: 48 steps of eight sequences of 256 tokens at a rate of 1e-3.",
    ),
    _figure(
        "figure4",
        "Figure 4: distances between adjacent layers' matrices",
        _similarity_rows,
        [
            Column("largest-distance", "laco-distances", "largest", label="largest distance"),
            Column(
                "distance-share", "laco-distances", "mean_share", scale=100, label="distance, % of unrelated weights'"
            ),
            Column("least-share", "laco-distances", "least_share", scale=100, label="smallest share, %"),
            Column("largest-share", "laco-distances", "most_share", scale=100, label="largest share, %"),
        ],
        (
            Claim(
                "adjacent-matrices-similar",
                "adjacent layers' matrices are similar (here: closer than 90 % of what uncorrelated ones would be)",
                comparisons.between("distance-share", -math.inf, 90, DENSE, strict=True),
            ),
        ),
        "Uncorrelated matrices are sqrt(|A|^2 + |B|^2) apart: 100 % says that two layers have nothing in common.",
    ),
    _figure(
        "figure5",
        "Figure 5: outputs of adjacent layers, and of layers merged into one",
        _similarity_rows,
        [
            Column("least-adjacent", "laco-outputs", "least_adjacent", label="lowest cosine, adjacent layers (a)"),
            Column(
                "least-adjacent-orthogonal", "laco-uncorrelated", "least_adjacent", label="the same if orthogonal (a)"
            ),
            Column("least-merged-equation", "laco-outputs", "least_paper", label="lowest cosine, merged by Eq. 1 (b)"),
            Column(
                "least-merged-uncorrelated", "laco-uncorrelated", "least_paper", label="the same if uncorrelated (b)"
            ),
            Column("least-merged-code", "laco-outputs", "least_code", label="lowest cosine, merged by the code (b)"),
            Column("least-alone", "laco-outputs", "least_alone", label="lowest cosine, first layer alone"),
            Column("least-none", "laco-outputs", "least_none", label="lowest cosine, no layer"),
            Column("norm", "laco-outputs", "norm", label="norm of Eq. 1"),
            Column("norm-uncorrelated", "laco-outputs", "norm_uncorrelated", label="norm if uncorrelated"),
        ],
        (
            Claim(
                "merged-output-similar",
                "(b) the lowest cosine between the merged layer's output and the last one's is above .996",
                comparisons.between("least-merged-equation", 0.996, math.inf, DENSE, strict=True),
            ),
            Claim(
                "code-merged-output-similar",
                "extension: (b) the same for the code's merge",
                comparisons.between("least-merged-code", 0.996, math.inf, DENSE, strict=True),
            ),
        ),
        "Cosines per token, mean over the tokens of twenty sentences. Windows of four within the same part of the model as "
        "the paper's layers 10 to 19 of 32. The norm is |theta*| over the merged layers' root mean square. If orthogonal: if "
        "what each layer adds had its length, but nothing in common with the residual stream. If uncorrelated: with "
        "followers whose matrices have their rows and columns shuffled.",
    ),
    _figure(
        "figure-search",
        "every attempt of the search (extension)",
        _search_rows,
        [
            Column("T", "laco-search", "T"),
            Column("layers", "laco-search", "layers"),
            Column("merges", "laco-search", "merges"),
            Column("attempts", "laco-search", "attempts"),
            Column("highest-similarity", "laco-search", "highest", label="highest s"),
            Column("layer-executions", "laco-search", "layer_executions", label="layer executions"),
        ],
        note="Layer executions count every sentence; the rows without a given T searched for it.",
    ),
]
