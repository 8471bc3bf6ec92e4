"""States shared between evaluations: the same answers as without, and never across different weights."""

import copy

import pytest
import torch
from lm_eval.api.instance import Instance

from common.decoder import Decoder
from common.evaluation import prefix_store
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.prefix_store import PrefixStore, weights_chain
from common.hooks import attach_patch
from common.surgery import remove_layers


@pytest.fixture(autouse=True)
def store(monkeypatch):
    monkeypatch.setattr(prefix_store, "STORE", PrefixStore())


def requests():
    pairs = [("the layers of a model", f" are {ending}") for ending in ("removed", "scaled and removed", "a stream")]
    pairs += [("quick zebra", " the stream is"), ("quick zebra is", " scaled")]
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def scored(model, tokenizer):
    lm = SharedContextLM(model, tokenizer)
    return lm.loglikelihood(requests()), lm.layers_saved


def alone(model, tokenizer, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(prefix_store, "STORE", PrefixStore(limit=0))
        answers, saved = scored(model, tokenizer)
    assert saved == 0
    return answers


def test_a_pruned_model_starts_where_it_parts_and_scores_the_same(tiny, tiny_tokenizer, monkeypatch):
    pruned = copy.deepcopy(tiny)
    remove_layers(pruned, [4])
    scored(tiny, tiny_tokenizer)
    answers, saved = scored(pruned, tiny_tokenizer)
    assert saved > 0 and saved % 4 == 0  # every pass began at layer 4
    assert answers == alone(pruned, tiny_tokenizer, monkeypatch)  # to the bit
    again, saved_again = scored(tiny, tiny_tokenizer)
    assert saved_again >= saved and again == alone(tiny, tiny_tokenizer, monkeypatch)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"])
def test_other_weights_share_nothing_behind_them(tiny_llama, tiny_tokenizer, monkeypatch, name):
    scored(tiny_llama, tiny_tokenizer)
    with torch.no_grad():
        tiny_llama.get_parameter(name)[0, 0] += 0.5
    answers, saved = scored(tiny_llama, tiny_tokenizer)
    assert saved == 0 and answers == alone(tiny_llama, tiny_tokenizer, monkeypatch)


def test_a_patch_a_hook_or_a_replaced_forward_ends_the_shared_part(tiny_llama, tiny_tokenizer, make_patch, monkeypatch):
    scored(tiny_llama, tiny_tokenizer)
    assert list(weights_chain(Decoder(tiny_llama))) == [2, 4]
    attach_patch(tiny_llama, 3, make_patch(0.5))
    assert list(weights_chain(Decoder(tiny_llama))) == [2]
    answers, saved = scored(tiny_llama, tiny_tokenizer)
    assert saved > 0 and answers == alone(tiny_llama, tiny_tokenizer, monkeypatch)
    tiny_llama.model.layers[1].mlp.forward = lambda x: x
    assert weights_chain(Decoder(tiny_llama)) == {}


@pytest.mark.parametrize("position", [2, 3, 4])
def test_states_of_a_patched_model_are_those_before_its_patch(
    make_tiny, tiny_tokenizer, make_patch, monkeypatch, position
):
    models = {"first": 0.5, "second": -0.8, "plain": None}
    for name, shift in models.items():
        models[name] = make_tiny("llama")
        if shift is not None:
            attach_patch(models[name], position, make_patch(shift))
    for name in ("first", "second", "plain", "first"):  # the patched one comes first: nothing else has been stored
        answers, _ = scored(models[name], tiny_tokenizer)
        assert answers == alone(models[name], tiny_tokenizer, monkeypatch), name


def test_norm_epsilon_and_configuration_are_part_of_the_digest(tiny_llama):
    before = weights_chain(Decoder(tiny_llama))
    tiny_llama.model.layers[2].input_layernorm.variance_epsilon = 0.1
    changed = weights_chain(Decoder(tiny_llama))
    assert changed[2] == before[2] and changed[4] != before[4]
    tiny_llama.config.rope_parameters = {"rope_type": "default", "rope_theta": 5.0}
    assert weights_chain(Decoder(tiny_llama))[2] != before[2]


def test_the_least_used_states_go_first():
    store = PrefixStore(limit=3 * 40)
    for key in "abc":
        store.put(key, torch.ones(10))
    assert store.deepest({1: "a"}, "")[0] == 1
    store.put("d", torch.ones(10))
    assert store.bytes == 120
    assert [store.deepest({1: key}, "")[0] for key in "abcd"] == [1, 0, 1, 1]
    store.put("too large", torch.ones(100))
    assert store.bytes == 120
