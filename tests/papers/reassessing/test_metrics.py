"""Every metric against a naive oracle on the Hugging Face model; calibration; iterative pruning step by step."""

import copy
import math
import random

import pytest
import torch
from heads import streams
from naive_scores import counted, naive_loss, naive_taylor, without
from weights import changed_weights, weights

from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.utils.errors import UserError
from papers import reassessing

CROPS = torch.randint(3, 320, (3, 12), generator=torch.Generator().manual_seed(3))


def hidden_states(model, ids):
    """X[0] .. X[N], the last before the final norm, from hooks on the layers."""
    return [state.double() for state in streams(model, ids)]


@pytest.mark.parametrize("name", ["llama", "qwen2", "mixtral"])
def test_magnitudes_are_sums_of_norms_and_in_the_code_sums_of_squares(make_tiny, name):
    model = make_tiny(name)
    decoder = Decoder(model)
    layers = [[w.detach().double() for w in counted(layer, False)] for layer in model.model.layers]
    with_norms = [[w.detach().double() for w in counted(layer, True)] for layer in model.model.layers]
    expected = {
        ("magnitude-l1", "paper"): [sum(w.abs().sum() for w in ws) for ws in layers],
        ("magnitude-l2", "paper"): [sum(m.norm() for w in ws for m in w.reshape(-1, *w.shape[-2:])) for ws in layers],
        ("magnitude-l1", "code"): [sum(w.abs().sum() for w in ws) for ws in with_norms],
        ("magnitude-l2", "code"): [sum((w**2).sum() for w in ws) for ws in with_norms],
    }
    for (metric, fidelity), values in expected.items():
        scores = reassessing.scores(metric, decoder, fidelity=fidelity)
        torch.testing.assert_close(scores, torch.stack(values), rtol=1e-6, atol=1e-6)
        order = sorted(range(6), key=lambda layer: values[layer])
        assert reassessing.select(metric, decoder, 4, fidelity=fidelity) == order[:4]


@pytest.mark.parametrize("fidelity", ["paper", "code"])
def test_taylor_is_weight_times_gradient_of_one_backward_pass(make_tiny, fidelity):
    model = make_tiny("qwen2")
    expected = naive_taylor(model, CROPS, norms=fidelity == "code")
    scores = reassessing.scores("taylor", Decoder(model), CROPS, fidelity=fidelity)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-6)


def test_ppl_is_the_loss_without_each_layer(tiny_llama):
    expected = [naive_loss(without(tiny_llama, [layer]), CROPS) for layer in range(6)]
    scores = reassessing.scores("ppl", Decoder(tiny_llama), CROPS)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_bi_is_per_token_in_the_paper_and_of_the_flat_batch_in_the_code(tiny):
    states = hidden_states(tiny, CROPS)
    decoder = Decoder(tiny)
    pairs = list(zip(states[:-1], states[1:]))
    per_token = torch.stack([1 - torch.cosine_similarity(a, b, dim=-1).mean() for a, b in pairs])
    torch.testing.assert_close(reassessing.scores("bi", decoder, CROPS), per_token, rtol=1e-4, atol=1e-6)
    flat = torch.stack([1 - torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in pairs])
    scores = reassessing.scores("bi", decoder, CROPS, fidelity="code")
    torch.testing.assert_close(scores[:-1], flat[:-1], rtol=1e-4, atol=1e-6)
    assert scores[-1] == math.inf
    assert 5 not in reassessing.select("bi", decoder, 4, CROPS, fidelity="code")


def test_orders_need_no_tokens(tiny_llama):
    decoder = Decoder(tiny_llama)
    assert reassessing.select("reverse-order", decoder, 3) == [5, 4, 3]
    assert reassessing.reverse_order(32, 8) == [31, 30, 29, 28, 27, 26, 25, 24]
    drawn = {tuple(reassessing.select("random", decoder, 3, seed=seed)) for seed in range(20)}
    assert len(drawn) > 10 and all(len(set(layers)) == 3 for layers in drawn)


def test_the_codes_random_layers_are_those_worked_out_from_its_seed():
    class Shape:
        num_layers = 32

    # kept: random.sample(range(32), 24) with seed 42
    assert reassessing.select("random", Shape(), 8, fidelity="code", seed=42) == [5, 6, 10, 11, 15, 22, 25, 26]


