"""LaCo against plain arithmetic, the notebooks' way (copies and full forwards), and Algorithm 1 transcribed."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import ARCHITECTURES, tiny_model
from torch import nn
from weights import changed_weights, weights

from common.calibration import corpora
from common.hooks import attach_patch
from common.models.decoder import Decoder
from common.utils.errors import UserError
from papers.laco import collapse, collapse_to, merge_layers, output_similarity
from papers.laco.algorithm import pointer, reachable
from papers.laco.merge import Merge, is_stream_norm, merged
from papers.laco.sentences import calibration_sentences, draw, plain_sentences

SENTENCES = ["the layers of a model", "are removed and the stream is scaled", "a model"]


def layer_weights(before: dict, layer: int) -> dict[str, torch.Tensor]:
    start = f"model.layers.{layer}."
    return {name.removeprefix(start): tensor for name, tensor in before.items() if name.startswith(start)}


# The merge


@pytest.mark.parametrize("merge", ["paper", "code"])
def test_a_merge_is_equation_1_or_what_the_notebooks_loop_leaves_on_every_parameter(tiny, merge):
    before = weights(tiny)
    merge_layers(tiny, 1, 3, merge)
    after = layer_weights(weights(tiny), 1)
    base, *followers = (layer_weights(before, layer) for layer in (1, 2, 3, 4))
    assert after.keys() == base.keys()
    for name, tensor in after.items():
        if merge == "paper":
            expected = base[name] + sum(follower[name] - base[name] for follower in followers)
        else:
            expected = base[name].clone()
            if not is_stream_norm(name):
                for follower in followers:
                    expected += follower[name] - expected  # the notebooks' in-place loop
            assert torch.equal(tensor, base[name] if is_stream_norm(name) else followers[-1][name])
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-5)


def test_stream_norms_are_the_layers_own_norms():
    counts = {"llama": 2, "mistral": 2, "qwen2": 2, "qwen3": 2, "qwen3-sliding": 2, "gemma2": 4, "mixtral": 2}
    for name in ARCHITECTURES:
        layer = tiny_model(name).model.layers[0]
        norms = [parameter for parameter, _ in layer.named_parameters() if is_stream_norm(parameter)]
        assert len(norms) == counts[name] and all("layernorm" in parameter for parameter in norms)


def test_the_merges_agree_for_one_follower_only(make_tiny):
    for followers, same in ((1, True), (2, False)):
        models = [make_tiny(), make_tiny()]
        for model, merge in zip(models, ("paper", "code")):
            merge_layers(model, 2, followers, merge, norms="merge")
        projections = [model.model.layers[2].mlp.up_proj.weight for model in models]
        assert torch.allclose(*projections, atol=1e-6) is same


def test_a_fused_matrix_merges_as_its_parts(make_tiny):
    """Baichuan's W_pack is q, k and v on top of each other."""
    layers = make_tiny().model.layers[:3]
    parts = [[getattr(layer.self_attn, name).weight for name in ("q_proj", "k_proj", "v_proj")] for layer in layers]
    fused = []
    for part in parts:
        layer = nn.Module()
        layer.self_attn = nn.Module()
        layer.self_attn.W_pack = nn.Linear(64, sum(len(p) for p in part), bias=False)
        layer.self_attn.W_pack.weight.data = torch.cat(list(part)).detach()
        fused.append(layer)
    for merge in ("paper", "code"):
        apart = merged(layers, merge)
        expected = torch.cat([apart[f"self_attn.{name}.weight"] for name in ("q_proj", "k_proj", "v_proj")])
        assert torch.equal(merged(fused, merge)["self_attn.W_pack.weight"], expected)


