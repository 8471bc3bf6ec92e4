"""What the site says of each paper that no record holds: its idea, one equation, the headline table, and one figure."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


def _math(body: str) -> Markup:
    return Markup(f'<math display="block" xmlns="http://www.w3.org/1998/Math/MathML"><mrow>{body}</mrow></math>')  # noqa: S704


def _i(name: str, low: str = "", high: str = "") -> str:
    base = f"<mi>{name}</mi>"
    if low and high:
        return f"<msubsup>{base}<mrow>{low}</mrow><mrow>{high}</mrow></msubsup>"
    if low:
        return f"<msub>{base}<mrow>{low}</mrow></msub>"
    return f"<msup>{base}<mrow>{high}</mrow></msup>" if high else base


def _o(sign: str) -> str:
    return f'<mo stretchy="false">{sign}</mo>'


_LAYER, _BEHIND = "<mo>(</mo><mi>l</mi><mo>)</mo>", "<mo>(</mo><mi>l</mi><mo>+</mo><mi>n</mi><mo>)</mo>"
_T = "<mi>⊤</mi>"


def _mean_channel(layer: str) -> str:
    """Mean magnitude of channel k of the rotated stream."""
    rotated = _o("(") + _i("X", high=layer) + "<mi>H</mi>" + _o(")")
    return f"<mi>E</mi>{_o('|')}<msub><mrow>{rotated}</mrow><mi>k</mi></msub>{_o('|')}"


@dataclass(frozen=True)
class About:
    """One paper. where: what the equation's letters mean. code: name of the function that computes it.

    headline: target and column of the picture on the front page. lower: whether its numbers are better when lower.
    """

    idea: str
    equation: Markup
    where: str
    code: str
    headline: tuple[str, str]
    figure: str = ""


ABOUT = {
    "linearpatch": About(
        "Remove a window of layers and multiply the stream at the cut by one symmetric matrix: ratios of mean magnitudes, "
        "measured in a Hadamard basis. No training; it may be distilled.",
        _math(
            _i("X", high=_LAYER)
            + _o("←")
            + _i("X", high=_LAYER)
            + _o("⋅")
            + "<mi>H</mi>"
            + _o("⋅")
            + "<mi>diag</mi>"
            + _o("(")
            + "<mi>d</mi>"
            + _o(")")
            + _o("⋅")
            + _i("H", high=_T)
            + _o(",")
            + "<mspace width='1em'/>"
            + _i("d", "<mi>k</mi>")
            + _o("=")
            + "<mfrac><mrow>"
            + "<mi>E</mi>"
            + _o("|")
            + _o("(")
            + _i("X", high=_BEHIND)
            + "<mi>H</mi>"
            + _o(")")
            + "<msub><mrow/><mi>k</mi></msub>"
            + _o("|")
            + "</mrow><mrow>"
            + "<mi>E</mi>"
            + _o("|")
            + _o("(")
            + _i("X", high=_LAYER)
            + "<mi>H</mi>"
            + _o(")")
            + "<msub><mrow/><mi>k</mi></msub>"
            + _o("|")
            + "</mrow></mfrac>"
        ),  # fmt: skip
        "Eqs. 4 to 8: X is the residual stream at the cut, H a Walsh-Hadamard matrix, E the mean over calibration tokens.",
        "papers.linearpatch.patch.channel_scales",
        ("table1-linearpatch", "RP"),
        "figure1c-linearpatch",
    ),
    "prunecomp": About(
        "Every layer adds to the magnitude of the stream. Remove layers one by one, and multiply what is before each cut by "
        "one factor, which is fused into the weights.",
        _math(
            "<mi>α</mi>"
            + _o("=")
            + "<mi>mean</mi>"
            + _o("(")
            + "<mfrac><mrow>"
            + _o("‖")
            + _i("X", high="<mo>(</mo><mi>l</mi><mo>+</mo><mn>1</mn><mo>)</mo>")
            + "<msub><mo>‖</mo><mn>1</mn></msub></mrow><mrow>"
            + _o("‖")
            + _i("X", high=_LAYER)
            + "<msub><mo>‖</mo><mn>1</mn></msub></mrow></mfrac>"
            + _o(")")
            + _o(",")
            + "<mspace width='1em'/>"
            + _i("X", high=_LAYER)
            + _o("←")
            + "<mi>α</mi>"
            + _i("X", high=_LAYER)
        ),  # fmt: skip
        "Eqs. 9 and 10: the mean over channels and calibration sequences of the ratio of L1 norms after and before layer l.",
        "papers.prunecomp.factor.magnitude_factor",
        ("table1-prunecomp", "AVG"),
        "figure1-prunecomp",
    ),
    "laco": About(
        "Merge m later layers into an earlier one by adding their differences to it, as long as the outputs stay alike.",
        _math(
            _i("θ", "<mi>l</mi>", "<mo>*</mo>")
            + _o("=")
            + _i("θ", "<mi>l</mi>")
            + _o("+")
            + "<munderover><mo>∑</mo><mrow><mi>k</mi><mo>=</mo><mn>1</mn></mrow><mi>m</mi></munderover>"
            + _o("(")
            + _i("θ", "<mi>l</mi><mo>+</mo><mi>k</mi>")
            + _o("−")
            + _i("θ", "<mi>l</mi>")
            + _o(")")
        ),  # fmt: skip
        "Eq. 1: θ are the weights of a layer. A merge stays if the mean cosine of the outputs is above T.",
        "papers.laco.merge.merge_layers",
        ("table2-laco", "Avg."),
        "figure-search-laco",
    ),
    "reassessing": About(
        "Seven metrics compared: removing the last layers is as good as any. Then fine-tune only the head and the last "
        "layers that remain.",
        _math(
            _i("f", high="<mo>′</mo>")
            + _o("(")
            + "<mi>x</mi>"
            + _o(")")
            + _o("=")
            + "<mi>head</mi>"
            + _o("∘")
            + _i("L", "<mi>N</mi><mo>−</mo><mi>n</mi>")
            + _o("∘")
            + _o("⋯")
            + _o("∘")
            + _i("L", "<mn>1</mn>")
            + _o("(")
            + "<mi>E</mi><mi>x</mi>"
            + _o(")")
        ),  # fmt: skip
        "Reverse order: of N layers the last n go; what is trained is the head and the last three that stay.",
        "papers.reassessing.recipe.reverse_order",
        ("table1-reassessing", "Avg."),
        "figureA-reassessing",
    ),
}
