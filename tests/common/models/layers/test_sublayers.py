"""Models without some attentions and MLPs against hooks from outside, with a cache, saved and reloaded; who chooses them."""

import copy
import itertools
from functools import partial

import pytest
import torch
from heads import logits as logits_of
from heads import step_by_step, sublayer_streams
from silenced import silenced

from common.baselines import entrodrop, finercut, llm_pruner, sublayer_removal
from common.baselines import sublayer_steps as _steps  # noqa: F401 - registers them
from common.hooks import attach_patch
from common.models.decoder import Decoder
from common.models.layers import structure
from common.models.layers.sublayers import ATTENTION, MLP, SUBLAYERS, drop_sublayers, present
from common.models.surgery import remove_layers
from common.pruning import importance, selection
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError

IDS = torch.randint(3, 320, (3, 20), generator=torch.Generator().manual_seed(3))
LONG = torch.randint(3, 320, (4, 40), generator=torch.Generator().manual_seed(5))  # more tokens than channels
DROPPED = [(0, ATTENTION), (2, MLP), (3, ATTENTION), (3, MLP), (5, ATTENTION)]


logits = partial(logits_of, ids=IDS)


def test_dropped_sublayers_are_silent_sublayers_and_survive_saving(tiny, reloaded, greedy):
    expected, before = logits(silenced(tiny, DROPPED)), sum(p.numel() for p in tiny.parameters())
    drop_sublayers(tiny, DROPPED)
    torch.testing.assert_close(logits(tiny), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(step_by_step(tiny, IDS), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(greedy(tiny, IDS, use_cache=True), greedy(tiny, IDS, use_cache=False))
    assert not {*DROPPED} & {*present(tiny)} and len(present(tiny)) == 12 - len(DROPPED)
    decoder = Decoder(tiny)
    assert torch.equal(decoder.logits(decoder.run(decoder.embed_tokens(IDS))), logits(tiny))
    assert [len(decoder.residual_writers(layer)) for layer in (2, 3)] == [1, 0]

    assert "missing" in structure.why_not_plain(tiny)
    loaded = reloaded(tiny, IDS, plain=False)
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in tiny.parameters()) < before


def test_sublayers_go_with_their_layers_and_with_narrow_ones(tiny_llama, reloaded, greedy, monkeypatch):
    monkeypatch.setattr(llm_pruner, "FIRST", 1)
    monkeypatch.setattr(llm_pruner, "LAST", 1)
    llm_pruner.prune(tiny_llama, IDS, 0.55)
    drop_sublayers(tiny_llama, [(1, ATTENTION), (4, MLP)])
    remove_layers(tiny_llama, [0, 3])
    assert present(tiny_llama) == [(0, MLP), (1, ATTENTION), (1, MLP), (2, ATTENTION), (3, ATTENTION), (3, MLP)]
    assert torch.equal(greedy(tiny_llama, IDS, use_cache=True), greedy(tiny_llama, IDS, use_cache=False))
    reloaded(tiny_llama, IDS, plain=False)


@pytest.mark.parametrize(
    ("sublayers", "message"),
    [
        ([(6, MLP)], "the model has no mlp in layer 6; it has layers 0 to 5"),
        ([(2, ATTENTION)], "the model has no attention in layer 2"),
        ([(1, "atention")], "did you mean 'attention'"),
        ([(1, MLP), (1, MLP)], "cannot drop one sub-layer twice"),
    ],
)
def test_what_is_not_there_cannot_go(tiny_llama, sublayers, message):
    drop_sublayers(tiny_llama, [(2, ATTENTION)])
    before = logits(tiny_llama)
    with pytest.raises(UserError, match=message):
        drop_sublayers(tiny_llama, sublayers)
    assert torch.equal(logits(tiny_llama), before)


def naive_similarities(model):
    """cos(x, x + f(x)) from the tensors that Hugging Face's modules receive."""
    pairs = itertools.pairwise(sublayer_streams(model, IDS))
    similarities = [torch.cosine_similarity(*pair, dim=-1).mean().item() for pair in pairs]
    return dict(zip(itertools.product(range(6), SUBLAYERS), similarities, strict=True))


def test_llm_drop_takes_the_sublayers_most_like_doing_nothing(tiny):
    expected = naive_similarities(tiny)
    similarities = sublayer_removal.similarities(Decoder(tiny), IDS, batch_size=2)
    assert similarities.keys() == expected.keys()
    assert all(similarities[sublayer] == pytest.approx(expected[sublayer], abs=1e-5) for sublayer in similarities)
    for kind in ("both", *SUBLAYERS):
        able = sorted((part for part in expected if kind in ("both", part[1])), key=lambda part: -expected[part])
        assert sublayer_removal.most_similar(similarities, 3, kind) == able[:3]
    with pytest.raises(UserError, match="cannot remove 6 of 6 sub-layers; choose 1..5"):
        sublayer_removal.most_similar(similarities, 6, MLP)


def test_block_pruner_is_the_greedy_search_with_whole_passes(make_tiny):
    model = make_tiny("gemma2")
    sublayers = sublayer_removal.block_pruner(Decoder(model), IDS, 3, batch_size=2)
    removed = []
    for _ in range(3):
        losses = {}
        for sublayer in present(model):
            if sublayer not in removed:
                trial = silenced(model, [*removed, sublayer])
                with torch.no_grad():
                    losses[sublayer] = float(trial(input_ids=IDS, labels=IDS, use_cache=False).loss)
        removed.append(min(losses, key=losses.__getitem__))
    assert sublayers == removed


def attention_rows(model, number):
    """What the attention's norm returns, what attention adds, and the stream before it, from hooks: [tokens, channels]."""
    model, rows = copy.deepcopy(model), {}
    layer = model.model.layers[number]
    last = layer.post_attention_layernorm if model.config.model_type == "gemma2" else layer.self_attn
    layer.input_layernorm.register_forward_hook(lambda _m, args, out: rows.update(x=out, stream=args[0]))
    last.register_forward_hook(lambda _m, _a, out: rows.update(y=out[0] if isinstance(out, tuple) else out))
    logits(model, ids=LONG)
    return [rows[name].flatten(0, 1).double() for name in ("x", "y", "stream")]


def mapping(states, weight, bias):
    def hook(_module, _args, out):
        mapped = states["x"] @ weight.T + bias
        return (mapped, *out[1:]) if isinstance(out, tuple) else mapped

    return hook


def test_nbl_fits_least_squares_with_an_intercept_and_bounds_by_canonical_correlations(tiny, reloaded, greedy):
    maps = sublayer_removal.linear_maps(Decoder(tiny), LONG, batch_size=2)
    for number in (0, 4):
        x, y, stream = attention_rows(tiny, number)
        solved = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], 1), y).solution
        bound, weight, bias = maps[number]
        torch.testing.assert_close(weight, solved[:-1].T, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bias, solved[-1], rtol=1e-3, atol=1e-4)
        bases = [torch.linalg.qr(rows - rows.mean(0)).Q for rows in (stream, stream + y)]
        correlations = torch.linalg.svdvals(bases[0].T @ bases[1])
        assert bound == pytest.approx(float((1 - correlations**2).sum()), rel=1e-3, abs=1e-4)

    layers = sublayer_removal.nearest_linear(maps, 2)
    assert layers == sorted(range(6), key=lambda layer: maps[layer][0])[:2]
    replaced = copy.deepcopy(tiny)
    sublayer_removal.replace_by_maps(replaced, maps, layers)
    for number in layers:  # the same by a hook on the dense model
        layer, (_, weight, bias) = tiny.model.layers[number], maps[number]
        states = {}
        layer.input_layernorm.register_forward_hook(lambda _m, _a, out, states=states: states.update(x=out))
        last = layer.post_attention_layernorm if tiny.config.model_type == "gemma2" else layer.self_attn
        last.register_forward_hook(mapping(states, weight.float(), bias.float()))
    torch.testing.assert_close(logits(replaced), logits(tiny), rtol=1e-3, atol=1e-3)
    assert torch.equal(greedy(replaced, IDS, use_cache=True), greedy(replaced, IDS, use_cache=False))
    reloaded(replaced, IDS, plain=False)


