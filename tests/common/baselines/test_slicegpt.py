"""SliceGPT against the dense model, and against the dense model with its stream projected; it decodes, saves, reloads."""

import copy
from functools import partial

import pytest
import torch
from heads import logits as logits_of
from transformers import AutoModelForCausalLM
from weights import changed_weights, weights

from common.baselines import slicegpt
from common.baselines import sublayer_steps as _steps  # noqa: F401 - registers them
from common.baselines.sublayer_steps import SliceGpt
from common.hooks import attach_patch
from common.models import checkpoint
from common.models.layers import structure
from common.models.surgery import remove_layers, without_layers
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError

IDS = torch.randint(3, 320, (6, 20), generator=torch.Generator().manual_seed(3))
SLICEABLE = ("llama", "mistral", "qwen2", "qwen3", "qwen3-sliding")
C = 64


logits = partial(logits_of, ids=IDS)


@pytest.fixture(params=SLICEABLE)
def sliceable(request, make_tiny):
    return make_tiny(request.param)


def projected_logits(model, width):
    """The dense model in float64, its stream projected on its principal directions before every half but after the last.

    Uncentred directions of the stream as it is after the projections before; by hooks on the model's own modules.
    """
    model = copy.deepcopy(model).double()

    def projected(stream):
        rows = stream.flatten(0, 1)
        directions = torch.linalg.svd(rows, full_matrices=True).Vh[:width]
        return stream @ directions.T @ directions

    def before_layer(_module, args, kwargs):
        return (projected(args[0]), *args[1:]), kwargs

    for layer in model.model.layers:
        layer.register_forward_pre_hook(before_layer, with_kwargs=True)
        layer.forward = half_projected(layer, projected)
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.float()


def half_projected(layer, projected):
    def forward(hidden, **kwargs):
        hidden = projected(hidden + layer.self_attn(layer.input_layernorm(hidden), **kwargs)[0])
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    return forward


def test_centred_and_not_sliced_is_the_dense_model_of_a_centred_embedding(tiny_llama):
    centred = copy.deepcopy(tiny_llama)
    weight = centred.model.embed_tokens.weight.data
    weight -= weight.mean(1, keepdim=True)
    assert not torch.allclose(logits(centred), logits(tiny_llama), atol=0.1)  # it does change an RMSNorm model
    slicegpt.slice_stream(tiny_llama, IDS, C, centre=True)
    torch.testing.assert_close(logits(tiny_llama), logits(centred), rtol=1e-3, atol=1e-3)


def test_sliced_is_the_dense_model_with_its_stream_projected(sliceable, tmp_path, greedy):
    expected = projected_logits(sliceable, 40)
    assert not torch.allclose(logits(sliceable), expected, atol=0.1)
    slicegpt.slice_stream(sliceable, IDS, 40, batch_size=4)
    torch.testing.assert_close(logits(sliceable), expected, rtol=2e-3, atol=2e-3)
    assert torch.equal(greedy(sliceable, IDS, use_cache=True), greedy(sliceable, IDS, use_cache=False))

    assert "shortcut" in structure.why_not_plain(sliceable)
    directory = checkpoint.save(sliceable, None, tmp_path / "model")
    loaded, _ = checkpoint.load(directory)
    assert torch.equal(logits(loaded), logits(sliceable))
    assert torch.equal(greedy(loaded, IDS, use_cache=True), greedy(sliceable, IDS, use_cache=True))
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in sliceable.parameters())
    with pytest.raises(RuntimeError):  # plain Transformers refuses it, and makes up no weights
        AutoModelForCausalLM.from_pretrained(directory)


