"""`Decoder` against Hugging Face's own forward pass, on every supported architecture."""

import pytest
import torch
from heads import logits as hf_logits
from tiny_models import ARCHITECTURES, FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gemma2 import modeling_gemma2

from common.models.architectures import SUPPORTED
from common.models.decoder import Decoder
from common.models.surgery import remove_layers, untie_embeddings
from common.utils.errors import UserError


def padding(kind, ids):
    mask = torch.ones_like(ids)
    if kind == "left":
        mask[0, :5] = 0
    if kind == "right":
        mask[1, -7:] = 0
    return None if kind == "none" else mask


@pytest.fixture(params=sorted({*ARCHITECTURES, *FAMILIES}))
def any_model(request, make_tiny):
    """A fresh tiny model, once per supported architecture."""
    return make_tiny(request.param)


@pytest.mark.parametrize("side", ["none", "left", "right"])
@torch.no_grad()
def test_logits_are_those_of_hugging_face(any_model, ids, side):
    mask = padding(side, ids)
    decoder, positions = Decoder(any_model), None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    logits = decoder.logits(decoder.run(decoder.embed_tokens(ids, positions), 0, decoder.num_layers, mask))
    read = slice(None) if mask is None else mask.bool()
    assert torch.equal(logits[read], hf_logits(any_model, ids, attention_mask=mask)[read])


@torch.no_grad()
def test_eager_attention_and_bfloat16(tiny, ids):
    tiny.set_attn_implementation("eager")
    tiny.to(torch.bfloat16)
    decoder = Decoder(tiny)
    assert torch.equal(decoder.logits(decoder.run(decoder.embed_tokens(ids))), hf_logits(tiny, ids))


@torch.no_grad()
def test_any_suffix_continues_from_hidden_states(any_model, ids):
    """X[l] is Hugging Face's hidden_states[l] for l < N, and running on from it gives the same logits."""
    states = any_model(ids, output_hidden_states=True, use_cache=False).hidden_states
    decoder = Decoder(any_model)
    for cut in range(decoder.num_layers):
        assert torch.equal(decoder.run(decoder.embed_tokens(ids), 0, cut), states[cut])
        assert torch.equal(decoder.logits(decoder.run(states[cut], cut)), hf_logits(any_model, ids))


@pytest.mark.parametrize("layers", [[0, 1, 4, 5], [1, 2, 4], [0, 3]])
@torch.no_grad()
def test_a_subset_of_layers_is_the_pruned_model(tiny, ids, layers):
    decoder = Decoder(tiny)
    hidden = decoder.run(decoder.embed_tokens(ids), layers=layers)
    logits = decoder.logits(hidden)
    remove_layers(tiny, [layer for layer in range(6) if layer not in layers])
    assert torch.equal(logits, hf_logits(tiny, ids))
    assert torch.equal(decoder.logits(decoder.run(decoder.embed_tokens(ids))), logits)  # the view follows surgery


@torch.no_grad()
def test_executions_count_layer_calls(tiny_llama, ids):
    calls = []
    for layer in tiny_llama.model.layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    decoder = Decoder(tiny_llama)
    hidden = decoder.run(decoder.embed_tokens(ids), 0, 4)
    decoder.run(hidden, 4, 6)
    decoder.run(hidden, layers=[5])
    assert decoder.executions == len(calls) == 7


def test_masks_and_rotary_embedding_are_built_once_per_shape_and_padding(make_tiny, ids, monkeypatch):
    built = []
    for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
        make = getattr(modeling_gemma2, name)
        monkeypatch.setattr(modeling_gemma2, name, lambda k=name, m=make, **kw: built.append(k) or m(**kw))
    model = make_tiny("gemma2")
    rotations = []
    model.model.rotary_emb.register_forward_pre_hook(lambda *_: rotations.append(1))
    decoder = Decoder(model)
    mask = padding("left", ids)
    with torch.no_grad():
        hidden = decoder.embed_tokens(ids)
        for _ in range(3):
            decoder.run(hidden, 0, 6, mask)
            decoder.run(hidden, 2, 5, mask.clone())
        assert (len(built), len(rotations)) == (2, 1)
        mask[0, :6] = 0  # the same tensor, changed in place, is another mask
        changed = decoder.run(hidden, 0, 6, mask)
        assert len(built) == 4
        assert torch.equal(decoder.logits(changed), hf_logits(model, ids, attention_mask=mask))


def test_differentiable(tiny, ids):
    decoder = Decoder(tiny)
    tiny.zero_grad()
    tiny(ids, use_cache=False).logits.square().mean().backward()
    expected = {name: p.grad.clone() for name, p in tiny.named_parameters() if p.grad is not None}
    tiny.zero_grad()
    decoder.logits(decoder.run(decoder.embed_tokens(ids))).square().mean().backward()
    for name, parameter in tiny.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_trainable_after_inference_mode(tiny_llama, ids):
    decoder = Decoder(tiny_llama)
    with torch.inference_mode():
        decoder.run(decoder.embed_tokens(ids), attention_mask=padding("left", ids))
    decoder.run(decoder.embed_tokens(ids), attention_mask=padding("left", ids)).sum().backward()
    assert tiny_llama.model.layers[0].mlp.down_proj.weight.grad is not None


def test_view(make_tiny):
    decoder = Decoder(make_tiny("gemma2"))
    assert (decoder.architecture, decoder.num_layers, decoder.hidden_size, decoder.tied) == ("gemma2", 6, 64, True)
    assert [decoder.layer_type(i) for i in range(2)] == ["sliding_attention", "full_attention"]
    untie_embeddings(decoder.model)
    assert not decoder.tied
    assert Decoder(make_tiny("mistral")).layer_type(3) == "sliding_attention"
    assert Decoder(make_tiny("mixtral")).layer_type(3) == "full_attention"


def test_unsupported_architecture_is_named():
    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=2, n_head=2, vocab_size=10)
    with pytest.raises(UserError, match="'gpt2' is not supported; supported: apertus, cohere2") as caught:
        Decoder(AutoModelForCausalLM.from_config(config))
    assert all(name in str(caught.value) for name in SUPPORTED)


@pytest.mark.parametrize(("start", "stop", "layers"), [(0, 7, None), (4, 2, None), (0, None, [6]), (-1, 3, None)])
def test_layers_outside_the_model_are_refused(tiny_llama, ids, start, stop, layers):
    decoder = Decoder(tiny_llama)
    with pytest.raises(UserError, match="cannot run layers"):
        decoder.run(decoder.embed_tokens(ids), start, stop, layers=layers)
