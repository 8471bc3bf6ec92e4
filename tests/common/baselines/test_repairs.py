"""Ghosted Layers and ReplaceMe against least squares on Hugging Face's hidden states, and saved and reloaded."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from common.baselines.ghosted import EPS, GhostedLayers, ghost
from common.baselines.replaceme import ReplaceMe, replace_me
from common.calibration import collect
from common.calibration.least_squares import Regression, counted
from common.hooks import patches
from common.models.decoder import Decoder
from common.pruning.pipeline import around, run_recipe
from common.pruning.steps import Given
from common.utils.errors import UserError
from papers.linearpatch import steps as _patches  # noqa: F401 - registers its step

PLAIN = ("llama", "mistral", "qwen2", "qwen3", "mixtral")


@pytest.fixture(scope="module")
def ids():
    return torch.randint(5, 300, (8, 24), generator=torch.Generator().manual_seed(0))


def states(model, ids, mask=None):
    """X[0] .. X[N - 1] as rows [tokens, channels], float64, and what each MLP gave; from Hugging Face's own forward pass."""
    written = []
    handles = [layer.mlp.register_forward_hook(lambda m, a, out: written.append(out)) for layer in model.model.layers]
    with torch.no_grad():
        found = model(ids, attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states[:-1]
    for handle in handles:
        handle.remove()
    keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return [x[keep].double() for x in found], [m[keep].double() for m in written]


def lstsq(inputs, wanted, alpha=0.0):
    """argmin |inputs A - wanted|^2 + alpha |A|^2, by numpy's."""
    size = inputs.shape[1]
    rows = np.concatenate([inputs.numpy(), alpha**0.5 * np.eye(size)])
    found = np.linalg.lstsq(rows, np.concatenate([wanted.numpy(), np.zeros((size, wanted.shape[1]))]), rcond=None)
    return torch.from_numpy(found[0])


def test_a_ghost_is_least_squares_on_the_stream(tiny, ids):
    x, _ = states(tiny, ids)
    wanted = lstsq(x[2], x[4] - x[2], EPS)
    [report] = ghost(tiny, ids, [3, 2], batch_size=3)
    [patch] = patches(tiny)
    torch.testing.assert_close(patch.module.weight.double(), wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())
    assert (patch.position, report["run"], report["operators"]) == (2, [2, 4], 1)
    left = ((x[2] @ wanted - (x[4] - x[2])).square().sum() / x[4].square().sum()).item()
    assert report["left"] == [pytest.approx(left, rel=1e-3)]
    assert report["error"] == [pytest.approx(((x[4] - x[2]).square().sum() / x[4].square().sum()).item(), rel=1e-4)]
    repaired, _ = states(tiny, ids)  # the layer after the cut receives it
    assert len(tiny.model.layers) == 4
    torch.testing.assert_close(repaired[2], x[2], rtol=1e-4, atol=1e-4)


def test_several_cuts_have_one_operator_per_layer_and_adjoining_ones_compose(tiny_llama, ids):
    dense = copy.deepcopy(tiny_llama)
    x, _ = states(dense, ids)
    eye = torch.eye(64, dtype=torch.float64)
    one, two, three = (eye + lstsq(x[k], x[k + 1] - x[k], EPS) for k in (1, 2, 4))
    reports = ghost(tiny_llama, ids, [1, 2, 4])
    first, second = patches(tiny_llama)
    torch.testing.assert_close(eye + first.module.weight, one @ two, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(eye + second.module.weight, three, rtol=1e-3, atol=1e-3)
    assert [(r["operators"], r["position"]) for r in reports] == [(2, 1), (1, 2)]
    ghost(dense, ids, [1, 2, 4], operators="cut")
    wanted = lstsq(x[1], x[3] - x[1], EPS)
    torch.testing.assert_close(patches(dense)[0].module.weight.double(), wanted, rtol=1e-2, atol=1e-3)


def test_a_ghost_is_the_matrix_of_moments_without_weights(tiny_llama, ids):
    moments = collect(Decoder(tiny_llama), ids, span=2, matrices=[(2, 4)], weights="none").least_squares(2, 4)
    ridge = EPS * 64 / moments.gram.trace().item()
    ghost(tiny_llama, ids, [2, 3])
    matrix = moments.matrix(ridge) - torch.eye(64, dtype=torch.float64)
    torch.testing.assert_close(patches(tiny_llama)[0].module.weight.double(), matrix, rtol=1e-3, atol=1e-4)


def test_the_first_token_can_be_left_out(tiny_llama, ids):
    x, _ = states(tiny_llama, ids)
    rest = torch.arange(len(x[0])) % ids.shape[1] > 0
    moments = collect(Decoder(tiny_llama), ids, matrices=[(2, 3)], weights="none", first=False).least_squares(2, 3)
    torch.testing.assert_close(moments.gram, x[2][rest].T @ x[2][rest], rtol=1e-4, atol=1e-3)
    assert moments.tokens == rest.sum()
    wanted = lstsq(x[2][rest], (x[3] - x[2])[rest], EPS)
    ghost(tiny_llama, ids, [2], first=False)
    torch.testing.assert_close(patches(tiny_llama)[0].module.weight.double(), wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("repair", ["ghost", "replace_me"])
def test_padding_enters_no_moments(side, repair, make_tiny, ids):
    """Samples of other lengths, padded with a token of large embedding: what is solved is what they give by themselves."""
    model = make_tiny("llama")
    model.model.embed_tokens.weight.data[0] = 50.0
    lengths = [24, 9, 17, 24, 24, 24, 20, 13]
    padded, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    rows = []
    for number, length in enumerate(lengths):
        place = slice(0, length) if side == "right" else slice(24 - length, 24)
        padded[number, place], mask[number, place] = ids[number, :length], 1
        rows.append(states(model, padded[number : number + 1], mask[number : number + 1]))
    x = [torch.cat([xs[k] for xs, _ in rows]) for k in range(6)]
    m = torch.cat([ms[1] for _, ms in rows])
    assert len(m) == sum(lengths)
    if repair == "ghost":
        ghost(model, padded, [2], padding=mask, batch_size=3)
        got, wanted = patches(model)[0].module.weight.double(), lstsq(x[2], x[3] - x[2], EPS)
    else:
        down = model.model.layers[1].mlp.down_proj.weight.detach().clone().double()
        replace_me(model, padded, [2], padding=mask, batch_size=3)
        got = model.model.layers[1].mlp.down_proj.weight.double()
        wanted = lstsq(m, x[3] - x[2] + m).T @ down
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3 * wanted.abs().max().item())


def test_counted_tokens():
    padding = torch.tensor([[0, 1, 1], [1, 1, 0]])
    assert counted(padding) is None
    assert counted(padding, first=False).tolist() == [[False, True, True]] * 2
    assert counted(padding, padding).tolist() == padding.bool().tolist()
    assert counted(padding, padding, first=False).tolist() == [[False, False, True], [False, True, False]]


@pytest.mark.parametrize("kind", PLAIN)
def test_replaceme_maps_the_mlps_output_inside_down_proj(kind, make_tiny, ids):
    model = make_tiny(kind)
    x, m = states(model, ids)
    matrix = lstsq(m[1], x[4] - x[2] + m[1])
    [report] = replace_me(model, ids, [2, 3], batch_size=3)
    repaired, _ = states(model, ids)
    wanted = x[2] - m[1] + m[1] @ matrix
    torch.testing.assert_close(repaired[2], wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())
    left = ((wanted - x[4]).square().sum() / x[4].square().sum()).item()
    assert report["left"] == pytest.approx(left, rel=1e-3) and report["layer"] == 1
    assert report["left"] < report["error"] and not patches(model)
    torch.testing.assert_close(repaired[1], x[1], rtol=0, atol=0)


def test_alpha_is_an_absolute_ridge_towards_nothing(tiny_llama, ids):
    x, m = states(tiny_llama, ids)
    down = tiny_llama.model.layers[1].mlp.down_proj.weight.detach().double()
    matrix = lstsq(m[1], x[3] - x[2] + m[1], alpha=7.0)
    replace_me(tiny_llama, ids, [2], alpha=7.0)
    got = tiny_llama.model.layers[1].mlp.down_proj.weight.double()
    torch.testing.assert_close(got, matrix.T @ down, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{"bias": True}, {"objective": "bias"}])
def test_an_intercept_goes_into_the_bias_and_the_result_is_a_plain_llama(options, tiny_llama, ids, reloaded):
    x, m = states(tiny_llama, ids)
    ones = torch.ones(len(m[1]), 1, dtype=torch.float64)
    if options.get("bias"):
        solved = lstsq(torch.cat([m[1], ones], 1), x[4] - x[2] + m[1])
        wanted = x[2] - m[1] + m[1] @ solved[:-1] + solved[-1]
    else:
        wanted = x[2] + (x[4] - x[2]).mean(0)
    [report] = replace_me(tiny_llama, ids, [2, 3], **options)
    repaired, _ = states(tiny_llama, ids)
    torch.testing.assert_close(repaired[2], wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())
    assert report["left"] == pytest.approx(((wanted - x[4]).square().sum() / x[4].square().sum()).item(), rel=1e-3)
    assert reloaded(tiny_llama, ids).config.mlp_bias


@pytest.mark.parametrize("objective", ["cosine", "cosine-stream"])
def test_adam_raises_the_mean_cosine_that_it_is_told_to(objective, tiny_llama, ids):
    dense = copy.deepcopy(tiny_llama)
    x, m = states(dense, ids)

    def cosine(model):
        new = states(model, ids)[1][1]
        rest = x[2] - m[1]
        pair = (new, x[4] - rest) if objective == "cosine" else (rest + new, x[4])
        return F.cosine_similarity(*pair, dim=-1).mean().item()

    before = cosine(dense)
    trained, more = copy.deepcopy(dense), copy.deepcopy(dense)
    replace_me(trained, ids, [2, 3], objective=objective, learning_rate=3e-3)
    replace_me(more, ids, [2, 3], objective=objective, learning_rate=1e-2, epochs=400)
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
    wanted = states(4)
    [report] = replace_me(model, ids, [2, 3], **options)
    left = (states(2) - wanted).square().sum() / wanted.square().sum()
    assert report["left"] == pytest.approx(left.item(), rel=1e-3) and report["left"] < report["error"]


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
        ("llama", lambda m, i: replace_me(m, i, [2], alpha=-1.0), "alpha must be 0 or"),
        ("llama", lambda m, i: replace_me(m, i, [77]), "the model has layers"),
        ("llama", lambda m, i: ghost(m, i, [2], eps=0.0), "eps must be a positive"),
        ("llama", lambda m, i: ghost(m, i, [2], operators="all"), "unknown choice of operators"),
        ("llama", lambda m, i: ghost(m, i, [2], weights="norm"), "unknown token weighting"),
        ("llama", lambda m, i: ghost(m, i[0], [2]), r"must be \[samples, tokens\]"),
    ],
)
def test_what_cannot_be_repaired_is_refused_and_the_model_stays_whole(kind, call, message, make_tiny, ids):
    model = make_tiny(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match=message):
        call(model, ids)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_intercept_is_not_damped():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = Regression(intercept=True)
    found.add(x - x.mean(0), torch.full((40, 2), 5.0, dtype=torch.float64), torch.ones(40, 2))
    solved = found.solved(1e3)
    torch.testing.assert_close(solved[-1], torch.full((2,), 5.0, dtype=torch.float64))
    assert found.left(solved) == pytest.approx(0.0, abs=1e-9)


