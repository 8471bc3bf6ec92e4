"""The contract of every further family, on one tiny model of each: Hugging Face's own forward pass is the oracle."""

import re

import pytest
import torch
from heads import logits as logits_of
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from silenced import skipping
from tiny_models import ARCHITECTURES, FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM

from common.evaluation.multiple_choice import SharedContextLM
from common.hooks import PATCH_LOADERS, attach_patch, scale_stream
from common.models import checkpoint
from common.models.architectures import SUPPORTED
from common.models.decoder import Decoder
from common.models.surgery import remove_layers, untie_embeddings, without_layers
from common.utils.errors import UserError
from common.utils.paths import ROOT
from extensions.refit import refit
from papers.prunecomp.factor import fuse_factor

REMOVED = [1, 2, 4]
SECTION = (ROOT / "docs" / "models.md").read_text().partition("## Architectures")[2].partition("\n## ")[0]
# By the names in its first cell: a line's cells, which say what supports these architectures.
DOCUMENTED = {
    name: cells
    for line in re.findall(r"(?m)^\| (`.*) \|$", SECTION)
    for cells in [line.split(" | ")]
    for name in re.findall(r"`([^`]+)`", cells[0])
}
UNFUSED = [name for name in FAMILIES if DOCUMENTED[name][1].startswith("without the factor")]
UNSTREAMED = [name for name in FAMILIES if DOCUMENTED[name][4].startswith("no")]
REFITTED = [name for name in FAMILIES if DOCUMENTED[name][3].startswith("yes")]


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def model(family, make_tiny):
    return make_tiny(family)


def test_every_supported_architecture_is_tested_and_in_the_documented_table():
    tested = {*FAMILIES, *(settings["model_type"] for settings in ARCHITECTURES.values())}
    assert DOCUMENTED.keys() - {"model_type", "baichuan", "chatglm"} == set(SUPPORTED) == tested
    assert f"support all {len(SUPPORTED)}." in SECTION


@torch.no_grad()
def test_removal_is_skipping_and_survives_saving(model, ids, tmp_path, greedy):
    expected = skipping(model, ids, REMOVED)
    before = logits_of(model, ids)
    with without_layers(model, REMOVED):
        assert torch.equal(logits_of(model, ids), expected)
    assert torch.equal(logits_of(model, ids), before)
    remove_layers(model, REMOVED)
    assert torch.equal(logits_of(model, ids), expected)
    assert torch.equal(greedy(model, ids, use_cache=True), greedy(model, ids, use_cache=False))
    checkpoint.save(model, None, tmp_path / "model")
    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    again, _ = checkpoint.load(tmp_path / "model")
    for pruned in (plain.eval(), again):
        assert torch.equal(logits_of(pruned, ids), expected)


@torch.no_grad()
def test_patches_act_and_come_back(model, ids, tmp_path, make_patch, monkeypatch):
    patch = make_patch(0.3)
    monkeypatch.setitem(PATCH_LOADERS, patch.kind, lambda tensors, options: loaded(make_patch, tensors))
    decoder = Decoder(model)
    hidden = patch(decoder.run(decoder.embed_tokens(ids), 0, 2)).to(next(model.parameters()).dtype)
    expected = decoder.logits(decoder.run(hidden, 4))
    attach_patch(model, 4, patch)
    remove_layers(model, [2, 3])
    assert torch.equal(logits_of(model, ids), expected)
    again, _ = checkpoint.load(checkpoint.save(model, None, tmp_path / "model"))
    assert torch.equal(logits_of(again, ids), expected)


def loaded(make_patch, tensors):
    patch = make_patch(0.0)
    patch.load_state_dict(tensors)
    return patch


@pytest.mark.parametrize("name", sorted({*ARCHITECTURES, *FAMILIES}))
@torch.no_grad()
def test_sublayers_make_the_layer_or_are_refused(name, make_tiny, ids):
    decoder = Decoder(make_tiny(name))
    hidden, mask = decoder.embed_tokens(ids), torch.ones_like(ids)
    mask[1, :5] = 0  # padding, on the left
    if decoder.spec.inseparable:
        with pytest.raises(UserError, match=f"cannot be done for architecture '{name}'"):
            decoder.added(hidden, 0, "attention")
        return
    for layer in range(decoder.num_layers):
        after = decoder.run(hidden, layer, layer + 1, attention_mask=mask)
        middle = hidden + decoder.added(hidden, layer, "attention", mask)
        mlp = decoder.added(hidden if decoder.spec.parallel else middle, layer, "mlp")
        torch.testing.assert_close(middle + mlp, after, rtol=1e-5, atol=1e-5)
        hidden = after


