"""Recipes with a trained repair: applied, reused from disk, and refused where they name something unknown."""

import json

import pytest
import torch

import reproductions.spec.steps  # noqa: F401 - those that recipes name
from common.hooks import patch_parameters, patches
from common.models.decoder import Decoder
from common.pruning.pipeline import Context
from common.pruning.recipe import Recipe
from common.pruning.steps import Given
from common.pruning.trained_repair import note_training
from common.utils.errors import UserError

IDS = torch.randint(3, 320, (12, 16), generator=torch.Generator().manual_seed(5))
TRAINED = {"samples": 10, "learning_rate": 0.01, "batch_size": 2}


@pytest.fixture(autouse=True)
def tokens(monkeypatch, tmp_path):
    """Twelve fixed windows, of which a calibration entry's count takes the first."""
    monkeypatch.setattr(Context, "tokens", lambda context, entry: IDS[: entry.count])
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path / "work"))


@pytest.fixture
def repaired(make_tiny, tiny_tokenizer):
    """`repaired(**repair)` -> the context of a recipe that removes layers 2 and 3."""

    def carry_out(limit=None, fidelity="paper", **repair):
        fields = {"selection": Given((2, 3)), "repair": repair, "calibration": {"corpus": "some", "count": 4}}
        recipe = Recipe("tiny", "standin", "fixed", **fields, limit=limit, fidelity=fidelity)
        context = Context(make_tiny("llama"), tiny_tokenizer, recipe, 1)
        for part in ("selection", "repair"):
            recipe.step(part).apply(context)
        return context

    return carry_out


@pytest.mark.parametrize(
    "repair, layers, parameters",
    [
        ({"method": "linearpatch-distilled", "top_k": 9}, 4, 64 * 64),
        ({"method": "linearpatch-distilled", "top_k": 9, "trainable": "diagonal"}, 4, 64 * 64),
        ({"method": "linearpatch-distilled", "trainable": "plain-diagonal", "target": "output"}, 4, 64),
        ({"method": "streamline-ffn", "target": "output"}, 4, 3 * 64 * 96),
        ({"method": "streamline-ffn", "target": "logits", "top_k": 9, "seed": 3}, 4, 3 * 64 * 96),
        ({"method": "streamline-layer"}, 5, 0),
    ],
)
def test_a_recipe_is_carried_out_and_found_again(repaired, repair, layers, parameters):
    context = repaired(**repair, **TRAINED)
    assert Decoder(context.model).num_layers == layers
    assert sum(p.numel() for p in patch_parameters(context.model)) == parameters
    training = context.details["training"]
    assert training["status"] == "finished" and training["steps"] == 5 == len(training["losses"])
    assert training["losses"][-1] < training["losses"][0]
    assert training["loss"] == ("mse" if training["target"] == "output" else "kl")
    json.dumps(context.details, allow_nan=False)
    again = repaired(**repair, **TRAINED)
    assert again.details == context.details  # seconds included: nothing was trained a second time
    for parameter, other in zip(patch_parameters(context.model), patch_parameters(again.model), strict=True):
        assert torch.equal(parameter, other)


def test_recipes_share_one_stored_teacher(repaired, tmp_path):
    for trainable in ("matrix", "diagonal"):
        repaired(method="linearpatch-distilled", trainable=trainable, top_k=9, **TRAINED)
    assert len(list((tmp_path / "work" / "tiny").glob("teacher-*"))) == 1
    repaired(method="linearpatch-distilled", top_k=8, **TRAINED)
    assert len(list((tmp_path / "work" / "tiny").glob("teacher-*"))) == 2


@pytest.mark.parametrize("method", ["streamline-ffn", "streamline-layer"])
def test_the_official_code_of_streamline_takes_large_steps(repaired, method):
    whole = repaired(method=method, fidelity="code", samples=10).details["training"]
    assert whole["planned_steps"] == 1  # 8 x 16 sequences a step


def test_without_samples_the_network_is_untrained(repaired):
    context = repaired(method="streamline-ffn")
    assert "training" not in context.details and [p.kind for p in patches(context.model)] == ["streamline-ffn"]


def test_a_quick_look_trains_on_few_samples(repaired):
    context = repaired(method="streamline-layer", limit=3, **TRAINED)
    assert context.details["training"]["steps"] == 2


def test_a_long_curve_is_thinned_to_means():
    context = Context(None, None, None, 1)
    note_training(context, {"losses": [float(i) for i in range(1000)], "seconds": 1.0})
    training = context.details["training"]
    assert training["steps_per_point"] == 4 and len(training["losses"]) == 250
    assert training["losses"][:2] == [1.5, 5.5]


@pytest.mark.parametrize(
    "repair, message",
    [
        ({"method": "linearpatch-distilled", "samples": 4, "trainabel": "matrix"}, "unknown option of the repair"),
        ({"method": "linearpatch-distilled", "samples": 4, "trainable": "all"}, "unknown trainable part"),
        ({"method": "linearpatch-distilled"}, "number of samples"),
        ({"method": "streamline-layer"}, "number of samples"),
        ({"method": "streamline-ffn", "samples": 4, "order": "random"}, "unknown order"),
    ],
)
def test_bad_recipes_are_named(repaired, repair, message):
    with pytest.raises(UserError, match=message):
        repaired(**repair)
