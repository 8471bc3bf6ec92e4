"""Prune&Comp against naive loops: a model that really loses layers and whose weights are scaled by hand, one at a time."""

import copy
import math

import pytest
import torch
from heads import logits, streams
from naive_scores import naive_loss, naive_taylor
from transformers import AutoConfig, AutoModelForCausalLM

from common.calibration import collect
from common.hooks import scale_stream
from common.models import checkpoint, decoder
from common.models.decoder import Decoder
from common.models.layers.sublayers import ATTENTION, MLP, drop_sublayers, linear_attention
from common.models.surgery import remove_layers, untie_embeddings
from common.pruning import importance
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError
from papers import prunecomp
from papers.prunecomp import Stream, fuse_factor, prune_and_compensate
from papers.prunecomp.search import Search
from papers.prunecomp.steps import PruneAndComp


def without_epsilon(model):
    for module in model.modules():
        for name in ("variance_epsilon", "eps"):
            if hasattr(module, name):
                setattr(module, name, 0.0)
    return model


def deviation(model, ids, position, factor):
    """Largest change of the logits, over their largest size, from fusing instead of a hook at the cut."""
    with scale_stream(model, position, factor):
        expected = logits(model, ids)
    fuse_factor(model, position, factor)
    return ((logits(model, ids) - expected).abs().max() / expected.abs().max()).item()


# --- fusion


@pytest.mark.parametrize("position", [0, 1, 3, 5])
def test_fusing_is_scaling_the_stream_at_the_interface(tiny, crops, position):
    unscaled = logits(tiny, crops)
    with scale_stream(tiny, position, 2.0):
        assert (logits(tiny, crops) - unscaled).abs().max() > 0.05  # the factor matters
    exact = without_epsilon(copy.deepcopy(tiny))
    # to the last bit; but halving the final gain of a tied Gemma 2 rounds, since w of 1 + w is stored
    assert deviation(exact, crops, position, 2.0) <= (1e-6 if Decoder(tiny).tied else 0.0)
    assert deviation(without_epsilon(copy.deepcopy(tiny)), crops, position, 1.37) < 1e-4
    assert deviation(tiny, crops, position, 1.37) < 5e-3  # at the architecture's own epsilon


def test_sublayers_that_are_gone_or_linear_maps_are_scaled_with_the_rest(tiny, crops):
    drop_sublayers(tiny, [(0, ATTENTION), (2, MLP)])
    torch.manual_seed(8)
    linear_attention(tiny, 1, torch.randn(64, 64) / 8, torch.randn(64))
    exact = without_epsilon(copy.deepcopy(tiny))
    assert deviation(exact, crops, 4, 2.0) <= (1e-6 if Decoder(tiny).tied else 0.0)
    assert deviation(tiny, crops, 4, 1.37) < 5e-3


