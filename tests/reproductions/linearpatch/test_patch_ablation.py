"""Figure 6: its rows share cuts and statistics as they should, and what is said of them follows from the records."""

import math

import numpy as np
import pytest
from stored_records import put_outcomes

from common.calibration import corpora
from common.evaluation.windowed_perplexity import PROTOCOLS, joined_sequences
from common.records.results import Store
from figures import style
from figures.patch_ablation import GROUPS, NO_REPAIR, changes, draw
from reproductions import measurements
from reproductions.linearpatch import patch_ablation as declared
from reproductions.render import show
from reproductions.spec import registry, subjects

TARGET = "figure6-linearpatch"
SMOLLM = subjects.of_model("smollm2-135m-instruct")


def test_sequences_are_spread_over_the_text(monkeypatch, tiny_tokenizer):
    measurements.benchmarks()  # registers the league's texts
    protocol = PROTOCOLS["league-wikitext2"]
    every = "".join(f"part {i} of the text " for i in range(9000))
    monkeypatch.setattr(corpora, "joined_ids", lambda tokenizer, source: corpora.encode(tokenizer, every))
    whole, spread = joined_sequences(protocol, tiny_tokenizer), protocol.sequences(protocol, tiny_tokenizer)
    assert spread.shape == (48, 512) and len(whole) > 100
    places = [next(i for i, window in enumerate(whole) if (window == sequence).all()) for sequence in spread]
    steps = {b - a for a, b in zip(places, places[1:], strict=False)}
    assert places[0] == 0 and max(steps) - min(steps) <= 1 and places[-1] >= len(whole) - max(steps)


@pytest.fixture
def store(tmp_path):
    """Made-up losses of 48 windows: of A always a tenth of a nat less than without repair, of +d a noisy tenth."""
    store, noise = Store(tmp_path, None), np.random.default_rng(0)
    losses = {declared.NO_REPAIR: noise.normal(4, 1, 48)}
    losses[declared.A] = losses[declared.NO_REPAIR] - 0.1
    losses[declared.D] = losses[declared.NO_REPAIR] - noise.normal(0.1, 0.2, 48)
    (column,) = registry.get(TARGET).columns_for(SMOLLM)
    for row in registry.get(TARGET).rows(SMOLLM):
        if row.method in losses:
            put_outcomes(store, row.recipe, column.benchmark, {"nll": losses[row.method]})
    return store, losses


def test_changes_are_paired(store):
    assert declared.NO_REPAIR == NO_REPAIR
    table = registry.get(TARGET)
    changes_ = changes(show.entries(table, store[0], SMOLLM, table.rows(SMOLLM)))
    assert {key[2] for key in changes_} == {declared.A, declared.D} and len(changes_) == 4
    for (_, _, method), (value, low, high) in changes_.items():
        mean = np.mean(store[1][method] - store[1][declared.NO_REPAIR])
        assert value == pytest.approx(100 * math.expm1(mean), abs=1e-3)
        if method != declared.D:  # the same in every window: nothing is left to chance
            assert low == pytest.approx(value, abs=1e-3) == high
        else:
            error = np.std(store[1][method] - store[1][declared.NO_REPAIR]) / math.sqrt(48)
            assert high - low == pytest.approx(2 * 1.96 * 100 * error * math.exp(mean), rel=0.15)


def test_the_picture_shows_each_row_that_can_be_compared_and_names_its_model_once(store, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "DRAWN", tmp_path / "pictures")
    table, (records, _) = registry.get(TARGET), store
    (path,) = show.drawn(table, records, SMOLLM)
    content = path.read_text()
    labels = {method: label for methods in GROUPS.values() for method, label in methods.items()}
    assert labels.keys() == declared.NAMES.keys() - {declared.NO_REPAIR}
    assert path.suffix == ".svg" and all(f">{labels[method]}<" in content for method in (declared.A, declared.D))
    title = draw(show.entries(table, records, SMOLLM, table.rows(SMOLLM)), "paper").get_suptitle()
    assert title.count(SMOLLM.label) == 1 and title.endswith(", 7/30 layers removed")
    assert show.drawn(table, Store(tmp_path / "none", None), SMOLLM) == []
