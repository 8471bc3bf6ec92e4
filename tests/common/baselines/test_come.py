"""CoMe's merges against loops over channels and heads, and against the formula of a layer built by hand."""

import copy
import math

import pytest
import torch
from heads import streams as streams_of
from least_squares import recorded
from weights import changed_weights, weights

from common.baselines.come import SHARES, choose, come, losses_of_merges, merge, observe
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError

LINEAR = ("self_attn.o_proj", "mlp.down_proj")


def seen(model, ids):
    """Streams [N + 1] and the inputs of o_proj and down_proj by layer, from Hugging Face's own forward pass."""
    paths = [(layer, name) for layer in range(len(model.model.layers)) for name in LINEAR]
    values = recorded(model, ids, *(f"model.layers.{layer}.{name}" for layer, name in paths))
    inputs = {path: x for path, (x, _) in zip(paths, values, strict=True)}
    return [x.double() for x in streams_of(model, ids)], inputs


def cosines(first, second):
    return torch.cosine_similarity(first, second, dim=-1).clamp(0.0, 1.0)


def influence(streams, layer):
    return 1 - cosines(streams[layer], streams[layer + 1]).mean().item()


def angle(streams, layer, tokens=slice(-1, None)):
    return cosines(streams[layer], streams[layer + 2])[:, tokens].acos().mean().item() / math.pi


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_pass_gives_influences_angles_and_mean_magnitudes(kind, make_tiny, ids):
    model = make_tiny(kind)
    streams, inputs = seen(model, ids)
    statistics = observe(Decoder(model), ids, batch_size=3)
    for layer in range(6):
        assert statistics.influence[layer].item() == pytest.approx(influence(streams, layer), abs=1e-5)
        for name in LINEAR:
            expected = inputs[layer, name].abs().mean(0)
            torch.testing.assert_close(statistics.inputs[layer][name], expected, rtol=1e-4, atol=1e-6)
    assert statistics.angle.tolist() == pytest.approx([angle(streams, layer) for layer in range(5)], abs=1e-4)
    of_all = observe(Decoder(model), ids, last=False, batch_size=3).angle.tolist()
    assert of_all == pytest.approx([angle(streams, layer, slice(None)) for layer in range(5)], abs=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_merge_keeps_the_most_sensitive_channels_and_whole_groups_of_heads(kind, make_tiny, ids):
    model = make_tiny(kind)
    dense = copy.deepcopy(model)
    streams, inputs = seen(dense, ids)
    pair = min(range(5), key=lambda layer: angle(streams, layer))
    [report] = come(model, ids, 1)
    assert report["pair"] == [pair, pair + 1] and len(model.model.layers) == 5
    scores = [influence(streams, layer) for layer in (pair, pair + 1)]
    share = [score / sum(scores) for score in scores]
    assert report["shares"] == pytest.approx(share, abs=1e-4)
    small = share.index(min(share))
    got, queries, keys, inner = model.model.layers[pair], [], [], []
    for place, layer in enumerate((pair, pair + 1)):
        own = dense.model.layers[layer]
        numbers = {}
        for name, total in (("self_attn.o_proj", 2), ("mlp.down_proj", 96)):
            fewer = int(total * share[small])
            numbers[name] = fewer if place == small else total - fewer
        assert [len(report[name][place]) for name in ("heads", "channels")] == list(numbers.values())
        columns = own.mlp.down_proj.weight.abs().double()
        down = [inputs[layer, "mlp.down_proj"][:, k].abs().mean() * columns[:, k].sum() for k in range(96)]
        channels = sorted(range(96), key=lambda k: -down[k])[: numbers["mlp.down_proj"]]
        inner += [(layer, k) for k in sorted(channels)]
        columns = own.self_attn.o_proj.weight.abs().double()
        out = [inputs[layer, "self_attn.o_proj"][:, k].abs().mean() * columns[:, k].sum() for k in range(64)]
        groups = [sum(out[32 * g : 32 * g + 32]) for g in range(2)]  # two query heads of 16 a key head
        channels = sorted(range(2), key=lambda g: -groups[g])[: numbers["self_attn.o_proj"]]
        queries += [(layer, 32 * g + k) for g in sorted(channels) for k in range(32)]
        keys += [(layer, 16 * g + k) for g in sorted(channels) for k in range(16)]
    reads = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
    for name, places in (reads | {"mlp.gate_proj": inner, "mlp.up_proj": inner}).items():
        for row, (layer, k) in enumerate(places):
            original = dense.model.layers[layer].get_submodule(name)
            assert torch.equal(got.get_submodule(name).weight[row], original.weight[k])
            assert original.bias is None or torch.equal(got.get_submodule(name).bias[row], original.bias[k])
    for name, places in {"self_attn.o_proj": queries, "mlp.down_proj": inner}.items():
        for column, (layer, k) in enumerate(places):
            original = dense.model.layers[layer].get_submodule(name).weight[:, k]
            assert torch.equal(got.get_submodule(name).weight[:, column], original)
    for name, value in got.named_parameters():
        both = [dense.model.layers[layer].get_parameter(name) for layer in (pair, pair + 1)]
        if "layernorm" in name:
            torch.testing.assert_close(value, (both[0] + both[1]) / 2)
        elif "_norm" in name:
            torch.testing.assert_close(value, share[0] * both[0] + share[1] * both[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_come_p_takes_the_share_of_the_lowest_loss_of_saved_merges(kind, make_tiny, ids):
    model = make_tiny(kind)
    dense, streams, tried = weights(model), seen(model, ids)[0], ids[:5]
    pair = min(range(5), key=lambda layer: angle(streams, layer, slice(None)))
    chosen = choose(Decoder(model), ids, range(6), tried=len(tried), batch_size=2)
    assert chosen["pair"] == [pair, pair + 1] and not changed_weights(model, dense)  # trials leave no trace

    def split(total, share):
        fewer = int(total * min(share, 1 - share))
        return [fewer, total - fewer] if share < 1 - share else [total - fewer, fewer]

    statistics, trials, losses = observe(Decoder(model), ids), [], []
    for share in (step / 20 for step in range(21)):
        entry = {"pair": [pair, pair + 1], "shares": [share, 1 - share], "heads": [], "channels": []}
        for place, layer in enumerate(model.model.layers[pair : pair + 2]):
            inputs = statistics.inputs[pair + place]
            by_head = (
                (inputs["self_attn.o_proj"] * layer.self_attn.o_proj.weight.abs().double().sum(0)).view(2, -1).mean(1)
            )
            by_channel = inputs["mlp.down_proj"] * layer.mlp.down_proj.weight.abs().double().sum(0)
            for name, scores in (("heads", by_head), ("channels", by_channel)):
                best = scores.argsort(descending=True)[: split(len(scores), share)[place]]
                entry[name].append(best.sort().values.tolist())
        whole = copy.deepcopy(model)
        with torch.no_grad():
            merge(whole.model.layers[pair], whole.model.layers[pair + 1], entry)
        remove_layers(whole, [pair + 1])
        losses.append(whole(tried, labels=tried, use_cache=False).loss.item())
        trials.append(entry)
    best = losses.index(min(losses))
    assert chosen["shares"] == pytest.approx(trials[best]["shares"])
    assert chosen["heads"] == trials[best]["heads"] and chosen["channels"] == trials[best]["channels"]
    assert losses_of_merges(Decoder(model), tried, pair, trials) == pytest.approx(losses, rel=1e-5)


def test_come_p_takes_no_share_whose_loss_is_no_number(make_tiny, ids, monkeypatch):
    monkeypatch.setattr(
        "common.baselines.come.losses_of_merges", lambda *_, **__: [math.nan, 3.0, 2.0] + [math.nan] * 18
    )
    chosen = choose(Decoder(make_tiny("llama")), ids, range(6), tried=2)
    assert chosen["shares"] == [0.1, 0.9]


def test_come_p_needs_sequences_to_try_shares_on(make_tiny):
    with pytest.raises(UserError, match="CoMe-P with 0 sequences to try shares on: use at least one"):
        run_recipe(context_of(make_tiny(), selection={"method": "come", "count": 1, "tried": 0}))


def test_a_recipe_of_come_p_keeps_its_search_apart_from_that_of_come(make_tiny, ids, tmp_path):
    shares, counts = {}, []
    for tried in (None, 4):
        model = make_tiny("llama")
        steps = {"method": "come", "count": 2} | ({"tried": tried} if tried else {})
        context = context_of(model, sequences=ids, selection=steps, search_folder=tmp_path)
        run_recipe(context)
        shares[tried] = [entry["shares"] for entry in context.details["merged"]]
        counts.append(len(model.model.layers))
    assert counts == [4, 4] and shares[None] != shares[4]
    assert all(share[0] in SHARES for share in shares[4]) and not any(share[0] in SHARES for share in shares[None])


def test_merged_layers_are_spared_and_the_result_is_a_plain_model(make_tiny, ids, reloaded):
    model = make_tiny("qwen3")
    context = context_of(model, sequences=ids, selection={"method": "come", "count": 3})
    run_recipe(context)
    pairs = [entry["pair"] for entry in context.details["merged"]]
    assert len({layer for pair in pairs for layer in pair}) == 6 and len(model.model.layers) == 3
    assert context.details["removed"] == [pair[1] for pair in pairs]
    assert all(sum(entry["channels"]) == 96 and sum(entry["heads"]) == 2 for entry in context.details["merged"])
    assert context.details["repair"]["calibration_tokens"] == ids.numel()
    reloaded(model, ids)


def test_merges_that_were_found_are_done_without_a_pass_and_fewer_are_the_first_of_more(make_tiny, ids):
    whole, again, counts = make_tiny("llama"), make_tiny("llama"), []
    merges = come(whole, ids, 3, after=lambda merges_so_far: counts.append(len(merges_so_far)))
    assert counts == [1, 2, 3]
    assert come(make_tiny("llama"), ids, 2) == merges[:2]
    assert come(again, ids[:0], 3, begun=merges) == merges
    assert not changed_weights(again, weights(whole))
    assert come(make_tiny("llama"), ids, 3, begun=merges[:1]) == merges


def test_a_recipe_of_more_layers_continues_where_one_of_fewer_ended(make_tiny, ids, tmp_path, monkeypatch):
    passes = []
    monkeypatch.setattr("common.baselines.come.observe", lambda *args, **own: passes.append(1) or observe(*args, **own))
    models = []
    for count, expected_passes in ((2, 2), (3, 3), (3, 3), (2, 3)):
        models.append(make_tiny("llama"))
        context = context_of(
            models[-1], sequences=ids, selection={"method": "come", "count": count}, search_folder=tmp_path
        )
        run_recipe(context)
        assert len(passes) == expected_passes and len(context.details["merged"]) == count
    for first, second in ((0, 3), (1, 2)):
        assert not changed_weights(models[first], weights(models[second]))


@pytest.mark.parametrize(
    "name, count, message",
    [("llama", 4, "No pair of 3 layers is left"), ("gemma2", 1, "CoMe cannot merge layers")],  # no layer merges twice
)
def test_what_cannot_be_merged_is_refused(name, count, message, make_tiny, ids):
    model = make_tiny(name)
    with pytest.raises(UserError, match=message):
        come(model, ids, count)
    assert name == "llama" or len(model.model.layers) == 6
