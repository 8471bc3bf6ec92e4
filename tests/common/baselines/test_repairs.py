"""Ghosted Layers and ReplaceMe against least squares on Hugging Face's hidden states, and saved and reloaded."""

import copy

import numpy as np
import pytest
import torch
from heads import streams
from least_squares import recorded
from torch.nn import functional as F
from weights import changed_weights, weights

from common.baselines import replaceme
from common.baselines.ghosted import EPS, GhostedLayers, ghost
from common.baselines.replaceme import ReplaceMe, replace_me
from common.calibration.block_boundaries import crossings
from common.hooks import patches
from common.models.decoder import Decoder
from common.pruning.pipeline import context_of, run_recipe
from common.pruning.steps import Given
from common.utils.errors import UserError
from papers.linearpatch import steps as _patches  # noqa: F401 - registers its step

PLAIN = ("llama", "mistral", "qwen2", "qwen3", "mixtral")


@pytest.fixture(scope="module")
def ids():
    return torch.randint(5, 300, (8, 24), generator=torch.Generator().manual_seed(0))


def states(model, ids):
    """X[0] .. X[N - 1] as rows [tokens, channels], float64, and what each MLP gave; from Hugging Face's own forward pass."""
    mlps = recorded(model, ids, *(f"model.layers.{layer}.mlp" for layer in range(len(model.model.layers))))
    return [x.flatten(0, 1).double() for x in streams(model, ids)[:-1]], [written for _, written in mlps]


def lstsq(inputs, targets, alpha=0.0):
    """argmin |inputs A - targets|^2 + alpha |A|^2, by numpy's."""
    size = inputs.shape[1]
    rows = np.concatenate([inputs.numpy(), alpha**0.5 * np.eye(size)])
    solution = np.linalg.lstsq(rows, np.concatenate([targets.numpy(), np.zeros((size, targets.shape[1]))]), rcond=None)
    return torch.from_numpy(solution[0])


def relative_error(states, target):
    return ((states - target).square().sum() / target.square().sum()).item()


def test_a_ghost_is_least_squares_on_the_stream(tiny, ids):
    x, _ = states(tiny, ids)
    expected = lstsq(x[2], x[4] - x[2], EPS)
    [report] = ghost(tiny, ids, [3, 2], batch_size=3)
    [patch] = patches(tiny)
    atol = 1e-3 * expected.abs().max().item()
    torch.testing.assert_close(patch.module.weight.double(), expected, rtol=1e-3, atol=atol)
    assert (patch.position, report["run"], report["operators"]) == (2, [2, 4], 1)
    assert report["left"] == [pytest.approx(relative_error(x[2] + x[2] @ expected, x[4]), rel=1e-3)]
    assert report["error"] == [pytest.approx(relative_error(x[2], x[4]), rel=1e-4)]
    repaired, _ = states(tiny, ids)  # the layer after the cut receives it
    assert len(tiny.model.layers) == 4
    torch.testing.assert_close(repaired[2], x[2] + x[2] @ expected, rtol=1e-3, atol=atol)


