"""A tool saves before it measures: a kill, a full memory or a loaded machine costs numbers, never the checkpoint."""

import importlib
import json
import os
import signal

import pytest
import torch

from common.cli import main, measure
from common.models import checkpoint

TEXT = "The layers of a model are removed. The stream is scaled by a factor that was measured on some text before.\n\n"
METHOD = importlib.import_module("papers.prunecomp.tool").METHOD


@pytest.fixture
def command(tmp_path, write_checkpoint, monkeypatch):
    """The arguments of a run on a tiny model, of which little is measured."""
    for name, value in (("REPEATS", 3), ("GENERATED", 2), ("SHOWN", 4)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(measure.threads, "idle", lambda: 99.0)
    (tmp_path / "text.txt").write_text("".join(f"{number} {TEXT}" for number in range(120)))
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
    works = measure._works

    def watched(job, model, device):
        turns.append(model.config.num_hidden_layers)
        return works(job, model, device)

    monkeypatch.setattr(measure, "_works", watched)
    assert main(METHOD, command) == 0
    assert turns == [6, 4] * 4  # one warms up
    times = json.loads((tmp_path / "out" / "pruning.json").read_text())["evaluation"]["times"]
    for side in ("before", "after"):
        for middle, least, most in times[side].values():
            assert 0 < least <= middle <= most
    middle, least, most = times["after"]["forward_ms"]
    assert f"{middle:,.1f} [{least:,.1f}, {most:,.1f}]" in (tmp_path / "out" / "README.md").read_text()


def test_times_are_left_out_on_a_loaded_machine_with_the_reason(command, tmp_path, monkeypatch):
    monkeypatch.setattr(measure.threads, "idle", lambda: 0.2)
    assert main(METHOD, command) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        "Times are left out: other processes kept the cores busy: 0.2 were free" in card and "forward pass" not in card
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
