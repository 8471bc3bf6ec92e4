"""The loss curves: which lines are drawn, and where they lie."""

import pytest

from figures import curves, style


def entry(method, losses, **training):
    details = {"training": {"losses": losses, **training}} if losses is not None else {}
    names = {"model": "m", "sparsity": "5/16", "method": method, "name": method}
    return names | {"records": {"removed": {"details": details}}}


def labels_of(axis):
    return [line.get_label() for line in axis.lines if line.get_label()[0] != "_"]


def lines_of(axis):
    return [line for line in axis.lines if line.get_label() != style.BREAK]


def test_one_panel_per_loss_and_one_line_per_trained_row():
    rows = [
        entry("A", [3.0, 2.0, 1.0], loss="kl", status="finished"),
        entry("untrained", None),
        entry("B", [9.0, 4.0], loss="mse", status="finished", steps_per_point=5),
        entry("C", [3.0, 8.0], loss="kl", status="diverged"),
    ]
    figure = curves.draw(rows, "standin")
    panels = {axis.get_ylabel(): axis for axis in figure.axes}
    labels = {name: labels_of(axis) for name, axis in panels.items()}
    assert labels == {curves.NAMES["kl"]: ["A", "C (diverged)"], curves.NAMES["mse"]: ["B"]}
    raw = panels[curves.NAMES["mse"]].lines[0]
    assert list(raw.get_xdata()) == [5, 10] and list(raw.get_ydata()) == [9.0, 4.0]
    (cross,) = [line for line in panels[curves.NAMES["kl"]].lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([2], [8.0])


def test_validation_losses_stand_below_where_they_were_taken():
    rows = [entry("A", [3.0, 2.0, 1.0, 1.0], validation=[[2, 2.5], [4, 1.5]]), entry("B", [3.0, 2.0])]
    above, below = curves.draw(rows, "standin").axes
    (marks,) = lines_of(below)
    assert list(marks.get_ydata()) == [2.5, 1.5]
    assert list(marks.get_xdata()) == pytest.approx([2, 4], abs=1)  # beside them, where there are others
    assert list(below.get_xticks()) == [2, 4] and below.get_xlim() == above.get_xlim()
    assert "validation" in below.get_ylabel() and "validation" not in above.get_ylabel()
    shown = {handle.get_label(): handle for handle in below.get_legend().legend_handles}
    assert shown.keys() == {"A", "B"} and shown["A"].get_marker() == marks.get_marker()
    assert len(curves.draw(rows[1:], "standin").axes) == 1


def test_equal_validation_losses_stand_beside_one_another_at_their_step():
    arms = [entry(f"{i}", [3.0, 2.0], validation=[[1, 2.5], [2, 1.5]]) | {"of": of} for of in "ab" for i in range(10)]
    figure = curves.draw(arms, "standin", group=lambda row: row["of"])
    for below in figure.axes[2:]:
        firsts, seconds = zip(*(line.get_xdata() for line in lines_of(below)), strict=True)
        for step, places in ((1, firsts), (2, seconds)):
            assert len(set(places)) == 10 and max(abs(place - step) for place in places) <= 1
            assert sum(places) / 10 == pytest.approx(step)
        looks = [(line.get_color(), line.get_marker()) for line in lines_of(below)]
        assert [len(set(values)) for values in zip(*looks)] == [10, 10]
    first, second = ([line.get_color() for line in lines_of(axis)] for axis in figure.axes[2:])
    assert first == second


def test_losses_against_those_of_one_row_leave_out_what_the_batches_share():
    shared = [5.0, 9.0, 4.0, 8.0, 3.0, 7.0]
    lower, longer = [loss - 0.5 for loss in shared], [loss + 0.25 for loss in (*shared, 6.0)]
    rows = [entry("+base", shared), entry("+lower", lower), entry("+longer", longer)]
    (axis,) = curves.draw(rows, "standin", against="+base").axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in lines_of(axis)}
    assert drawn == {"+base": [0.0] * 6, "+lower": [-0.5] * 6, "+longer": [0.25] * 6}
    assert "+base" in axis.get_ylabel()
    (axis,) = curves.draw(rows[1:], "standin", against="+base").axes  # without that row they stay what they are
    assert max(lines_of(axis)[0].get_ydata()) == 8.5 and "+base" not in axis.get_ylabel()


def test_lines_on_one_another_are_marked_at_different_points():
    (axis,) = curves.draw([entry(name, [float(60 - i) for i in range(60)]) for name in "AB"], "standin").axes
    first, second = (line for line in axis.lines if line.get_label()[0] != "_")
    assert not {*first.get_markevery()} & {*second.get_markevery()} and first.get_marker() != second.get_marker()


def test_groups_have_panels_of_their_own():
    rows = [entry(arm, [3.0, 2.0]) | {"of": of} for of, arm in [("A", "+x"), ("B", "+z"), ("B", "+x"), ("A", "+y")]]
    figure = curves.draw(rows, "standin", group=lambda row: row["of"])
    assert {axis.get_title(): labels_of(axis) for axis in figure.axes} == {"A": ["+x", "+y"], "B": ["+z", "+x"]}
    colours = [{line.get_color() for line in axis.lines if line.get_label() == "+x"} for axis in figure.axes]
    assert colours[0] == colours[1] and len(colours[0]) == 1
    assert len({line.get_color() for axis in figure.axes for line in lines_of(axis)}) == 3


def test_rows_of_several_settings_say_which():
    other = entry("A", [1.0, 2.0]) | {"sparsity": "4/16"}
    figure = curves.draw([entry("A", [2.0, 1.0]), other], "paper")
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert {"A, m 5/16", "A, m 4/16"} <= set(labels)


def test_where_nothing_was_trained_there_is_no_picture():
    assert curves.draw([entry("A", None), entry("B", [])], "standin") is None


def test_a_smoothed_line_begins_with_the_first_loss_and_no_spike_lifts_it():
    def drawn(name, losses, **training):
        axis = curves.draw([entry(name, losses, **training)], "standin").axes[0]
        return {line.get_label(): list(line.get_ydata()) for line in axis.lines}[name]

    steep = [100.0 / (step + 1) for step in range(40)]
    line = drawn("A", steep)
    assert line[0] == steep[0] and line[1] == pytest.approx(sum(steep[:3]) / 3)
    assert line[-1] == pytest.approx(sum(steep[-3:]) / 3)
    spiked = [20.0] * 20 + [2000.0] + [20.0] * 19
    assert max(drawn("B", spiked, loss="mse")) == pytest.approx(20 * 100 ** (1 / 5))  # the geometric mean of five