def test_a_tied_head_stays_as_it_was(make_tiny, tmp_path):
    model = make_tiny("llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    expected, head = logits(model), model.lm_head.weight.detach().clone()
    slicegpt.slice_stream(model, IDS, C)
    torch.testing.assert_close(logits(model), expected, rtol=1e-3, atol=1e-3)
    checkpoint.save(model, None, tmp_path / "model")
    assert torch.equal(checkpoint.load(tmp_path / "model")[0].lm_head.weight, head)


def test_half_precision_is_kept(make_tiny, tmp_path):
    half = make_tiny("llama").to(torch.bfloat16)
    slicegpt.slice_stream(half, IDS, 40)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    checkpoint.save(half, None, tmp_path / "model")
    assert not changed_weights(checkpoint.load(tmp_path / "model")[0], weights(half))


@pytest.mark.parametrize("name", ["gemma2", "mixtral"])
def test_what_does_not_commute_with_rotations_is_refused_by_name(make_tiny, name):
    model = make_tiny(name)
    before = logits(model)
    with pytest.raises(UserError, match=f"architecture '{name}'.*supported: llama, mistral, qwen2, qwen3") as caught:
        slicegpt.slice_stream(model, IDS, 40)
    assert "\n" not in str(caught.value) and torch.equal(logits(model), before)


def test_bad_widths_patches_and_later_surgery_are_refused(tiny_llama, make_patch):
    for left in (0, 65):
        with pytest.raises(UserError, match=f"leaves 1..64 channels of this model, not {left}"):
            slicegpt.slice_stream(tiny_llama, IDS, left)
    patched = copy.deepcopy(tiny_llama)
    attach_patch(patched, 2, make_patch(0.4))
    with pytest.raises(UserError, match="SliceGPT needs a model without patches"):
        slicegpt.slice_stream(patched, IDS, 40)
    slicegpt.slice_stream(tiny_llama, IDS, 40)
    for later in (lambda: remove_layers(tiny_llama, [2]), lambda: attach_patch(tiny_llama, 2, make_patch(0.4))):
        with pytest.raises(UserError, match="has a basis of its own"):
            later()
    with pytest.raises(UserError, match="has a basis of its own"), without_layers(tiny_llama, [2]):
        pass
    with pytest.raises(UserError, match="has a basis of its own"):
        slicegpt.slice_stream(tiny_llama, IDS, 40)


@pytest.mark.parametrize("fidelity", ["paper", "code"])
def test_the_step_in_a_recipe_slices_by_the_recipes_tokens(tiny_llama, fidelity):
    expected = copy.deepcopy(tiny_llama)
    width = slicegpt.width_of_ratio(tiny_llama, 0.2)
    slicegpt.slice_stream(expected, IDS, width, centre=fidelity == "code")
    context = context_of(tiny_llama, sequences=IDS, selection={"method": "slicegpt", "ratio": 0.2}, fidelity=fidelity)
    run_recipe(context)
    assert torch.equal(logits(tiny_llama), logits(expected))
    assert context.details["sliced"] == {"width": width} and context.removed == []


@pytest.mark.parametrize("name", SLICEABLE)
@pytest.mark.parametrize("tied", [False, True])
def test_widths_by_parameters_are_the_nearest(make_tiny, name, tied):
    model = make_tiny(name)
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    dense, counted = sum(p.numel() for p in model.parameters()), {}
    for left in range(8, C + 1, 8):
        sliced = copy.deepcopy(model)
        slicegpt.slice_stream(sliced, IDS[:1], left)
        counted[left] = sum(p.numel() for p in sliced.parameters())
        assert slicegpt.parameters(model, left) == counted[left]
    ratio = 2 * sum(p.numel() for p in model.model.layers[0].parameters()) / dense
    nearest = min(counted, key=lambda left: abs(1 - counted[left] / dense - ratio))
    assert SliceGpt(layers=2).width(model) == SliceGpt(ratio=ratio).width(model) == nearest


@pytest.mark.parametrize("options", [{}, {"layers": 1, "ratio": 0.2}, {"ratio": 1.5}, {"ratio": -0.1}])
def test_sizes_that_are_none_are_refused(tiny_llama, options):
    with pytest.raises(UserError, match="exactly one|a ratio of parameters from 0"):
        SliceGpt(**options).width(tiny_llama)
