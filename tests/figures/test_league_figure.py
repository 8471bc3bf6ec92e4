"""The league's picture: which rows its lines are, and their bands, from records in a store of the test's own."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba

from common.results import Record, Store
from figures import league, style
from reproductions import registry, settings, show

TABLE = dataclasses.replace(registry.get("league"), draw="figures.league:draw")
TEXTS = [c.benchmark for c in TABLE.columns_for(settings.STANDIN) if c.compare == "perplexity" and c.benchmark]
# Selections by what they add to the log of perplexity; repairs by what they leave of a layer's loss.
ADDS = {"[S]": 0.05, "[L]": 0.0, "UIDL": 0.1, "LoRP": 0.2}
LEAVES = {"none": 0.3, "Ghosted Layers": 0.2, "ReplaceMe, least squares": 0.22, "refitted, 3 layers (ours)": 0.1}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def store(tmp_path):
    """Perplexities on 40 windows, hard or easy for all rows alike; Ghosted Layers is best after UIDL, others after [L]."""
    found = Store(tmp_path / "results", None)
    hard = np.random.default_rng(5).normal(3, 0.7, (len(TEXTS), 40))
    for row in TABLE.rows(settings.STANDIN):
        selection, _, repair = row.method.partition(", ")
        if not row.dense and (selection not in ADDS or repair not in LEAVES):
            continue
        removed = int(row.sparsity.partition("/")[0])
        adds = 0 if row.dense else removed * LEAVES[repair] + ADDS[selection]
        adds -= 0.2 * (selection == "UIDL" and repair == "Ghosted Layers")
        if selection == "UIDL" and repair == "Ghosted Layers" and removed == 5:
            continue  # not measured yet
        for at, name in enumerate(TEXTS):
            own = hard[at] + adds + np.random.default_rng(removed).normal(0, 0.15, 40)
            value = {"perplexity": float(np.exp(own.mean())), "nll": float(own.mean())}
            error = {"perplexity": float(np.exp(own.mean()) * own.std(ddof=1) / 40**0.5)}
            record = Record(row.recipe.__dict__, row.recipe.hash, name, "ok", value, error)
            found.put(record, row.recipe, {"nll": own})
    return found


@pytest.fixture
def drawn(store, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(style.save, "__defaults__", (tmp_path,))
    monkeypatch.setattr(style.plt, "close", figures.append)
    (svg, png, pdf) = show.drawn(TABLE, store, settings.STANDIN)
    assert svg.name == "league.svg" and all(path.stat().st_size > 4000 for path in (svg, png, pdf))
    return figures[0].axes[0]


def test_every_repair_has_one_line_after_the_selection_that_is_best_for_it_there(drawn):
    labels = {line.get_label() for line in drawn.lines}
    assert {label for label in labels if not label.startswith("dense")} == {
        "no repair, after [L]",
        "Ghosted Layers, after UIDL at 2, 3, 4; [L] at 5",
        "ReplaceMe, least squares, after [L]",
        "refitted, 3 layers (ours), after [L]",
    }
    best_last = [line.get_ydata()[-1] for line in drawn.lines if len(line.get_xdata()) == 4]
    assert best_last == sorted(best_last) and drawn.get_yscale() == "log"
    assert [label.get_text() for label in drawn.get_xticklabels()] == ["2/16", "3/16", "4/16", "5/16"]


def test_bands_leave_out_what_all_rows_share(drawn, store):
    """Windows differ by e^0.7, rows by e^0.15 on the same windows: the band is about the second, by the delta method."""
    line = next(line for line in drawn.lines if line.get_label().startswith("no repair"))
    bars = [found for found in drawn.collections if hasattr(found, "get_segments")]
    (grey,) = [found for found in bars if np.allclose(found.get_color()[0], to_rgba(style.GREY))]
    at_two = grey.get_segments()[0][:, 1]
    dense, own = (
        np.stack([store.items(row.recipe, name)["nll"] for name in TEXTS])
        for row in TABLE.rows(settings.STANDIN)
        if row.dense or (row.sparsity, row.method) == ("2/16", "[L], none")
    )
    shares = [np.exp(x.mean(1)) / np.exp(x.mean(1)).sum() for x in (own, dense)]
    change = shares[0][:, None] * own - shares[1][:, None] * dense
    error = np.sqrt((change.var(1, ddof=1) / 40).sum())
    value = line.get_ydata()[0]
    assert (max(at_two) - min(at_two)) / value == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert min(at_two) < value < max(at_two)


def test_every_papers_repair_has_a_line_and_ours_where_measured_throughout_and_nothing_measured_is_no_picture():
    def entry(method, value):
        return {"method": method, "sparsity": "2/16", "dense": method == "Dense", "scores": {league.COLUMN: value}}

    assert league.draw([entry("Dense", 5.0) | {"scores": {}}], "standin") is None
    lines = [entry("[L], none", 9.0), entry("[L], none", 12.0) | {"sparsity": "4/16"}, entry("[L], once", 7.0)]
    smaller = [entry("twice, NBL", 8.0), entry("twice, NBL", 8.0) | {"sparsity": "4/16"}]
    assert list(league.best([*lines, *smaller])) == ["none"]
    ours = [entry("[L], ours (ours)", 8.0), entry("[L], ours (ours)", 9.0) | {"sparsity": "4/16"}]
    half = [entry("[L], half (ours)", 8.0), entry("[L], half (ours)", 9.0) | {"sparsity": "3/16"}]
    third = [one | {"sparsity": "3/16"} for one in (*lines[:1], *ours[:1])]
    papers = [entry(f"[L], paper {i}", 10.0 + i) | {"sparsity": f"{n}/16"} for i in range(20) for n in (2, 4)]
    kept = league.best([*lines, *ours, *third, *half, *papers])
    assert kept.keys() == {"none", "ours (ours)", *(f"paper {i}" for i in range(20))}
    assert league.draw([{"model": "m"} | one | {"replicates": lambda _: None} for one in papers], "standin") is not None


def test_a_repair_looks_the_same_in_the_pictures_of_all_models_and_like_no_other():
    def looks(repairs):
        values = [(f"[L], {repair}", n, 10.0 + at) for at, repair in enumerate(repairs) for n in (2, 4)]
        rows = [
            {"model": "m", "method": method, "sparsity": f"{n}/16", "dense": False, "scores": {league.COLUMN: value}}
            for method, n, value in values
        ]
        axes = league.draw([row | {"replicates": lambda _: None} for row in rows], "standin").axes[0]
        return {
            line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle())
            for line in axes.lines
            if not line.get_label().startswith("_")
        }

    known = list(league.LOOKS)
    one, other = looks([*known, "a new one", "another"]), looks(known[::-2])
    assert len(set(one.values())) == len(one) == len(known) + 2
    assert len(other) == (len(known) + 1) // 2 and all(one[label] == look for label, look in other.items())
