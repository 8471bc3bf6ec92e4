"""The refit's options of the ablation: against least squares on Hugging Face's own outputs of each half."""

import copy

import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from common.pruning.pipeline import around, run_recipe
from common.pruning.steps import Given
from extensions import refit

OUT, DOWN = "self_attn.o_proj", "mlp.down_proj"


@pytest.fixture(scope="module")
def ids():
    return torch.randint(5, 300, (8, 24), generator=torch.Generator().manual_seed(0))


def recorded(model, ids, name, layers):
    """What a matrix of these layers reads and writes, rows [tokens, ...], float64."""
    seen = {}
    modules = {layer: model.model.layers[layer].get_submodule(name) for layer in layers}
    handles = [
        module.register_forward_hook(lambda m, args, out, layer=layer: seen.update({layer: (args[0], out)}))
        for layer, module in modules.items()
    ]
    with torch.no_grad():
        model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return {layer: [x.flatten(0, 1).double() for x in pair] for layer, pair in seen.items()}


def ridged(inputs, targets, ridge, towards):
    """argmin |inputs W' - wanted|^2 + r |W - towards|^2 by stacked least squares; r a share of the mean eigenvalue."""
    size = inputs.shape[1]
    root = (ridge * inputs.square().sum() / size).sqrt()
    rows = torch.cat([inputs, root * torch.eye(size, dtype=torch.float64)])
    return torch.linalg.lstsq(rows, torch.cat([targets, root * towards.double().T])).solution.T


@pytest.mark.parametrize("towards", ["old", "zero"])
def test_branches_ask_the_next_layer_for_the_sums_of_halves_and_nothing_else_changes(towards, make_tiny, ids):
    model = make_tiny("llama")
    dense, cut = copy.deepcopy(model), copy.deepcopy(model)
    del cut.model.layers[2:4]
    for place, layer in enumerate(cut.model.layers):
        layer.self_attn.layer_idx = place
    options = {"target": "branches", "towards": towards, "before": False}
    reports = refit.refit(model, ids, [2, 3], following=1, ridge=1e-2, batch_size=3, **options)
    assert [(report["layer"], report["matrix"]) for report in reports] == [(4, OUT), (4, DOWN)]
    for name in (OUT, DOWN):
        target = sum(out for _, out in recorded(dense, ids, name, (2, 3, 4)).values())
        inputs = recorded(cut, ids, name, (2,))[2][0]
        old = dense.model.layers[4].get_submodule(name).weight
        fitted = ridged(inputs, target, 1e-2, old if towards == "old" else torch.zeros_like(old))
        got = model.model.layers[2].get_submodule(name).weight
        torch.testing.assert_close(got.double(), fitted, rtol=1e-3, atol=1e-4 * fitted.abs().max().item())
        with torch.no_grad():  # the second matrix is fitted behind the first
            cut.model.layers[2].get_submodule(name).weight.copy_(fitted)
    before = dense.model.layers[1].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in model.model.layers[1].state_dict().items())


def test_a_ridge_towards_zero_shrinks_the_weights_and_one_on_held_out_text_may_leave_them(make_tiny, ids):
    model = make_tiny("llama")
    dense = copy.deepcopy(model)
    [report] = refit.refit(model, ids, [2, 3], following=0, ridge=1e-1, towards="zero")
    states = []
    handles = [dense.model.layers[k].register_forward_pre_hook(lambda m, args: states.append(args[0])) for k in (2, 4)]
    inputs, written = recorded(dense, ids, DOWN, (1,))[1]
    for handle in handles:
        handle.remove()
    missing = (states[1] - states[0]).flatten(0, 1).double()
    old = dense.model.layers[1].mlp.down_proj.weight
    fitted = ridged(inputs, written + missing, 1e-1, torch.zeros_like(old))
    got = model.model.layers[1].mlp.down_proj.weight.double()
    torch.testing.assert_close(got, fitted, rtol=1e-3, atol=1e-4 * fitted.abs().max().item())
    left = (inputs @ (fitted - old).T - missing).square().sum() / states[1].double().square().sum()
    assert report["left"] == pytest.approx(left.item(), rel=1e-3)
    reports = refit.refit(make_tiny("llama"), ids, [2], following=1, held_out=2, towards="zero")
    assert all(report["held_out"] >= 0 and report["ridge"] > 0 for report in reports)


def test_without_the_layer_before_it_stays_as_it_is(make_tiny, ids):
    model = make_tiny("qwen3")
    dense = copy.deepcopy(model)
    repair = {"method": "refit", "following": 1, "ridge": 1e-2, "before": False}
    context = around(model, windows=ids, selection=Given((2, 3)), repair=repair)
    run_recipe(context)
    assert [report["layer"] for report in context.details["refitted"]] == [4, 4]
    before = dense.model.layers[1].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in model.model.layers[1].state_dict().items())


def entering(model, ids, layers):
    """The residual stream that enters these layers, rows [tokens, channels], float64."""
    states = []
    handles = [model.model.layers[k].register_forward_pre_hook(lambda m, args: states.append(args[0])) for k in layers]
    with torch.no_grad():
        model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return [state.flatten(0, 1).double() for state in states]


def test_a_rotation_is_the_one_that_scipy_finds(make_tiny, ids):
    model = make_tiny("llama")
    dense = copy.deepcopy(model)
    [report] = refit.refit(model, ids, [2, 3], following=0, form="rotation")
    start, goal = entering(dense, ids, (2, 4))
    inputs, written = recorded(dense, ids, DOWN, (1,))[1]
    turned, _ = orthogonal_procrustes(written.numpy(), (written + goal - start).numpy())  # rows: written @ turned
    old = dense.model.layers[1].mlp.down_proj.weight.detach()
    rotated = torch.from_numpy(turned).T @ old.double()
    got = model.model.layers[1].mlp.down_proj.weight.detach().double()
    torch.testing.assert_close(got, rotated, rtol=1e-4, atol=1e-5 * rotated.abs().max().item())
    left = (start - written + inputs @ rotated.T - goal).square().sum() / goal.square().sum()
    assert report["left"] == pytest.approx(left.item(), rel=1e-3)
    torch.testing.assert_close(got.norm(dim=0), old.double().norm(dim=0), rtol=1e-4, atol=0.0)


def test_half_of_a_change_ends_half_way_and_the_next_matrix_makes_up_for_the_rest(make_tiny, ids):
    models = {strength: make_tiny("llama") for strength in (0.5, 1.0)}
    dense = copy.deepcopy(models[1.0])
    [[report], _] = [refit.refit(models[s], ids, [2, 3], following=0, strength=s) for s in models]
    old, half, full = (m.model.layers[1].mlp.down_proj.weight.detach() for m in (dense, *models.values()))
    torch.testing.assert_close(half, (old + full) / 2, rtol=1e-4, atol=1e-6)
    start, goal = entering(dense, ids, (2, 4))
    inputs, written = recorded(dense, ids, DOWN, (1,))[1]
    left = (start - written + inputs @ half.double().T - goal).square().sum() / goal.square().sum()
    assert report["left"] == pytest.approx(left.item(), rel=1e-3)
    # the gap that the following o_proj finds is that of the half-way model
    model = make_tiny("llama")
    reports = refit.refit(model, ids, [2, 3], following=1, strength=0.5)
    assert [r["matrix"] for r in reports] == [DOWN, OUT, DOWN] and all(r["left"] < r["error"] for r in reports)
    whole = refit.refit(make_tiny("llama"), ids, [2, 3], following=1)
    assert reports[1]["error"] > whole[1]["error"]