@pytest.mark.parametrize("name", ["granite", "olmo3"])
def test_nbl_maps_what_attention_reads_to_what_it_writes(name, make_tiny):
    """Granite's layer multiplies what attention writes; OLMo's attention reads the residual stream without a norm."""
    model, rows = make_tiny(name), {}
    _, weight, bias = sublayer_removal.linear_maps(Decoder(model), LONG)[3]
    layer = model.model.layers[3]
    last = layer.self_attn if name == "granite" else layer.post_attention_layernorm
    layer.self_attn.register_forward_pre_hook(
        lambda _m, _a, named: rows.update(x=named["hidden_states"]), with_kwargs=True
    )
    last.register_forward_hook(lambda _m, _a, out: rows.update(y=out[0] if isinstance(out, tuple) else out))
    logits(model, ids=LONG)
    x, y = (rows[name].flatten(0, 1).double() for name in "xy")
    solved = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], 1), y).solution
    torch.testing.assert_close(weight, solved[:-1].T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(bias, solved[-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt_oss", "olmo3"])
def test_an_mlp_goes_that_returns_a_pair_or_has_no_norm_before_it(name, make_tiny, reloaded):
    model = make_tiny(name)
    layer = model.model.layers[2]
    last = layer.mlp if name == "gpt_oss" else layer.post_feedforward_layernorm
    hook = last.register_forward_hook(lambda _m, _a, out: (out[0] * 0, out[1]) if isinstance(out, tuple) else out * 0)
    expected = logits(model)
    hook.remove()
    drop_sublayers(model, [(2, MLP)])
    for count in range(1, len(IDS) + 1):  # a batch of two could be taken for a pair
        torch.testing.assert_close(logits(model, ids=IDS[:count]), expected[:count], rtol=1e-5, atol=1e-5)
    reloaded(model, IDS, plain=False)


@pytest.mark.parametrize(
    "method, options",
    [
        ("llm-drop", {"kind": ATTENTION}),
        *((name, {}) for name in ("llm-drop", "blockpruner", "finercut", "entrodrop", "nbl")),
    ],
)
def test_the_steps_in_recipes(tiny_llama, method, options):
    selection = {"method": method, "count": 2} | options
    context = context_of(copy.deepcopy(tiny_llama), sequences=IDS.repeat(8, 1), selection=selection)
    run_recipe(context)
    assert context.removed == []
    removed = set(present(tiny_llama)) - set(present(context.model))
    named = context.details.get("halves") or [(layer, ATTENTION) for layer in context.details["linear"]]
    assert removed == {tuple(sublayer) for sublayer in named} and len(removed) == 2
    assert logits(context.model).isfinite().all()


def test_searches_by_parts_refuse_a_model_with_patches(tiny_llama, make_patch):
    """Halves by themselves would pass a patch by, and a layer's trial would lose the one before it."""
    attach_patch(tiny_llama, 2, make_patch(0.4))
    decoder = Decoder(tiny_llama)
    for search in (
        lambda: sublayer_removal.similarities(decoder, IDS),
        lambda: sublayer_removal.block_pruner(decoder, IDS, 2),
        lambda: sublayer_removal.linear_maps(decoder, IDS),
        lambda: finercut.finer_cut(decoder, IDS, 2),
        lambda: entrodrop.entropies(decoder, IDS),
        lambda: selection.sleb(decoder, IDS, 2),
        lambda: importance.losses_without_each(decoder, IDS, [0, 1], [0]),
        lambda: importance.losses_without_blocks(decoder, IDS, 2, [1]),
    ):
        with pytest.raises(UserError, match="without patches, and this one has a .* patch before layer 2"):
            search()
