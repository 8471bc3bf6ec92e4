"""README's picture of claims: every claim in its verdict's colour with its mark, all text inside its box."""

import pytest
from audit_numbers import without_number
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from figures import claims_overview, style
from reproductions.documents import findings
from reproductions.render.claim_verdicts import ShownVerdict
from reproductions.render.evidence import Loaded

LONG_EFFECT = "1376.0 % higher, 95 % CI +1326.4 to +1428.0, limit −1"
CASES = (
    ShownVerdict("supported", "all 17 comparisons support it, 17 significant"),
    ShownVerdict(
        "contradicted", "35 of 40 comparisons support it, not enough, 27 significant, 2 significantly against"
    ),
    ShownVerdict("contradicted", "8 of 10 comparisons support it, not enough", LONG_EFFECT, several=True),
    ShownVerdict("inconclusive", effect="2.1 points more, 95 % CI −2.0 to +6.1"),
    ShownVerdict("no number"),
    ShownVerdict("not tested", reason="no results"),
)
SENTENCES = [line for group in findings.ABSTRACTS.values() for line in group]


@pytest.fixture(scope="module")
def published():
    """Every line of the published picture."""
    built = findings._built_for(SENTENCES, Loaded())
    return [findings.row(line, built) for line in SENTENCES]


@pytest.fixture(params=["cases", pytest.param("published", marks=pytest.mark.slow)])
def lines(request):
    """Lines of findings: hand-written cases with every claim's sentence, and the published ones."""
    if request.param == "published":
        return request.getfixturevalue("published")
    return [
        findings.JudgedLine(line.sentence, CASES[at % 2], dict.fromkeys(findings.SHOWN, CASES[at % len(CASES)]), "t")
        for at, line in enumerate(SENTENCES)
    ]


@pytest.fixture
def figure(lines):
    sides = dict.fromkeys(("In print", *findings.subjects.PUBLISHED_MODELS, "Supported"), "on what")
    figure = claims_overview.draw({"A paper": [line.boxes() for line in lines]}, sides)
    yield figure
    style.plt.close(figure)


def test_every_claim_and_verdict_is_drawn(figure, lines):
    texts = [" ".join(text.get_text().split()) for text in figure.axes[0].texts]
    models = findings.subjects.PUBLISHED_MODELS
    shown = [side for line in lines for side in (line.printed, *(line.measured[model] for model in models))]
    assert {without_number(line.sentence) for line in lines} <= set(texts)
    for side in shown:
        mark = claims_overview.LOOKS[side.verdict][1] if side.tested else ""
        assert any(mark in text and side.effect in text for text in texts), side
        assert side.tested or side.verdict in texts
    boxes = [to_hex(box.get_facecolor()) for box in figure.axes[0].patches if isinstance(box, FancyBboxPatch)]
    for verdict, (colour, *_) in claims_overview.LOOKS.items():  # one box more explains the colour
        assert boxes.count(to_hex(colour)) == 1 + sum(side.verdict == verdict for side in shown)


def test_no_text_leaves_its_box_or_its_column(figure):
    figure.canvas.draw()
    axes = figure.axes[0]
    boxes = [patch.get_window_extent() for patch in axes.patches]
    claims = min(text.get_window_extent().x0 for text in axes.texts)
    for text in axes.texts:
        extent = text.get_window_extent()
        middle = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
        assert extent.x0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y0 >= 0 and extent.y1 <= figure.bbox.y1
        for box in boxes:
            if box.contains(*middle):
                assert box.x0 <= extent.x0 and extent.x1 <= box.x1, text.get_text()
            elif extent.x0 == claims and box.y0 < middle[1] < box.y1:
                assert extent.x1 < box.x0, text.get_text()
