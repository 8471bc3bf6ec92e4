"""A tool saves before it measures: a kill, a full memory or a loaded machine costs numbers, never the checkpoint."""

import json
import os
import signal
import statistics
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from common.cli import measure
from common.evaluation import harness
from common.models import checkpoint
from common.utils import atomic_files
from common.utils.paths import ROOT

pytestmark = pytest.mark.usefixtures("short")


@pytest.fixture
def prune(tool):
    """`prune(*options)` removes two layers by Prune&Comp -> `Run`."""
    return lambda *options: tool("prunecomp", "--remove", 2, *options)


def at(moment, act, monkeypatch):
    """Call `act` when the perplexity is to be measured that is named so."""
    whole = measure.perplexity

    def perplexity(job, model, when):
        if when == moment:
            act()
        return whole(job, model, when)

    monkeypatch.setattr(measure, "perplexity", perplexity)


@pytest.mark.parametrize(("progress", "status"), [(subprocess.STDOUT, 130), (subprocess.DEVNULL, 0)])
def test_a_reader_that_leaves_ends_a_run_only_where_it_reads_the_progress(progress, status, model, text, tmp_path):
    """As `| head -1` does, with and without `2>&1`: status 0 says that the result is there."""
    options = ["--model", model, "--text", text, "--out", tmp_path / "out", "--samples", 4, "--length", 32]
    command = ["-m", "papers.prunecomp", *options, "--test-samples", 4, "--remove", 2, "--quick"]
    run = subprocess.Popen(
        [sys.executable, *map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=progress, text=True
    )
    if progress == subprocess.STDOUT:
        run.stdout.readline()
    run.stdout.close()
    assert run.wait(300) == status
    assert (tmp_path / "out").exists() == (status == 0)
    assert status or json.loads((tmp_path / "out" / "pruning.json").read_text())["unmeasured"] == ""


def test_a_kill_while_the_result_is_measured_leaves_a_checkpoint_that_loads(prune, tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        try:
            at("of the result", lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
            prune()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    report = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert "**Not measured:**" in (tmp_path / "out" / "README.md").read_text()
    assert report["unmeasured"] and not report["evaluation"]["after"] and report["evaluation"]["before"]
    model, tokenizer = checkpoint.load(tmp_path / "out")
    assert model.config.num_hidden_layers == 4
    assert model(torch.tensor([tokenizer("The layers")["input_ids"]])).logits.isfinite().all()
    assert prune("--force").status == 0  # it is replaced as any other


def test_memory_that_runs_out_while_measuring_costs_no_checkpoint(prune, monkeypatch):
    def full():
        raise MemoryError

    at("of the result", full, monkeypatch)
    run = prune()
    assert run.status == 0 and "not all was measured: out of memory" in run.card and "out of memory" in run.stdout
    assert run.model.config.num_hidden_layers == 4


def test_a_disk_that_is_full_after_saving_costs_the_card_alone(prune, tmp_path, monkeypatch):
    sync = atomic_files._sync

    def full(path):
        if path.name.endswith(".text.tmp"):
            raise OSError(28, "No space left on device")
        sync(path)

    monkeypatch.setattr(atomic_files, "_sync", full)
    run = prune()
    assert run.status == 0 and "perplexity: original" in run.stdout and "KL divergence" in run.stdout
    assert "its card could not be completed (No space left on device)" in run.stderr and "as it was" not in run.stderr
    assert "**Not measured:**" in run.card and run.model.config.num_hidden_layers == 4
    assert os.listdir(tmp_path) == ["out"]  # no part of a card beside it


@pytest.mark.parametrize("moment", ["of the original model", "of the result"])
@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupt_says_what_out_holds(moment, earlier, prune, tmp_path, monkeypatch):
    def files():
        return {file.name: file.read_bytes() for file in tmp_path.glob("out/*")}

    def stop():
        raise KeyboardInterrupt

    if earlier:
        assert prune().status == 0
    before = files()
    at(moment, stop, monkeypatch)
    run = prune("--force", "--seed", 5)
    assert run.status == 130
    if moment == "of the result":
        assert files() != before and f"interrupted; {run.out} holds the whole new checkpoint" in run.stderr
        assert "**Not measured:**" in run.card and run.model.config.num_hidden_layers == 4
    else:
        remaining = f"{run.out} is as it was" if earlier else "nothing was saved"
        assert files() == before and f"interrupted; {remaining}" in run.stderr


def test_a_card_of_another_run_is_left_alone(prune, tmp_path, monkeypatch):
    facts = tmp_path / "out" / "pruning.json"
    at("of the result", lambda: facts.write_text('{"environment": {}}'), monkeypatch)
    run = prune()
    assert run.status == 0 and "is not what was saved here any more" in run.stderr
    assert run.report == {"environment": {}}


def test_both_models_are_timed_in_turn_and_the_card_has_the_spread(prune, model, monkeypatch):
    for name, value in (("REPEATS", 3), ("BATCHES", (1, 2))):
        monkeypatch.setattr(measure, name, value)
    turns = []
    timed = measure._timed

    def watched(model, prompts, tokens):
        turns.append((model.config.num_hidden_layers, *prompts.shape, tokens))
        return timed(model, prompts, tokens)

    monkeypatch.setattr(measure, "_timed", watched)
    run = prune()
    assert turns == [(layers, size, 8, 2) for size in (1, 2) for layers in [6, 4] * 4]  # one of four warms up
    for size, sides in run.report["evaluation"]["times"]["batches"].items():
        for side in ("before", "after"):
            for key in ("first_ms", "token_ms"):
                middle, least, most = sides[side][key]
                assert 0 < least <= middle <= most and f"{middle:,.1f} [{least:,.1f}, {most:,.1f}]" in run.card
        # float32 weights, and keys and values of two heads of 16 channels for 8 + 2 - 1 tokens and each layer
        for side, count, saved in (("before", 6, checkpoint.load(model)[0]), ("after", 4, run.model)):
            weights = sum(4 * p.numel() for p in saved.parameters())
            assert sides[side]["bytes"] == weights + count * int(size) * 2 * 2 * 16 * 9 * 4


def idle(monkeypatch):
    monkeypatch.setattr(measure.threads, "idle", lambda: 0.2)


def impatient(monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE", 0.0)


def crowded(monkeypatch):
    monkeypatch.setattr("common.cli.checks.no_room_for_both", lambda job: "there is no memory")


@pytest.mark.parametrize(
    "change, reason",
    [
        (impatient, "Batch 1 is left out: it would take about"),
        (idle, "Times are left out: other processes kept the cores busy: 0.2 were free"),
        (crowded, "Times are left out: there is no memory"),
    ],
)
def test_times_are_left_out_with_the_reason(change, reason, prune, monkeypatch):
    change(monkeypatch)
    run = prune()
    assert run.status == 0 and reason in run.card and "time to first token" not in run.card
    assert all(run.report["evaluation"][stage]["samples"] for stage in ("before", "after"))


def test_divergence_is_that_of_the_two_models_logits(prune, model, text):
    run = prune()
    divergence = run.report["evaluation"]["divergence"]
    original, tokenizer = checkpoint.load(model)
    ids = torch.tensor(tokenizer(text.read_text())["input_ids"])
    sequences = ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)
    with torch.no_grad():
        before, after = (model(sequences).logits.double().log_softmax(-1) for model in (original, run.model))
    means = (before.exp() * (before - after)).sum(-1)[:, :-1].mean(1)
    assert divergence["kl"] == pytest.approx(means.mean().item(), rel=1e-4) and divergence["sequences"] == 4
    assert divergence["kl_stderr"] == pytest.approx(means.std().item() / 2, rel=1e-3)
    assert f"{divergence['kl']:.4f} ± {divergence['kl_stderr']:.4f}" in run.card


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


def test_the_card_compares_a_group_of_tasks_and_the_report_its_subjects_too(prune, monkeypatch):
    right = [{"one": [1, 0, 0], "two": [1, 1, 1, 0, 0]}, {"one": [1, 0, 1], "two": [1, 0, 0, 0, 0]}]  # result, original

    def evaluate(*unused, **options):
        outcomes = {f"mmlu_{name}": np.array(values, bool) for name, values in right.pop(0).items()}
        every = np.concatenate(list(outcomes.values()))
        scores = {"acc": every.mean(), "acc_stderr": 0.1, "n": 8}
        return {"mmlu": scores, "items": {name: {"acc": values} for name, values in outcomes.items()}}

    monkeypatch.setattr(harness, "check", lambda tasks: None)
    monkeypatch.setattr(harness, "members", lambda group: ["mmlu_one", "mmlu_two"])
    monkeypatch.setattr(harness, "evaluate", evaluate)
    run = prune("--tasks", "mmlu")
    changes = run.report["evaluation"]["changes"]
    assert {name: values["flips"] for name, values in changes.items()} == {
        "mmlu_one": pytest.approx(1 / 3),
        "mmlu_two": 2 / 5,
        "mmlu": 3 / 8,
    }
    assert changes["mmlu"]["change"] == pytest.approx(4 / 8 - 3 / 8)
    assert "| mmlu, flips (%) |  |  | 37.5 |" in run.card and "mmlu_one" not in run.card + run.stdout


@pytest.mark.parametrize(("more", "only"), [((), False), (("--no-compensation",), True)])
def test_a_mergekit_file_lies_beside_what_is_only_shorter(more, only, prune):
    run = prune("--no-evaluation", *more)
    file = run.out / "mergekit.yaml"
    assert file.exists() == only and ("mergekit.yaml" in run.card) == only
    if only:
        config = yaml.safe_load(file.read_text())
        sources = [source for part in config["slices"] for source in part["sources"]]
        remaining = [layer for source in sources for layer in range(*source["layer_range"])]
        assert remaining == [layer for layer in range(6) if layer not in run.report["facts"]["removed"]]
        assert (config["merge_method"], config["dtype"]) == ("passthrough", "float32")
        assert {source["model"] for source in sources} == {"tiny"}


def test_a_perplexity_near_the_vocabulary_is_called_chance(prune):
    run = prune()  # random weights
    assert run.status == 0
    for text in (run.stderr, run.card):
        assert "it predicts no better than chance" in text
