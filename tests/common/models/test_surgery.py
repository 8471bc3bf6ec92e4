"""Pruned models against an independent forward pass, cached generation, and save-and-reload, on every architecture."""

import copy
import json

import pytest
import torch
from heads import step_by_step
from silenced import skipping
from transformers import AutoModelForCausalLM

from common.hooks import attach_patch, patches
from common.models.decoder import Decoder
from common.models.removal import check_count
from common.models.surgery import remove_layers, replace_runs, untie_embeddings, without_layers
from common.utils.errors import UserError

REMOVALS = {"middle": [2, 3], "first": [0], "first two": [0, 1], "odd": [1, 3, 5], "last": [5], "most": [0, 2, 3, 5]}


@pytest.mark.parametrize("removed", REMOVALS.values(), ids=REMOVALS.keys())
@torch.no_grad()
def test_pruned_model(tiny, ids, removed, tmp_path, greedy):
    remaining = [layer for layer in range(6) if layer not in removed]
    expected = skipping(tiny, ids, removed)
    types = [Decoder(tiny).layer_type(layer) for layer in remaining]

    remove_layers(tiny, removed)

    assert torch.equal(tiny(ids, use_cache=False).logits, expected)
    assert torch.allclose(tiny(ids).logits, expected, atol=1e-5)  # with the default cache
    assert [Decoder(tiny).layer_type(layer) for layer in range(len(remaining))] == types
    assert torch.equal(greedy(tiny, ids, use_cache=True), greedy(tiny, ids, use_cache=False))

    tiny.save_pretrained(tmp_path)
    reloaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert torch.equal(reloaded.eval()(ids, use_cache=False).logits, expected)


@torch.no_grad()
def test_step_by_step_decoding_with_a_cache(tiny, ids):
    """What `generate` might paper over: tokens fed one by one, after layer 0 (which carries the positions) is gone."""
    remove_layers(tiny, [0, 3])
    expected = tiny(ids, use_cache=False).logits
    torch.testing.assert_close(step_by_step(tiny, ids), expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_repeated_removal_counts_present_positions(tiny, ids):
    expected = skipping(tiny, ids, [1, 2, 4])
    for index in (1, 1, 2):  # layers 1, 2 and 4 of the original model
        remove_layers(tiny, [index])
    assert torch.equal(tiny(ids, use_cache=False).logits, expected)


def test_window_threshold_follows_the_layers(make_tiny, tmp_path):
    """Without `layer_types` in config.json the scalar must give the same types (transformers recomputes them)."""
    model = make_tiny("qwen3-sliding")
    remove_layers(model, [1, 4])
    types = list(model.config.layer_types)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.layer_types == types


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "cannot remove 0 of 6 layers; choose 1..4"),
        ([0, 1, 2, 3, 4], "cannot remove 5 of 6 layers; choose 1..4"),
        ([6], r"cannot remove layers \[6\]: the model has layers 0 to 5"),
        ([-1, 2], r"cannot remove layers \[-1\]"),
        ([2, 2], r"cannot remove layers \[2\] more than once"),
    ],
)
def test_bad_removals_change_nothing(tiny_llama, ids, indices, message):
    before = tiny_llama(ids).logits
    for error in (UserError, ValueError):
        with pytest.raises(error, match=message):
            remove_layers(tiny_llama, indices)
    assert torch.equal(tiny_llama(ids).logits, before)


def test_two_layers_stay():
    check_count(1, 3)
    for layers in (1, 2):
        with pytest.raises(UserError, match=f"cannot remove 1 of {layers} layers; two have to stay"):
            check_count(1, layers)


@pytest.mark.parametrize(
    "boundaries, removed",
    [
        *[((1, 2, 4, 6), removed) for removed in ([0, 1], [4], [2], [1, 2, 3], [2, 5], [3, 4, 5])],
        ((2, 2, 2, 3), [2]),  # gains and shifts do not commute
        ((2, 2, 2, 4), [2, 3]),
    ],
)
@torch.no_grad()
def test_patches_keep_their_place_and_order_in_the_stream(tiny_llama, ids, boundaries, removed, make_patch, greedy):
    own = [(boundary, make_patch(shift)) for boundary, shift in zip(boundaries, (0.3, -0.8, 1.5, 0.2))]
    decoder = Decoder(tiny_llama)
    hidden = decoder.embed_tokens(ids)
    for layer in range(7):
        for boundary, patch in own:
            hidden = patch(hidden) if boundary == layer else hidden
        if layer < 6 and layer not in removed:
            hidden = decoder.run(hidden, layer, layer + 1)
    expected = decoder.logits(hidden)
    for boundary, patch in own:
        attach_patch(tiny_llama, boundary, patch)
    remove_layers(tiny_llama, removed)
    assert [patch.module for patch in patches(tiny_llama)] == [patch for _, patch in own]
    assert torch.equal(tiny_llama(ids, use_cache=False).logits, expected)
    assert torch.equal(greedy(tiny_llama, ids, use_cache=True), greedy(tiny_llama, ids, use_cache=False))


