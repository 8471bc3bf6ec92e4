"""Figure 6 (extension): which part of the patch does the work, by perplexity at the interfaces of Table 1."""

from collections.abc import Iterator
from dataclasses import replace

from common.records.results import Recipe
from reproductions.linearpatch import rows
from reproductions.spec import comparisons, printed_rows
from reproductions.spec.columns import perplexity
from reproductions.spec.registry import Claim, Column, Row
from reproductions.spec.shared_recipes import CALIBRATION, PATCH, PLAIN
from reproductions.spec.subjects import Subject, recipe

NO_REPAIR = "cut"
A, D = "a", "d"
ONE, DIAGONAL = "one-factor", "one-factor-diagonal"
MASSIVE, OTHERS = "a-on-massive-channels", "d-on-massive-channels"
STRENGTHS = {"a-at-25": 0.25, "a-at-50": 0.5, "a-at-75": 0.75, "a-at-125": 1.25}
# Of the table's 128 x 2048 tokens one sixteenth: every row of these reads the text anew.
FEW, FEW_D = "a-of-fewer-tokens", "d-of-fewer-tokens"
LATER, LATER_D = "a-without-first-tokens", "d-without-first-tokens"
FITTED = "a-by-least-squares"
SEEDS = {"a-of-another-draw": 0, "a-of-a-third-draw": 1}
TEXT = "a-of-another-text"
# Of the tokens those whose states are massive stay as they are, or change alone
# (`common.calibration.massive_activations`); the toy model has none.
SPARED = {"A": "a-spared", "d": "d-spared"}
FITTED_SPARED, SINK = "a-by-least-squares-spared", "a-on-massive-tokens"
NAMES = {
    NO_REPAIR: "no repair",
    A: "A",
    D: "+d",
    ONE: "one factor, mean of d",
    DIAGONAL: "one factor, A's diagonal",
    MASSIVE: "A on massive channels, +d on the others",
    OTHERS: "+d on massive channels, A on the others",
    **{method: f"A at {100 * strength:.0f} %" for method, strength in STRENGTHS.items()},
    FEW: "A of fewer tokens",
    FEW_D: "+d of fewer tokens",
    LATER: "A without first tokens",
    LATER_D: "+d without first tokens",
    FITTED: "A by least squares",
    **dict(zip(SEEDS, ("A of another draw", "A of a third draw"), strict=True)),
    TEXT: "A of another text",
    SPARED["A"]: "A, massive tokens as they are",
    SPARED["d"]: "+d, massive tokens as they are",
    FITTED_SPARED: "A by least squares, massive tokens as they are",
    SINK: "A on massive tokens alone",
}
_FEWER = {"paper": {"length": 512, "count": 32}, "standin": {"length": 128, "count": 32}}
_OTHER = {"paper": "ptb-validation", "standin": "standin-valid"}
_PERPLEXITY = {"paper": ("WIKI-2", "league-wikitext2"), "standin": ("PPL", "standin-learning-thin")}
_ONE_RATIO = {"method": "linearpatch", "kind": "scalar", "estimator": "ratio-of-means"}


def _probe(piece: str = "A", **options) -> dict:
    defaults = {"piece": piece, "estimator": "ratio-of-means", "strength": 1.0, "first": True}
    return {"method": "linearpatch-probe"} | defaults | options


def _repairs(profile: str) -> dict[str, dict | None]:
    """Return row -> repair; the rows of fewer tokens have a calibration of their own."""
    few = CALIBRATION[profile] | _FEWER[profile]
    return {
        NO_REPAIR: None,
        A: PATCH,
        D: PLAIN,
        ONE: _ONE_RATIO,
        DIAGONAL: _probe("factor"),
        MASSIVE: _probe("massive"),
        OTHERS: _probe("others"),
        **{name: _probe(strength=strength) for name, strength in STRENGTHS.items()},
        FEW: _probe(calibration=few),
        LATER: _probe(first=False, calibration=few),
        FEW_D: _probe("d", calibration=few),
        LATER_D: _probe("d", first=False, calibration=few),
        FITTED: _probe(estimator="least-squares", calibration=few),
        **{name: _probe(calibration=few | {"seed": seed}) for name, seed in SEEDS.items()},
        TEXT: _probe(calibration=few),
    } | ({} if profile == "standin" else _by_token(few))


def _by_token(few: dict) -> dict[str, dict]:
    return {
        **{name: _probe(piece, acts_on="ordinary", calibration=few) for piece, name in SPARED.items()},
        FITTED_SPARED: _probe(estimator="least-squares", acts_on="ordinary", calibration=few),
        SINK: _probe(acts_on="massive", calibration=few),
    }


