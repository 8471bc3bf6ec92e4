"""README's picture of claims: every claim of the papers in the table of findings, in its verdict's colour with its mark."""

import re

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from common.records.results import ROOT
from figures import screen, style
from reproductions.documents import findings, readme

FINDINGS = ROOT / "docs" / "findings.md"


@pytest.fixture
def figure(monkeypatch):
    """What is drawn of the findings as they stand."""
    kept = []
    monkeypatch.setattr(style, "save", lambda figure, *_: kept.append(figure) or [])
    findings.drawn(readme.part(FINDINGS.read_text(), "findings"))
    return kept[0]


def test_every_claim_and_verdict_of_the_table_is_drawn(figure):
    table = [line.strip("| ").split(" | ") for line in FINDINGS.read_text().splitlines() if line[:2] == "| "]
    toy = table[next(number for number, row in enumerate(table) if row[0] == "Claim")].index("On the stand-in")
    table = [[cell for place, cell in enumerate(row) if place != toy] for row in table]
    start = next(number for number, row in enumerate(table) if row[0] == "Claim")
    claims = [one.sentence for found in findings.ABSTRACTS.values() for one in found]
    rows = [row for row in table[start:] if row[0] in claims]
    texts = {" ".join(text.get_text().split()) for text in figure.axes[0].texts}
    assert len(rows) == len(claims) and set(claims) <= texts
    for _, *sides, _ in rows:
        for cell in sides:
            verdict = next((verdict for verdict in screen.LOOKS if cell.startswith(verdict)), "")
            mark, said = (screen.LOOKS[verdict][1], re.sub("[()]", "", cell[len(verdict) :])) if verdict else ("", cell)
            said = re.sub(" comparisons|worst case |1 comparison: ", "", said)  # the legend says so
            assert " ".join(f"{mark} {said.replace('·', 'not tested')}".split()) in texts
    boxes = [to_hex(box.get_facecolor()) for box in figure.axes[0].patches if isinstance(box, FancyBboxPatch)]
    for verdict, (colour, *_) in screen.LOOKS.items():  # one box more explains the colour
        assert boxes.count(to_hex(colour)) == 1 + sum(cell.startswith(verdict) for row in rows for cell in row[1:-1])


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