@torch.no_grad()
def test_untied_head_survives_scaling_retying_and_reload(make_tiny, ids, tmp_path):
    model = make_tiny("gemma2")
    before = model(ids).logits
    untie_embeddings(model)
    untie_embeddings(model)  # harmless when repeated
    head = model.lm_head.weight
    assert torch.equal(model(ids).logits, before)
    model.model.embed_tokens.weight.mul_(3.0)
    model.tie_weights()
    assert model.lm_head.weight is head
    scaled = model(ids).logits
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids).logits, scaled)


@torch.no_grad()
@pytest.mark.parametrize("removed", [[2], [2, 3], [4, 2]])
def test_a_patch_acts_without_layers_where_their_removal_would_leave_it(removed, tiny_llama, ids):
    """Of two patches on layers that go the earlier one comes first; afterwards each is where it was."""
    for position, scale in ((2, 1.5), (3, 0.5), (4, 2.0)):
        attach_patch(tiny_llama, position, torch.nn.Linear(64, 64), "test")
        patches(tiny_llama)[-1].module.weight.data.mul_(scale)
    for_good = copy.deepcopy(tiny_llama)
    remove_layers(for_good, removed)
    before, places = tiny_llama(ids, use_cache=False).logits, patches(tiny_llama)
    with without_layers(tiny_llama, removed):
        assert torch.equal(tiny_llama(ids, use_cache=False).logits, for_good(ids, use_cache=False).logits)
    assert torch.equal(tiny_llama(ids, use_cache=False).logits, before) and patches(tiny_llama) == places


@torch.no_grad()
@pytest.mark.parametrize("removed", [[0], [1, 2], [3, 5]])
def test_running_without_layers_is_the_removal_and_leaves_no_trace(tiny, ids, removed):
    removed_for_good = copy.deepcopy(tiny)
    remove_layers(removed_for_good, removed)
    before, config = tiny(ids, use_cache=False).logits, tiny.config.to_dict()
    expected, decoder = removed_for_good(ids, use_cache=False).logits, Decoder(tiny)
    with without_layers(tiny, removed):
        assert torch.equal(tiny(ids, use_cache=False).logits, expected)
        assert torch.equal(decoder.logits(decoder.run(decoder.embed_tokens(ids))), expected)
    assert torch.equal(tiny(ids, use_cache=False).logits, before) and tiny.config.to_dict() == config
    assert [layer.self_attn.layer_idx for layer in tiny.model.layers] == list(range(6))


def test_nothing_is_put_where_a_patch_acts_already(tiny_llama, ids):
    attach_patch(tiny_llama, 2, Twice(), "twice")
    before = tiny_llama(ids, use_cache=False).logits
    for run in ((2, 3), (1, 2), (0, 4)):  # the patch stands at its start, at its end, inside
        with pytest.raises(UserError, match="a patch before layer 2"):
            replace_runs(tiny_llama, {run: Twice()}, "twice")
    assert torch.equal(tiny_llama(ids, use_cache=False).logits, before)
    assert replace_runs(tiny_llama, {(3, 5): Twice()}, "twice") == [3]
    assert [patch.position for patch in patches(tiny_llama)] == [2, 3]


class Twice(torch.nn.Module):
    kind = "twice"

    def forward(self, hidden):
        return 2 * hidden


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_every_list_with_an_entry_a_layer_is_shortened_whatever_its_name(name, make_tiny, ids, tmp_path):
    model = make_tiny(name)
    model.config.mlp_layer_types = ["dense", "dense", "sparse", "dense", "dense", "dense"]
    model.config.layer_types = ["full_attention"] * 6
    model.config.eos_token_id = [2, 3, 4, 5, 6, 7]  # as long, and no list of layers
    expected = skipping(model, ids, [2, 3])
    remove_layers(model, [2, 3])
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.mlp_layer_types == ["dense"] * 4 and len(again.config.layer_types) == 4
    assert again.config.eos_token_id == [2, 3, 4, 5, 6, 7]
    assert torch.equal(again(ids, use_cache=False).logits, expected)


@pytest.mark.parametrize("name, field", [("smollm3", "no_rope_layers"), ("hunyuan_v1_moe", "moe_topk")])
def test_a_list_by_layer_may_be_longer_than_the_model_is_deep(name, field, make_tiny, ids, tmp_path):
    model = make_tiny(name)
    setattr(model.config, field, [*getattr(model.config, field), 1, 1])
    model.save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    expected = skipping(model, ids, [1, 2])
    remove_layers(model, [1, 2])
    model.save_pretrained(tmp_path / "pruned")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").eval()
    assert torch.equal(again(ids, use_cache=False).logits, expected)


def test_a_mixture_keeps_which_layers_are_dense(make_tiny, tmp_path):
    """Of layers 1, 5 with experts (every second one but 3): one and five stay, now first and third."""
    model = make_tiny("qwen3_moe")
    experts = [hasattr(layer.mlp, "experts") for layer in model.model.layers]
    assert experts == [False, True, False, False, False, True]
    remove_layers(model, [0, 2, 3])
    assert (model.config.mlp_only_layers, model.config.decoder_sparse_step) == ([1], 1)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert [hasattr(layer.mlp, "experts") for layer in again.model.layers] == [True, False, True]
