"""Distilling the patch: what trains, what stays, and that nothing depends on how often it was interrupted."""

import itertools
import multiprocessing
import os
import signal

import pytest
import torch
from killed import raising_at
from weights import changed_weights, weights

from common.calibration import collect
from common.hadamard import hadamard_matrix
from common.hooks import patches
from common.models.decoder import Decoder
from common.training.distillation import Distillation
from common.training.fitting import Fitting
from common.utils.errors import UserError
from papers import linearpatch
from papers.linearpatch import distill as distillation
from papers.linearpatch.distill import DistillationSettings, distill, distill_interfaces

WINDOWS = torch.randint(3, 320, (10, 16), generator=torch.Generator().manual_seed(5))
FAST = Fitting(learning_rate=1e-2, batch_size=2)
RUN = (2, 4)


def scales(seed=1):
    return torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.7


def patch_for(trainable="matrix", seed=1):
    return linearpatch.LinearPatch(scales(seed), distillation.TRAINABLE[trainable][0])


def test_the_defaults_are_the_papers_settings():
    chosen = DistillationSettings()
    assert (chosen.trainable, chosen.target, chosen.top_k) == ("matrix", "logits", 100)
    how = chosen.fitting
    assert (how.learning_rate, how.weight_decay, how.batch_size, how.epochs, how.clip) == (1e-4, 1e-4, 1, 1, None)
    steps = how.steps(distillation.SAMPLES)
    assert steps == 5000 and distillation.LENGTH == 2048
    assert how.rate(0, steps) == 1e-4 and how.rate(steps, steps) == pytest.approx(1e-4 / 20)


def test_the_official_code_keeps_half_the_logits_and_trains_a_matrix_for_a_diagonal():
    code = distillation.settings_of("code", trainable="diagonal")
    assert (code.top_k, code.trainable) == (50, "matrix-from-diagonal")
    assert distillation.settings_of("paper", trainable="diagonal") == DistillationSettings("diagonal")
    assert distillation.settings_of("code", top_k=7).top_k == 7
    with pytest.raises(UserError, match="unknown fidelity"):
        distillation.settings_of("papers")


@pytest.mark.parametrize("trainable", distillation.TRAINABLE)
@pytest.mark.parametrize("target", ["logits", "output"])
def test_only_the_patch_changes_and_the_loss_falls(tiny_llama, trainable, target):
    before, patch = weights(tiny_llama), patch_for(trainable)
    how = Fitting(learning_rate=1e-2, batch_size=2, epochs=6)
    settings = DistillationSettings(trainable, target, top_k=9, fitting=how)
    report = distill(tiny_llama, {RUN: patch}, WINDOWS, settings)
    assert report["status"] == "finished" and report["losses"][-1] < report["losses"][0]
    assert not changed_weights(tiny_llama, before)
    assert all(parameter.requires_grad for parameter in tiny_llama.parameters())
    assert not patch.weight.requires_grad
    kinds = {"diagonal": "hadamard", "plain-diagonal": "diagonal"}
    assert patch.options["kind"] == kinds.get(trainable, "matrix")
    assert report["parameters"] == (64 if trainable in ("diagonal", "plain-diagonal") else 64 * 64)
    rotation = hadamard_matrix(64)
    if trainable == "plain-diagonal":
        assert patch.weight.shape == (64,)
    elif trainable == "diagonal":  # still H diag(d) H^T, with another d
        rotated = rotation.T @ patch.weight.double() @ rotation
        assert (rotated - torch.diag(rotated.diagonal())).abs().max() < 1e-5
        assert (rotated.diagonal() - scales()).abs().max() > 1e-2
    else:
        assert patch.weight.shape == (64, 64)
        assert (patch.weight - patch.weight.T).abs().max() > 1e-3  # unconstrained: the symmetry is lost


def test_the_gradient_of_every_part_is_the_chain_rule_on_that_of_the_full_matrix(tiny_llama):
    """dL/dA gives dL/dd of A = H diag(d) H^T and of A = diag(d)."""
    rotation, gradients = hadamard_matrix(64).float(), {}
    for part in ("matrix", "diagonal", "plain-diagonal", "matrix-from-diagonal"):
        patch = patch_for(part)
        distillation._prepare(Decoder(tiny_llama), RUN, patch, part)
        patch.weight.requires_grad_(True)
        Distillation(Decoder(tiny_llama), {RUN: patch}, WINDOWS, k=9).loss([0, 1]).backward()
        gradients[part] = patch.weight.grad
    full = {"diagonal": (rotation.T @ gradients["matrix"] @ rotation).diagonal()}
    full["plain-diagonal"] = gradients["matrix-from-diagonal"].diagonal()
    for part, gradient in full.items():
        torch.testing.assert_close(gradients[part], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())


def test_the_pruned_model_is_the_student(tiny, reloaded, greedy):
    """What surgery leaves has the loss that training ended with; it reloads and generates with and without cache."""
    statistics = collect(Decoder(tiny), WINDOWS, span=2)
    with torch.no_grad():
        values, indices = tiny(input_ids=WINDOWS, use_cache=False).logits.topk(9, -1)
    settings = DistillationSettings(top_k=9, fitting=FAST)
    report = distill_interfaces(tiny, statistics, [1, 3, 4], WINDOWS, settings)
    assert [p["position"] for p in report["patches"]] == [1, 2] == [p.position for p in patches(tiny)]
    again = reloaded(tiny, WINDOWS, plain=False)
    with torch.no_grad():
        logits = again(input_ids=WINDOWS, use_cache=False).logits
    q = logits.gather(-1, indices).log_softmax(-1)
    loss = (values.softmax(-1) * (values.log_softmax(-1) - q)).sum(-1).mean().item()
    assert loss < max(report["losses"])
    assert greedy(again, WINDOWS[:1], True).equal(greedy(again, WINDOWS[:1], False))