def test_weights_divide_by_the_norm_of_what_is_wanted():
    generator = torch.Generator().manual_seed(4)
    x, y = (torch.randn(50, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    found = Regression(weights="inverse-norm")
    found.add(x, y - x, y)
    norm = y.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found.solved(1e-9, absolute=True), lstsq(x / norm, (y - x) / norm, 1e-9))


@pytest.mark.parametrize(
    ("repair", "call"),
    [
        (GhostedLayers(operators="cut"), lambda m, i: ghost(m, i, [2, 4], operators="cut")),
        (ReplaceMe(alpha=0.5), lambda m, i: replace_me(m, i, [2, 4], alpha=0.5)),
    ],
)
def test_a_recipe_repairs_as_the_function_does_and_says_from_how_many_tokens(repair, call, make_tiny, ids):
    one, other = make_tiny("llama"), make_tiny("llama")
    context = around(one, windows=ids, selection=Given((4, 2)), repair=repair)
    assert context.recipe.step("repair") == repair
    run_recipe(context)
    reports = call(other, ids)
    assert context.details["patches" if patches(other) else "fused"] == reports
    assert context.details["repair"]["calibration_tokens"] == ids.numel()
    assert context.details["repair"]["seconds"] >= 0
    with torch.no_grad():
        assert torch.equal(one(ids).logits, other(ids).logits)


def test_a_least_squares_patch_counts_tokens_as_it_is_told(make_tiny, ids):
    one, other = make_tiny("llama"), make_tiny("llama")
    options = {"kind": "matrix", "estimator": "least-squares", "weights": "none", "first": False}
    patch = {"method": "linearpatch", "ridge": 1e-9} | options
    run_recipe(around(one, windows=ids, selection=Given((2, 3)), repair=patch))
    ghost(other, ids, [2, 3], first=False)
    eye = torch.eye(64)
    got, wanted = (patches(model)[0].module.weight for model in (one, other))
    torch.testing.assert_close(got - eye, wanted, rtol=1e-2, atol=1e-3)
    with pytest.raises(UserError, match="weights are of the estimator least-squares"):
        wrong = {"method": "linearpatch", "weights": "none"}
        run_recipe(around(make_tiny("llama"), windows=ids, selection=Given((2,)), repair=wrong))
