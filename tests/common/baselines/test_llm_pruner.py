"""LLM-Pruner against a full backward pass and the same model with zeros; sliced models decode, save and reload."""

import copy
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from heads import logits as logits_of
from transformers import AutoConfig, AutoModelForCausalLM

from common.baselines import llm_pruner
from common.baselines import sublayer_steps as _steps  # noqa: F401 - registers them
from common.models import checkpoint
from common.models.decoder import Decoder
from common.models.layers import structure
from common.models.layers.widths import widths
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError

IDS = torch.randint(3, 320, (3, 20), generator=torch.Generator().manual_seed(3))
RATIO = 0.55  # of two key heads one goes, of 96 channels 53


logits = partial(logits_of, ids=IDS)


@contextmanager
def sparing(first, last):
    """Other numbers of layers stay than a model of six layers has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm_pruner, "FIRST", first)
        patch.setattr(llm_pruner, "LAST", last)
        yield


def prune_all_but(first, last, *arguments):
    with sparing(first, last):
        return llm_pruner.prune(*arguments)


def left(config):
    """Channels that stay of 96; of experts' a multiple of eight."""
    return 48 if config.model_type == "mixtral" else 43


def naive_choice(model, layer, ratio):
    """(key heads, channels) that stay, by loops over a whole backward pass; [experts] lists of channels for a mixture."""
    model = copy.deepcopy(model)
    model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    module, config = model.model.layers[layer], model.config
    size, group = module.self_attn.head_dim, config.num_attention_heads // config.num_key_value_heads

    def salience(weight):
        return (weight * weight.grad).abs().detach()

    q, k, v, o = (salience(getattr(module.self_attn, f"{n}_proj").weight) for n in "qkvo")
    heads = []
    for head in range(config.num_key_value_heads):
        own = slice(head * size, (head + 1) * size)
        read = slice(head * group * size, (head + 1) * group * size)
        heads.append(float(k[own].sum() + v[own].sum() + q[read].sum() + o[:, read].sum()))
    inner = config.intermediate_size

    def channels(gate, up, down):
        sums = [float(gate[c].sum() + up[c].sum() + down[:, c].sum()) for c in range(inner)]
        return sorted(sorted(range(inner), key=lambda c: -sums[c])[: left(config)])

    if config.model_type == "mixtral":
        both, down = salience(module.mlp.experts.gate_up_proj), salience(module.mlp.experts.down_proj)
        stay = [channels(both[e, :inner], both[e, inner:], down[e]) for e in range(config.num_local_experts)]
    else:
        stay = channels(*(salience(getattr(module.mlp, f"{n}_proj").weight) for n in ("gate", "up", "down")))
    gone = (len(heads) * size - int(len(heads) * size * (1 - ratio))) // size
    return sorted(sorted(range(len(heads)), key=lambda h: -heads[h])[: len(heads) - gone]), stay


@torch.no_grad()
def zeroed(model, chosen):
    """A copy in which nothing reads what goes: columns of o_proj and down_proj are zero."""
    model = copy.deepcopy(model)
    for layer, (heads, stay) in chosen.items():
        module = model.model.layers[layer]
        o = module.self_attn.o_proj.weight
        keep = torch.zeros(o.shape[1], dtype=torch.bool).view(model.config.num_key_value_heads, -1)
        keep[heads] = True
        o[:, ~keep.flatten()] = 0
        rows = zip(module.mlp.experts.down_proj, stay) if model.config.model_type == "mixtral" else None
        for down, left in rows or [(module.mlp.down_proj.weight, stay)]:
            down[:, [c for c in range(down.shape[1]) if c not in left]] = 0
    return model