def test_a_stored_teacher_trains_the_same_patch_to_rounding(tiny_llama, tmp_path):
    trained = {}
    for name, store in (("online", None), ("stored", tmp_path / "store")):
        trained[name] = patch_for()
        settings = DistillationSettings(top_k=9, fitting=FAST)
        report = distill(tiny_llama, {RUN: trained[name]}, WINDOWS, settings, store=store)
    torch.testing.assert_close(trained["online"].weight, trained["stored"].weight, rtol=1e-3, atol=1e-4)
    assert report["executions"] == 5 * (6 - 2)  # five steps, each all layers but the removed ones
    assert report["store_bytes_per_token"] > 9 * (2 + 2)
    with pytest.raises(UserError, match="another K"):
        distill(tiny_llama, {RUN: patch_for()}, WINDOWS, DistillationSettings(top_k=8), store=tmp_path / "store")


def distilled(model, store, folder):
    patches = {RUN: patch_for(), (5, 6): patch_for(seed=2)}
    how = Fitting(learning_rate=1e-2, batch_size=2, order="shuffled", seed=4, save_every=2)
    report = distill(model, patches, WINDOWS, DistillationSettings(top_k=9, fitting=how), store=store, folder=folder)
    return patches, report


def test_killed_and_started_again_it_ends_with_the_same_bits(make_tiny, tmp_path, monkeypatch):
    expected, report = distilled(make_tiny(), tmp_path / "a", None)
    honest, calls = Distillation.loss, itertools.count()

    def dying(self, samples):
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(self, samples)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "loss", dying)
        arguments = (make_tiny(), tmp_path / "b", tmp_path / "work")
        child = multiprocessing.get_context("fork").Process(target=distilled, args=arguments)
        child.start()
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert (tmp_path / "work" / "fit.pt").exists()
    patches_again, again = distilled(make_tiny(), tmp_path / "b", tmp_path / "work")
    assert all(torch.equal(expected[run].weight, patches_again[run].weight) for run in expected)
    assert again["losses"] == report["losses"] and again["executions"] == report["executions"] == 5 * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_trains_a_patch_in_float32(tiny_llama, dtype, tmp_path):
    """In float16 with a scaled loss, whose scale survives an interruption."""
    model = tiny_llama.to(dtype)
    settings = DistillationSettings(top_k=9, fitting=Fitting(learning_rate=1e-2, batch_size=5, epochs=8, save_every=1))
    whole, parts = patch_for(), patch_for()
    report = distill(model, {RUN: whole}, WINDOWS, settings)
    assert whole.weight.dtype == torch.float32 and whole.weight.isfinite().all()
    assert sum(report["losses"][-2:]) < sum(report["losses"][:2])
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Distillation, "loss", raising_at(8, Distillation.loss))
        distill(model, {RUN: parts}, WINDOWS, settings, folder=tmp_path)
    parts = patch_for()
    distill(model, {RUN: parts}, WINDOWS, settings, folder=tmp_path)
    assert torch.equal(whole.weight, parts.weight)


def test_a_loss_that_is_not_finite_is_a_result(tiny_llama):
    patch = linearpatch.LinearPatch(torch.full((64,), 3e38, dtype=torch.float64), "diagonal")
    before = patch.weight.clone()
    report = distill(tiny_llama, {RUN: patch}, WINDOWS, DistillationSettings("plain-diagonal", "output", fitting=FAST))
    assert report["status"] == "diverged" and "step 0" in report["reason"] and report["losses"] == []
    assert torch.equal(patch.weight, before)


def test_bad_input_is_named(tiny_llama):
    with pytest.raises(UserError, match="unknown trainable part"):
        DistillationSettings("matrices")
    with pytest.raises(UserError, match="starts from a patch of kind 'hadamard' or 'matrix', not 'diagonal'"):
        distill(tiny_llama, {RUN: patch_for("plain-diagonal")}, WINDOWS, DistillationSettings("matrix"))
    with pytest.raises(UserError, match="a patch of 32 channels does not fit a model of 64"):
        distill(tiny_llama, {RUN: linearpatch.LinearPatch(torch.ones(32))}, WINDOWS)
    tiny_llama.model.layers[1].to(torch.bfloat16)
    with pytest.raises(UserError, match=r"mixes dtypes: .*bring it to one with model.to\(dtype\)"):
        distill(tiny_llama, {RUN: patch_for()}, WINDOWS)


def test_a_patch_by_least_squares_can_be_distilled_on(tiny_llama):
    statistics = collect(Decoder(tiny_llama), WINDOWS, span=2, matrices=[RUN])
    options = {"kind": "matrix", "estimator": "least-squares"}
    settings = DistillationSettings(top_k=9, fitting=Fitting(learning_rate=1e-3, batch_size=5, epochs=8))
    losses = distill_interfaces(tiny_llama, statistics, [2, 3], WINDOWS, settings, **options)["losses"]
    assert sum(losses[-2:]) < sum(losses[:2])
    assert patches(tiny_llama)[0].module.options["kind"] == "matrix"


def test_another_start_is_another_training(make_tiny, tmp_path):
    """What was trained from another estimate, or of another token's states, is never taken for this one's result."""
    settings = DistillationSettings(top_k=9, fitting=FAST)

    def trained(**start):
        model = make_tiny("llama")
        statistics = collect(Decoder(model), WINDOWS, span=2)
        distill_interfaces(model, statistics, [2, 3], WINDOWS, settings, folder=tmp_path, **start)

    trained()
    trained()  # the same is read again
    for start in ({"acts_on": "ordinary"}, {"estimator": "pooled-l1"}):
        with pytest.raises(UserError, match="another training"):
            trained(**start)