@torch.no_grad()
def test_factors_are_fused_exactly_or_refused(model, family, ids):
    """A power of two without epsilons: the weights carry what a hook would do."""
    for module in model.modules():
        for name in ("variance_epsilon", "eps"):
            if "Norm" in type(module).__name__ and hasattr(module, name):
                setattr(module, name, 0.0)
    if family in UNFUSED:
        with pytest.raises(UserError, match="no norm before its attention and MLP"):
            fuse_factor(model, 3, 2.0)
        return
    with scale_stream(model, 3, 2.0):
        expected = logits_of(model, ids)
    fuse_factor(model, 3, 2.0)  # tied heads stay as they are, by the final norm's gain
    torch.testing.assert_close(logits_of(model, ids), expected, rtol=1e-4, atol=1e-4)
    untie_embeddings(model)
    torch.testing.assert_close(logits_of(model, ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*UNSTREAMED}))
@torch.no_grad()
def test_streamed_is_the_same_model(family, write_checkpoint, tmp_path, ids):
    folder = write_checkpoint(tmp_path / "model", family)
    whole, tokenizer = checkpoint.load(folder)
    streamed, _ = checkpoint.load(folder, stream=0)
    for model in (whole, streamed):
        remove_layers(model, [1, 4])
        if family not in UNFUSED:
            fuse_factor(model, 2, 1.5)
    expected = logits_of(whole, ids)
    assert torch.equal(logits_of(streamed, ids), expected)
    checkpoint.save(streamed, tokenizer, tmp_path / "out")
    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(logits_of(plain.eval(), ids), expected)


@pytest.mark.parametrize(
    "family, dtype, why",
    [*((family, None, "") for family in UNSTREAMED)]
    + [(family, "bfloat16", " in torch.bfloat16") for family in ("ernie4_5_moe", "hunyuan_v1_moe")],
)
def test_what_is_not_streamed_is_refused(family, dtype, why, write_checkpoint, tmp_path):
    """Some families never, and those with parts that stay in float32 not in another type."""
    with pytest.raises(UserError, match=f"architecture '{family}' is not read layer by layer{why}"):
        checkpoint.load(write_checkpoint(tmp_path / "model", family), stream=0, dtype=dtype)


@pytest.mark.parametrize("family", REFITTED)
@torch.no_grad()
def test_a_refit_with_enough_weights_restores_the_stream(family, make_tiny, ids):
    """As many tokens as features can be met exactly: what is written before the pruning interface is then X[b]."""
    model = make_tiny(family)
    few = ids[:1, :20]
    decoder = Decoder(model)
    target = decoder.run(decoder.embed_tokens(few), 0, 4)
    refit(model, few, [2, 3], following=0, ridge=1e-9, held_out=0)
    restored = decoder.run(decoder.embed_tokens(few), 0, 2)
    torch.testing.assert_close(restored, target, rtol=1e-3, atol=1e-3 * target.abs().max().item())


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*REFITTED}))
def test_what_cannot_be_refitted_is_refused(family, make_tiny, ids):
    with pytest.raises(UserError, match=f"architecture '{family}' cannot be refitted: "):
        refit(make_tiny(family), ids, [2, 3])


@torch.no_grad()
def test_scores_are_those_of_hflm(model, tiny_tokenizer):
    context = "the layers of a model are"
    pairs = [(context, f" {word}") for word in ("removed and scaled", "scaled", "a stream")] + [("the", " model is")]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    alone = HFLM(pretrained=model, tokenizer=tiny_tokenizer, backend="causal", batch_size=1)
    ours = SharedContextLM(model, tiny_tokenizer).loglikelihood(requests, disable_tqdm=True)
    for score, other in zip(ours, alone.loglikelihood(requests, disable_tqdm=True), strict=True):
        assert score[0] == pytest.approx(other[0], abs=2e-4) and score[1] is other[1]


def test_linear_attention_is_never_left_alone(make_tiny):
    model = make_tiny("qwen3_next")
    assert model.config.layer_types.index("full_attention") == 2
    with pytest.raises(UserError, match=r"cannot remove layers \[2, 5\]: only layers with linear attention"):
        remove_layers(model, [2, 5])
    assert len(model.model.layers) == 6


@pytest.mark.parametrize("removed", [[1, 2, 4], [0, 1], [0, 1, 2, 3], [2, 3, 4]])
def test_a_config_tells_which_layers_have_experts_between_two_bounds(removed, make_tiny):
    """ERNIE's layers 2 to 4 have experts here."""
    model = make_tiny("ernie4_5_moe")
    remove_layers(model, removed)
    again = type(model)(AutoConfig.for_model(**model.config.to_dict()))
    expected = [2 <= layer <= 4 for layer in range(6) if layer not in removed]
    assert [hasattr(layer.mlp, "experts") for layer in again.model.layers] == expected


def test_experts_at_an_interval_are_refused(make_tiny):
    model = make_tiny("ernie4_5_moe")
    model.config.moe_layer_interval = 2
    with pytest.raises(UserError, match="by the config's moe_layer_interval 2 they must"):
        remove_layers(model, [1])
    assert len(model.model.layers) == 6
