"""Refitting around a cut: against naive least squares, the dense model, and a saved and reloaded checkpoint."""

import copy

import pytest
import torch
from heads import streams
from least_squares import recorded, ridge_solution, share, stream, weight

from common.utils.errors import UserError
from extensions import refit

PLAIN = ("llama", "mistral", "qwen2", "qwen3")
BEFORE = "model.layers.1.mlp.down_proj"


def by_least_squares(dense, ids, ridge, first=True):
    """The change of layer 1's down_proj that makes up for layers 2 and 3; what was missing and what is left without them."""
    [(features, _)] = recorded(dense, ids, BEFORE)
    counted = torch.arange(ids.numel()) % ids.shape[1] >= (not first)
    features, target = features[counted], stream(dense, ids, 4)[counted]
    missing = target - stream(dense, ids, 2)[counted]
    change = ridge_solution(features, missing, ridge)
    return change.T, share(missing, target), share(missing - features @ change, target)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("samples", [8, 2])  # more tokens than features, and fewer
@pytest.mark.parametrize("kind", PLAIN)
def test_the_matrix_before_the_cut_is_the_ridge_regression_of_all_tokens_at_once(kind, samples, first, ids, make_tiny):
    model, ids = make_tiny(kind), ids[:samples]
    assert (ids.numel() < model.config.intermediate_size) == (samples == 2)
    dense, ridge = copy.deepcopy(model), 1e-2
    [report] = refit.refit(model, ids, [2, 3], following=0, ridge=ridge, first=first, batch_size=4)
    expected, error, left = by_least_squares(dense, ids, ridge, first)
    change = weight(model, BEFORE) - weight(dense, BEFORE)
    assert torch.allclose(change, expected, atol=1e-5 * expected.abs().max().item())
    errors = {"error": pytest.approx(error, rel=1e-4), "left": pytest.approx(left, rel=1e-3)}
    assert report == {"layer": 1, "matrix": "mlp.down_proj"} | errors
    # nothing else changes, and the layers are removed
    assert len(model.model.layers) == dense.config.num_hidden_layers - 2
    assert torch.equal(model.model.layers[1].self_attn.o_proj.weight, dense.model.layers[1].self_attn.o_proj.weight)


def test_a_half_precision_matrix_is_refitted_and_rounded_once(ids, make_tiny):
    model, ridge = make_tiny("llama").bfloat16(), 1e-2
    change, *_ = by_least_squares(model, ids, ridge)
    before = model.model.layers[1].mlp.down_proj.weight.clone()
    refit.refit(model, ids, [2, 3], following=0, ridge=ridge)
    weight = model.model.layers[1].mlp.down_proj.weight
    once, twice = (before.double() + change).bfloat16(), before + change.bfloat16()
    assert (once != twice).double().mean() > 0.01  # rounding the change first would show
    assert (weight != once).double().mean() < 1e-3


@pytest.mark.parametrize("kind", [*PLAIN, "granite"])
def test_every_refit_brings_the_stream_nearer_to_the_dense_one(kind, ids, make_tiny):
    dense = make_tiny(kind)
    distances = {}
    for following in (0, 1, 2):
        model = copy.deepcopy(dense)
        reports = refit.refit(model, ids, [2], following=following, ridge=1e-4)
        assert [(r["layer"], r["matrix"]) for r in reports] == [(1, refit.MLP)] + [
            (3 + k, matrix) for k in range(following) for matrix in (refit.ATTENTION, refit.MLP)
        ]
        assert all(report["left"] < report["error"] for report in reports)
        # the report of the last matrix is what a forward pass of the pruned model shows
        last = reports[-1]["layer"] if following else 2  # one layer is removed: the boundary after dense layer `last`
        pruned, original = streams(model, ids), streams(dense, ids)
        left = share(pruned[last] - original[last + 1], original[last + 1])
        assert left == pytest.approx(reports[-1]["left"], rel=2e-2)
        distances[following] = (pruned[4] - original[5]).norm().item()
    assert distances[2] < distances[1] < distances[0]


def test_a_layer_that_does_nothing_is_removed_without_a_change(ids, make_tiny):
    model = make_tiny("llama")
    for name in (refit.ATTENTION, refit.MLP):
        torch.nn.init.zeros_(model.model.layers[3].get_submodule(name).weight)
    dense = copy.deepcopy(model)
    refit.refit(model, ids, [3], following=2)
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, dense(ids).logits, atol=1e-5)


def test_several_cuts_are_refitted_from_the_first_to_the_last(ids, make_tiny):
    model = make_tiny("llama")
    layers = model.config.num_hidden_layers
    reports = refit.refit(model, ids, [1, 4], following=1)
    assert [(r["layer"], r["matrix"]) for r in reports] == [
        (0, refit.MLP), (2, refit.ATTENTION), (2, refit.MLP), (3, refit.MLP), (5, refit.ATTENTION), (5, refit.MLP)
    ][: len(reports)]  # fmt: skip
    assert all(report["left"] < report["error"] for report in reports) and len(model.model.layers) == layers - 2


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gemma2", {}, "architecture 'gemma2' cannot be refitted"),
        ("mixtral", {}, "architecture 'mixtral' cannot be refitted"),
        ("llama", {"removed": [77]}, "the model has layers"),
        ("llama", {"ridge": 0.0}, "ridge a positive number"),
        ("llama", {"following": -1}, "following must be 0 or more"),
        ("llama", {"held_out": 8}, "held_out must be 0 to 7 of the 8 samples"),
        ("llama", {"share": 1.5}, "share must be 0 to 1"),
        ("llama", {"matrices": "all"}, "matrices"),
        ("llama", {"towards": "one"}, "unknown pull"),
        ("llama", {"target": "logits"}, "unknown target"),
        ("llama", {"form": "shear"}, "unknown form"),
        ("llama", {"strength": 0.0}, "strength"),
        ("llama", {"form": "rotation", "held_out": 2}, "rotation has no ridge"),
        ("llama", {"target": "branches", "following": 1}, "only defined for the one layer"),
        ("llama", {"target": "branches", "following": 2, "before": False}, "only defined for the one layer"),
    ],
)
def test_what_cannot_be_refitted_is_refused_before_anything_changes(kind, options, message, ids, make_tiny):
    model = make_tiny(kind)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match=message):
        refit.refit(model, ids, options.pop("removed", [2]), **options)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