def test_bad_metrics_are_named(tiny_llama):
    decoder = Decoder(tiny_llama)
    with pytest.raises(UserError, match="did you mean 'taylor'"):
        reassessing.scores("tailor", decoder)
    with pytest.raises(UserError, match="unknown fidelity"):
        reassessing.scores("bi", decoder, CROPS, fidelity="papers")
    with pytest.raises(ValueError, match="needs calibration tokens"):
        reassessing.select("bi", decoder, 2)
    with pytest.raises(ValueError, match="cannot remove 5 of 6"):
        reassessing.select("reverse-order", decoder, 5)


def test_calibration_draws_long_lines_once_and_crops_them(tiny_tokenizer):
    lines = ["the stream", *(chr(97 + n) * 30 for n in range(6)), ""] * 2
    crops = reassessing.sample_line_crops(tiny_tokenizer, lines, count=5, length=20, seed=4)
    rng, used, expected = random.Random(4), [], []
    while len(expected) < 5:
        index = rng.randint(0, len(lines) - 1)
        ids = tiny_tokenizer(lines[index])["input_ids"]
        if len(ids) >= 20 and index not in used:
            used.append(index)
            start = rng.randint(0, len(ids) - 20)
            expected.append(ids[start : start + 20])
    assert crops.tolist() == expected
    few = reassessing.sample_line_crops(tiny_tokenizer, lines, count=2, length=20, seed=4)
    assert torch.equal(few, crops[:2])
    with pytest.raises(UserError, match="only 12 of 16 calibration lines have 20 tokens, not 13"):
        reassessing.sample_line_crops(tiny_tokenizer, lines, count=13, length=20)
    with pytest.raises(UserError, match="only 0 of 0 calibration lines"):
        reassessing.sample_line_crops(tiny_tokenizer, [], count=1)


def test_each_cycle_scores_the_model_of_that_moment(tiny_llama):
    """Against one-layer-at-a-time pruning of copies, with a training that visibly changes the scores."""

    def tune(model, cycle):
        with torch.no_grad():
            model.model.layers[cycle].mlp.up_proj.weight.mul_(0.2)  # makes this layer the next to go
        return len(model.model.layers)

    expected_model, alive, expected = copy.deepcopy(tiny_llama), list(range(6)), []
    for cycle in range(3):
        sums = [sum(w.abs().sum().item() for w in counted(layer, False)) for layer in expected_model.model.layers]
        position = sums.index(min(sums))
        expected.append(alive.pop(position))
        remove_layers(expected_model, [position])
        tune(expected_model, cycle)
    choose = lambda decoder, count: reassessing.select("magnitude-l1", decoder, count)  # noqa: E731
    one_shot = reassessing.select("magnitude-l1", Decoder(tiny_llama), 3)
    removed, reports = reassessing.prune_iteratively(tiny_llama, 1, 3, choose, tune)
    assert removed == expected != one_shot
    assert reports == [5, 4, 3]
    assert not changed_weights(tiny_llama, weights(expected_model))


def test_cycles_that_were_cut_off_go_on_as_if_they_had_not_been(make_tiny):
    """After any of them: the same layers, by their original names, the same reports and weights."""

    def tune(model, cycle):
        with torch.no_grad():
            model.model.layers[cycle % 2].mlp.up_proj.weight.mul_(0.2)  # another layer is the next to go
        return cycle, len(model.model.layers)

    choose = lambda decoder, count: reassessing.select("magnitude-l1", decoder, count)  # noqa: E731
    whole, saved = make_tiny(), []
    note = lambda *state: saved.append((*map(list, state), copy.deepcopy(whole)))  # noqa: E731
    expected = reassessing.prune_iteratively(whole, 1, 4, choose, tune, done=note)
    assert len(saved) == 4 and expected[0] != sorted(expected[0])
    for *earlier, model in saved[:-1]:
        assert reassessing.prune_iteratively(model, 1, 4, choose, tune, earlier=earlier) == expected
        torch.testing.assert_close(model.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_several_layers_a_cycle_and_a_last_cycle_with_what_is_left(tiny_llama):
    counts = []

    def choose(decoder, count):
        counts.append((decoder.num_layers, count))
        return reassessing.select("reverse-order", decoder, count)

    removed, _ = reassessing.prune_iteratively(tiny_llama, 2, 3, choose, lambda model, cycle: None)
    assert counts == [(6, 2), (4, 1)] and removed == [5, 4, 3]
    assert reassessing.schedule("1:4:8") == (4, 8)
    for wrong in ("8", "1:8", "2:1:8", "1:0:8", "1:9:8", "1:a:8"):
        with pytest.raises(ValueError, match="schedule"):
            reassessing.schedule(wrong)
