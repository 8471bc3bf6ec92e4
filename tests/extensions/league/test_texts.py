"""The picture of what a repair is calibrated on."""

import numpy as np
import pytest

from extensions.league import rows
from figures import texts as picture


def test_the_picture_shows_changes_against_no_repair():
    draws = np.random.default_rng(0).normal(0, 0.1, 200)

    def entry(spec, perplexity, average):
        scores = {picture.PERPLEXITY: perplexity, picture.AVERAGE: average}
        shown = {"scores": scores, "replicates": lambda column: scores[column] + draws, "method": spec.method}
        shown |= {"group": "m", "spec": spec, "dense": False}
        return shown | {"model": "m", "label": "m", "sparsity": "7/30", "origin": "published"}

    none = entry(rows.LeagueSpec(rows.BLOCK, rows.NONE), 80.0, 40.0)
    read = (("", 40.0, 39.0), (rows.BOTH, 44.0, 43.0), (rows.ITEMS, 60.0, 44.0))
    refitted = [entry(rows.LeagueSpec(rows.BLOCK, rows.REFIT, text), *numbers) for text, *numbers in read]
    other = entry(rows.LeagueSpec(rows.BLOCK, rows.WITHOUT.format(rows.REFIT), rows.BOTH), 41.0, 45.0)
    figure = picture.draw([none, *refitted, other], "paper")
    expected = {"plain text": (-50, -1), "both, in turn": (-45, 3), "questions": (-25, 4)}
    assert {bars.get_label() for bars in figure.axes[0].containers} == expected.keys()
    for bars in figure.axes[0].containers:
        assert [float(part[0]) for part in bars.lines[0].get_data()] == pytest.approx(expected[bars.get_label()])
    assert picture.draw([none], "paper") is None
