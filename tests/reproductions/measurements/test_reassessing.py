"""Reassessing's recipes on a small model: which data, which layers, which training, and what reaches the record."""

import hashlib
import json

import pytest
import torch

from common.calibration import corpora
from common.models import loading
from common.models.decoder import Decoder
from common.pruning.pipeline import Context
from common.records.results import Recipe
from common.utils.errors import UserError
from papers import reassessing
from papers.reassessing import steps
from reproductions.engine import execute
from reproductions.measurements import reassessing as benchmark

LINES = [f"the layers of a model {n} are removed and the stream is scaled" for n in range(40)]
TEXT = corpora.Corpus("lines", domain="lines")
QUICK = {"method": "partial", "last": 1, "epochs": 2, "batch": 4, "micro_batch": 2}
QUICK |= {"learning_rate": 1e-3, "warmup_steps": 0}
UP = "model.layers.{}.mlp.up_proj.weight"
BLOCKS = {"corpus": "lines", "length": 12, "count": 6, "held_out": 2, "seed": 1}
CROPS = {"corpus": "lines", "sampler": "line-crops", "count": 4, "length": 12, "seed": 3}


@pytest.fixture
def small(monkeypatch, make_tiny, tiny_tokenizer, tmp_path):
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path / "work"))
    monkeypatch.setitem(corpora.CORPORA, "lines", TEXT)
    monkeypatch.setattr(corpora, "_toy_texts", lambda corpus: tuple(LINES))

    def load(*names, **options):
        model = make_tiny()
        model.source = {"name": "small", "revision": None}
        return model, tiny_tokenizer

    monkeypatch.setattr(loading, "load", load)
    return make_tiny


def recipe(**fields) -> Recipe:
    return Recipe(model="small", profile="paper", weights="none", **fields)


def metric(name, **more):
    return {"method": "metric", "metric": name, "count": 2, **more}


def tuned(**changes):
    """A short fine-tuning."""
    return {"method": "finetune", "settings": QUICK | changes, "data": BLOCKS}


def test_a_metric_uses_the_recipes_calibration_seed_and_fidelity(small, tiny_tokenizer):
    ids = reassessing.sample_line_crops(tiny_tokenizer, LINES, count=4, length=12, seed=3)
    for fidelity in ("paper", "code"):
        prepared = execute.prepare(recipe(selection=metric("bi"), calibration=CROPS, fidelity=fidelity))
        expected = reassessing.select("bi", Decoder(small()), 2, ids, fidelity=fidelity)
        assert prepared.details["removed"] == expected
        assert prepared.provenance["corpus"] == {"lines": hashlib.sha256("\n\n".join(LINES).encode()).hexdigest()}
        assert prepared.decoder.num_layers == 4
    prepared = execute.prepare(recipe(selection=metric("random", seed=7)))
    assert prepared.details["removed"] == reassessing.select("random", Decoder(small()), 2, seed=7)


def test_sequences_are_those_of_the_joined_text(small, tiny_tokenizer):
    calibration = {"corpus": "lines", "sampler": "windows", "length": 16, "count": 3}
    tokens = lambda entry: Context(None, tiny_tokenizer, recipe(calibration=entry), 0).sequences()  # noqa: E731
    joined = torch.tensor(tiny_tokenizer("\n\n".join(LINES))["input_ids"])
    assert torch.equal(tokens(calibration), joined[:48].view(3, 16))
    assert len(tokens({**calibration, "count": None})) == len(joined) // 16
    with pytest.raises(UserError, match="unknown sampler"):
        tokens({**calibration, "sampler": "window"})


