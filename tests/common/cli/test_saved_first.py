"""A tool saves before it measures: a kill, a full memory or a loaded machine costs numbers, never the checkpoint."""

import json
import os
import signal
import statistics

import numpy as np
import pytest
import torch
import yaml

from common.cli import main, measure
from common.models import checkpoint
from tests.tools import method_of, paragraphs

METHOD = method_of("prunecomp")


@pytest.fixture
def command(tmp_path, write_checkpoint, monkeypatch):
    """The arguments of a run on a tiny model, of which little is measured."""
    for name, value in (("REPEATS", 3), ("SHOWN", 4)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(measure.threads, "idle", lambda: 99.0)
    (tmp_path / "text.txt").write_text(paragraphs())
    fixed = ["--model", str(write_checkpoint(tmp_path / "tiny")), "--text", str(tmp_path / "text.txt"), "--remove", "2"]
    return [*fixed, "--samples", "4", "--length", "32", "--windows", "4", "--out", str(tmp_path / "out")]


def at(moment, act, monkeypatch):
    """Call `act` when the perplexity is to be measured that is named so."""
    whole = measure.perplexity

    def perplexity(job, model, when):
        if when == moment:
            act()
        return whole(job, model, when)

    monkeypatch.setattr(measure, "perplexity", perplexity)


def test_a_kill_while_the_result_is_measured_leaves_a_checkpoint_that_loads(command, tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        try:
            at("of the result", lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
            main(METHOD, command)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    report = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert "**Not measured:**" in (tmp_path / "out" / "README.md").read_text()
    assert report["unmeasured"] and not report["evaluation"]["after"] and report["evaluation"]["before"]
    model, tokenizer = checkpoint.load(tmp_path / "out")
    assert model.config.num_hidden_layers == 4
    assert model(torch.tensor([tokenizer("The layers")["input_ids"]])).logits.isfinite().all()
    assert main(METHOD, [*command, "--force"]) == 0  # it is replaced as any other


def test_memory_that_runs_out_while_measuring_costs_no_checkpoint(command, tmp_path, monkeypatch, capsys):
    def full():
        raise MemoryError

    at("of the result", full, monkeypatch)
    assert main(METHOD, command) == 0
    assert "not all was measured: out of memory" in (tmp_path / "out" / "README.md").read_text()
    assert "out of memory" in capsys.readouterr().out
    assert checkpoint.load(tmp_path / "out")[0].config.num_hidden_layers == 4


def test_a_card_of_another_run_is_left_alone(command, tmp_path, monkeypatch, capsys):
    facts = tmp_path / "out" / "pruning.json"
    at("of the result", lambda: facts.write_text('{"environment": {}}'), monkeypatch)
    assert main(METHOD, command) == 0
    assert "is not what was saved here any more" in capsys.readouterr().err
    assert json.loads(facts.read_text()) == {"environment": {}}


def test_both_models_are_timed_in_turn_and_the_card_has_the_spread(command, tmp_path, monkeypatch):
    turns = []
    timed = measure._timed

    def watched(model, prompts, tokens):
        turns.append((model.config.num_hidden_layers, *prompts.shape, tokens))
        return timed(model, prompts, tokens)

    monkeypatch.setattr(measure, "_timed", watched)
    assert main(METHOD, command) == 0
    assert turns == [(layers, size, 8, 2) for size in (1, 2) for layers in [6, 4] * 4]  # one of four warms up
    times = json.loads((tmp_path / "out" / "pruning.json").read_text())["evaluation"]["times"]
    card = (tmp_path / "out" / "README.md").read_text()
    for size, sides in times["batches"].items():
        for side in ("before", "after"):
            for key in ("first_ms", "token_ms"):
                middle, least, most = sides[side][key]
                assert 0 < least <= middle <= most and f"{middle:,.1f} [{least:,.1f}, {most:,.1f}]" in card
        # float32 weights, and keys and values of two heads of 16 channels for 8 + 2 - 1 tokens and each layer
        layers = {"before": 6, "after": 4}
        saved = {side: checkpoint.load(tmp_path / name)[0] for side, name in (("before", "tiny"), ("after", "out"))}
        for side, count in layers.items():
            weights = sum(4 * p.numel() for p in saved[side].parameters())
            assert sides[side]["bytes"] == weights + count * int(size) * 2 * 2 * 16 * 9 * 4


def test_times_that_would_take_too_long_are_left_out_with_the_reason(command, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE", 0.0)
    assert main(METHOD, command) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Batch 1 is left out: it would take about" in card and "time to first token" not in card


def test_divergence_is_that_of_the_two_models_logits(command, tmp_path):
    assert main(METHOD, command) == 0
    divergence = json.loads((tmp_path / "out" / "pruning.json").read_text())["evaluation"]["divergence"]
    (original, tokenizer), (pruned, _) = (checkpoint.load(tmp_path / name) for name in ("tiny", "out"))
    ids = torch.tensor(tokenizer((tmp_path / "text.txt").read_text())["input_ids"])
    windows = ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)
    with torch.no_grad():
        before, after = (model(windows).logits.double().log_softmax(-1) for model in (original, pruned))
    means = (before.exp() * (before - after)).sum(-1)[:, :-1].mean(1)
    assert divergence["kl"] == pytest.approx(means.mean().item(), rel=1e-4) and divergence["sequences"] == 4
    assert divergence["kl_stderr"] == pytest.approx(means.std().item() / 2, rel=1e-3)
    assert f"{divergence['kl']:.4f} ± {divergence['kl_stderr']:.4f}" in (tmp_path / "out" / "README.md").read_text()


def test_flips_are_items_that_one_model_alone_has_right():
    before = {
        "a": {"score": np.array([0.5, 0.1]), "acc": np.array([1, 1, 0, 0, 1], bool)},
        "gone": {"acc": np.ones(3, bool)},
    }
    after = {"a": {"score": np.array([0.5, 0.1]), "acc": np.array([1, 0, 1, 0, 0], bool)}}
    changes = measure.changes(before, after)
    differences = [0, -1, 1, 0, -1]
    spread = statistics.stdev(differences) / 5**0.5 * 2.776  # Student's quantile for four degrees of freedom
    ends = {"low": pytest.approx(-0.2 - spread, abs=1e-3), "high": pytest.approx(-0.2 + spread, abs=1e-3)}
    assert changes == {"a": {"metric": "acc", "n": 5, "flips": 0.6, "change": -0.2, **ends}}


@pytest.mark.parametrize(("more", "only"), [((), False), (("--no-compensation",), True)])
def test_a_mergekit_file_lies_beside_what_is_only_shorter(more, only, command, tmp_path):
    assert main(METHOD, [*command, "--no-evaluation", *more]) == 0
    file = tmp_path / "out" / "mergekit.yaml"
    assert file.exists() == only and ("mergekit.yaml" in (tmp_path / "out" / "README.md").read_text()) == only
    if only:
        config = yaml.safe_load(file.read_text())
        removed = json.loads((tmp_path / "out" / "pruning.json").read_text())["facts"]["removed"]
        ranges = [source["layer_range"] for part in config["slices"] for source in part["sources"]]
        remaining = [layer for first, end in ranges for layer in range(first, end)]
        assert remaining == [layer for layer in range(6) if layer not in removed]
        assert (config["merge_method"], config["dtype"]) == ("passthrough", "float32")
        assert {source["model"] for part in config["slices"] for source in part["sources"]} == {"tiny"}


def test_times_are_left_out_on_a_loaded_machine_with_the_reason(command, tmp_path, monkeypatch):
    monkeypatch.setattr(measure.threads, "idle", lambda: 0.2)
    assert main(METHOD, command) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        "Times are left out: other processes kept the cores busy: 0.2 were free" in card and "first token" not in card
    )


def test_times_are_left_out_where_two_models_find_no_room(command, tmp_path, monkeypatch):
    monkeypatch.setattr("common.cli.checks.no_room_for_both", lambda job: "there is no memory")
    assert main(METHOD, command) == 0
    report = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert report["evaluation"]["times"] == {"left_out": "there is no memory"}
    assert report["evaluation"]["before"]["samples"] and report["evaluation"]["after"]["samples"]


def test_a_perplexity_near_the_vocabulary_is_called_chance(command, tmp_path, capsys):
    assert main(METHOD, command) == 0  # random weights
    assert "it predicts no better than chance" in capsys.readouterr().err
    assert "it predicts no better than chance" in (tmp_path / "out" / "README.md").read_text()
