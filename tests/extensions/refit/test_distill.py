"""A short distillation of a refitted model against a plain loop over Hugging Face models, and itself interrupted."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from tools import main
from transformers import AutoModelForCausalLM

import common.pruning.steps  # noqa: F401 - steps: those that recipes name
import papers.linearpatch.steps  # noqa: F401 - steps: those that recipes name
from common.models.surgery import remove_layers
from common.pruning.pipeline import context_of
from common.training import distillation
from common.utils.errors import UserError
from extensions import refit
from extensions.refit import tool
from extensions.refit.distill import FITTING, distill, neighbours

REMOVED, STEPS = [2, 3], 6
QUICK = replace(FITTING, learning_rate=3e-3, accumulate=2, save_every=2)


def refitted(original, ids, removed=REMOVED, **options):
    """A copy of the original, refitted without these layers."""
    model = copy.deepcopy(original)
    refit.refit(model, ids, removed, **options)
    return model


@pytest.fixture
def original(make_tiny):
    return make_tiny("llama")


@pytest.fixture
def model(original, ids):
    """Refitted and strongly damped: something is left to train."""
    return refitted(original, ids, following=1, ridge=0.3)


def divergence(model, original, ids):
    """Mean KL per token over the vocabulary, by Hugging Face's own forward passes."""
    with torch.no_grad():
        teacher = original(ids).logits.double().softmax(-1)
    student = model(ids).logits.double().log_softmax(-1)
    return (teacher * (teacher.log() - student)).sum(-1).mean()


def test_the_losses_and_weights_are_those_of_a_plain_loop(original, model, ids):
    plain = copy.deepcopy(model)
    report = distill(model, original, ids, REMOVED, STEPS, following=1, fitting=QUICK)
    order = torch.Generator().manual_seed(0)
    samples = torch.cat([torch.randperm(8, generator=order) for _ in range(2)])[: 2 * STEPS]
    trained = [p for layer in (1, 2) for p in plain.model.layers[layer].parameters()]
    optimizer = torch.optim.AdamW(trained, lr=0.0, betas=QUICK.betas, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        loss = divergence(plain, original, ids[samples[2 * step : 2 * step + 2]])
        for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.param_groups[0]["lr"] = QUICK.rate(step, STEPS)
        optimizer.step()
        losses.append(loss.item())
    assert report["losses"] == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0] and report["layers"] == [1, 4]
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=2e-4, rtol=1e-3)


def test_held_out_text_is_closer_to_the_original_than_without_training(original, ids):
    text = torch.randint(5, 300, (256, 24), generator=torch.Generator().manual_seed(1))
    model = refitted(original, text[:64], following=1)
    before = divergence(model, original, ids).item()
    how = replace(QUICK, learning_rate=1e-3, accumulate=8)
    report = distill(model, original, text, REMOVED, 30, following=1, held_out=ids, fitting=how)
    after = divergence(model, original, ids).item()
    assert report["kept"] and after < before
    assert (report["before"], report["after"]) == pytest.approx((before, after), rel=1e-3)


def test_only_the_layers_next_to_an_interface_change(original, ids):
    model = refitted(original, ids, [1, 4], following=0)
    before = copy.deepcopy(model.state_dict())
    layers = distill(model, original, ids, [1, 4], 1, following=0, fitting=QUICK)["layers"]
    assert layers == neighbours(6, [1, 4], 0) == [0, 3]
    changed = {name.split(".")[2] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"0", "2"}  # of the four that are left: 0, 2, 3, 5
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_without_a_gain_every_bit_stays(original, model, ids):
    before = copy.deepcopy(model.state_dict())
    wild = replace(QUICK, learning_rate=10.0, clip=None)
    report = distill(model, original, ids[:6], REMOVED, 3, following=1, held_out=ids[6:], fitting=wild)
    assert not report["kept"] and report["after"] > report["before"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_half_precision_model_trains_in_float32_and_keeps_its_type(make_tiny, ids):
    original = make_tiny("llama").bfloat16()
    model = refitted(original, ids, following=1)
    slow = replace(QUICK, learning_rate=3e-5)  # each step is below bfloat16's resolution of what is above 0.1
    before = copy.deepcopy(model.state_dict())
    distill(model, original, ids, REMOVED, 30, following=1, fitting=slow)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    changed = {name: value[before[name].abs() > 0.1] for name, value in model.state_dict().items()}
    assert any((value != before[name][before[name].abs() > 0.1]).any() for name, value in changed.items())


def test_a_killed_distillation_ends_as_an_uninterrupted_one(original, model, ids, tmp_path, monkeypatch):
    again = copy.deepcopy(model)
    report = distill(model, original, ids, REMOVED, STEPS, following=1, fitting=QUICK)
    loss, calls = distillation.Distillation.loss, []

    def die(self, samples):
        calls.append(samples)
        if len(calls) == 9:  # in the fifth step
            raise KeyboardInterrupt
        return loss(self, samples)

    options = {"following": 1, "fitting": QUICK, "folder": tmp_path, "start": {"removed": REMOVED}}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(distillation.Distillation, "loss", die)
        distill(copy.deepcopy(again), original, ids, REMOVED, STEPS, **options)
    resumed = distill(again, original, ids, REMOVED, STEPS, **options)
    assert resumed["losses"] == report["losses"]
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_the_tool_distils_and_saves_a_plain_checkpoint(write_checkpoint, tmp_path, capsys):
    source = write_checkpoint(tmp_path / "source")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"word{i} " * 9 for i in range(400)))
    given = ["--model", str(source), "--layers", "2,3", "--samples", "8", "--length", "16", "--text", str(text)]
    given += ["--held-out", "2", "--following", "1"]
    models = {}
    for steps in (None, 5):
        out = tmp_path / f"out-{steps}"
        more = [] if steps is None else ["--distill", str(steps)]
        assert main(tool.METHOD, [*given, *more, "--out", str(out), "--no-evaluation"]) == 0
        models[steps] = AutoModelForCausalLM.from_pretrained(out)
    pruning = json.loads((tmp_path / "out-5" / "pruning.json").read_text())
    assert "layers next to the interface trained for 5 steps" in (tmp_path / "out-5" / "README.md").read_text()
    assert models[5].config.num_hidden_layers == 4
    weights = zip(models[5].parameters(), models[None].parameters(), strict=True)
    assert any(not torch.equal(*pair) for pair in weights) == pruning["facts"]["distilled"]["kept"]
    assert main(tool.METHOD, [*given, "--distill", "5", "--stream", "1", "--out", str(tmp_path / "no")]) == 2
    assert "--distill trains with the model in memory" in capsys.readouterr().err


