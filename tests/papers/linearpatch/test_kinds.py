"""Every kind of patch and every way to choose layers; several cuts, saved models, split models; what is refused."""

import copy

import pytest
import torch
from accelerate import dispatch_model
from heads import logits, streams

from common.calibration import collect
from common.calibration.least_squares import RIDGE
from common.calibration.statistics import COSINES
from common.hadamard import hadamard_matrix
from common.hooks import patches
from common.models import checkpoint
from common.models.decoder import Decoder
from common.utils.errors import UserError
from papers import linearpatch
from papers.linearpatch import method
from papers.linearpatch.method import select, survey
from papers.linearpatch.patch import KINDS

VECTORS = ("hadamard", "rotated", "diagonal")


def values(kind):
    generator = torch.Generator().manual_seed(1)
    if kind == "scalar":
        return torch.tensor(1.3)
    if kind == "matrix":
        return torch.eye(64) + 0.1 * torch.randn(64, 64, generator=generator)
    return torch.rand(64, generator=generator) + 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_multiplies_by_its_matrix(kind):
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(2))
    held = values(kind).double()
    rotation = hadamard_matrix(64)
    naive = {
        "scalar": lambda: x.double() * held,
        "matrix": lambda: x.double() @ held,
        "diagonal": lambda: x.double() @ torch.diag(held),
    }.get(kind, lambda: x.double() @ rotation @ torch.diag(held) @ rotation.T)()
    patch = linearpatch.LinearPatch(values(kind), kind, 64)
    torch.testing.assert_close(patch(x), naive.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x @ patch.matrix(), naive.float(), rtol=1e-4, atol=1e-5)
    assert patch.channels == 64 and patch(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_several_patches_of_every_kind_reload_and_generate(kind, tiny_llama, crops, tiny_tokenizer, tmp_path, greedy):
    cuts = [(1, 2), (3, 5)]
    statistics = collect(Decoder(tiny_llama), crops, span=2, matrices=cuts)
    estimator = "least-squares" if kind == "matrix" else "ratio-of-means"
    linearpatch.patch_interfaces(tiny_llama, statistics, [4, 1, 3], kind=kind, estimator=estimator)
    checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "pruned")
    again, _ = checkpoint.load(tmp_path / "pruned")
    assert [p.position for p in patches(again)] == [1, 2]
    assert torch.equal(logits(again, crops), logits(tiny_llama, crops))
    prompt = crops[:1, :6]
    assert greedy(again, prompt, True).equal(greedy(again, prompt, False))


def test_the_rotated_kind_can_be_trained():
    rotated = linearpatch.LinearPatch(values("rotated"), "rotated").requires_grad_(True)
    rotated(torch.randn(3, 64, generator=torch.Generator().manual_seed(2))).square().sum().backward()
    assert rotated.weight.grad.shape == (64,) and rotated.weight.grad.abs().min() > 0


@pytest.mark.parametrize("cosine", COSINES)
@pytest.mark.parametrize("variant", ["L", "S"])
def test_every_cosine_can_select(variant, cosine, tiny_llama, crops):
    length = 2 if variant == "L" else 1
    pairs = [(s, s + length) for s in range(7 - length)]
    statistics = collect(Decoder(tiny_llama), crops, span=2, pairs=pairs, kinds=(cosine,))
    order = sorted((a for a, _ in pairs), key=lambda a: -statistics.cosine(cosine, a, a + length))
    expected = [order[0], order[0] + 1] if variant == "L" else order[:2]
    assert linearpatch.prune(tiny_llama, crops, 2, variant=variant, cosine=cosine)["removed"] == expected


