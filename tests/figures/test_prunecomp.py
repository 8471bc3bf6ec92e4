"""Prune&Comp's figures show the records' numbers, and leave out what is missing."""

import pytest

from figures import prunecomp
from reproductions.prunecomp.grid import GridCell


def entry(method, sparsity, *perplexities, **more):
    records = {f"perplexity@{i}": {"values": {"perplexity": p} if p else {}} for i, p in enumerate(perplexities)}
    known = {"spec": method, "method": "row"} if isinstance(method, GridCell) else {"spec": None, "method": method}
    return {"model": "m", "sparsity": sparsity, "records": records | more} | known


def test_figure_1_has_a_bar_per_method_and_setting():
    methods = list(prunecomp._BARS)
    entries = [entry("Dense", "0/16", 4.0, 6.0)]
    entries += [entry(m, s, 10.0 + i, 20.0 + i) for s in ("4/16", "5/16") for i, m in enumerate(methods)]
    axes = prunecomp.figure1(entries, "standin").axes[0]
    heights = sorted(round(bar.get_height(), 1) for bar in axes.patches)
    assert heights == [15.0, 15.0, 16.0, 16.0, 17.0, 17.0, 18.0, 18.0]
    assert axes.lines[0].get_ydata()[0] == 5.0
    for absent in (None, float("inf"), float("nan")):
        entries[1] = entry(methods[0], "4/16", 10.0, absent)
        axes = prunecomp.figure1(entries, "standin").axes[0]
        assert len(axes.patches) == 7
        (mark,) = [text for text in axes.texts if text.get_text() in ("not run", "diverged")]
        assert mark.get_text() == ("not run" if absent is None else "diverged") and mark.xy[0] < 0 == mark.xy[1]
    entries.pop(1)
    assert "not run" in [text.get_text() for text in prunecomp.figure1(entries, "standin").axes[0].texts]


def test_figure_1_has_error_bars_of_independent_texts():
    row = entry("CosSim(BI)", "4/16", 10.0, 20.0)
    for record, error in zip(row["records"].values(), (3.0, 4.0)):
        record["stderr"] = {"perplexity": error}
    axes = prunecomp.figure1([row], "standin").axes[0]
    (bar,) = axes.collections
    (low, high) = bar.get_segments()[0][:, 1]
    assert (low, high) == (15.0 - 2.5, 15.0 + 2.5)  # sqrt(3^2 + 4^2) / 2
    assert not prunecomp.figure1([entry("CosSim(BI)", "4/16", 10.0, 20.0)], "standin").axes[0].collections


def test_pictures_of_averages_name_their_texts():
    row = entry("CosSim(BI)", "4/16", 10.0, 20.0) | {"scores": {"WIKI-2": 10.0, "PTB": 20.0, "AVG": 15.0}}
    axes = prunecomp.figure1([row], "standin").axes[0]
    assert "WIKI-2 and PTB" in axes.get_ylabel() and "CosSim(BI)" in axes.get_xlabel()
    named = prunecomp.grid([row | {"spec": GridCell("PPL", "one-shot", "none")}], "standin").axes[1]
    assert "WIKI-2 and PTB" in named.get_ylabel()


def test_figure_2_has_the_gains_and_breaks_the_axis_where_one_bar_would_hide_the_others():
    def drawn(gains):
        records = {"magnitude-gains": {"details": {"gains": gains}}}
        axes = prunecomp.figure2([entry("Dense", "0/3", **records)], "").axes[0]
        assert [bar.get_height() for bar in axes.patches] == gains
        return axes, [text.get_text() for text in axes.texts]

    axes, texts = drawn([4350.0, 10.0, 5.0])
    assert texts == ["4350 %, cut off"] and axes.get_ylim()[1] < 15
    (gap,) = (line for line in axes.lines if line.get_color() == "white" and line.get_transform() == axes.transData)
    assert max(axes.get_yticks()) <= max(gap.get_ydata())  # above the break nothing is to scale
    axes, texts = drawn([12.0, 10.0, -1.0])
    assert texts == [] and axes.get_ylim()[1] > 12 and not any(line.get_color() == "white" for line in axes.lines)


def test_the_grid_writes_each_average_in_its_cell():
    entries = [
        entry("Dense", "0/16", 3.0, 5.0),
        entry(GridCell("PPL", "one-shot", "none"), "5/16", 30.0, 50.0),
        entry(GridCell("PPL", "one-shot", "matrix-least-squares"), "5/16", 6.0),  # one of two texts: no average yet
        entry(GridCell("PPL", "iterative", "factor"), "5/16", 20.0, 20.0),
        entry(GridCell("PPL", "iterative", "matrix-least-squares"), "5/16", 8.0, 12.0),
    ]
    axes, scale = prunecomp.grid(entries, "standin").axes
    assert scale.get_title() == "dense\n4.0" and scale.lines[-1].get_ydata()[0] == 4.0
    assert scale.get_ylim()[0] < 4.0 and scale.get_ylim()[1] == pytest.approx(40.0)
    averages = {(0, 0): "40.0", (1, 1): "20.0", (2, 1): "10.0"}
    absent = dict.fromkeys([(0, 1), (1, 0), (2, 0)], "not run")
    assert {text.get_position(): text.get_text() for text in axes.texts} == averages | absent
    shown = [label.get_text().partition(";")[0].replace("\n", " ") for label in axes.get_xticklabels()]
    assert shown == ["no repair", "factor, fused", "matrix"]  # no column without a number
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PPL, one-shot", "PPL, iterative"]
