"""The refit's options of the ablation: against least squares on Hugging Face's own outputs of each half."""

import copy

import pytest
import torch
from least_squares import recorded, ridge_solution, share, stream, weight
from scipy.linalg import orthogonal_procrustes

from common.pruning.pipeline import context_of, run_recipe
from common.pruning.steps import Given
from extensions import refit
from extensions.refit import steps  # noqa: F401 - registers the refit

OUT, DOWN = "model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp.down_proj"
BEFORE = DOWN.format(1)


def assert_weight(model, path, expected, rtol=1e-3, scaled_atol=1e-4):
    torch.testing.assert_close(weight(model, path), expected, rtol=rtol, atol=scaled_atol * expected.abs().max().item())


def assert_layer_before_unchanged(model, dense):
    layers = zip(model.model.layers[1].parameters(), dense.model.layers[1].parameters(), strict=True)
    assert all(torch.equal(*weights) for weights in layers)


@pytest.mark.parametrize("towards", ["old", "zero"])
def test_branches_ask_the_next_layer_for_the_sums_of_halves_and_nothing_else_changes(towards, pair, ids):
    model, dense = pair
    pruned = copy.deepcopy(dense)
    del pruned.model.layers[2:4]
    for place, layer in enumerate(pruned.model.layers):
        layer.self_attn.layer_idx = place
    options = {"target": "branches", "towards": towards, "before": False}
    reports = refit.refit(model, ids, [2, 3], following=1, ridge=1e-2, batch_size=3, **options)
    assert [(report["layer"], report["matrix"]) for report in reports] == [(4, refit.ATTENTION), (4, refit.MLP)]
    for half in (OUT, DOWN):
        target = sum(written for _, written in recorded(dense, ids, *map(half.format, (2, 3, 4))))
        [(inputs, _)] = recorded(pruned, ids, half.format(2))
        old = weight(dense, half.format(4)).T
        fitted = ridge_solution(inputs, target, 1e-2, old if towards == "old" else 0.0).T
        assert_weight(model, half.format(2), fitted)
        with torch.no_grad():  # the second matrix is fitted behind the first
            pruned.get_submodule(half.format(2)).weight.copy_(fitted)
    assert_layer_before_unchanged(model, dense)


def test_a_ridge_towards_zero_shrinks_the_weights_and_one_on_held_out_text_may_leave_them(pair, ids, make_tiny):
    model, dense = pair
    [report] = refit.refit(model, ids, [2, 3], following=0, ridge=1e-1, towards="zero")
    missing = stream(dense, ids, 4) - stream(dense, ids, 2)
    [(inputs, written)] = recorded(dense, ids, BEFORE)
    fitted = ridge_solution(inputs, written + missing, 1e-1).T
    assert_weight(model, BEFORE, fitted)
    left = inputs @ (fitted - weight(dense, BEFORE)).T - missing
    assert report["left"] == pytest.approx(share(left, stream(dense, ids, 4)), rel=1e-3)
    reports = refit.refit(make_tiny("llama"), ids, [2], following=1, held_out=2, towards="zero")
    assert all(report["held_out"] >= 0 and report["ridge"] > 0 for report in reports)


def test_without_the_layer_before_it_stays_as_it_is(make_tiny, ids):
    model = make_tiny("qwen3")
    dense = copy.deepcopy(model)
    repair = {"method": "refit", "following": 1, "ridge": 1e-2, "before": False}
    context = context_of(model, sequences=ids, selection=Given((2, 3)), repair=repair)
    run_recipe(context)
    assert [report["layer"] for report in context.details["refitted"]] == [4, 4]
    assert_layer_before_unchanged(model, dense)


def test_a_rotation_is_the_one_that_scipy_finds(pair, ids):
    model, dense = pair
    [report] = refit.refit(model, ids, [2, 3], following=0, form="rotation")
    start, goal = (stream(dense, ids, boundary) for boundary in (2, 4))
    [(inputs, written)] = recorded(dense, ids, BEFORE)
    turned, _ = orthogonal_procrustes(written.numpy(), (written + goal - start).numpy())  # rows: written @ turned
    old = weight(dense, BEFORE)
    rotated = torch.from_numpy(turned).T @ old
    assert_weight(model, BEFORE, rotated, rtol=1e-4, scaled_atol=1e-5)
    assert report["left"] == pytest.approx(share(start - written + inputs @ rotated.T - goal, goal), rel=1e-3)
    torch.testing.assert_close(weight(model, BEFORE).norm(dim=0), old.norm(dim=0), rtol=1e-4, atol=0.0)


def test_half_of_a_change_ends_half_way_and_the_next_matrix_makes_up_for_the_rest(make_tiny, ids):
    dense, half, full = (make_tiny("llama") for _ in range(3))
    [report] = refit.refit(half, ids, [2, 3], following=0, strength=0.5)
    refit.refit(full, ids, [2, 3], following=0, strength=1.0)
    half_way = (weight(dense, BEFORE) + weight(full, BEFORE)) / 2
    torch.testing.assert_close(weight(half, BEFORE), half_way, rtol=1e-4, atol=1e-6)
    start, goal = (stream(dense, ids, boundary) for boundary in (2, 4))
    [(inputs, written)] = recorded(dense, ids, BEFORE)
    left = start - written + inputs @ weight(half, BEFORE).T - goal
    assert report["left"] == pytest.approx(share(left, goal), rel=1e-3)
    # the gap that the following o_proj finds is that of the half-way model
    reports = refit.refit(make_tiny("llama"), ids, [2, 3], following=1, strength=0.5)
    assert [r["matrix"] for r in reports] == [refit.MLP, refit.ATTENTION, refit.MLP]
    assert all(r["left"] < r["error"] for r in reports)
    whole = refit.refit(make_tiny("llama"), ids, [2, 3], following=1)
    assert reports[1]["error"] > whole[1]["error"]
