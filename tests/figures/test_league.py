"""The league's picture: which rows its lines are, and their bands, from records in a store of the test's own."""

import dataclasses

import numpy as np
import pytest
from stored_records import put_outcomes

from common.records.results import Store
from extensions.league import rows
from figures import league, style
from reproductions.render import show
from reproductions.spec import registry, subjects

TABLE = dataclasses.replace(registry.get("league"), draw="figures.league:draw")
TEXTS = [c.benchmark for c in TABLE.columns_for(subjects.TOY) if c.compare == "perplexity" and c.benchmark]
# Selections by what they add to the log of perplexity; repairs by what they leave of a layer's loss.
ADDS = {rows.LOWEST_BI: 0.05, rows.BLOCK: 0.0, rows.UIDL: 0.1, rows.LORP: 0.2}
LEAVES = {rows.NONE: 0.3, rows.GHOSTED: 0.2, rows.REPLACEME: 0.22, rows.REFIT_FIXED_RIDGE: 0.1}


@dataclasses.dataclass(frozen=True)
class Named:
    """What the picture asks of a row's specification."""

    selection: str
    repair: str
    own_repair: bool = False
    trained: bool = False
    selected: str = "[L]"

    @property
    def repaired(self):
        return self.repair


@pytest.fixture
def store(tmp_path):
    """Perplexities on 40 windows, hard or easy for all rows alike; Ghosted Layers is best after UIDL, others after [L]."""
    results = Store(tmp_path / "results", None)
    hard = np.random.default_rng(5).normal(3, 0.7, (len(TEXTS), 40))
    for row in TABLE.rows(subjects.TOY):
        selection, repair = (row.spec.selection, row.spec.repair) if row.spec else ("", "")
        if not row.dense and (selection not in ADDS or repair not in LEAVES):
            continue
        removed = int(row.sparsity.partition("/")[0])
        adds = 0 if row.dense else removed * LEAVES[repair] + ADDS[selection]
        adds -= 0.2 * (selection == rows.UIDL and repair == rows.GHOSTED)
        if selection == rows.UIDL and repair == rows.GHOSTED and removed == 5:
            continue  # not measured yet
        for at, name in enumerate(TEXTS):
            own = hard[at] + adds + np.random.default_rng(removed).normal(0, 0.15, 40)
            put_outcomes(results, row.recipe, name, {"nll": own})
    return results


@pytest.fixture
def drawn(store, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(style, "DRAWN", tmp_path)
    monkeypatch.setattr(style.plt, "close", figures.append)
    (svg,) = show.drawn(TABLE, store, subjects.TOY)
    assert svg.name == "league.svg" and svg.stat().st_size > 4000
    return figures[0].axes


def marks(axes):
    """Place -> what an axis shows there."""
    return {line.get_ydata()[0]: line.get_xdata()[0] for line in marked(axes)}


def marked(axes):
    """The lines but for the one at the lowest, which has no mark."""
    return [line for line in axes.lines if line.get_marker() not in ("None", "|", "")]


def test_every_repair_has_one_line_after_the_selection_that_is_best_for_it_there(drawn):
    labels = [label.get_text().replace("\n", " ") for label in drawn[0].get_yticklabels()]
    assert set(labels) == {
        "no repair, after contiguous block",
        "Ghosted Layers, after UIDL at 2, 3, 4; contiguous block at 5",
        "ReplaceMe, least squares, after contiguous block",
        "refit, 3 layers (extension), after contiguous block",
    }
    assert [axes.get_title() for axes in drawn] == [f"{count}/16 removed" for count in (2, 3, 4, 5)]
    last = marks(drawn[-1])
    assert [last[place] for place in sorted(last)] == sorted(last.values()) and len(last) == 4
    assert all(axes.get_xscale() == "log" for axes in drawn)


def test_bands_leave_out_what_all_rows_share(drawn, store):
    """Windows differ by e^0.7, rows by e^0.15 on the same windows: the band is about the second, by the delta method."""
    place = next(at for at, label in enumerate(drawn[0].get_yticklabels()) if label.get_text().startswith("no repair"))
    # With 2 layers removed
    (bar,) = [bar.get_segments()[0][:, 0] for bar in drawn[0].collections if bar.get_segments()[0][0, 1] == place]
    dense, own = (
        np.stack([store.items(row.recipe, name)["nll"] for name in TEXTS])
        for row in TABLE.rows(subjects.TOY)
        if row.dense or (row.sparsity, row.method) == ("2/16", rows.name(rows.BLOCK, rows.NONE))
    )
    ratio = np.exp(own.mean(1)).mean() / np.exp(dense.mean(1)).mean()
    assert marks(drawn[0])[place] == pytest.approx(ratio)
    shares = [np.exp(x.mean(1)) / np.exp(x.mean(1)).sum() for x in (own, dense)]
    change = shares[0][:, None] * own - shares[1][:, None] * dense
    error = np.sqrt((change.var(1, ddof=1) / 40).sum())
    assert (max(bar) - min(bar)) / ratio == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert min(bar) < ratio < max(bar)


def test_every_papers_repair_has_a_line_and_ours_where_measured_throughout_and_nothing_measured_is_no_picture():
    def entry(repair, value):
        spec = repair and Named("l", repair, own_repair="(extension)" in repair)
        return {"spec": spec, "sparsity": "2/16", "dense": not repair, "scores": {league.COLUMN: value}}

    assert league.draw([entry("", 5.0) | {"scores": {}}], "standin") is None
    lines = [entry("none", 9.0), entry("none", 12.0) | {"sparsity": "4/16"}, entry("once", 7.0)]
    smaller = [entry("nbl", 8.0), entry("nbl", 8.0) | {"sparsity": "4/16"}]
    assert list(league.best([*lines, *smaller])) == ["none", "once"]
    ours = [entry("ours (extension)", 8.0), entry("ours (extension)", 9.0) | {"sparsity": "4/16"}]
    half = [entry("half (extension)", 8.0), entry("half (extension)", 9.0) | {"sparsity": "3/16"}]
    third = [one | {"sparsity": "3/16"} for one in (*lines[:1], *ours[:1])]
    papers = [entry(f"paper {i}", 10.0 + i) | {"sparsity": f"{n}/16"} for i in range(20) for n in (2, 4)]
    best_lines = league.best([*lines, *ours, *third, *half, *papers])
    assert best_lines.keys() == {"none", "once", "ours (extension)", *(f"paper {i}" for i in range(20))}
    shown = [{"model": "m"} | one | {"replicates": lambda _: None} for one in (entry("", 5.0), *papers)]
    assert len(league.draw(shown, "standin").axes) == 2


def test_colours_tell_whose_a_repair_is_and_without_a_dense_model_there_is_no_picture():
    def row(spec, value, count=2):
        line = {"model": "m", "spec": spec, "sparsity": f"{count}/16", "dense": spec is None}
        return line | {"scores": {league.COLUMN: value}, "replicates": lambda _: None}

    specs = [Named("l", "none"), Named("l", "a"), Named("l", "b", trained=True), Named("l", "c", own_repair=True)]
    shown = [row(spec, 10.0 + at) for at, spec in enumerate(specs)]
    (axes,) = league.draw([row(None, 5.0, 0), *shown], "standin").axes
    looks = {line.get_ydata()[0]: line.get_color() for line in marked(axes)}
    kinds = ("no repair", "published", "published, trained", "extension")
    assert [looks[place] for place in range(4)] == [league.KINDS[kind]["color"] for kind in kinds]
    assert marks(axes) == {place: pytest.approx((10 + place) / 5) for place in range(4)}
    assert league.draw(shown, "standin") is None