def test_half_precision_is_rounded_once(make_tiny):
    model = make_tiny().to(torch.bfloat16)
    tensors = [layer.mlp.up_proj.weight.double() for layer in model.model.layers[:4]]
    merge_layers(model, 0, 3)
    exact = sum(tensors[1:]) - 2 * tensors[0]
    torch.testing.assert_close(model.model.layers[0].mlp.up_proj.weight, exact.to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", "dots1"])
@pytest.mark.parametrize(
    "merge, expected",
    [("paper", lambda a, b, c: b + c - a), ("code", lambda a, b, c: c), ("drop", lambda a, b, c: a)],
)
def test_the_bias_that_routers_choose_experts_by_is_merged_as_their_weights_are(make_tiny, name, merge, expected):
    layers = make_tiny(name).model.layers[2:5]  # the first two are dense
    gates = [layer.mlp.gate for layer in layers]
    for seed, gate in enumerate(gates):
        gate.e_score_correction_bias.copy_(torch.randn(4, generator=torch.Generator().manual_seed(seed)))
    matrices, biases = ([getattr(g, n).clone() for g in gates] for n in ("weight", "e_score_correction_bias"))
    merge = Merge(layers, merge)
    assert torch.allclose(gates[0].weight, expected(*matrices), atol=1e-6)
    assert torch.allclose(gates[0].e_score_correction_bias, expected(*biases), atol=1e-6)
    merge.undo()
    assert torch.equal(gates[0].e_score_correction_bias, biases[0])


@pytest.mark.parametrize("merge", ["paper", "code"])
def test_a_merged_model_generates_and_reloads(tiny, greedy, ids, merge, reloaded):
    merge_layers(tiny, 1, 2, merge)
    assert tiny.config.num_hidden_layers == len(tiny.model.layers) == 4
    assert torch.equal(greedy(tiny, ids, True), greedy(tiny, ids, False))
    reloaded(tiny, ids)


@pytest.mark.parametrize("layer, followers", [(-1, 1), (0, 0), (4, 2), (6, 1), (0, 5)])
def test_impossible_merges_are_refused(tiny_llama, layer, followers):
    with pytest.raises(UserError, match="cannot merge|fewer than two"):
        merge_layers(tiny_llama, layer, followers)


def test_layers_of_different_shapes_are_refused(tiny_llama, tiny_tokenizer):
    tiny_llama.model.layers[4].mlp.up_proj.weight.data = torch.zeros(32, 64)
    before = weights(tiny_llama)
    with pytest.raises(UserError, match=r"different shapes: mlp.up_proj.weight is \[96, 64\] in one and \[32, 64\]"):
        merge_layers(tiny_llama, 2, 2)
    with pytest.raises(UserError, match="different shapes"):  # before anything is merged
        collapse(tiny_llama, tiny_tokenizer, SENTENCES, C=2, T=-1.0, I=1)
    assert not changed_weights(tiny_llama, before)


def test_unknown_names_are_refused(tiny_llama, tiny_tokenizer):
    with pytest.raises(UserError, match="unknown merge 'papr'; did you mean 'paper'"):
        merge_layers(tiny_llama, 0, 1, "papr")
    with pytest.raises(UserError, match="unknown policy for norms"):
        merge_layers(tiny_llama, 0, 1, norms="last")
    with pytest.raises(UserError, match="unknown cosine"):
        output_similarity([torch.ones(2, 3)], [torch.ones(2, 3)], "flat")


# Output similarity


def test_cosines_against_plain_loops():
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(t, 4, generator=generator) for t in (3, 5)]
    others = [torch.randn(t, 4, generator=generator) for t in (3, 5)]

    def cosine(a, b):
        return torch.cosine_similarity(a, b, dim=0).item()

    pairs = list(zip(ours, others))
    expected = {
        "flat-sentence": sum(cosine(a.flatten(), b.flatten()) for a, b in pairs) / 2,
        "token": sum(cosine(x, y) for a, b in pairs for x, y in zip(a, b)) / 8,
        "channel": sum(cosine(a[:, c], b[:, c]) for a, b in pairs for c in range(4)) / 8,
        "flat-batch": cosine(torch.cat(ours).flatten(), torch.cat(others).flatten()),
    }
    for kind, value in expected.items():
        assert output_similarity(ours, others, kind) == pytest.approx(value, abs=1e-6)


