"""What every picture says of itself, and the files it is saved in."""

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest

from figures import style


@pytest.mark.parametrize(
    "entries, said",
    [
        ([("m", "0/16"), ("m", "4/16"), ("m", "5/16"), ("m", "4/16")], "m, 4/16 and 5/16 layers removed"),
        ([("m", "10/30"), ("m", "5/30"), ("m", "9/30")], "m, 5/30, 9/30 and 10/30 layers removed"),
        ([("m", "0/16")], "m, 16 layers, none removed"),
        ([("a", "7/32"), ("b", "0/30")], "a, 7/32 layers removed; b, 30 layers, none removed"),
        ([("m", "")], "m"),
    ],
)
def test_a_caption_says_which_model_and_how_many_of_its_layers(entries, said):
    entries = [{"model": model, "sparsity": sparsity} for model, sparsity in entries]
    assert style.removed(entries) == said
    figure = plt.figure()
    style.caption(figure, entries)
    assert figure.get_suptitle() == said
    style.caption(figure, [{"model": "another", "sparsity": "1/2"}])
    assert figure.get_suptitle() == said  # a figure's own caption stays
    plt.close(figure)


def test_the_same_drawing_gives_the_same_files(tmp_path):
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figure, axes = plt.subplots()
        axes.plot([1, 2, 3])
        written.append({path.name: path.read_bytes() for path in style.save(figure, "one", folder, style.FORMS)})
    assert written[0] == written[1] and list(written[0]) == ["one.svg", "one.png", "one.pdf"]


@pytest.mark.parametrize("values, broken", [([50, 60], True), ([0.5, 60], False), ([-1, 60], False)])
def test_a_cut_axis_has_a_break_below_what_is_drawn(values, broken):
    figure, axes = plt.subplots()
    axes.plot(values)
    low, high = axes.get_ylim()
    style.break_below(axes)
    marks = [line for line in axes.lines if line.get_label() == style.BREAK]
    assert bool(marks) == broken == (axes.get_ylim()[0] > 0) and axes.get_ylim()[1] == high
    if broken:
        top = max(max(mark.get_ydata()) for mark in marks)  # a share of the axis
        begins = (low - axes.get_ylim()[0]) / (high - axes.get_ylim()[0])
        assert top < begins and min(axes.get_yticks()) >= low
    plt.close(figure)


@pytest.mark.parametrize("low, high", [(19, 37), (24, 1600), (1e-6, 1.2), (0.58, 1.05), (3.8, 30), (1, 110)])
def test_ticks_of_a_logarithmic_axis_are_several_and_apart(low, high):
    figure, axes = plt.subplots()
    axes.set(yscale="log", ylim=(low, high))
    style.round_ticks(axes)
    ticks = list(axes.get_yticks())
    places = [math.log(tick / low) / math.log(high / low) for tick in ticks]
    assert 3 <= len(ticks) <= 16 and places[0] >= 0 and places[-1] <= 1
    assert min(b - a for a, b in pairwise(places)) > 0.05  # a label is about so high
    assert [float(label.get_text()) for label in axes.get_yticklabels()] == pytest.approx(ticks)
    plt.close(figure)
