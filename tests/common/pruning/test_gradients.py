"""Taylor and magnitude against one naive backward pass of the whole model and a plain sum over its state dict."""

import copy
import weakref

import pytest
import torch
from heads import watch_head
from naive_scores import naive_loss, naive_taylor, without
from weights import changed_weights, weights

from common.forward import losses
from common.hooks import scale_stream
from common.models.decoder import Decoder
from common.pruning import importance
from common.utils.errors import UserError


def test_taylor_is_the_naive_backward_pass(tiny, crops):
    expected = naive_taylor(tiny, crops)
    before = weights(tiny)
    scores = importance.taylor(Decoder(tiny), crops, micro_batch=2)
    torch.testing.assert_close(scores, expected, rtol=2e-3, atol=1e-5)
    assert all(p.grad is None and p.requires_grad for p in tiny.parameters()) and not changed_weights(tiny, before)


def test_taylor_of_a_frozen_half_precision_model_is_that_of_its_widened_copy(make_tiny, crops):
    half = make_tiny("llama").bfloat16().requires_grad_(False)
    wide = make_tiny("llama").bfloat16().float()
    states = [list(importance.layer_inputs(Decoder(wide), crops, range(6)))]
    options = {"micro_batch": 5, "inputs": states}
    scores = importance.taylor(Decoder(half), crops, **options)
    torch.testing.assert_close(scores, naive_taylor(wide, crops), rtol=1e-3, atol=0)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in half.parameters())


def test_gradients_of_one_layer_exist_at_a_time(tiny_llama, crops, monkeypatch):
    """At most a layer's sum and what one micro-batch adds to it are alive whenever gradients are made."""
    alive, most, grad = [], [], torch.autograd.grad

    def watched(outputs, inputs, *args, **options):
        gradients = grad(outputs, inputs, *args, **options)
        if isinstance(inputs, list):  # a layer's, not the loss's
            alive.extend(weakref.ref(gradient) for gradient in gradients[1:])
            most.append(sum(gradient.numel() for reference in alive if (gradient := reference()) is not None))
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", watched)
    importance.taylor(Decoder(tiny_llama), crops, micro_batch=1)
    layer = sum(p.numel() for p in tiny_llama.model.layers[0].parameters())
    assert len(most) == 6 * 5
    assert max(most) == 2 * layer


def test_the_loss_gradient_needs_few_positions_logits_at_a_time(tiny, crops, monkeypatch):
    monkeypatch.setattr(losses, "ROWS", 7)
    expected = naive_taylor(tiny, crops)
    rows, alive = watch_head(tiny)
    scores = importance.taylor(Decoder(tiny), crops, micro_batch=5)
    torch.testing.assert_close(scores, expected, rtol=2e-3, atol=1e-5)
    assert rows == [7] * 12 + [1]  # 5 x 17 predictions
    assert max(alive) == 1
    assert all(p.grad is None for p in tiny.parameters())


def test_taylor_layer_executions_are_the_stated_ones(tiny_llama, crops):
    decoder = Decoder(tiny_llama)
    importance.taylor(decoder, crops, micro_batch=2)
    assert decoder.executions == 2 * 6 * 3
    decoder.executions = 0
    known = [list(importance.layer_inputs(decoder, batch, range(6))) for batch in crops.split(2)]
    decoder.executions = 0
    importance.taylor(decoder, crops, micro_batch=2, inputs=known)
    assert decoder.executions == 6 * 3


def test_gains_are_factors_on_the_stream(tiny, crops):
    decoder, gains = Decoder(tiny), {2: 1.5, 5: 0.5}
    with scale_stream(tiny, 2, 1.5), scale_stream(tiny, 5, 0.5):
        expected = naive_taylor(tiny, crops)
        losses = [naive_loss(without(tiny, [layer]), crops) for layer in (1, 3)]  # the hooks come along
    scores = importance.taylor(decoder, crops, micro_batch=2, gains=gains)
    torch.testing.assert_close(scores, expected, rtol=2e-3, atol=1e-5)
    trials = importance.losses_without_each(decoder, crops, list(range(6)), [1, 3], gains=gains)
    torch.testing.assert_close(trials, torch.tensor(losses, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_matrices_on_the_stream_carry_gradients_back(tiny_llama, crops):
    """As one backward pass through the model with hooks that multiply what layers receive."""
    generator = torch.Generator().manual_seed(1)
    gains = {2: torch.eye(64) + torch.randn(64, 64, generator=generator) / 8}
    gains[4] = torch.rand(64, generator=generator) + 0.5
    plain = copy.deepcopy(tiny_llama)
    for layer, gain in gains.items():
        matrix = gain if gain.ndim == 2 else gain.diag()
        plain.model.layers[layer].register_forward_pre_hook(lambda _, args, m=matrix: (args[0] @ m, *args[1:]))
    scores = importance.taylor(Decoder(tiny_llama), crops, micro_batch=2, gains=gains)
    torch.testing.assert_close(scores, naive_taylor(plain, crops), rtol=2e-3, atol=0)


def test_inputs_that_do_not_fit_are_run_again(tiny_llama, crops, monkeypatch):
    expected = importance.taylor(Decoder(tiny_llama), crops, micro_batch=2)
    monkeypatch.setattr(importance, "STATE_BYTES", 2 * crops.numel() * 64 * 4)  # of 7: every fourth
    decoder = Decoder(tiny_llama)
    torch.testing.assert_close(importance.taylor(decoder, crops, micro_batch=2), expected, rtol=1e-6, atol=0)
    assert decoder.executions == 3 * (2 * 6 + 3 + 1)  # inputs 1 to 3 and 5 come twice


def test_magnitude_with_factors_is_that_of_the_scaled_weights(tiny):
    decoder = Decoder(tiny)
    expected = importance.magnitude(decoder, layers=[1, 3], factors={1: 1.5, 2: 7.0})
    for writer in decoder.residual_writers(1):
        writer.scale_(1.5)
    torch.testing.assert_close(expected, importance.magnitude(decoder)[[1, 3]], rtol=1e-6, atol=0)


def test_bad_input_is_named(tiny_llama, crops):
    with pytest.raises(UserError, match="2 or more"):
        importance.taylor(Decoder(tiny_llama), crops[:, :1])
