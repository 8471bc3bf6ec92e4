"""SHIFT-LLM against least squares on Hugging Face's hidden states, and saved and reloaded."""

import numpy as np
import pytest
import torch
from heads import streams

from common.baselines.shift_llm import shift
from common.hooks import patches
from common.pruning.pipeline import context_of, run_recipe
from common.pruning.steps import Given
from common.utils.errors import UserError


def states(model, ids):
    """X[0] .. X[N - 1] as rows [tokens, channels], float64, from Hugging Face's own forward pass."""
    return [x.flatten(0, 1).double().numpy() for x in streams(model, ids)[:-1]]


def affine(x, y):
    """[channels + 1, channels] of the best affine map from x to y - x, by numpy's."""
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y - x, rcond=None)[0]


def through(x, solution):
    return x + np.c_[x, np.ones(len(x))] @ solution


def given(model, ids):
    """What the only patch of a model makes of the stream that it is given, and that."""
    seen = []
    [patch] = patches(model)
    handle = patch.module.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    with torch.no_grad():
        model(ids, use_cache=False)
    handle.remove()
    return [x.flatten(0, 1).double().numpy() for x in seen[0]]


def test_adapters_of_a_block_follow_one_another_as_one(tiny, ids):
    x = states(tiny, ids)
    expected = through(through(x[2], affine(x[2], x[3])), affine(x[3], x[4]))
    [report] = shift(tiny, ids, [3, 2], batch_size=3)
    before, after = given(tiny, ids)
    assert report == {"run": [2, 4], "position": 2, "adapters": 2} and len(tiny.model.layers) == 4
    np.testing.assert_allclose(before, x[2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())


def test_adapters_can_be_fitted_without_the_first_tokens(tiny_llama):
    ids = torch.randint(5, 300, (12, 24), generator=torch.Generator().manual_seed(0))
    x, ordinary = states(tiny_llama, ids), np.arange(ids.numel()) % ids.shape[1] > 0
    expected = through(through(x[2], affine(x[2][ordinary], x[3][ordinary])), affine(x[3][ordinary], x[4][ordinary]))
    shift(tiny_llama, ids, [2, 3], first=False)
    _, after = given(tiny_llama, ids)
    np.testing.assert_allclose(after, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())


def test_a_rank_is_the_nearest_of_that_rank_and_keeps_the_mean(tiny_llama, ids):
    x = states(tiny_llama, ids)
    fitted = np.c_[x[2], np.ones(len(x[2]))] @ affine(x[2], x[3])
    mean = fitted.mean(0)
    u, s, v = np.linalg.svd(fitted - mean, full_matrices=False)
    expected = x[2] + mean + (u[:, :5] * s[:5]) @ v[:5]  # Eckart and Young: no fit of rank 5 is nearer
    shift(tiny_llama, ids, [2], rank=5)
    _, after = given(tiny_llama, ids)
    np.testing.assert_allclose(after, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())
    assert sum(p.numel() for p in patches(tiny_llama)[0].module.parameters()) == 2 * 5 * 64 + 64


@pytest.mark.parametrize("rank", [None, 3])
def test_several_blocks_are_saved_and_come_back(rank, make_tiny, ids, reloaded):
    model = make_tiny("gemma2")
    repair = {"method": "shift-llm"} | ({"rank": rank} if rank else {})
    context = context_of(model, sequences=ids, selection=Given((2, 4)), repair=repair)
    run_recipe(context)
    assert [(entry["run"], entry["position"]) for entry in context.details["patches"]] == [([2, 3], 2), ([4, 5], 3)]
    reloaded(model, ids, plain=False)


def test_a_rank_that_there_is_not_is_refused(tiny_llama, ids):
    with pytest.raises(UserError, match="a rank of 1 to 64"):
        shift(tiny_llama, ids, [2], rank=65)
    assert len(tiny_llama.model.layers) == 6