def test_the_last_tokens_angle_is_that_of_trigonometry():
    """Of two sentences whose last states are 60 and 90 degrees apart; no other token counts."""
    ours = [torch.tensor([[5.0, -2.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [-3.0, 9.0], [0.0, 2.0]])]
    others = [torch.tensor([[0.0, 7.0], [1.0, 3**0.5]]), torch.tensor([[4.0, 1.0], [3.0, 2.0], [3.0, 0.0]])]
    assert output_similarity(ours, others, "last-token-angle") == pytest.approx(1 - (1 / 3 + 1 / 2) / 2)


# Algorithm 1


def transcription(layers, C, L, H, I, accept):
    """Algorithm 1 as printed, on a fake sequence of verdicts: every (l, K, accepted)."""
    count, turns = layers, []
    l = H - C
    while l >= L:
        K = min(C - 1, count - l)
        accepted = accept[len(turns) % len(accept)]
        turns.append((l, K, accepted))
        if accepted:
            count = count - K
            l = l - I
            if l > count:
                l = count - C
        else:
            l = l - 1
    return turns, count


@given(
    layers=st.integers(3, 48),
    C=st.integers(2, 12),
    L=st.integers(1, 8),
    H=st.integers(1, 48),
    I=st.integers(1, 6),
    accept=st.lists(st.booleans(), min_size=1, max_size=60),
)
@settings(max_examples=300, deadline=None)
def test_the_pointer_moves_as_algorithm_1_says(layers, C, L, H, I, accept):
    H = min(H, layers)
    expected, count = transcription(layers, C, L, H, I, accept)
    turns = moved(pointer(layers, C, L, H, I), lambda turn, K: accept[turn % len(accept)])
    assert turns == expected
    # What the search relies on: the pointer only falls, so nothing below it has changed, and K is never 0.
    assert all(a[0] > b[0] for a, b in zip(turns, turns[1:])) and all(K >= 1 for _, K, _ in turns)
    assert layers - sum(K for _, K, accepted in turns if accepted) == count


def moved(moves, verdict):
    """Let the pointer move by `verdict(number of turns, K)`: every (l, K, accepted)."""
    turns = []
    try:
        l, K = next(moves)
        while True:
            accepted = verdict(len(turns), K)
            turns.append((l, K, accepted))
            l, K = moves.send(accepted)
    except StopIteration:
        return turns


def layers_left(verdicts, layers, C, I):
    """The number of layers that these verdicts leave, of which none leaves fewer than two."""
    count = layers

    def verdict(turn, K):
        nonlocal count
        accepted = verdicts[turn] and count - K >= 2
        count -= K * accepted
        return accepted

    moved(pointer(layers, C, 1, layers, I), verdict)
    return count


@pytest.mark.parametrize("layers, C, I", [(5, 2, 1), (7, 2, 2), (7, 3, 1), (8, 4, 3), (9, 3, 2), (9, 6, 1)])
def test_what_can_be_reached_is_what_some_verdicts_leave(layers, C, I):
    left = {layers_left(verdicts, layers, C, I) for verdicts in itertools.product((False, True), repeat=layers)}
    assert reachable(layers, C, I) == sorted(left)


def notebooks_way(model, tokenizer, sentences, C, L, H, I, T, merge):
    """Algorithm 1 with a copy of the model for every attempt and full forward passes, by Hugging Face alone."""

    def states(net):
        ids = [torch.tensor([tokenizer(sentence)["input_ids"]]) for sentence in sentences]
        return [net(i, output_hidden_states=True).hidden_states[-1].flatten() for i in ids]

    current, trace, l = model, [], H - C
    while l >= L:
        K = min(C - 1, len(current.model.layers) - l)
        trial = copy.deepcopy(current)
        merge_layers(trial, l - 1, K, merge)
        pairs = zip(states(trial), states(model))
        s = sum(float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairs) / len(sentences)
        trace.append((l, K, s, s > T))
        if s > T:
            current, l = trial, l - I
        else:
            l = l - 1
    return current, trace


@pytest.mark.parametrize("merge, T", [("paper", 0.05), ("code", 0.3)])
@torch.no_grad()
def test_collapse_makes_the_choices_of_copies_and_full_forwards(tiny, tiny_tokenizer, ids, merge, T):
    setting = {"C": 3, "L": 2, "H": 6, "I": 1, "T": T}
    original = copy.deepcopy(tiny)
    collapsed = collapse(tiny, tiny_tokenizer, SENTENCES, **setting, merge=merge)
    expected, trace = notebooks_way(original, tiny_tokenizer, SENTENCES, **setting, merge=merge)
    ours = [(a.l, a.K, a.similarity, a.accepted) for a in collapsed.trace]
    assert [(a[0], a[1], a[3]) for a in ours] == [(a[0], a[1], a[3]) for a in trace]
    assert [a[2] for a in ours] == pytest.approx([a[2] for a in trace], abs=1e-5)
    torch.testing.assert_close(tiny(ids).logits, expected(ids).logits)
    assert collapsed.layers == tiny.config.num_hidden_layers == 6 - len(collapsed.removed)


def test_collapse_runs_only_the_suffix(tiny_llama, tiny_tokenizer):
    collapsed = collapse(tiny_llama, tiny_tokenizer, SENTENCES, C=3, T=0.2, I=1, merge="code")
    count, executions = 6, 6
    for attempt in collapsed.trace:
        executions += count - (attempt.l - 1) - attempt.K if attempt.similarity is not None else 0
        count = attempt.layers
    assert collapsed.layer_executions == len(SENTENCES) * executions
    assert collapsed.removed


def test_a_collapse_that_accepts_nothing_changes_nothing(tiny, tiny_tokenizer):
    before = weights(tiny)
    collapsed = collapse(tiny, tiny_tokenizer, SENTENCES, C=3, T=1.0, I=1)
    assert collapsed.removed == [] and collapsed.layers == 6
    assert not any(attempt.accepted for attempt in collapsed.trace)
    assert not changed_weights(tiny, before)


def test_removed_layers_are_original_indices_in_order_of_removal(tiny_llama, tiny_tokenizer):
    collapsed = collapse(tiny_llama, tiny_tokenizer, SENTENCES, C=3, L=2, T=-1.0, I=1)
    # l = 3 takes layers 3 and 4 (0-based); l = 2 then finds 2 and 5 behind it, and may take both
    assert [(a.l, a.K, a.accepted) for a in collapsed.trace] == [(3, 2, True), (2, 2, True)]
    assert collapsed.removed == [3, 4, 2, 5]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"C": 7}, "C = 7 layers at a time: the model has 6"),
        ({"C": 1}, "C = 1 layers"),
        ({"C": 6}, "is empty for C = 6"),
        ({"L": 5, "H": 4}, r"\[5, 4\] is empty"),
        ({"H": 7}, "outside 1..6"),
        ({"L": 0}, "outside 1..6"),
        ({"T": 1.5}, "T = 1.5 is no cosine"),
        ({"T": float("nan")}, "is no cosine"),
        ({"I": 0}, "I = 0"),
        ({"sentences": []}, "no calibration sentences"),
        ({"sentences": ["the model", ""]}, r"sentence 2 \(''\) has no tokens"),
        ({"merge": "coed"}, "unknown merge"),
    ],
)
def test_bad_settings_are_refused_in_one_line(tiny_llama, tiny_tokenizer, changed, message):
    setting = {"C": 3, "T": 0.5, "sentences": SENTENCES, **changed}
    with pytest.raises(UserError, match=message):
        collapse(tiny_llama, tiny_tokenizer, **setting)
    assert len(tiny_llama.model.layers) == 6


