"""The training loop against torch's own optimizer and scheduler, and against itself when it is cut off."""

import itertools
import math

import pytest
import torch
from killed import raising_at
from torch import nn

from common.training import checkpoint_clock
from common.training.fitting import CHECKPOINT, Fitting, fit
from common.utils.errors import UserError

DATA = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))


def start():
    return {"a": nn.Parameter(torch.linspace(-1, 1, 5)), "b": nn.Parameter(torch.tensor([0.5]))}


def loss_of(parameters):
    return lambda samples: ((DATA[list(samples)] * parameters["a"]).sum(-1) - parameters["b"]).square().mean()


@pytest.mark.parametrize("clip", [None, 0.5])
def test_it_is_adamw_with_a_cosine_per_step(clip):
    how = Fitting(learning_rate=0.05, weight_decay=0.1, batch_size=2, accumulate=2, epochs=3, clip=clip)
    fitted, reference = start(), start()
    report = fit(fitted, loss_of(fitted), len(DATA), how)
    optimizer = torch.optim.AdamW(reference.values(), lr=0.05, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9, eta_min=0.05 / 20)
    losses = []
    for step in range(9):
        batch = [(4 * step + i) % 12 for i in range(4)]
        loss = loss_of(reference)(batch)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(reference.values(), clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    for name in fitted:
        torch.testing.assert_close(fitted[name], reference[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(report["losses"]), torch.tensor(losses), rtol=1e-5, atol=1e-6)
    assert (report["status"], report["steps"]) == ("finished", 9)


def test_a_warm_up_rises_by_equal_steps_to_the_rate_and_falls_from_there():
    how = Fitting(learning_rate=0.8, final_share=0.25, warmup_share=0.4)
    rates = [how.rate(step, 10) for step in range(10)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:] == pytest.approx([0.2 + 0.3 * (1 + math.cos(math.pi * k / 6)) for k in range(6)])
    assert all(one > other for one, other in itertools.pairwise(rates[4:]))


@pytest.mark.parametrize("share", [0.03, 0.25])
def test_a_warm_up_that_ends_within_a_step_stays_within_the_rate(share):
    """Of ten steps 0.3 and 2.5: the first and the third have all of it."""
    how = Fitting(learning_rate=0.8, warmup_share=share)
    rates = [how.rate(step, 10) for step in range(10)]
    assert max(rates) == rates[int(10 * share)] == 0.8


@pytest.mark.parametrize("step", [1, 4, 7, 8])
def test_a_training_cut_off_anywhere_ends_with_the_same_bits(tmp_path, step):
    how = Fitting(learning_rate=0.05, epochs=2, batch_size=3, order="shuffled", seed=3, save_every=3)
    whole, parts = start(), start()
    expected = fit(whole, loss_of(whole), len(DATA), how)
    if step < 8:
        with pytest.raises(KeyboardInterrupt):
            fit(parts, raising_at(step + 1, loss_of(parts)), len(DATA), how, folder=tmp_path)
    parts = start()  # a new process knows nothing of the first
    report = fit(parts, loss_of(parts), len(DATA), how, folder=tmp_path)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert report["losses"] == expected["losses"] and report["status"] == "finished"
    again = start()
    assert fit(again, raising_at(1, loss_of(again)), len(DATA), how, folder=tmp_path) == report  # nothing is run again
    assert torch.equal(again["a"], whole["a"])


def test_long_steps_have_a_checkpoint_each(tmp_path, monkeypatch):
    """A stop in the fifth of twelve steps costs none of the four before it, though checkpoints are 250 steps apart."""
    monkeypatch.setattr(checkpoint_clock, "PATIENCE", 0.0)
    monkeypatch.setattr(checkpoint_clock, "SPARING", 0)
    whole, parts = start(), start()
    expected = fit(whole, loss_of(whole), 12)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, raising_at(5, loss_of(parts)), 12, folder=tmp_path)
    rest, parts = [], start()

    def counted(samples):
        rest.append(samples)
        return loss_of(parts)(samples)

    assert fit(parts, counted, 12, folder=tmp_path)["losses"] == expected["losses"]
    assert len(rest) == 8 and all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_checkpoint_that_takes_long_to_write_is_written_less_often(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint_clock.time, "monotonic", lambda: now[0])
    clock, due = checkpoint_clock.CheckpointClock(), []
    for writes in (1.0, 100.0, 1.0):  # seconds that each checkpoint takes
        begun = now[0]
        while not clock.due():
            now[0] += 1.0
        due.append(now[0] - begun)
        now[0] += writes
        clock.complete(now[0] - writes)
    assert due == [600.0, 600.0, 2000.0]


def test_a_shuffled_order_is_another_permutation_each_epoch():
    how = Fitting(order="shuffled", seed=5, batch_size=4)
    epochs = [sum(how.batches(epoch, 12), []) for epoch in (0, 1)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] == sum(how.batches(0, 12), [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_it_at_the_last_good_state(tmp_path, bad):
    how = Fitting(learning_rate=0.05, save_every=2)
    parameters, states = start(), []

    def failing(samples):
        states.append({name: value.detach().clone() for name, value in parameters.items()})
        return loss_of(parameters)(samples) + (bad if len(states) == 6 else 0.0)

    report = fit(parameters, failing, 12, how, folder=tmp_path)
    assert report["status"] == "diverged" and report["steps"] == 5 == len(report["losses"])
    assert f"step 5 is {bad}" in report["reason"]
    assert all(torch.equal(parameters[name], states[4][name]) for name in parameters)
    again = start()
    assert fit(again, failing, 12, how, folder=tmp_path) == report and torch.equal(again["a"], parameters["a"])


def test_a_gradient_that_is_not_finite_stops_it_before_the_step():
    parameters = {"a": nn.Parameter(torch.tensor([1.0, 0.0]))}
    report = fit(parameters, lambda samples: parameters["a"].sqrt().sum(), 4)  # the root's slope at 0 is infinite
    assert report["status"] == "diverged" and "gradient" in report["reason"] and report["steps"] == 0
    assert parameters["a"].tolist() == [1.0, 0.0]


def test_a_resumed_training_says_so(tmp_path, capsys):
    parameters, options = start(), {"folder": tmp_path, "progress": True}
    with pytest.raises(KeyboardInterrupt):
        fit(parameters, raising_at(3, loss_of(parameters)), 12, Fitting(save_every=2), **options)
    assert "continues" not in capsys.readouterr().err
    fit(parameters, loss_of(parameters), 12, Fitting(save_every=2), **options)
    assert f"training continues from {tmp_path}: 2 of 12 steps were done" in capsys.readouterr().err


def test_the_counter_spans_interruptions(tmp_path):
    counts, parameters = [0], start()

    def counting(samples):
        counts[0] += 7
        if counts[0] == 7 * 5:
            raise KeyboardInterrupt
        return loss_of(parameters)(samples)

    options = {"folder": tmp_path, "counter": lambda: counts[0]}
    with pytest.raises(KeyboardInterrupt):
        fit(parameters, counting, 12, Fitting(save_every=2), **options)
    assert fit(parameters, counting, 12, Fitting(save_every=2), **options)["executions"] == 7 * 12


def test_bad_input_is_named(tmp_path):
    parameters = start()
    fit(parameters, loss_of(parameters), 12, folder=tmp_path, identity={"data": 1})
    with pytest.raises(UserError, match="another training"):
        fit(parameters, loss_of(parameters), 12, folder=tmp_path, identity={"data": 2})
    (tmp_path / CHECKPOINT).write_bytes(b"half")
    with pytest.raises(UserError, match="delete it to train again"):
        fit(parameters, loss_of(parameters), 12, folder=tmp_path)
    with pytest.raises(UserError, match="no samples"):
        fit(parameters, loss_of(parameters), 0)
    with pytest.raises(UserError, match="unknown order"):
        Fitting(order="suffled")
    with pytest.raises(UserError, match="batch_size must be positive"):
        Fitting(batch_size=0)
