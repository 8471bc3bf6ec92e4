"""Scores and selections against naive loops on models that really lose the layers."""

import math
import random

import pytest
import torch
from heads import watch_head
from naive_scores import naive_loss, without
from transformers import LlamaConfig, LlamaForCausalLM

from common.calibration import collect
from common.forward import losses
from common.models.decoder import Decoder
from common.pruning import importance, selection
from common.pruning.pipeline import context_of
from common.pruning.steps import LeastLossBlock
from common.utils.errors import UserError


@pytest.mark.parametrize("starts", [[0, 4], [3, 1, 2]])
def test_losses_without_blocks_are_those_of_models_without_them(tiny, crops, starts):
    trials = importance.losses_without_blocks(Decoder(tiny), crops, 2, starts, batch_size=2)
    assert list(trials) == sorted(starts)
    for start, by_sequence in trials.items():
        model = without(tiny, [start, start + 1])
        assert by_sequence.tolist() == pytest.approx([naive_loss(model, row[None]) for row in crops], abs=1e-5)


def test_trials_of_blocks_share_the_layers_before_them(tiny_llama, crops):
    decoder = Decoder(tiny_llama)
    importance.losses_without_blocks(decoder, crops, 2, [1, 2, 3], batch_size=5)
    assert decoder.executions == 3 + (3 + 2 + 1)


@torch.no_grad()
def test_a_trial_given_the_dense_stream_where_its_block_ends_is_the_dense_model(tiny_llama, crops):
    options = {"entering": lambda trial, dense: dense, "batch_size": 2}
    trials = importance.losses_without_blocks(Decoder(tiny_llama), crops, 2, [1, 3], **options)
    for by_sequence in trials.values():
        assert by_sequence.tolist() == pytest.approx([naive_loss(tiny_llama, row[None]) for row in crops], abs=1e-5)


@pytest.mark.parametrize("samples", [1, 8])
def test_the_block_of_least_loss_is_that_of_the_naive_loop(tiny, crops, samples):
    trials = {s: naive_loss(without(tiny, [s, s + 1]), crops[:samples]) for s in (1, 2, 3)}
    context = context_of(tiny, sequences=crops)
    chosen = LeastLossBlock(count=2, samples=samples).choose(context)
    best = min(trials, key=trials.get)
    assert list(chosen) == [best, best + 1]
    assert context.details["loss_without"] == pytest.approx(trials[best], abs=1e-5)


def test_sleb_makes_the_choices_of_the_naive_loop(tiny, crops):
    removed, alive = [], list(range(6))
    for _ in range(3):
        trials = {c: naive_loss(without(tiny, [*removed, c]), crops) for c in alive[1:-1]}
        removed.append(min(trials, key=trials.get))
        alive.remove(removed[-1])
    assert selection.sleb(Decoder(tiny), crops, 3, batch_size=2) == removed
    assert selection.sleb(Decoder(tiny), crops, 3, batch_size=2, begun=removed[:2]) == removed


def test_sleb_layer_executions_are_the_stated_ones(tiny_llama, crops):
    decoder = Decoder(tiny_llama)
    selection.sleb(decoder, crops, 2, batch_size=5)
    assert decoder.executions == sum((m - 2) + (m - 2) * (m - 1) // 2 for m in (6, 5))


@pytest.mark.parametrize("rows", [7, 1000])
def test_few_positions_logits_exist_at_a_time_and_change_nothing(tiny, crops, monkeypatch, rows):
    """SLEB's and PPL's losses are means over whole windows, however few positions pass the head together."""
    monkeypatch.setattr(losses, "ROWS", rows)
    largest, most = watch_head(tiny)
    expected = [naive_loss(without(tiny, [layer]), crops) for layer in range(6)]
    del largest[:], most[:]
    every = list(range(6))
    scores = importance.losses_without_each(Decoder(tiny), crops, every, every, batch_size=5)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert max(largest) == min(rows, 5 * 17) and max(most) == 1
    del largest[:]
    first = selection.sleb(Decoder(tiny), crops, 1, batch_size=2)[0]
    assert first == min(range(1, 5), key=expected.__getitem__)
    assert max(largest) == min(rows, 2 * 17)


def test_best_block_is_the_argmax_and_the_code_keeps_the_ends(tiny_llama, crops):
    statistics = collect(Decoder(tiny_llama), crops, span=2)
    cosines = [statistics.cosine("token", s, s + 2) for s in range(5)]
    best = max(range(5), key=cosines.__getitem__)
    assert selection.best_block(statistics, 2, exclude_ends=False) == (best, best + 2)
    inner = max(range(1, 4), key=cosines.__getitem__)
    assert selection.best_block(statistics, 2, exclude_ends=True) == (inner, inner + 2)
    free = max((s for s in range(5) if s not in (best - 1, best)), key=cosines.__getitem__)
    assert selection.best_block(statistics, 2, exclude_ends=False, protect=[best]) == (free, free + 2)
    with pytest.raises(UserError, match="no block of 2 of 6 layers is without a protected one"):
        selection.best_block(statistics, 2, protect=[1, 3, 5])


def test_one_shot_takes_the_lowest_and_earlier_on_ties():
    scores = torch.tensor([0.1, 0.3, 0.2, 0.2, 0.9, 0.0], dtype=torch.float64)
    assert selection.one_shot(scores, 3) == [5, 0, 2]


@pytest.mark.parametrize("seed", range(3))
def test_of_a_random_order_the_first_that_python_draws_go_first(seed):
    """Published choices would be others if the permutation were read the other way round."""
    assert selection.one_shot(importance.random_order(9, seed), 6) == random.Random(seed).sample(range(9), 9)[:6]


@pytest.mark.parametrize("count", [0, -1, 5, 6])
def test_counts_outside_one_to_n_minus_two_are_refused(count):
    with pytest.raises(UserError, match=rf"cannot remove {count} of 6 layers; choose 1\.\.4"):
        selection.one_shot(torch.zeros(6), count)


def test_runs_are_maximal_and_half_open():
    assert selection.runs([7, 3, 4, 9, 8]) == [(3, 5), (7, 10)]
    assert selection.runs([]) == []


def test_a_trial_that_overflows_is_not_chosen(crops):
    """In float16 layers 1 and 3 write 50,000 and 2 and 4 take it back: without 2 alone the stream is infinite."""
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_attention_heads=4, mlp_bias=True, pad_token_id=None)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer, written in ((1, 5e4), (2, -5e4), (3, 5e4), (4, -5e4)):
            model.model.layers[layer].mlp.down_proj.bias[0] = written
    model.half()
    expected = {layer: naive_loss(without(model, [layer]), crops) for layer in (1, 2, 3, 4)}
    assert math.isnan(expected[2])
    finite = {layer: loss for layer, loss in expected.items() if not math.isnan(loss)}
    assert selection.sleb(Decoder(model), crops, 1) == [min(finite, key=finite.get)]


def test_the_lowest_score_is_a_number():
    assert selection.lowest({"a": math.nan, "b": 2.0, "c": 1.0, "d": 1.0}) == "c"
    assert selection.lowest({"a": math.nan, "b": math.inf}) == "b"
    with pytest.raises(UserError, match="none of 2 trials"):
        selection.lowest({1: math.nan, 2: math.nan})