def test_a_patched_model_is_refused(tiny_llama, tiny_tokenizer, make_patch):
    attach_patch(tiny_llama, 3, make_patch(0.1))
    with pytest.raises(UserError, match="test.shift patch"):
        collapse(tiny_llama, tiny_tokenizer, SENTENCES, C=3, T=0.5)


# A number of layers in place of a threshold


@pytest.mark.parametrize("merge", ["paper", "code"])
def test_the_threshold_that_is_searched_is_the_highest_that_leaves_so_many_layers(make_tiny, tiny_tokenizer, merge):
    setting = {"C": 2, "I": 1, "merge": merge}
    model = make_tiny()
    collapsed = collapse_to(model, tiny_tokenizer, SENTENCES, 4, **setting)
    assert collapsed.layers == model.config.num_hidden_layers == 4
    again = make_tiny()
    direct = collapse(again, tiny_tokenizer, SENTENCES, T=collapsed.threshold, **setting)
    assert direct.removed == collapsed.removed and direct.trace == collapsed.trace
    assert not changed_weights(again, weights(model))
    for T in torch.linspace(collapsed.threshold + 1e-6, 1, 12).tolist():
        assert collapse(make_tiny(), tiny_tokenizer, SENTENCES, T=T, **setting).layers != 4


def test_an_unreachable_number_of_layers_leaves_the_model_as_it_was(tiny_llama, tiny_tokenizer):
    before = weights(tiny_llama)
    with pytest.raises(UserError, match="no threshold leaves 5 layers .* thresholds for .*6"):
        collapse_to(tiny_llama, tiny_tokenizer, SENTENCES, 5, C=4, I=2, L=2)
    assert Decoder(tiny_llama).num_layers == 6 and not changed_weights(tiny_llama, before)