@pytest.mark.parametrize("kind", [*VECTORS, "scalar", "matrix"])
def test_least_squares_patches_come_nearer_than_magnitudes_alone(kind, tiny_llama, crops):
    """The weighted error over calibration tokens, from stored states of the dense model."""
    x, y = streams(tiny_llama, crops)[2:5:2]
    weight = 1 / x.norm(dim=-1, keepdim=True)

    def error(estimator, kind):
        model = copy.deepcopy(tiny_llama)
        linearpatch.prune(model, crops, 2, layers=[2, 3], kind=kind, estimator=estimator)
        (patch,) = patches(model)
        return ((patch.module(x) - y) * weight).square().sum()

    by_magnitude = error("ratio-of-means", "hadamard" if kind == "matrix" else kind)
    assert error("least-squares", kind) < by_magnitude


@pytest.mark.parametrize("layers", [None, [2, 3]])
def test_the_matrix_is_a_ridge_regression(tiny_llama, crops, layers):
    """By the ridge regression of stored states, each token divided by its norm."""
    states, eye = streams(tiny_llama, crops), torch.eye(64, dtype=torch.float64)
    report = linearpatch.prune(tiny_llama, crops, 2, layers=layers, kind="matrix", estimator="least-squares")
    start = report["removed"][0]
    x, y = (states[place].flatten(0, 1).double() for place in (start, start + 2))
    y, x = (side / x.norm(dim=-1, keepdim=True) for side in (y, x))
    penalty = (RIDGE * x.square().sum() / 64).sqrt() * eye
    change = torch.linalg.lstsq(torch.cat([x, penalty]), torch.cat([y - x, 0 * eye])).solution
    (patch,) = patches(tiny_llama)
    torch.testing.assert_close(patch.module.weight.double(), eye + change, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", ["L", "S"])
def test_one_survey_serves_every_number_of_layers_it_names(tiny_llama, crops, variant):
    """With the model that a run of its own makes of each."""
    _, statistics = survey(tiny_llama, crops, 1, variant=variant, others=(2, 3))
    for count in (1, 2, 3):
        alone, model = copy.deepcopy(tiny_llama), copy.deepcopy(tiny_llama)
        removed = select(statistics, count, variant)
        linearpatch.patch_interfaces(model, statistics, removed)
        assert linearpatch.prune(alone, crops, count, variant=variant)["removed"] == removed
        assert torch.equal(logits(model, crops), logits(alone, crops))


def test_one_pass_serves_selection_and_least_squares(tiny_llama, crops, monkeypatch):
    passes = []
    monkeypatch.setattr(method, "collect", lambda *given, **options: passes.append(1) or collect(*given, **options))
    linearpatch.prune(tiny_llama, crops, 2, estimator="least-squares")
    assert len(passes) == 1


def spread_over_disk(model, on_disk, folder):
    """The model with these layers on the disk, as accelerate spreads one that does not fit."""
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{i}": "disk" if i in on_disk else "cpu" for i in range(len(model.model.layers))}
    return dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize(
    "layers", [[2, 3], [1, 3, 4], [0, 5]], ids=["one patch", "two patches", "first and last layer"]
)
def test_a_patched_model_spread_by_device_map_is_the_same_model(
    layers, tiny_llama, crops, tiny_tokenizer, tmp_path, greedy
):
    linearpatch.prune(tiny_llama, crops, len(layers), layers=layers)
    prompt = crops[:1, :6]
    expected, written = logits(tiny_llama, crops), greedy(tiny_llama, prompt, True)
    checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "pruned")
    placed, _ = checkpoint.load(tmp_path / "pruned", device="auto")
    assert torch.equal(logits(placed, crops), expected) and len(patches(placed)) == len(patches(tiny_llama))
    spread = spread_over_disk(tiny_llama, range(1, 6 - len(layers)), tmp_path / "disk")
    torch.testing.assert_close(logits(spread, crops), expected)
    assert any(parameter.is_meta for parameter in spread.model.layers[2].parameters())
    for cached in (True, False):
        assert greedy(spread, prompt, cached).equal(written)


def test_a_model_spread_by_device_map_can_be_pruned(tiny_llama, crops, tmp_path):
    whole = copy.deepcopy(tiny_llama)
    linearpatch.prune(whole, crops, 2, layers=[2, 3])
    spread = spread_over_disk(tiny_llama, (3, 4, 5), tmp_path)
    linearpatch.prune(spread, crops, 2, layers=[2, 3])
    torch.testing.assert_close(logits(spread, crops), logits(whole, crops))


