"""LinearPatch's drawings: what an axis leaves out is marked."""

import math

import pytest

from figures import linearpatch
from reproductions.linearpatch import trained


def entry(alone):
    channels = {"plain": {name: [1.0, 2.0, 3.0] for name in ("before", "after", "scaled")}}
    curves = {"none": alone, "d": [12.0, 10.0, 11.0], "A": [11.5, 10.0, 10.5]}
    records = {
        "magnitudes": {"details": {"window": [1, 3], "channels": channels}},
        "alpha": {"details": {"alphas": [0.5, 1.0, 1.5], "curves": curves}},
    }
    return {"model": "m", "sparsity": "2/6", "method": "observed", "records": records}


def drawn(alone):
    """(heights of the breaks, as shares of the axis; labels; limits) of the panel of perplexities."""
    axes = linearpatch.figure1b([entry(alone)], "standin").axes[1]
    gaps = [line for line in axes.lines if line.get_color() == "white" and line.get_transform() == axes.transAxes]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    return [sum(gap.get_ydata()) / 2 for gap in gaps], labels, axes.get_ylim()


def test_a_curve_that_leaves_figure_1b_has_a_break_above_and_says_how_far_it_goes():
    breaks, labels, (low, high) = drawn([125.0, 40.0, 12.0])
    assert low < 10 and 12 < high < 40  # the others are told apart
    assert len(breaks) == 2 and min(breaks) < 0.1 and max(breaks) > 0.9
    assert labels[0] == "no repair, off the scale, up to 125" and not any("up to" in label for label in labels[1:])


def test_where_no_curve_leaves_it_figure_1b_is_cut_off_below_alone():
    breaks, labels, (low, high) = drawn([13.0, 12.0, 14.0])
    assert len(breaks) == 1 and breaks[0] < 0.1 and low > 0 and high > 14
    assert not any("up to" in label for label in labels)


def test_figure_1b_waits_for_both_of_its_measurements():
    """Magnitudes are Figure 1a's, too, and may be there long before the scales have been varied."""
    entry = {"model": "m", "sparsity": "8/30", "records": {"magnitudes": {"details": {"window": [11, 19]}}}}
    assert linearpatch.figure1b([entry], "paper") is None


def test_figure_4_shows_by_what_repairs_divide_perplexity_on_one_kind_of_axis():
    """One repair divides perplexity by five, one by two: apart as far as their logarithms; one by a thousand: below."""
    perplexities = {"none": 1000.0, "ratio": 500.0, "least-squares": 200.0, "alike at the end": 800.0, "matrix": 1.0}
    factors = dict.fromkeys(("best_factor", "ratio", "least_squares", "alike_at_end"), 1.2)
    rows = [{"window": [start, start + 2], "perplexities": perplexities, **factors} for start in (1, 2)]
    entry = {"model": "m", "sparsity": "2/6", "records": {"cut-factors": {"details": {"rows": rows}}}}
    figure = linearpatch.figure4([entry], "standin")
    upper, lower = figure.axes
    assert upper.get_yscale() == lower.get_yscale() == "log"
    drawn = {line.get_label(): line.get_ydata() for line in lower.lines}
    assert drawn["LinearPatch's A, by least squares"][0] == pytest.approx(0.2)
    assert drawn["LinearPatch's A, by ratios of magnitudes"][0] == pytest.approx(0.5)
    assert all(map(math.isnan, drawn["a full matrix, by least squares"])) and "below 0.1 (off the axis)" in drawn
    (triangles,) = [line for line in lower.lines if line.get_marker() == "v" and len(line.get_ydata())]
    assert len(triangles.get_ydata()) == 2 and triangles.get_ydata()[0] > lower.get_ylim()[0]
    assert "no intervals" in " ".join(figure.get_suptitle().split())


def test_tokens_are_points_about_their_median():
    tokens = {"plain": [float(i) for i in range(100)], "rotated": [1.0] * 100}
    record = {"details": {"window": [1, 3], "tokens": tokens}}
    (axes,) = linearpatch.figure1c([{"model": "m", "sparsity": "2/6", "records": {"magnitudes": record}}], "").axes
    points, median = axes.lines
    assert points.get_linestyle() == "None" and list(points.get_ydata()) == tokens["plain"]
    assert abs(sum(value > median.get_ydata()[0] for value in points.get_ydata()) - 50) <= 1
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[1] == "median token (the largest token is 2.0 times it)"


def test_figure_5_has_a_panel_for_each_loss_and_one_look_for_each_trained_part():
    squared = trained.FFN_MSE, trained.MSE, trained.LAYER
    training = {m: {"losses": [2.0, 1.0], "loss": "mse" if m in squared else "kl"} for m in trained.METHODS}
    entries = [
        {
            "model": "m",
            "sparsity": "2/6",
            "method": method,
            "name": method,
            "records": {"r": {"details": {"training": t}}},
        }
        for method, t in training.items()
    ]
    panels = linearpatch.figure5(entries, "standin").axes
    assert [axes.get_title() for axes in panels] == ["distilling the logits", "distilling the removed layers' output"]
    looks = [{line.get_label(): line.get_color() for line in axes.lines if line.get_alpha() is None} for axes in panels]
    assert looks[0]["LinearPatch: the matrix A"] == looks[1]["LinearPatch: the matrix A"]
