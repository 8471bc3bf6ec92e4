"""The loss curves: which lines are drawn, and where they lie."""

import matplotlib.pyplot as plt
import pytest

from figures import curves


def entry(method, losses, **training):
    details = {"training": {"losses": losses, **training}} if losses is not None else {}
    return {"model": "m", "sparsity": "5/16", "method": method, "records": {"removed": {"details": details}}}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_one_panel_per_loss_and_one_line_per_trained_row():
    rows = [
        entry("A", [3.0, 2.0, 1.0], loss="kl", status="finished"),
        entry("untrained", None),
        entry("B", [9.0, 4.0], loss="mse", status="finished", steps_per_point=5),
        entry("C", [3.0, 8.0], loss="kl", status="diverged"),
    ]
    figure = curves.draw(rows, "standin")
    panels = {axis.get_ylabel(): axis for axis in figure.axes}
    labels = {
        name: [line.get_label() for line in axis.lines if line.get_label()[0] != "_"] for name, axis in panels.items()
    }
    assert labels == {curves.NAMES["kl"]: ["A", "C (diverged)"], curves.NAMES["mse"]: ["B"]}
    raw = panels[curves.NAMES["mse"]].lines[0]
    assert list(raw.get_xdata()) == [5, 10] and list(raw.get_ydata()) == [9.0, 4.0]
    (cross,) = [line for line in panels[curves.NAMES["kl"]].lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([2], [8.0])


def test_validation_losses_are_marked_where_they_were_taken():
    rows = [entry("A", [3.0, 2.0, 1.0, 1.0], validation=[[2, 2.5], [4, 1.5]]), entry("B", [3.0, 2.0])]
    (axis,) = curves.draw(rows, "standin").axes
    (marks,) = [line for line in axis.lines if line.get_linestyle() == "None"]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([2, 4], [2.5, 1.5])
    assert "validation" in axis.get_xlabel()
    assert "validation" not in curves.draw(rows[1:], "standin").axes[0].get_xlabel()


def test_groups_have_panels_of_their_own():
    rows = [entry(arm, [3.0, 2.0]) | {"of": of} for of, arm in [("A", "+x"), ("B", "+z"), ("B", "+x"), ("A", "+y")]]
    figure = curves.draw(rows, "standin", group=lambda row: row["of"])
    shown = {
        axis.get_title(): [line.get_label() for line in axis.lines if line.get_label()[0] != "_"]
        for axis in figure.axes
    }
    assert shown == {"A": ["+x", "+y"], "B": ["+z", "+x"]}
    colours = [{line.get_color() for line in axis.lines if line.get_label() == "+x"} for axis in figure.axes]
    assert colours[0] == colours[1] and len(colours[0]) == 1
    assert len({line.get_color() for axis in figure.axes for line in axis.lines}) == 3


def test_rows_of_several_settings_say_which():
    other = entry("A", [1.0, 2.0]) | {"sparsity": "4/16"}
    figure = curves.draw([entry("A", [2.0, 1.0]), other], "paper")
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert {"A, m 5/16", "A, m 4/16"} <= set(labels)


def test_smoothing_keeps_a_straight_line_and_the_length():
    smooth = curves._smoothed([float(i) for i in range(100)])
    assert smooth[20:80] == [float(i) for i in range(20, 80)] and len(smooth) == 100


def test_where_nothing_was_trained_the_picture_says_so():
    figure = curves.draw([entry("A", None), entry("B", [])], "standin")
    assert figure.axes == [] and "no training" in figure.texts[0].get_text()