def test_sliced_is_masked_by_a_naive_choice_and_survives_saving(tiny, tmp_path, greedy):
    chosen = {layer: naive_choice(tiny, layer, RATIO) for layer in (1, 2, 3)}
    expected = logits(zeroed(tiny, chosen))
    report = prune_all_but(1, 2, tiny, IDS, RATIO)
    assert report["layers"] == [1, 2, 3]
    narrow, whole = {"key_heads": 1, "channels": left(tiny.config)}, {"key_heads": 2, "channels": 96}
    assert widths(tiny) == report["widths"] == [whole, narrow, narrow, narrow, whole, whole]
    torch.testing.assert_close(logits(tiny), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(greedy(tiny, IDS, use_cache=True), greedy(tiny, IDS, use_cache=False))

    assert "different widths" in structure.why_not_plain(tiny)
    directory = checkpoint.save(tiny, None, tmp_path / "model")
    loaded, _ = checkpoint.load(directory)
    assert torch.equal(logits(loaded), logits(tiny)) and type(loaded) is type(tiny)
    assert torch.equal(greedy(loaded, IDS, use_cache=True), greedy(tiny, IDS, use_cache=True))
    with pytest.raises(RuntimeError):  # plain Transformers refuses it, and makes up no weights
        AutoModelForCausalLM.from_pretrained(directory)


def test_one_width_for_all_layers_is_a_plain_model(tiny, tmp_path):
    prune_all_but(0, 0, tiny, IDS, RATIO)
    assert structure.why_not_plain(tiny) is None
    checkpoint.save(tiny, None, tmp_path / "model")
    assert not (tmp_path / "model" / structure.FILE).exists()
    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(logits(plain.eval()), logits(tiny))


@pytest.mark.parametrize("name, plain", [("llama", False), ("mistral", True)])
def test_a_width_that_the_architecture_refuses_is_kept_beside_the_config(name, plain, reloaded):
    """Of 8 heads 6 are left, and 6 do not divide 64: Llama's config may not say so, Mistral's may."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = AutoConfig.for_model(name, vocab_size=320, num_hidden_layers=3, head_dim=8, **sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    prune_all_but(0, 0, model, IDS, 0.3)
    assert widths(model)[1]["key_heads"] == 3 and (structure.why_not_plain(model) is None) == plain
    reloaded(model, IDS, plain=False)


def test_half_precision_stays_half_and_unchanged_where_nothing_is_removed(make_tiny, tmp_path):
    half = make_tiny("llama").to(torch.bfloat16).requires_grad_(False)
    before = copy.deepcopy(half.state_dict())
    prune_all_but(2, 2, half, IDS, RATIO)
    for name, weight in half.named_parameters():
        assert (weight.dtype, weight.requires_grad, weight.grad) == (torch.bfloat16, False, None)
        assert torch.equal(weight, before[name]) or name.split(".")[2] in "23"
    checkpoint.save(half, None, tmp_path / "model")
    assert checkpoint.load(tmp_path / "model")[0].dtype == torch.bfloat16


@pytest.mark.parametrize("size, ratio, gone", [(4096, 0.25, 1024), (11008, 0.27, 2973), (192, 0.3, 58), (10, 0.99, 10)])
def test_rounding_is_the_official_codes(size, ratio, gone):
    assert llm_pruner.removed(size, ratio) == gone


def test_one_head_and_one_channel_are_always_left(tiny_llama):
    prune_all_but(2, 2, tiny_llama, IDS, 0.999)
    assert widths(tiny_llama)[2] == {"key_heads": 1, "channels": 1}
    assert logits(tiny_llama).isfinite().all()


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (0, "0 < ratio < 1, not 0"),
        (1.2, "0 < ratio < 1, not 1.2"),
        (0.2, "spares the first 4 and the last 2 layers, but the model has 6; remove whole layers"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(tiny_llama, ratio, message):
    decoder = Decoder(tiny_llama)
    with pytest.raises(UserError, match=message):
        llm_pruner.prune(tiny_llama, IDS, ratio)
    assert decoder.executions == 0 and structure.why_not_plain(tiny_llama) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "structure.json: it cannot be read"),
        ('{"format": 9, "parts": {}}', "format 9, this version reads 1"),
        ('{"format": 1, "parts": {"spirals": []}}', "kind 'spirals'; known: .*widths"),
    ],
)
def test_a_broken_structure_is_refused_in_one_line(tiny_llama, tmp_path, content, message):
    prune_all_but(2, 2, tiny_llama, IDS, RATIO)
    directory = checkpoint.save(tiny_llama, None, tmp_path / "model")
    (directory / structure.FILE).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(directory)
    assert "\n" not in str(caught.value)


def test_the_step_in_a_recipe_prunes_by_the_recipes_tokens(tiny_llama):
    expected = copy.deepcopy(tiny_llama)
    prune_all_but(1, 1, expected, IDS, RATIO)
    context = context_of(tiny_llama, sequences=IDS, selection={"method": "llm-pruner", "ratio": RATIO})
    with sparing(1, 1):
        run_recipe(context)
    assert torch.equal(logits(tiny_llama), logits(expected))
    assert context.removed == [] and context.details["sliced"]["layers"] == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 2])
def test_as_many_parameters_go_as_layers_have(tiny_llama, count):
    """To a channel of every pruned layer; heads go whole, as many as the official rounding says."""
    before = sum(p.numel() for p in tiny_llama.parameters())
    layer = sum(p.numel() for p in tiny_llama.model.layers[0].parameters())
    channel = 3 * tiny_llama.config.hidden_size
    with sparing(1, 1):
        run_recipe(context_of(tiny_llama, sequences=IDS, selection={"method": "llm-pruner", "layers": count}))
    gone = before - sum(p.numel() for p in tiny_llama.parameters())
    assert 0 <= gone - count * layer < 4 * channel
    assert {layer_widths["key_heads"] for layer_widths in widths(tiny_llama)[1:5]} == {2 - (count == 2)}


def test_more_than_there_is_cannot_go(tiny_llama):
    for selection, message in (
        ({"layers": 4}, "as 4 layers have out of 4 layers; take fewer"),
        ({"layers": 1, "ratio": 0.5}, "exactly one"),
        ({}, "exactly one"),
    ):
        context = context_of(tiny_llama, sequences=IDS, selection={"method": "llm-pruner"} | selection)
        with sparing(1, 1), pytest.raises(UserError, match=message):
            run_recipe(context)