def test_a_distillation_without_a_layer_to_train_is_refused(original, ids):
    model = refitted(original, ids, [0, 1], following=0)
    with pytest.raises(UserError, match="no layer is next to an interface"):
        distill(model, original, ids, [0, 1], 1, following=0)


def test_what_was_repaired_beyond_the_trained_layers_is_not_judged_as_the_original(original, ids):
    model = refitted(original, ids, following=2)
    with pytest.raises(UserError, match="layer 5 is not the original's, and would not be trained"):
        distill(model, original, ids, REMOVED, 1, following=1)


def distil_by_recipe(model, text, monkeypatch, folder, **options):
    """Carry a recipe's distillation out, for a model without `REMOVED`; return its context."""
    monkeypatch.setenv("LAYERLAB_WORK", str(folder))
    repair = {"method": "distilled", "following": 1} | options
    context = context_of(model, None, text, selection={"method": "given", "layers": REMOVED}, repair=repair)
    context.details["removed"] = REMOVED
    context.recipe.step("repair").apply(context)
    return context


@pytest.mark.parametrize("first", [{}, {"first": {"method": "refit", "following": 1, "ridge": 0.3}}])
def test_a_recipe_distils_what_its_first_repair_left(first, original, make_tiny, ids, monkeypatch, tmp_path):
    """As by hand: refit and train without the last two sequences, which judge."""
    text, model = torch.cat([ids, ids[:2]]), make_tiny("llama")
    options = {"steps": 4, "judges": 2, "learning_rate": 3e-3} | first
    done = distil_by_recipe(model, text, monkeypatch, tmp_path, **options).details["training"]
    if first:
        by_hand = refitted(original, ids, following=1, ridge=0.3, batch_size=8)
    else:
        by_hand = copy.deepcopy(original)
        remove_layers(by_hand, REMOVED)
    fitting = replace(FITTING, learning_rate=3e-3)
    report = distill(by_hand, original, ids, REMOVED, 4, following=1, held_out=ids[:2], fitting=fitting)
    assert done["kept"] and done["steps"] == 4 and done["after"] < done["before"]
    assert (done["before"], done["after"]) == pytest.approx((report["before"], report["after"]), rel=1e-5)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=1e-4)


def test_the_rate_is_a_share_of_the_trained_weights_size(original, model, ids):
    """Its own loop over the two trained layers; biases and norms do not count."""
    squares = [
        value.item() ** 2
        for layer in (model.model.layers[1], model.model.layers[2])
        for part in layer.modules()
        if isinstance(part, torch.nn.Linear)
        for value in part.weight.detach().flatten()
    ]
    report = distill(model, original, ids, REMOVED, 1, following=1)
    assert report["learning_rate"] == pytest.approx(0.002 * (sum(squares) / len(squares)) ** 0.5, rel=5e-3)


def test_weights_that_differ_in_their_last_bits_continue_a_training(original, model, ids, tmp_path):
    """As from the same refit on another number of cores."""
    nudged = copy.deepcopy(model)
    options = {"following": 1, "start": {"removed": REMOVED}, "folder": tmp_path}
    report = distill(model, original, ids, REMOVED, 2, **options)
    for weight in nudged.model.layers[1].mlp.parameters():
        weight.data *= 1 + 1e-6
    assert distill(nudged, original, ids, REMOVED, 2, **options) == report
    assert torch.equal(nudged.model.layers[1].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight)


PATCHED = {"method": "linearpatch", "kind": "hadamard", "estimator": "ratio-of-means"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 0}, "0 steps"),
        ({"steps": 3, "judges": 2, "learning_rate": 5.0}, "no gain"),
        ({"steps": 1, "first": PATCHED}, "without patches"),
    ],
)
def test_a_recipe_does_not_distil_without_a_gain_or_beside_a_patch(
    options, match, original, ids, monkeypatch, tmp_path
):
    with pytest.raises(UserError, match=match):
        distil_by_recipe(original, ids, monkeypatch, tmp_path, **options)