@torch.no_grad()
@pytest.mark.parametrize(("search", "goal"), [(collapse, {"T": -1.0}), (collapse_to, {"layers": 4})])
def test_the_layers_that_merge_are_told_while_the_model_is_whole(tiny_llama, tiny_tokenizer, ids, search, goal):
    before, seen = tiny_llama(ids, use_cache=False).logits, []

    def chosen(removed):
        seen.append(removed)
        assert torch.equal(tiny_llama(ids, use_cache=False).logits, before)

    collapsed = search(tiny_llama, tiny_tokenizer, SENTENCES, C=3, I=1, merge="code", chosen=chosen, **goal)
    assert seen == [collapsed.removed] and len(tiny_llama.model.layers) == 6 - len(collapsed.removed) < 6


# Calibration sentences


def test_sentences_are_plain_whole_and_drawn_by_seed():
    documents = [
        "Heading\n-------\n\nThis is the first plain sentence of the document, it has words enough. Too short.",
        ">>> code = 1\n\nAnother plain sentence stands here and it ends with a full stop as well.",
        "北京是中华人民共和国的首都和直辖市，也是全国的政治中心。短句。",
    ]
    assert plain_sentences(documents[0]) == ["This is the first plain sentence of the document, it has words enough."]
    assert plain_sentences(documents[2]) == ["北京是中华人民共和国的首都和直辖市，也是全国的政治中心。"]
    assert draw(documents, 3, 1) == draw(documents, 3, 1)
    assert sorted(draw(documents, 3, 0)) == sorted(s for d in documents for s in plain_sentences(d))
    with pytest.raises(UserError, match="only 3 of 4"):
        draw(documents, 4, 0)


def test_sentences_of_two_corpora_are_equally_many(monkeypatch):
    texts = {
        "english": ["This is one plain sentence, and it has words enough."] * 9,
        "chinese": ["北京是中华人民共和国的首都和直辖市。"] * 9,
    }
    monkeypatch.setattr(corpora, "texts", texts.get)
    assert calibration_sentences(["english", "chinese"], 10) == [*texts["english"][:5], *texts["chinese"][:5]]
    with pytest.raises(UserError, match="9 sentences cannot be split evenly over english, chinese"):
        calibration_sentences(["english", "chinese"], 9)