def test_table_9_can_be_loaded_and_compared_with():
    assert linearpatch.published_block("llama-2-7b", 9) == (21, 30)
    assert linearpatch.published_block("llama-3-8b", 5, "S") == (24, 29)
    assert linearpatch.published_block("llama-3-8b", 5, "L") == (23, 28)
    comparison = linearpatch.compare_block([24, 23, 25, 26, 27, 28, 22], "llama-3-8b", "L")
    assert comparison == {"computed": list(range(22, 29)), "published": [23, 30], "same": False, "shared": 6}
    assert linearpatch.compare_block([1, 2], "standin") is None
    with pytest.raises(UserError, match=r"no block of 6 layers \[L\] of llama-3-8b; it has 7 \[S\], 7 \[L\], 5 \[S\]"):
        linearpatch.published_block("llama-3-8b", 6)
    with pytest.raises(UserError, match="did you mean 'llama-3-8b'"):
        linearpatch.published_block("llama3-8b", 6)


def test_bad_patches_and_cuts_are_named(tiny_llama, crops, make_tiny):
    statistics = collect(Decoder(tiny_llama), crops, span=2)
    with pytest.raises(UserError, match=r"cannot remove layers \[21, 22\]: the model has layers 0 to 5"):
        linearpatch.prune(tiny_llama, crops, 2, layers=[21, 22])
    with pytest.raises(UserError, match="3 different layers are given, but 2 are to be removed"):
        linearpatch.prune(tiny_llama, crops, 2, layers=[2, 3, 4])
    with pytest.raises(UserError, match="a matrix cannot be computed by 'pooled-l1'"):
        linearpatch.patch_interfaces(tiny_llama, statistics, [2], kind="matrix", estimator="pooled-l1")
    with pytest.raises(UserError, match="kind 'diagonal' cannot hold values of shape"):
        linearpatch.LinearPatch(torch.eye(4), "diagonal")
    with pytest.raises(UserError, match="unknown patch kind"):
        linearpatch.LinearPatch(torch.ones(64), "hadamar")
    with pytest.raises(UserError, match="finite"):
        linearpatch.LinearPatch(torch.tensor([1.0, float("nan")]))
    with pytest.raises(UserError, match="told the residual stream's width"):
        linearpatch.LinearPatch(torch.tensor(2.0), "scalar")
    with pytest.raises(UserError, match=r"the patch is in float16; .* patch.float\(\)"):
        linearpatch.insert_patch(tiny_llama, 1, linearpatch.LinearPatch(torch.ones(64)).half())
    with pytest.raises(UserError, match="unknown cosine 'tokn'; did you mean 'token'"):
        linearpatch.prune(tiny_llama, crops, 2, cosine="tokn")
    smaller = make_tiny("llama")
    linearpatch.prune(smaller, crops, 2, layers=[2, 3])
    with pytest.raises(UserError, match="a model of 6 layers and 64 channels, this one has 4 and 64"):
        linearpatch.patch_interfaces(smaller, statistics, [2])
    assert len(tiny_llama.model.layers) == 6 and not patches(tiny_llama)


def test_mixed_dtypes_and_infinite_states_are_named(tiny_llama, crops):
    tiny_llama.model.layers[2].to(torch.bfloat16)
    mixed = r"mixes dtypes: float32 \(model.embed_tokens.weight\), bfloat16 \(model.layers.2"
    with pytest.raises(UserError, match=mixed):
        linearpatch.prune(tiny_llama, crops, 2)
    tiny_llama.float()
    with torch.no_grad():
        tiny_llama.model.layers[1].mlp.down_proj.weight.mul_(float("inf"))
    with pytest.raises(UserError, match="not finite; use float32 or bfloat16"):
        linearpatch.prune(tiny_llama, crops, 2, layers=[2, 3])