def test_several_cuts_have_one_operator_per_layer_and_adjoining_ones_compose(tiny_llama, ids):
    dense = copy.deepcopy(tiny_llama)
    x, _ = states(dense, ids)
    eye = torch.eye(64, dtype=torch.float64)
    of_layer_1, of_layer_2, of_layer_4 = (eye + lstsq(x[k], x[k + 1] - x[k], EPS) for k in (1, 2, 4))
    reports = ghost(tiny_llama, ids, [1, 2, 4])
    first, second = patches(tiny_llama)
    torch.testing.assert_close(eye + first.module.weight, of_layer_1 @ of_layer_2, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(eye + second.module.weight, of_layer_4, rtol=1e-3, atol=1e-3)
    assert [(r["operators"], r["position"]) for r in reports] == [(2, 1), (1, 2)]


def test_the_first_token_can_be_left_out(tiny_llama, ids):
    [crossing] = crossings(Decoder(tiny_llama), ids, [(2, 3)], first=False)
    assert torch.equal(crossing.keep.flatten(), torch.arange(ids.numel()) % ids.shape[1] > 0)


def test_no_fit_is_made_when_only_first_tokens_were_given(tiny_llama, ids):
    before = copy.deepcopy(tiny_llama.state_dict())
    for repair in (ghost, replace_me):
        with pytest.raises(UserError, match="Give longer sequences"):
            repair(tiny_llama, ids[:, :1], [2, 3], first=False)
    torch.testing.assert_close(tiny_llama.state_dict(), before, rtol=0, atol=0)


def test_repairs_can_be_fitted_without_the_first_tokens(make_tiny, ids):
    ordinary = torch.arange(ids.numel()) % ids.shape[1] > 0
    for repair in (ghost, replace_me):
        model = make_tiny("llama")
        x, m = states(model, ids)
        if repair is ghost:
            expected = x[2] + x[2] @ lstsq(x[2][ordinary], (x[4] - x[2])[ordinary], EPS)
        else:
            expected = x[2] - m[1] + m[1] @ lstsq(m[1][ordinary], (x[4] - x[2] + m[1])[ordinary])
        [report] = repair(model, ids, [2, 3], first=False)
        repaired = states(model, ids)[0][2]  # of all tokens
        torch.testing.assert_close(repaired, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
        left = pytest.approx(relative_error(expected[ordinary], x[4][ordinary]), rel=1e-3)
        assert report["left"] == (left if repair is replace_me else [left])


@pytest.mark.parametrize("kind", PLAIN)
def test_replaceme_maps_the_mlps_output_inside_down_proj(kind, make_tiny, ids):
    model = make_tiny(kind)
    x, m = states(model, ids)
    matrix = lstsq(m[1], x[4] - x[2] + m[1])
    [report] = replace_me(model, ids, [2, 3], batch_size=3)
    repaired, _ = states(model, ids)
    expected = x[2] - m[1] + m[1] @ matrix
    torch.testing.assert_close(repaired[2], expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    assert report["left"] == pytest.approx(relative_error(expected, x[4]), rel=1e-3) and report["layer"] == 1
    assert report["left"] < report["error"] and not patches(model)
    torch.testing.assert_close(repaired[1], x[1], rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"bias": True}, {"objective": "bias"}])
def test_an_intercept_goes_into_the_bias_and_the_result_is_a_plain_llama(options, tiny_llama, ids, reloaded):
    x, m = states(tiny_llama, ids)
    ones = torch.ones(len(m[1]), 1, dtype=torch.float64)
    if options.get("bias"):
        solved = lstsq(torch.cat([m[1], ones], 1), x[4] - x[2] + m[1])
        expected = x[2] - m[1] + m[1] @ solved[:-1] + solved[-1]
    else:
        expected = x[2] + (x[4] - x[2]).mean(0)
    [report] = replace_me(tiny_llama, ids, [2, 3], **options)
    repaired, _ = states(tiny_llama, ids)
    torch.testing.assert_close(repaired[2], expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    assert report["left"] == pytest.approx(relative_error(expected, x[4]), rel=1e-3)
    assert reloaded(tiny_llama, ids).config.mlp_bias


@pytest.mark.parametrize("objective", ["cosine", "cosine-stream"])
def test_adam_raises_the_mean_cosine_that_it_is_told_to(objective, tiny_llama, ids, monkeypatch):
    dense = copy.deepcopy(tiny_llama)
    x, m = states(dense, ids)

    def cosine(model):
        new = states(model, ids)[1][1]
        rest = x[2] - m[1]
        pair = (new, x[4] - rest) if objective == "cosine" else (rest + new, x[4])
        return F.cosine_similarity(*pair, dim=-1).mean().item()

    before = cosine(dense)
    trained, more = copy.deepcopy(dense), copy.deepcopy(dense)
    monkeypatch.setattr(replaceme, "RATE", 3e-3)
    replace_me(trained, ids, [2, 3], objective=objective)
    monkeypatch.setattr(replaceme, "RATE", 1e-2)
    monkeypatch.setattr(replaceme, "EPOCHS", 400)
    replace_me(more, ids, [2, 3], objective=objective)
    solved = copy.deepcopy(dense)
    replace_me(solved, ids, [2, 3])
    assert before < cosine(trained) < cosine(more)
    assert cosine(more) > cosine(solved)  # least squares minimises something else


def test_both_cuts_of_a_set_are_fused(tiny_llama, ids):
    dense = copy.deepcopy(tiny_llama)
    x, m = states(dense, ids)
    downs = [dense.model.layers[k].mlp.down_proj.weight.double() for k in (0, 2)]
    reports = replace_me(tiny_llama, ids, [1, 3])
    assert [(r["run"], r["layer"]) for r in reports] == [([1, 2], 0), ([3, 4], 2)]
    for place, (layer, down) in enumerate(zip((0, 2), downs, strict=True)):
        matrix = lstsq(m[layer], x[layer + 2] - x[layer + 1] + m[layer])
        got = tiny_llama.model.layers[place].mlp.down_proj.weight.double()
        torch.testing.assert_close(got, matrix.T @ down, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "options"), [("granite", {}), ("granite", {"bias": True}), ("granitemoe", {}), ("qwen2_moe", {})]
)
def test_what_a_fused_matrix_leaves_is_what_the_repaired_model_shows(kind, options, make_tiny, ids):
    """Granite multiplies what its MLP returns before it is added; granitemoe's MLP has another name."""

    def states(layer):
        with torch.no_grad():
            return model(ids, output_hidden_states=True).hidden_states[layer].double()

    model = make_tiny(kind)
    expected = states(4)
    [report] = replace_me(model, ids, [2, 3], **options)
    left = relative_error(states(2), expected)
    assert report["left"] == pytest.approx(left, rel=1e-3) and report["left"] < report["error"]


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral"])
def test_a_ghost_is_saved_and_comes_back(kind, make_tiny, ids, reloaded):
    model = make_tiny(kind)
    ghost(model, ids, [2, 4])
    assert [patch.position for patch in patches(reloaded(model, ids, plain=False))] == [2, 3]


@pytest.mark.parametrize(
    ("kind", "call", "message"),
    [
        ("gemma2", lambda m, i: replace_me(m, i, [2]), "'gemma2' normalises what its MLP writes"),
        ("gpt_oss", lambda m, i: replace_me(m, i, [2]), "'gpt_oss' has experts with biases of their own"),
        ("qwen2", lambda m, i: replace_me(m, i, [2], bias=True), "'qwen2' has no mlp_bias"),
        ("mixtral", lambda m, i: replace_me(m, i, [2], objective="bias"), "'mixtral' has no mlp_bias"),
        ("llama", lambda m, i: replace_me(m, i, [0]), "before layer 0 no MLP"),
        ("llama", lambda m, i: replace_me(m, i[:1], [2]), "24 calibration tokens do not determine"),
        ("llama", lambda m, i: replace_me(m, i, [2], objective="cosin"), "unknown objective 'cosin'"),
        ("llama", lambda m, i: replace_me(m, i, [2], objective="cosine", bias=True), "bias goes with"),
        ("llama", lambda m, i: replace_me(m, i, [77]), "the model has layers"),
        ("llama", lambda m, i: ghost(m, i[0], [2]), r"must be \[samples, tokens\]"),
    ],
)
def test_what_cannot_be_repaired_is_refused_and_the_model_stays_whole(kind, call, message, make_tiny, ids):
    model = make_tiny(kind)
    before = weights(model)
    with pytest.raises(UserError, match=message):
        call(model, ids)
    assert not changed_weights(model, before)


@pytest.mark.parametrize(
    ("repair", "call"),
    [
        (GhostedLayers(eps=1e-3), lambda m, i: ghost(m, i, [2, 4], eps=1e-3)),
        (ReplaceMe(bias=True), lambda m, i: replace_me(m, i, [2, 4], bias=True)),
    ],
)
def test_a_recipe_repairs_as_the_function_does_and_says_from_how_many_tokens(repair, call, make_tiny, ids):
    by_recipe, by_function = make_tiny("llama"), make_tiny("llama")
    context = context_of(by_recipe, sequences=ids, selection=Given((4, 2)), repair=repair)
    assert context.recipe.step("repair") == repair
    run_recipe(context)
    reports = call(by_function, ids)
    assert context.details["patches" if patches(by_function) else "fused"] == reports
    assert context.details["repair"]["calibration_tokens"] == ids.numel()
    assert context.details["repair"]["seconds"] >= 0
    with torch.no_grad():
        assert torch.equal(by_recipe(ids).logits, by_function(ids).logits)
