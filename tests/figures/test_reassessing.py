"""Reassessing's drawings: what is drawn is what the records say, where they say it."""

import pytest

from figures import laco, reassessing
from reproductions.reassessing.specs import LAST3, LORA, ArmSpec


def rate_entry(spec, removed, errors=(), **shares):
    """A row's accuracies by task, as shares, and their standard errors."""
    records = {name: {"values": {"acc": share}} for name, share in shares.items()}
    for record, error in zip(records.values(), errors, strict=False):
        record["stderr"] = {"acc": error}
    records["perplexity@x"] = {"values": {"perplexity": 9.0}}
    return {"model": "m", "sparsity": f"{removed}/16", "spec": spec, "records": records, "dense": not removed}


@pytest.mark.parametrize(
    "draw, benchmark",
    [
        (reassessing.theory, "gradients@trained"),
        (reassessing.rates, "perplexity@x"),
        (reassessing.similarity, "similarity@cosine"),
        (laco.figure5, "laco-uncorrelated"),
    ],
)
def test_without_what_it_needs_a_figure_is_none(draw, benchmark):
    records = {benchmark: {"values": {}, "details": {}}}
    rows = [{"model": "m", "sparsity": f"{n}/16", "spec": None, "records": records, "dense": not n} for n in (0, 4)]
    assert draw(rows, "standin") is None


def test_rates_draw_one_panel_a_task_and_their_mean_from_the_dense_model_on():
    rows = [
        (None, 0, 0.8, 0.6),
        (ArmSpec("Taylor"), 8, 0.3, 0.2),
        (ArmSpec("Taylor"), 4, 0.5, 0.4),
        (ArmSpec("Reverse-order", LORA), 4, 0.7, 0.2),
    ]
    entries = [
        rate_entry(spec, removed, **{"task_one@1": first, "task_two@1": second})
        for spec, removed, first, second in rows
    ]
    panels = {axes.get_title(): axes for axes in reassessing.rates(entries, "standin").axes if axes.get_title()}
    assert list(panels) == ["task one", "task two", "mean"]
    drawn = {line.get_label(): line for line in panels["mean"].lines}
    assert drawn["Taylor"].get_xdata().tolist() == [0, 4, 8]
    assert drawn["Taylor"].get_ydata() == pytest.approx([70, 45, 25])
    assert drawn["Reverse-order"].get_ydata() == pytest.approx([70, 45])
    assert panels["task two"].lines[0].get_ydata() == pytest.approx([60, 40, 20])


def test_rates_leave_out_a_task_that_one_row_has_not_answered():
    dense = rate_entry(None, 0, one=0.8, two=0.6)
    figure = reassessing.rates([dense, rate_entry(ArmSpec("Taylor"), 4, one=0.5)], "standin")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels) == ["one", "mean"]
    assert panels["mean"].lines[0].get_ydata() == pytest.approx([80, 50])  # of the same task for both


def test_rates_have_standard_errors_and_the_chance_level():
    chance = {"chance": {"one": 0.5, "two": 0.25}}
    dense = rate_entry(None, 0, (0.03, 0.04), one=0.8, two=0.6)
    pruned = rate_entry(ArmSpec("Taylor"), 4, (0.03, 0.04), one=0.6, two=0.5)
    figure = reassessing.rates([dense | chance, pruned | chance], "standin")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    for name, level in {"one": 50, "two": 25, "mean": 37.5}.items():
        lines = {line.get_label(): line.get_ydata()[0] for line in panels[name].lines}
        assert lines["chance level"] == level
    bars = {name: axes.collections[0].get_segments()[1][:, 1].tolist() for name, axes in panels.items()}
    assert bars["one"] == pytest.approx([57, 63]) and bars["two"] == pytest.approx([46, 54])
    assert bars["mean"] == pytest.approx([52.5, 57.5])  # sqrt(3^2 + 4^2) / 2
    assert "m, n/16" in figure.get_suptitle()


def test_seeds_fill_the_squares_of_the_layers_that_go():
    sets = {"10": [[1, 2], [1, 3]], "1": [[0, 3], [0, 3]]}
    records = {"chosen-sets@bi": {"details": {"sets": sets, "seeds": [42, 43]}}}
    figure = reassessing.seeds([{"model": "m", "sparsity": "0/4", "records": records}], "standin")
    (axes,) = figure.axes
    filled = [points for points in axes.collections if len(points.get_offsets()) == 2]
    rows = {tuple(sorted(int(x) for x, _ in points.get_offsets())): points.get_offsets()[0][1] for points in filled}
    assert rows.keys() == {(0, 3), (1, 2), (1, 3)}
    assert rows[0, 3] < rows[1, 2] < rows[1, 3]  # fewer samples first
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "10"]
    assert figure.get_suptitle() == "m, 2 of 4 layers selected"


def test_similarity_draws_every_matrix_on_one_scale():
    matrices = [[[1.0, 0.2], [0.2, 1.0]], [[1.0, 0.9], [0.9, 1.0]]]
    specs = ArmSpec("Taylor", LAST3, one_shot=True), ArmSpec("Taylor", LAST3, schedule=(4, 8))
    entries = [
        {"model": "m", "sparsity": "8/16", "spec": spec, "records": {"similarity@cka": {"details": {"matrix": matrix}}}}
        for spec, matrix in zip(specs, matrices)
    ]
    figure = reassessing.similarity(entries, "standin")
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert [image.get_array().tolist() for image in images] == matrices
    assert {image.get_clim() for image in images} == {(0, 1)}
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert titles == ["layers removed in one step", "layers removed in steps of 4 layers"]
    title = "m, 8/16 layers removed by Taylor importance; fine-tuned: lm_head and the last 3 layers"
    assert " ".join(figure.get_suptitle().split()) == title