def _on_other_text(row_recipe: Recipe, profile: str) -> Recipe:
    """Return the recipe with its scales from another text, whatever text the subject's recipes are calibrated on."""
    calibration = row_recipe.repair["calibration"] | {"corpus": _OTHER[profile]}
    return replace(row_recipe, repair={**row_recipe.repair, "calibration": calibration})


def causes(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows at the block [L] and, on a model that is not printed, at the lowest BI [S]."""
    for model, group, layers, count in rows.model_settings(subject, {"llama-2-7b": 7, "standin": 4}):
        yield Row(model, group, f"0/{layers}", "Dense", recipe(model, subject, limit), dense=True)
        for variant, selection in rows.variants(subject, count).items():
            choice = {"selection": selection, "calibration": CALIBRATION[subject.profile]}
            for method, repair in _repairs(subject.profile).items():
                row_recipe = recipe(model, subject, limit, **choice, **({"repair": repair} if repair else {}))
                row_recipe = _on_other_text(row_recipe, subject.profile) if method == TEXT else row_recipe
                labels = {"name": NAMES[method], "extension": method not in (NO_REPAIR, A, D)}
                yield rows.of_variant(Row(model, group, f"{count}/{layers}", method, row_recipe, **labels), variant)


def _columns(profile: str) -> list[Column]:
    return [perplexity(*_PERPLEXITY[profile])]


_LABELS = tuple(label for label, _ in _PERPLEXITY.values())


def _below(method: str, *others: str) -> comparisons.Check:
    return comparisons.all_of(*(comparisons.beats(method, *others, column=label, lower=True) for label in _LABELS))


CAUSES = printed_rows.declare(
    "linearpatch",
    "figure6",
    "Figure 6: which part of the patch does the work (extension)",
    causes,
    _columns,
    claims=(
        Claim("patch-beats-cut", "the patch lowers perplexity", _below(A, NO_REPAIR)),
        Claim(
            "rotated-beats-plain",
            "scales in the rotated basis are better than plain ones (+A against +d)",
            _below(A, D),
        ),
        Claim("patch-beats-one-factor", "extension: A is better than its diagonal, one factor", _below(A, DIAGONAL)),
        Claim(
            "massive-channels-suffice",
            "extension: rotating the massive channels alone is as good as A (within 0.5 %)",
            comparisons.all_of(
                *(comparisons.beats(MASSIVE, A, column=label, lower=True, within=0.005) for label in _LABELS)
            ),
        ),
        Claim("full-strength-is-best", "extension: A is better than a weaker or stronger A", _below(A, *STRENGTHS)),
        Claim(
            "first-tokens-a",
            "extension: first tokens do not matter to A (0.5 %)",
            comparisons.steady([FEW, LATER], _LABELS, 0.005),
        ),
        Claim(
            "first-tokens-d",
            "extension: first tokens do not matter to +d (0.5 %)",
            comparisons.steady([FEW_D, LATER_D], _LABELS, 0.005),
        ),
        Claim(
            "another-draw",
            "extension: another draw of the text changes perplexity by less than 0.5 %",
            comparisons.steady([FEW, *SEEDS], _LABELS, 0.005),
        ),
        Claim(
            "another-text",
            "extension: another text changes perplexity by less than 0.5 %",
            comparisons.steady([FEW, TEXT], _LABELS, 0.005),
        ),
        Claim(
            "least-squares-beats-ratio",
            "extension: least squares in A's basis is better than ratios of magnitudes",
            _below(FITTED, FEW),
        ),
        Claim(
            "spared-beats-patch", "extension: A is better if massive tokens stay unchanged", _below(SPARED["A"], FEW)
        ),
        Claim(
            "spared-least-squares-beats-least-squares",
            "extension: least squares in A's basis is better if massive tokens stay unchanged",
            _below(FITTED_SPARED, FITTED),
        ),
        Claim(
            "massive-tokens-alone-beat-cut",
            "extension: A on massive tokens alone lowers perplexity",
            _below(SINK, NO_REPAIR),
        ),
    ),
    note="The layers are those that Table 1 removes. WIKI-2: 48 sequences of 512 tokens, spread over the test text (toy "
    "model: every eighth sequence of one domain). A at a share s is I + s (A - I). Massive: a channel whose mean magnitude "
    "at the interface is ten times the median channel's. A massive token: one of more than ten times its sequence's "
    "median norm. Rows of fewer tokens, and all below them, take their scales from 32 sequences of 512 "
    "tokens (toy model: 128), each with its first token; another text: PTB's validation text (toy model: other docstrings).",
    draw="figures.patch_ablation:draw",
)