def test_a_training_is_reported_and_found_again(small, monkeypatch):
    trained = recipe(selection=metric("reverse-order"), training=tuned())
    prepared = execute.prepare(trained)
    report = prepared.details["training"]
    assert prepared.details["removed"] == [5, 4]
    assert report["rows"] == 6 and report["validation_rows"] == 2 and len(report["losses"]) == 4
    assert report["epochs"][1]["layer_executions"] < report["epochs"][0]["layer_executions"]
    json.dumps(prepared.details, allow_nan=False)
    before, after = small().state_dict(), prepared.model.state_dict()
    assert torch.equal(after[UP.format(2)], before[UP.format(2)])
    assert not torch.equal(after[UP.format(3)], before[UP.format(3)])
    monkeypatch.setattr("common.training.finetuning.training._train", lambda *unused: pytest.fail("trained again"))
    again = execute.prepare(trained)
    assert again.details["training"] == report
    assert all(torch.equal(value, after[name]) for name, value in again.model.state_dict().items())


def test_the_layers_behind_the_first_cut_may_train(small):
    prepared = execute.prepare(recipe(selection=metric("random", seed=7), training=tuned(first="cut")))
    removed = sorted(prepared.details["removed"])
    left = [layer for layer in range(6) if layer not in removed]
    before, after = small().state_dict(), prepared.model.state_dict()
    changed = [
        layer for place, layer in enumerate(left) if not torch.equal(after[UP.format(place)], before[UP.format(layer)])
    ]
    assert changed == [next(layer for layer in left if layer > removed[0])] != [left[-1]]


def test_iterative_pruning_trains_in_every_cycle(small):
    tune = {"settings": QUICK, "data": BLOCKS}
    choice = {"method": "iterative", "metric": "taylor", "schedule": "1:1:2", "tune": tune}
    prepared = execute.prepare(recipe(selection=choice, calibration=CROPS))
    assert len(prepared.details["removed"]) == 2 and prepared.decoder.num_layers == 4
    first, second = prepared.details["cycles"]
    assert first["status"] == second["status"] == "ok" and first["losses"] != second["losses"]
    repaired = recipe(selection=choice, calibration=CROPS, repair={"method": "linearpatch"})
    with pytest.raises(UserError, match="leave the recipe's repair out"):
        execute.prepare(repaired)


@pytest.mark.parametrize("method", ["partial", "lora"])
def test_iterative_pruning_continues_after_a_kill_and_leaves_one_file(small, monkeypatch, tmp_path, method):
    tune = {"settings": QUICK | {"method": method, "epochs": 1}, "data": BLOCKS}
    choice = {"method": "iterative", "metric": "taylor", "schedule": "1:1:3", "tune": tune}
    unrepaired = recipe(selection=choice, calibration=CROPS)
    whole = execute.prepare(unrepaired)
    left = {path.name for path in (tmp_path / "work" / "small" / unrepaired.hash).iterdir()}
    assert left == ({"cycles.safetensors"} if method == "partial" else {"cycle-0", "cycle-1", "cycle-2"})
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path / "again"))
    run, cycles = steps.Tuning.run, []

    def killed(self, context, folder):
        cycles.append(folder.name)
        if cycles.count("cycle-2") == 1 and folder.name == "cycle-2":
            raise KeyboardInterrupt
        return run(self, context, folder)

    monkeypatch.setattr(steps.Tuning, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        execute.prepare(unrepaired)
    again = execute.prepare(unrepaired)
    assert cycles[3:] == (["cycle-2"] if method == "partial" else ["cycle-0", "cycle-1", "cycle-2"])
    assert again.details["removed"] == whole.details["removed"]
    assert [c["losses"] for c in again.details["cycles"]] == [c["losses"] for c in whole.details["cycles"]]
    expected = whole.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.model.state_dict().items())


def test_the_spread_of_chosen_layers(small, monkeypatch):
    monkeypatch.setattr(benchmark, "SAMPLE_COUNTS", (1, 30))
    prepared = execute.prepare(recipe(calibration=CROPS))
    values, _, details = execute.benchmark(prepared, "chosen-sets@bi")
    assert details["count"] == 2 and details["seeds"] == [42, 43, 44]
    assert [len(sets) for sets in details["sets"].values()] == [3, 3]
    a, b, c = (set(chosen) for chosen in details["sets"]["30"])
    assert values["overlap_30"] == pytest.approx((len(a & b) + len(a & c) + len(b & c)) / 6)
