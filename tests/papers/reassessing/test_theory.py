"""Section 4 in numbers: closed forms against automatic differentiation, gradients and layer norms against plain ones."""

import pytest
import torch
from torch.nn import functional as F

from common.models.decoder import Decoder
from papers.reassessing import gradients, theory


def test_the_norms_are_those_of_torch():
    x = torch.randn(12, dtype=torch.float64)
    torch.testing.assert_close(theory.layer_norm(x, 1e-5), F.layer_norm(x, (12,), eps=1e-5))
    torch.testing.assert_close(theory.rms_norm_inside(x, 1e-5), F.rms_norm(x, (12,), eps=1e-5))
    torch.testing.assert_close(theory.rms_norm(x, 0.3), x / ((x @ x / 12) ** 0.5 + 0.3))


@pytest.mark.parametrize("kind", theory.NORMS)
def test_theorem_4_1_holds_from_two_dimensions_on_and_4_2_from_three_and_not_below(kind):
    assert theory.deviation(kind) < 1e-12
    least = 3 if kind == "layer" else 2
    assert theory.deviation(kind, widths=(least,)) < 1e-12
    assert theory.deviation(kind, widths=(least - 1,)) > 0.5


def test_every_counterexample_contradicts_what_is_stated():
    examples = {entry["statement"].split(" (")[0]: entry for entry in theory.counterexamples()}
    assert examples["Theorem 4.2, d = 2"]["measured"] < 0.1 * examples["Theorem 4.2, d = 2"]["stated"]
    order = examples["Eq. 14, B_RMS <= B_LN"]
    assert order["measured"] > order["stated"]
    assert examples["Eq. 14, B_LN < 1"]["measured"] > 1
    assert examples["Eq. 6"]["measured"] > 1e-3


def test_eq_14_order_holds_where_eps_is_inside_the_root():
    for scale in (1e-3, 0.02, 1.0):
        x = scale * torch.randn(16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        assert theory.stated_norm("rms-inside", x, 1e-5) <= theory.stated_norm("layer", x, 1e-5)


def test_gradient_norms_are_those_of_a_plain_backward_pass(make_tiny, ids):
    model = make_tiny("llama").double()
    model.requires_grad_(False)
    norms = gradients.gradient_norms(gradients.of_model(Decoder(model), ids))
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())

    plain = make_tiny("llama").double()
    output = plain(ids, labels=ids, output_hidden_states=True)
    hidden = output.hidden_states[:-1]
    streams = torch.autograd.grad(output.loss, hidden, retain_graph=True)
    output.loss.backward()
    for layer, module in enumerate(plain.model.layers):
        square = sum(p.grad.square().sum() for p in module.parameters())
        assert norms["parameters"][layer] == pytest.approx(float(square**0.5), rel=1e-6)
        assert norms["stream"][layer] == pytest.approx(float(streams[layer].norm()), rel=1e-6)


def test_one_over_the_root_mean_square_is_the_norm_of_the_rms_norms_jacobian(make_tiny, ids):
    """By automatic differentiation of torch's own norm, at the input of every layer."""
    model = make_tiny("llama").double()
    rms_by_layer = gradients.stream_rms(gradients.of_model(Decoder(model), ids[:1]))
    states = model(ids[:1], output_hidden_states=True, use_cache=False).hidden_states[:-1]
    for sizes, state in zip(rms_by_layer, states, strict=True):
        for token in (0, 11, 23):
            jacobian = torch.func.jacrev(lambda x: F.rms_norm(x, (64,), eps=0.0))(state[0, token].detach())
            assert 1 / sizes[token].item() == pytest.approx(theory.spectral_norm(jacobian), rel=1e-6)


def test_layer_norms_reach_the_jacobians_largest_singular_value():
    for pre in (True, False):
        stack = gradients.toy(pre, layers=2, width=8, tokens=4)
        path = gradients.states(stack)
        measured = gradients.layer_norms(stack, iterations=60)
        for layer in range(2):
            full = torch.func.jacrev(lambda h, s=stack, n=layer: s.step(n, h).flatten())(path[layer].detach())
            assert measured[layer] == pytest.approx(theory.spectral_norm(full.reshape(32, 32)), rel=1e-3)


def test_eq_16_bounds_the_gradient_from_above():
    for pre in (True, False):
        stack = gradients.toy(pre, layers=3, width=8, tokens=4)
        stream = gradients.gradient_norms(stack)["stream"]
        upper = gradients.bound(gradients.layer_norms(stack, iterations=40), stream[-1])
        assert upper[-1] == stream[-1]
        assert all(b >= s for b, s in zip(upper, stream, strict=True))


def test_layer_norms_run_on_a_real_architecture(make_tiny, ids):
    for name in ("gemma2", "mixtral"):
        model = make_tiny(name)
        model.set_experts_implementation("eager")
        norms = gradients.layer_norms(gradients.of_model(Decoder(model), ids[:1]), iterations=3)
        assert len(norms) == 6 and min(norms) > 0


def test_gradients_that_float16_has_no_number_for_are_measured():
    """One of 2e-8 a channel, below half of float16's least number (6e-8), on layers that pass the stream on."""
    layers = [torch.nn.Linear(64, 64, bias=False, dtype=torch.float16) for _ in range(2)]
    for layer in layers:
        torch.nn.init.eye_(layer.weight)
    start = torch.ones(1, 4, 64, dtype=torch.float16)
    stack = gradients.Stack(layers, lambda n, x: layers[n](x), lambda x: 2e-8 * x.float().sum(), start)
    norms = gradients.gradient_norms(stack)
    assert norms["stream"] == pytest.approx([2e-8 * 256**0.5] * 3, rel=0.01)
    assert norms["parameters"] == pytest.approx([2e-8 * 4 * 64] * 2, rel=0.01)