def test_biases_of_residual_writers_are_scaled_and_others_are_not(crops):
    settings = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4}
    config = AutoConfig.for_model("llama", vocab_size=320, attention_bias=True, mlp_bias=True, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    assert deviation(without_epsilon(model), crops, 4, 2.0) == 0.0


def tied(model):
    model.lm_head.weight = model.model.embed_tokens.weight
    model.config.tie_word_embeddings = True
    return model


def test_a_tied_head_gives_the_logits_of_an_untied_one(tiny, crops):
    own_head = tied(copy.deepcopy(tiny))
    untie_embeddings(own_head)
    shared = tied(tiny)
    for model in (shared, own_head):
        prunecomp.fuse_factors(model, {2: 1.3, 4: 0.9, 5: 1.7})
    assert shared.lm_head.weight is shared.model.embed_tokens.weight
    assert torch.equal(shared.model.embed_tokens.weight, own_head.model.embed_tokens.weight)
    expected = logits(own_head, crops)
    assert ((logits(shared, crops) - expected).abs().max() / expected.abs().max()).item() < 1e-6


def test_several_cuts_multiply_each_weight_once_by_the_product(tiny, crops):
    model = without_epsilon(tiny).double()
    if model.config.model_type == "mixtral":
        model.set_experts_implementation("eager")
    one_by_one = copy.deepcopy(model)
    prunecomp.fuse_factors(model, {2: 1.3, 4: 0.9})
    fuse_factor(one_by_one, 4, 0.9)
    fuse_factor(one_by_one, 2, 1.3)
    torch.testing.assert_close(model.state_dict(), one_by_one.state_dict(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [7, 4096])
def test_a_half_precision_weight_is_rounded_once(tiny_llama, rows, monkeypatch):
    monkeypatch.setattr(decoder, "_ROWS", rows)  # scaled at once: the tiny embedding has 320
    model = tiny_llama.half()
    original = model.model.layers[0].mlp.down_proj.weight.clone()
    factors = {position: 1.0 + position / 37 for position in range(1, 6)}
    prunecomp.fuse_factors(model, factors)
    product = 1.0
    for factor in factors.values():
        product *= factor
    assert torch.equal(model.model.layers[0].mlp.down_proj.weight, (original.float() * product).half())


# --- the factor


def mean_cosine(states, first, last):
    return torch.cosine_similarity(states[first], states[last], dim=-1).mean().item()


def magnitude_ratio(states, first, last):
    """Equation 9, over the tokens of each sample and then over samples and channels."""
    return (states[last].abs().mean(1) / states[first].abs().mean(1)).mean().item()


def most_similar_block(states, length, starts):
    """The start of the block of layers whose input and output are most similar."""
    return max(starts, key=lambda start: mean_cosine(states, start, start + length))


@pytest.fixture
def metric_tokens():
    """Sequences [3, 11] that layers are chosen on, other than the calibration's."""
    return torch.randint(3, 320, (3, 11), generator=torch.Generator().manual_seed(8))


def test_a_channel_that_is_zero_before_the_layer_counts_as_one(tiny_llama, crops):
    with torch.no_grad():
        tiny_llama.model.embed_tokens.weight[:, 7] = 0
        hidden = tiny_llama(input_ids=crops, output_hidden_states=True, use_cache=False).hidden_states
    before, after = (state.double().abs().mean(1) for state in hidden[:2])
    expected = torch.where(torch.arange(64) == 7, 1.0, after / before).mean().item()
    decoder = Decoder(tiny_llama)
    assert Stream(decoder, crops).factor(0) == pytest.approx(expected, rel=1e-5)
    assert prunecomp.magnitude_factor(collect(decoder, crops), 0) == pytest.approx(expected, rel=1e-5)


# --- Algorithm 1 against a naive loop on the weights themselves


def naive_scores(model, metric, ids):
    layers = model.model.layers
    if metric == "bi":
        states = streams(model, ids)
        return [-mean_cosine(states, layer, layer + 1) for layer in range(len(layers))]
    if metric == "mag+":
        return [sum(p.abs().sum().item() for p in layer.parameters()) for layer in layers]
    if metric == "ppl":
        losses = []
        for index in range(len(layers)):
            trial = copy.deepcopy(model)
            trial.model.layers = torch.nn.ModuleList([layer for i, layer in enumerate(layers) if i != index])
            losses.append(naive_loss(trial, ids))
        return losses
    return naive_taylor(model, ids).tolist()


def naive_loop(model, ids, count, metric, iterative, compensate, protected):
    """Llama only: every step measures the model as it is, deletes the layer, and multiplies the weights before it."""
    names, removed, factors = list(range(len(model.model.layers))), [], []
    order = naive_scores(model, metric, ids)
    dense = streams(model, ids)
    for _ in range(count):
        scores = dict(zip(names, naive_scores(model, metric, ids))) if iterative else dict(enumerate(order))
        layer = min((name for name in names if name not in protected), key=scores.__getitem__)
        place = names.index(layer)
        states, at = (streams(model, ids), place) if iterative else (dense, layer)
        alpha = magnitude_ratio(states, at, at + 1)
        model.model.layers = torch.nn.ModuleList([m for i, m in enumerate(model.model.layers) if i != place])
        names.remove(layer)
        removed.append(layer)
        if compensate:
            factors.append(alpha)
            with torch.no_grad():
                model.model.embed_tokens.weight.mul_(alpha)
                for before in model.model.layers[:place]:
                    before.self_attn.o_proj.weight.mul_(alpha)
                    before.mlp.down_proj.weight.mul_(alpha)
    return removed, factors


@pytest.mark.parametrize("fidelity", ["paper", "code"])
@pytest.mark.parametrize("compensate", [True, False])
@pytest.mark.parametrize("iterative", [True, False])
@pytest.mark.parametrize("metric", ["bi", "ppl", "taylor+", "mag+"])
def test_algorithm_1_is_the_naive_loop(tiny_llama, crops, metric, iterative, compensate, fidelity):
    naive = copy.deepcopy(tiny_llama)
    protected = (0, 5)
    removed, factors = naive_loop(naive, crops, 3, metric, iterative, compensate, protected)
    options = {"metric": metric, "iterative": iterative, "compensate": compensate, "protected": protected}
    report = prune_and_compensate(tiny_llama, crops, 3, batch_size=2, fidelity=fidelity, **options)
    assert report["removed"] == removed
    assert report["factors"] == pytest.approx(factors, rel=1e-3)
    torch.testing.assert_close(logits(tiny_llama, crops), logits(naive, crops), rtol=1e-2, atol=1e-2)


def test_a_layer_that_takes_magnitude_away_has_a_factor_below_one(tiny_llama, crops):
    """Layer 3 takes back some of what layer 2, the same but for the sign, wrote before it."""
    layers = tiny_llama.model.layers
    layers[3].load_state_dict(layers[2].state_dict())
    for writer in (layers[3].self_attn.o_proj, layers[3].mlp.down_proj):
        writer.weight.data.neg_()
    naive = copy.deepcopy(tiny_llama)
    removed, factors = naive_loop(naive, crops, 1, "bi", True, True, (0, 1, 2, 4, 5))
    report = prune_and_compensate(tiny_llama, crops, 1, layers=[3])
    assert report["removed"] == removed == [3]
    assert report["factors"] == pytest.approx(factors, rel=1e-5) and factors[0] < 0.98
    torch.testing.assert_close(logits(tiny_llama, crops), logits(naive, crops), rtol=1e-2, atol=1e-2)


def test_every_architecture_is_the_loop_with_hooks_at_the_interfaces(tiny, crops):
    """The factors act as hooks on the layers behind the cuts; nothing is fused."""
    naive, names, removed = copy.deepcopy(tiny), list(range(6)), []
    for _ in range(3):
        states = streams(naive, crops)
        place = most_similar_block(states, 1, range(1, len(names) - 1))
        left = []  # what the layer returns, before the next one's hook
        with naive.model.layers[place].register_forward_hook(lambda _, args, out, left=left: left.append(out)):
            logits(naive, crops)
        alpha = (left[0].abs().mean(1) / states[place].abs().mean(1)).mean().item()
        removed.append(names.pop(place))
        # what the removed layer received, it received scaled: its hook is the next layer's now
        hooks = list(naive.model.layers[place]._forward_pre_hooks.values())
        remove_layers(naive, [place])
        hooks.append(lambda _, args, alpha=alpha: (args[0] * alpha, *args[1:]))
        for hook in reversed(hooks):
            naive.model.layers[place].register_forward_pre_hook(hook, prepend=True)
    report = prune_and_compensate(tiny, crops, 3, protected=(0, 5), batch_size=5)
    assert report["removed"] == removed
    torch.testing.assert_close(logits(tiny, crops), logits(naive, crops), rtol=1e-2, atol=2e-2)


def test_the_result_is_a_plain_checkpoint_that_generates_with_and_without_cache(
    tiny, crops, tiny_tokenizer, tmp_path, greedy
):
    for metric in prunecomp.METRICS:
        pruned = copy.deepcopy(tiny)
        factors = prune_and_compensate(pruned, crops, 2, metric=metric, protected=(0, 5))["factors"]
        assert len(pruned.model.layers) == 4 and logits(pruned, crops).isfinite().all() and factors[0] > 0
        checkpoint.save(pruned, tiny_tokenizer, tmp_path / metric)
        assert not list((tmp_path / metric).glob("patches*"))
        again = AutoModelForCausalLM.from_pretrained(tmp_path / metric)
        assert len(again.model.layers) == 4
        assert torch.equal(logits(again, crops), logits(pruned, crops))
        assert torch.equal(greedy(again, crops[:1], True), greedy(again, crops[:1], False))


def test_cl_removes_the_block_of_highest_cosine_at_once_with_one_factor(tiny_llama, crops):
    states = streams(tiny_llama, crops)
    start = most_similar_block(states, 3, range(4))
    expected, alpha = copy.deepcopy(tiny_llama), magnitude_ratio(states, start, start + 3)
    report = prune_and_compensate(tiny_llama, crops, 3, metric="cl")
    assert report["removed"] == [start, start + 1, start + 2]
    if start < 3:
        assert report["factors"] == pytest.approx([alpha], rel=1e-5)
        remove_layers(expected, report["removed"])
        fuse_factor(expected, start, alpha)
        torch.testing.assert_close(logits(tiny_llama, crops), logits(expected, crops), rtol=1e-3, atol=1e-3)
    else:
        assert report["factors"] == [None]


@pytest.mark.parametrize("window_factor", ["direct", "product"])
def test_a_block_chosen_on_other_tokens_has_the_factor_of_the_calibrations(
    tiny_llama, crops, metric_tokens, window_factor
):
    states = streams(tiny_llama, crops)
    start = most_similar_block(streams(tiny_llama, metric_tokens), 2, (1, 2, 3))
    steps = [(start, start + 2)] if window_factor == "direct" else [(start, start + 1), (start + 1, start + 2)]
    alphas = [magnitude_ratio(states, *step) for step in steps]
    options = {"metric": "cl", "protected": (0, 5), "metric_sequences": metric_tokens, "window_factor": window_factor}
    report = prune_and_compensate(tiny_llama, crops, 2, **options)
    assert report["removed"] == [start, start + 1]
    assert report["factors"] == pytest.approx([math.prod(alphas)], rel=1e-5)


def test_the_official_code_spares_the_ends_and_takes_other_cosines(make_tiny, crops):
    model = make_tiny()
    states = streams(model, crops)
    inner = {s: torch.cosine_similarity(states[s], states[s + 2], dim=1).mean().item() for s in (1, 2, 3)}
    start = max(inner, key=inner.get)
    report = prune_and_compensate(model, crops, 2, metric="cl", fidelity="code")
    assert report["removed"] == [start, start + 1]
    removed = prune_and_compensate(make_tiny(), crops, 4, metric="ppl", fidelity="code")["removed"]
    assert not {0, 5} & set(removed)


def test_a_metric_may_have_tokens_of_its_own(tiny_llama, crops, metric_tokens):
    losses = importance.losses_without_each(Decoder(tiny_llama), metric_tokens, list(range(6)), [1, 2, 3, 4])
    layer = 1 + int(losses.argmin())
    alpha = magnitude_ratio(streams(tiny_llama, crops), layer, layer + 1)
    options = {"metric": "ppl", "metric_sequences": metric_tokens, "protected": (0, 5)}
    report = prune_and_compensate(tiny_llama, crops, 1, **options)
    assert (report["removed"], report["factors"]) == ([layer], pytest.approx([alpha], rel=1e-5))


def test_taylor_and_magnitude_keep_the_first_four_and_the_last_two(crops):
    settings = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 9, "num_attention_heads": 4}
    config = AutoConfig.for_model("llama", vocab_size=320, initializer_range=0.2, **settings)
    for metric in ("taylor+", "mag+"):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
        assert sorted(prune_and_compensate(model, crops, 3, metric=metric)["removed"]) == [4, 5, 6]
        with pytest.raises(UserError, match="cannot remove 4 layers: only 3 of 9 are not protected"):
            prune_and_compensate(AutoModelForCausalLM.from_config(config), crops, 4, metric=metric)


# --- prefix reuse


def test_an_iteration_runs_only_what_the_removal_changed(tiny_llama, crops):
    decoder = Decoder(tiny_llama)
    stream = Stream(decoder, crops, batch_size=5)
    stream.cosines()
    assert decoder.executions == 6
    alpha = stream.factor(3)
    assert decoder.executions == 6  # metric and factor come from one pass
    stream.remove(3, alpha)
    stream.factor(2)
    assert decoder.executions == 6  # nothing before the cut changed but the scale
    stream.cosines()
    assert decoder.executions == 6 + 2  # layers 4 and 5


@pytest.mark.parametrize("iterative", [True, False])
@pytest.mark.parametrize("metric", ["ppl", "taylor+"])
def test_scores_of_the_whole_model_that_are_known_are_not_taken_again(tiny_llama, crops, metric, iterative):
    options = {"metric": metric, "protected": (0, 5), "batch_size": 2, "iterative": iterative}
    known = prunecomp.choose(Stream(Decoder(tiny_llama), crops, batch_size=2), None, metric, protected=(0, 5))
    assert sorted(known) == [1, 2, 3, 4]
    informed = copy.deepcopy(tiny_llama)
    expected = prune_and_compensate(tiny_llama, crops, 3, **options)
    report = prune_and_compensate(informed, crops, 3, known=known, **options)
    assert report.pop("layer_executions") < expected.pop("layer_executions")
    assert report == expected
    assert torch.equal(logits(informed, crops), logits(tiny_llama, crops))


@pytest.mark.parametrize("metric", ["bi", "ppl", "taylor+", "mag+"])
def test_states_that_do_not_fit_are_run_again_with_the_same_choices(make_tiny, crops, metric, monkeypatch):
    options = {"metric": metric, "protected": (0, 5), "batch_size": 2}
    model, again = make_tiny(), make_tiny()
    expected = prune_and_compensate(model, crops, 4, **options)
    state = crops.numel() * 64 * 4
    monkeypatch.setattr(importance, "STATE_BYTES", 3 * state)  # of 7: every third
    stream = Stream(Decoder(again), crops, batch_size=5)
    assert [s is None for s in stream.states()[0]] == [False, True, True, False, True, True, False]
    torch.testing.assert_close(stream.received(2)[0], streams(again, crops)[2])
    report = prune_and_compensate(again, crops, 4, **options)
    assert report["removed"] == expected["removed"]
    assert report["factors"] == pytest.approx(expected["factors"], rel=1e-5)
    if metric != "ppl":
        assert report["layer_executions"] >= expected["layer_executions"]


def test_the_factor_of_a_removed_list_is_the_dense_models(tiny_llama, crops):
    dense = copy.deepcopy(tiny_llama)
    statistics = collect(Decoder(dense), crops, span=2, rotate=False)
    one_shot = prune_and_compensate(copy.deepcopy(tiny_llama), crops, 3, iterative=False, protected=(0, 5))
    model = copy.deepcopy(tiny_llama)
    report = prunecomp.remove_and_compensate(model, statistics, one_shot["removed"])
    assert [position for position, _ in report["cuts"]] == [position for position, _ in one_shot["cuts"]]
    assert [f for _, f in report["cuts"]] == pytest.approx([f for _, f in one_shot["cuts"]], rel=1e-5)


@pytest.mark.parametrize("fidelity", ["paper", "code"])
def test_a_shorter_removal_is_the_beginning_of_a_longer_one(tiny_llama, crops, fidelity):
    options = {"protected": (0, 5), "fidelity": fidelity}
    longer = prune_and_compensate(copy.deepcopy(tiny_llama), crops, 4, **options)
    again = copy.deepcopy(tiny_llama)
    report = prunecomp.repeat(again, longer["removed"][:2], longer["factors"][:2])
    shorter = prune_and_compensate(tiny_llama, crops, 2, **options)
    assert report == {key: shorter[key] for key in report}
    torch.testing.assert_close(logits(again, crops), logits(tiny_llama, crops), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("compensate", [True, False])
@pytest.mark.parametrize(
    "choice", [{"metric": "bi"}, {"metric": "ppl"}, {"metric": "taylor+"}, {"layers": [1, 2, 3, 4]}]
)
@pytest.mark.parametrize("every", [1, 3])
def test_a_loop_goes_on_from_where_another_one_was_to_the_same_bits(
    make_tiny, crops, choice, compensate, every, monkeypatch
):
    monkeypatch.setattr("papers.prunecomp.stream.spacing", lambda decoder, ids: every)
    options = {"compensate": compensate, "protected": (0, 5), "batch_size": 2} | choice
    seen: list[tuple[list, list]] = []

    def after(removed, factors):
        seen.append((list(removed), list(factors)))

    whole = make_tiny().bfloat16()
    expected = prune_and_compensate(whole, crops, 4, after=after, **options)
    early, seen = seen[:3], []
    for removed, factors in early:
        again = make_tiny().bfloat16()
        begun = list(zip(removed, factors, strict=True))
        report = prune_and_compensate(again, crops, 4, begun=begun, after=after, **options)
        assert report.pop("layer_executions") <= expected["layer_executions"]
        assert report == {name: expected[name] for name in report}
        assert torch.equal(logits(again, crops), logits(whole, crops))
    assert [len(removed) for removed, _ in early] == [1, 2, 3]
    assert [len(removed) for removed, _ in seen] == [2, 3, 4, 3, 4, 4]


# --- bad input


def test_bad_input_is_named(tiny_llama, crops):
    statistics = collect(Decoder(tiny_llama), crops, span=2)
    with pytest.raises(UserError, match="after removing the last layer a factor has nothing to act on"):
        prunecomp.remove_and_compensate(tiny_llama, statistics, [4, 5])
    with pytest.raises(UserError, match="nothing follows the pruning interface"):
        fuse_factor(tiny_llama, 6, 1.1)
    with pytest.raises(UserError, match="must be a positive number"):
        fuse_factor(tiny_llama, 3, float("nan"))
    with pytest.raises(UserError, match="did you mean 'taylor"):
        prune_and_compensate(tiny_llama, crops, 2, metric="taylor")
    with pytest.raises(UserError, match="unknown fidelity"):
        prune_and_compensate(tiny_llama, crops, 2, fidelity="codes")
    with pytest.raises(UserError, match="one block at once"):
        prunecomp.next_layer(Stream(Decoder(tiny_llama), crops), "cl")
    stream = Stream(Decoder(tiny_llama), crops)
    stream.remove(2)
    with pytest.raises(UserError, match="only 0 of 5 are not protected"):
        prunecomp.next_layer(stream, "bi", protected=(0, 1, 3, 4, 5))
    assert len(tiny_llama.model.layers) == 6


def test_offloaded_weights_are_refused_before_anything_changes(tiny_llama, crops):
    before = tiny_llama.model.embed_tokens.weight.clone()
    tiny_llama.model.layers[1].mlp.down_proj.to("meta")
    with pytest.raises(UserError, match="offloaded weights"):
        fuse_factor(tiny_llama, 3, 1.1)
    assert torch.equal(tiny_llama.model.embed_tokens.weight, before)
    for metric, compensate in (("bi", True), ("mag+", False)):
        with pytest.raises(UserError, match="offloaded weights"):
            prune_and_compensate(tiny_llama, crops, 1, metric=metric, compensate=compensate, protected=(0, 5))
    assert len(tiny_llama.model.layers) == 6


def test_protections_hold_for_a_choice_and_not_for_given_layers():
    with pytest.raises(UserError, match="only 10 of 16 are not protected"):
        Search("mag+").check(16, 11)
    Search("mag+").check(16, 10)
    Search("mag+").check(16, 3, given=[0, 1, 15])
    for given in ([0, 16, 2], [3, 3, 4], [3, 4]):
        with pytest.raises(UserError):
            Search("mag+").check(16, 3, given=given)


def test_given_layers_go_with_the_factors_of_a_search_that_chose_them(tiny_llama, make_tiny, crops):
    report = prune_and_compensate(tiny_llama, crops, 3, protected=[5])
    again, seen = make_tiny(), []
    given = prune_and_compensate(again, crops, 3, metric="mag+", layers=report["removed"], chosen=seen.append)
    assert given["factors"] == pytest.approx(report["factors"], rel=1e-6) and seen == [report["removed"]]
    assert torch.equal(logits(again, crops), logits(tiny_llama, crops))


@pytest.mark.parametrize(("order", "factors"), [([4, 5], [1.3, None]), ([3, 5, 4], [0.7, None, 1.2])])
def test_a_factor_behind_which_all_layers_went_later_has_nothing_left_to_act_on(tiny_llama, crops, order, factors):
    plain = copy.deepcopy(tiny_llama)
    remove_layers(plain, order)
    assert prunecomp.repeat(tiny_llama, order, factors)["cuts"] == []
    assert torch.equal(logits(tiny_llama, crops), logits(plain, crops))


def test_the_last_layer_goes_without_a_factor_when_the_metric_says_so(tiny_llama, crops, caplog):
    with torch.no_grad():  # the last layer adds nothing: the most redundant of all
        tiny_llama.model.layers[5].self_attn.o_proj.weight.zero_()
        tiny_llama.model.layers[5].mlp.down_proj.weight.zero_()
    report = prune_and_compensate(tiny_llama, crops, 2)
    assert (report["removed"][0], report["factors"][0]) == (5, None)
    assert "layer 5 was the last one" in caplog.text


def test_a_row_that_has_records_loses_their_layers_whatever_would_be_chosen_here(tiny_llama, make_tiny, crops):
    """With factors they are repeated; a record without them gets those that a search of these layers finds."""
    report = prune_and_compensate(make_tiny(), crops, 3, metric="bi", layers=[1, 4, 2])
    for recorded in ({"removed": [1, 4, 2]}, {"removed": [1, 4, 2], "factors": report["factors"]}):
        context = context_of(make_tiny(), sequences=crops, selection=PruneAndComp("bi", 3))
        context.recorded = recorded
        run_recipe(context)
        assert context.details["removed"] == [1, 4, 2]
        assert context.details["factors"] == pytest.approx(report["factors"], rel=1e-6)
    chosen = context_of(tiny_llama, sequences=crops, selection=PruneAndComp("bi", 3))
    run_recipe(chosen)
    assert chosen.details["removed"] != [1, 4, 2]
