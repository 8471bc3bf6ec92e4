"""Fine-tuning against plain loops over the Hugging Face model, closed forms, and itself interrupted."""

import itertools
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
from dataclasses import asdict, replace

import pytest
import safetensors.torch
import torch
from killed import killed_at
from safetensors.torch import load_file
from tiny_models import ARCHITECTURES
from torch.nn import functional as F
from weights import changed_weights, weights

from common.models import registry
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.training import checkpoint_clock
from common.training.finetuning import (
    Settings,
    check_tuned_layers,
    finetune,
    memory,
    methods,
    prefix,
    state,
    trainer,
    training,
)
from common.training.finetuning.learner import Learner, collate
from common.utils.errors import UserError

QUICK = {"batch": 4, "micro_batch": 2, "learning_rate": 1e-3, "warmup_steps": 2, "evaluate_every": 2, "save_every": 2}


def rows(count, seed=0):
    """Rows of different lengths, the first three tokens a prompt."""
    rng = random.Random(seed)
    ids = [[rng.randint(3, 319) for _ in range(rng.randint(6, 14))] for _ in range(count)]
    return [{"input_ids": row, "labels": [-100] * 3 + row[3:]} for row in ids]


def plain_loss(model, data):
    """The mean over all predicted tokens, one row at a time through the Hugging Face model, without padding."""
    total, count = 0.0, 0
    for row in data:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        logits = model(ids, use_cache=False).logits[0, :-1]
        total = total + F.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")
        count += int((labels[1:] != -100).sum())
    return total / count


def learner(model, boundary=0):
    return Learner(model, methods.Attached(dict(model.named_parameters()), boundary, lambda: None))


def trained_names(model, last):
    layers = range(model.config.num_hidden_layers - last, model.config.num_hidden_layers)
    prefixes = ("lm_head.", "model.norm.", *(f"model.layers.{layer}." for layer in layers))
    return {name for name in model.state_dict() if name.startswith(prefixes)}


@pytest.mark.parametrize("last", [0, 2])
def test_partial_trains_head_norm_and_last_layers_and_nothing_else(tiny, last):
    remove_layers(tiny, [4])
    before, expected = weights(tiny), trained_names(tiny, last)
    tiny, report = finetune(tiny, None, rows(4), settings=Settings(method="partial", last=last, max_steps=2, **QUICK))
    changed = changed_weights(tiny, before)
    assert not tiny.config.tie_word_embeddings  # Gemma 2's head had been the embedding
    unused = {name for name in expected - changed if "experts" in name}  # an expert that no token chose
    assert changed | unused == expected
    assert report["trainable"] == sum(before[name].numel() for name in expected)
    assert not tiny.training and all(p.requires_grad and p.grad is None for p in tiny.parameters())


def test_the_peak_rate_is_that_of_the_steps_taken(make_tiny):
    shared = QUICK | {"method": "full", "learning_rate": 1e-3, "batch": 2}
    for warmup, expected in ((0, 1e-3), (2, 1e-3), (8, 3 / 8 * 1e-3)):  # of four steps; the first of a warm-up is at 0
        settings = Settings(**shared | {"warmup_steps": warmup}, epochs=1, schedule="constant_with_warmup")
        _, report = finetune(make_tiny(), None, rows(8), settings=settings)
        assert report["steps"] == 4 and report["peak_rate"] == pytest.approx(expected)


def test_every_epoch_has_the_same_states(make_tiny, monkeypatch):
    seen, run = {}, Learner.forward

    def watch(learner, labels, attention_mask, hidden, **options):
        seen.setdefault(tuple(labels.flatten().tolist()), []).append(hidden.clone())
        return run(learner, labels, attention_mask, hidden=hidden, **options)

    monkeypatch.setattr(Learner, "forward", watch)
    settings = Settings(method="partial", last=2, epochs=3, **QUICK | {"batch": 4, "micro_batch": 1})
    finetune(make_tiny(), None, rows(4), settings=settings)
    assert len(seen) == 4
    decoder = Decoder(make_tiny())
    for row in rows(4):
        states = seen[(-100, *row["labels"][1:])]
        expected = decoder.run(decoder.embed_tokens(torch.tensor([row["input_ids"]])), 0, 4)
        assert len(states) == 3 and all(torch.equal(state, expected) for state in states)


@pytest.mark.parametrize("method", ["partial", "full"])
def test_losses_and_weights_are_those_of_a_plain_loop(make_tiny, method):
    steps, data = 5, rows(6)
    options = {"learning_rate": 2e-3, "warmup_steps": 2, "betas": (0.9, 0.95), "clip": 0.5}
    options["epsilon"] = 1e-4  # Adam's step of a gradient near zero would show nothing but its rounding
    settings = Settings(method=method, last=1, epochs=steps, batch=6, micro_batch=2, **options)
    model, report = finetune(make_tiny(), None, data, settings=settings)
    plain = make_tiny().train()
    if method == "partial":
        chosen = [plain.lm_head, plain.model.norm, plain.model.layers[-1]]
        parameters = [p for module in chosen for p in module.parameters()]
    else:
        parameters = list(plain.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0)
    expected = []
    for step in range(steps):
        rate = step / 2 if step < 2 else (steps - step) / (steps - 2)
        optimizer.param_groups[0]["lr"] = 2e-3 * rate
        loss = plain_loss(plain, data)
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.norm() for g in gradients]).norm()
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient * min(1.0, 0.5 / (norm.item() + 1e-6))
        optimizer.step()
        expected.append(loss.item())
    assert report["losses"] == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), atol=2e-5, rtol=1e-4)


# OPT has a table of positions; Hunyuan scales queries and keys after RoPE, so that a shift of the positions is none
@pytest.mark.parametrize("name", [*ARCHITECTURES, "opt", "hunyuan_v1_moe"])
def test_a_padded_batch_has_the_loss_of_its_rows(name, make_tiny):
    tiny, data = make_tiny(name), rows(5)
    batch = collate(data)
    assert batch["input_ids"].shape[1] == max(len(row["input_ids"]) for row in data)
    assert batch["attention_mask"][:, -1].all() and not batch["attention_mask"][:, 0].all()
    with torch.no_grad():
        loss = learner(tiny, boundary=2)(**batch)["loss"]
        assert loss.item() == pytest.approx(plain_loss(tiny, data).item(), rel=1e-5)


def test_plain_text_rows_learn_every_token_but_the_first(tiny_llama):
    data = [{"input_ids": ids, "labels": ids} for ids in (list(range(5, 15)), [3] * 13)]
    batch = collate(data)
    assert (batch["labels"][0] != -100).sum() == 9  # padding predicts nothing either
    with torch.no_grad():
        expected = plain_loss(tiny_llama, data)
        assert learner(tiny_llama)(**batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_kept_prefix_changes_cost_and_not_the_losses(make_tiny, tmp_path):
    train, valid, shared = rows(8), rows(4, seed=1), {"method": "partial", "last": 2, "epochs": 3, **QUICK}
    anew, without = finetune(make_tiny(), None, train, valid, Settings(**shared, store="off"))
    trained_model, report = finetune(make_tiny(), None, train, valid, Settings(**shared), tmp_path)
    assert report["losses"] == pytest.approx(without["losses"], rel=1e-5)
    assert [loss for _, loss in report["validation"]] == pytest.approx([x for _, x in without["validation"]], rel=1e-5)
    torch.testing.assert_close(trained_model.state_dict(), anew.state_dict(), atol=1e-5, rtol=1e-4)
    assert [epoch["layer_executions"] for epoch in without["epochs"]] == [24, 24, 24]  # 4 micro-batches of 6 layers
    assert [epoch["layer_executions"] for epoch in report["epochs"]] == [24, 8, 8]  # then 2 layers each
    tokens = sum(len(row["input_ids"]) for row in train + valid)
    assert report["store"] == {"kind": "memory", "bytes": tokens * 64 * 4}


def test_without_room_the_prefix_is_computed_anew_and_that_is_said(make_tiny, monkeypatch, caplog):
    monkeypatch.setattr(prefix, "SHARE", 0)
    _, report = finetune(make_tiny(), None, rows(4), settings=Settings(method="partial", last=1, epochs=2, **QUICK))
    assert [epoch["layer_executions"] for epoch in report["epochs"]] == [5 + 12, 12]  # one batch showed the size
    assert report["store"] == {"kind": "off", "bytes": 0} and "do not fit" in caplog.text
    assert "computed anew in every epoch" in caplog.text


def test_lora_trains_its_adapters_alone_and_merges_them_exactly(make_tiny, architecture, tmp_path, ids, caplog):
    settings = Settings(method="lora", rank=3, alpha=6, epochs=2, **QUICK)
    before, adapted = weights(make_tiny(architecture)), make_tiny(architecture)
    attached = methods.attach(adapted, settings)
    assert attached.parameters and all(".lora_" in name for name in attached.parameters)
    model, report = finetune(make_tiny(architecture), None, rows(4), settings=settings, folder=tmp_path)
    assert ("the experts are stacked matrices, which stay as they are" in caplog.text) == (architecture == "mixtral")
    parameters = load_file(tmp_path / "trained.safetensors")
    assert parameters.keys() == attached.parameters.keys()
    Learner(adapted, attached).load_state_dict(parameters)
    after = weights(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        module = name.removesuffix(".weight")
        a = parameters.get(f"{module}.lora_A.default.weight")
        if a is None:
            assert torch.equal(after[name], value), name
        else:
            merged = value + 6 / 3 * parameters[f"{module}.lora_B.default.weight"] @ a
            torch.testing.assert_close(after[name], merged, atol=1e-6, rtol=1e-5)
            assert not torch.equal(after[name], value)
    with torch.no_grad():  # unmerged against merged
        torch.testing.assert_close(adapted.eval()(ids).logits, model(ids).logits, atol=2e-4, rtol=1e-4)
    assert report["trainable"] == sum(value.numel() for value in parameters.values())


def interrupted(monkeypatch, step, model, *arguments):
    """Run in a process of its own that kills itself once `step` is done; leave a checkpoint that was being written."""

    log = trainer.TokenTrainer.log

    def die(self, logs, *unused):
        log(self, logs, *unused)
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.TokenTrainer, "log", die)
        child = multiprocessing.get_context("fork").Process(target=finetune, args=(model, None, *arguments))
        child.start()
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    folder = arguments[-1]
    (folder / f"checkpoint-{step + 1}").mkdir()
    (folder / f"checkpoint-{step + 1}" / "model.safetensors").write_text("cut off")


@pytest.mark.parametrize(
    "options",
    [{"method": "lora", "dropout": 0.2}, {"method": "full"}, {"method": "partial", "last": 2, "store": "off"}],
    ids=lambda options: options["method"],
)
def test_a_killed_training_resumes_as_if_nothing_had_happened(make_tiny, tmp_path, monkeypatch, options):
    train, valid = rows(8), rows(3, seed=1)
    settings = Settings(**options, epochs=3, keep="last", **QUICK)
    model, report = finetune(make_tiny(), None, train, valid, settings, tmp_path / "whole")
    interrupted(monkeypatch, 3, make_tiny(), train, valid, settings, tmp_path / "killed")
    again, resumed = finetune(make_tiny(), None, train, valid, settings, tmp_path / "killed")
    assert resumed["losses"] == report["losses"] and resumed["validation"] == report["validation"]
    assert resumed["steps"] == report["steps"] == len(report["losses"]) == 6
    assert not changed_weights(again, weights(model))
    assert [e["layer_executions"] for e in resumed["epochs"]] == [e["layer_executions"] for e in report["epochs"]]


@pytest.mark.parametrize("keep", ["best", "last"])
def test_long_steps_have_a_checkpoint_each_and_give_the_same_result(make_tiny, tmp_path, monkeypatch, capsys, keep):
    """A kill in step 3 of 6 costs no step, though checkpoints are four steps apart; the state that is kept is the same."""
    train, valid = rows(8), rows(3, seed=1)
    settings = Settings(method="partial", last=1, epochs=3, keep=keep, **QUICK | {"save_every": 4, "evaluate_every": 1})
    model, report = finetune(make_tiny(), None, train, valid, settings, tmp_path / "whole")
    monkeypatch.setattr(checkpoint_clock, "PATIENCE", 0.0)
    monkeypatch.setattr(checkpoint_clock, "SPARING", 0)
    interrupted(monkeypatch, 3, make_tiny(), train, valid, settings, tmp_path / "killed")
    again, resumed = finetune(make_tiny(), None, train, valid, settings, tmp_path / "killed")
    assert f"training continues from {tmp_path / 'killed' / 'checkpoint-2'}" in capsys.readouterr().err
    assert resumed["losses"] == report["losses"] and resumed["kept_step"] == report["kept_step"]
    assert not changed_weights(again, weights(model))


def test_a_training_killed_at_any_use_of_the_disk_ends_as_if_uninterrupted(make_tiny, tmp_path):
    train, valid = rows(4), rows(2, seed=1)
    settings = Settings(method="partial", last=1, epochs=2, **QUICK | {"save_every": 1, "evaluate_every": 1})
    model, report = finetune(make_tiny(), None, train, valid, settings)
    for moment in itertools.count(3, 11):
        folder = tmp_path / str(moment)
        if not killed_at(moment, lambda folder=folder: finetune(make_tiny(), None, train, valid, settings, folder)):
            break
        again, resumed = finetune(make_tiny(), None, train, valid, settings, folder)
        assert resumed["losses"] == report["losses"] and resumed["validation"] == report["validation"], moment
        assert not changed_weights(again, weights(model)), moment
        left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        assert left == ["plan.json", "report.json", "trained.safetensors"], moment
    assert moment > 50  # so often was it killed, up to then


def test_a_checkpoint_that_cannot_be_read_does_not_count(make_tiny, tmp_path, monkeypatch, capsys):
    train, settings = rows(8), Settings(method="lora", epochs=4, **QUICK)
    model, report = finetune(make_tiny(), None, train, settings=settings)
    interrupted(monkeypatch, 5, make_tiny(), train, (), settings, tmp_path / "killed")
    for name in ("optimizer.pt", "trainer_state.json", "model.safetensors"):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "killed", folder)
        damaged = folder / "checkpoint-4" / name
        damaged.write_bytes(damaged.read_bytes()[:-20])
        again, resumed = finetune(make_tiny(), None, train, (), settings, folder)
        assert f"training continues from {folder / 'checkpoint-2'}" in capsys.readouterr().err
        assert resumed["losses"] == report["losses"]
        assert not changed_weights(again, weights(model))


@pytest.mark.parametrize("name", ["trained.safetensors", "report.json"])
def test_a_result_that_cannot_be_read_is_trained_again(make_tiny, tmp_path, name):
    settings = Settings(method="lora", max_steps=2, **QUICK)
    _, report = finetune(make_tiny(), None, rows(4), settings=settings, folder=tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-20])
    _, again = finetune(make_tiny(), None, rows(4), settings=settings, folder=tmp_path)
    assert again["losses"] == report["losses"] and state.finished(tmp_path)[0] == again


@pytest.mark.parametrize(
    "options", [{"method": "full"}, {"method": "lora", "rank": 64, "keep": "last"}], ids=["full", "lora"]
)
def test_the_disk_that_is_foretold_is_the_most_that_a_training_held(make_tiny, tmp_path, monkeypatch, options):
    folder, held = tmp_path / "training", []

    def on_disk():
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def watched(function):
        def call(*arguments, **named):
            result = function(*arguments, **named)
            held.append(on_disk())
            return result

        return call

    settings = Settings(**options, max_steps=8, **QUICK)
    monkeypatch.setattr(safetensors.torch, "save_file", watched(safetensors.torch.save_file))
    monkeypatch.setattr(torch, "save", watched(torch.save))
    _, report = finetune(make_tiny(), None, rows(32), rows(3, seed=1), settings, folder)
    foretold = memory.on_disk(report["trainable"], settings)
    assert 0.97 < max(held) / foretold < 1.05

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=foretold - 2**14))
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="MiB more are needed and .* MiB are free; free space, choose another folder"):
        finetune(make_tiny(), None, rows(32), (), settings, tmp_path / "other")


def test_a_finished_training_is_loaded_and_another_one_is_refused(make_tiny, tmp_path, monkeypatch):
    settings = Settings(method="lora", max_steps=2, **QUICK)
    model, report = finetune(make_tiny(), None, rows(4), settings=settings, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "report.json", "trained.safetensors"]
    monkeypatch.setattr(training, "_train", lambda *unused: pytest.fail("trained again"))
    again, loaded = finetune(make_tiny(), None, rows(4), settings=settings, folder=tmp_path)
    assert loaded == report == json.loads(json.dumps(report))
    assert not changed_weights(again, weights(model))
    with pytest.raises(UserError, match="holds a training with other data"):
        finetune(make_tiny(), None, rows(5), settings=settings, folder=tmp_path)
    other = make_tiny()
    remove_layers(other, [1])
    with pytest.raises(UserError, match="other settings and weights"):
        finetune(other, None, rows(4), settings=Settings(method="full", **QUICK), folder=tmp_path)


def test_the_best_validated_state_is_kept(make_tiny):
    train, valid = rows(4), rows(4, seed=9)
    shared = {"method": "full", "epochs": 6, **QUICK, "learning_rate": 3e-2, "warmup_steps": 0}
    model, report = finetune(make_tiny(), None, train, valid, Settings(**shared))
    losses = dict(report["validation"])
    assert len(losses) == 3 and report["kept_step"] == min(losses, key=losses.get) != 6
    with torch.no_grad():
        assert plain_loss(model, valid).item() == pytest.approx(losses[report["kept_step"]], rel=1e-4)
    _, report = finetune(make_tiny(), None, train, valid, Settings(**shared, keep="last"))
    assert report["kept_step"] == 6


def test_a_training_that_diverges_stops_with_the_last_good_state(make_tiny, tmp_path):
    settings = Settings(method="full", epochs=9, **QUICK | {"learning_rate": 1e18, "warmup_steps": 0})
    model, report = finetune(make_tiny(), None, rows(8), (), settings, tmp_path)
    assert report["status"] == "diverged" and "last good state is kept" in report["reason"]
    assert report["kept_step"] == 0 and len(report["losses"]) < 18
    assert not changed_weights(model, weights(make_tiny()))
    json.dumps(report, allow_nan=False)
    assert finetune(make_tiny(), None, rows(8), (), settings, tmp_path)[1] == report


@pytest.mark.parametrize("method", ["partial", "lora", "qlora"])
def test_a_half_precision_model_trains_in_float32_and_keeps_its_dtype(make_tiny, method):
    model = make_tiny().to(torch.bfloat16)
    before = weights(model)
    model, report = finetune(model, None, rows(4), settings=Settings(method=method, last=1, max_steps=3, **QUICK))
    changed = changed_weights(model, before)
    assert report["status"] == "ok" and {value.dtype for value in model.state_dict().values()} == {torch.bfloat16}
    if method == "partial":
        assert changed and changed <= trained_names(model, 1)
    else:
        assert changed and not changed & {"lm_head.weight", "model.norm.weight"}


def test_bad_input_is_named(make_tiny):
    model, quick = make_tiny(), Settings(max_steps=1, **QUICK)
    with pytest.raises(UserError, match=r"last 7 layers: the model has 6 left"):
        finetune(model, None, rows(2), settings=Settings(method="partial", last=7, **QUICK))
    with pytest.raises(ValueError, match="0..3"):
        check_tuned_layers(3, 4)
    with pytest.raises(UserError, match="training data is empty"):
        finetune(model, None, [], settings=quick)
    with pytest.raises(UserError, match="row 1 has 1 input_ids and 0 labels"):
        finetune(model, None, [*rows(1), {"input_ids": [1]}], settings=quick)
    with pytest.raises(UserError, match="row 0 has no label to learn from"):
        finetune(model, None, [{"input_ids": [5, 6], "labels": [5, -100]}], settings=quick)
    with pytest.raises(UserError, match="token outside 0..319"):
        finetune(model, None, [{"input_ids": [5, 320], "labels": [5, 320]}], settings=quick)
    with pytest.raises(UserError, match="no layer to adapt"):
        finetune(model, None, rows(2), settings=Settings(targets=("c_attn",), **QUICK))
    with pytest.raises(UserError, match="did you mean 'qlora'"):
        Settings(method="qlorra")
    with pytest.raises(UserError, match="unknown fine-tuning setting 'learning_rat'"):
        Settings.of({"learning_rat": 1e-3})
    with pytest.raises(ValueError, match="micro-batches of 3"):
        Settings(batch=64, micro_batch=3)


def test_settings_survive_json():
    settings = Settings(method="partial", betas=(0.9, 0.95))
    assert Settings.of(json.loads(json.dumps(asdict(settings)))) == settings


def test_qlora_keeps_the_rounding_and_leaves_a_plain_model(make_tiny, ids):
    bnb = pytest.importorskip("bitsandbytes")
    dense = make_tiny()
    rounded = make_tiny()
    methods.quantise(rounded)
    assert isinstance(rounded.model.layers[0].mlp.up_proj, bnb.nn.Linear4bit)
    assert type(rounded.lm_head) is torch.nn.Linear
    methods.dequantise(rounded, torch.float32)
    weight, exact = rounded.model.layers[0].mlp.up_proj.weight, dense.model.layers[0].mlp.up_proj.weight
    blocks = (weight / exact.view(-1, 64).abs().amax(1).repeat_interleave(64).view_as(weight)).detach()
    assert 0.05 < ((weight - exact).norm() / exact.norm()).item() < 0.12
    # NF4's levels, up to the scales' rounding
    assert len({round(value, 1) for value in blocks.flatten().tolist()}) <= 16
    model, report = finetune(make_tiny(), None, rows(4), settings=Settings(method="qlora", max_steps=6, **QUICK))
    assert report["status"] == "ok" and report["losses"][-1] < report["losses"][0]
    assert {type(module) for module in model.modules()} == {type(module) for module in dense.modules()}
    assert weights(model).keys() == weights(dense).keys()
    assert torch.equal(model.lm_head.weight, dense.lm_head.weight)
    assert torch.isfinite(model(ids).logits).all()


def test_nothing_is_printed_to_stdout(make_tiny, capsys, caplog):
    caplog.set_level(logging.WARNING)
    finetune(make_tiny(), None, rows(2), settings=Settings(max_steps=1, **QUICK), progress=True)
    assert capsys.readouterr().out == "" and caplog.text == ""


def test_large_models_recompute_and_take_rows_one_at_a_time(make_tiny, monkeypatch):
    """The same training but for rounding, in less memory; what settings say for themselves stays."""
    options = {"method": "full", "max_steps": 2, "store": "off"} | QUICK
    trained = []
    for large, expected in ((1e12, (2, None)), (1.0, (1, True))):
        monkeypatch.setattr(memory, "LARGE", large)
        model, report = finetune(make_tiny(), None, rows(8), settings=Settings(**options))
        trained.append(weights(model))
        assert (report["settings"]["micro_batch"], report["settings"]["checkpointing"]) == expected
        assert not model.is_activation_checkpointing
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-5)
    chosen = Settings(checkpointing=False)
    assert memory.sized(chosen, 1e12) == chosen


@pytest.mark.parametrize(("method", "last"), [("full", 0), ("partial", 2), ("lora", 0)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_memory_that_is_foretold_is_what_weights_gradients_and_adam_hold(make_tiny, method, last, tied):
    model = make_tiny("llama")
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    config, whole = model.config, sum(p.numel() for p in model.parameters())
    facts = {"layers": 6, "params": whole, "layer_params": layer, "hidden": 64, "vocab": 320, "tied": tied}
    facts |= {"intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "experts": None}
    assert config.intermediate_size == 96
    remove_layers(model, [3])
    settings = Settings(method=method, last=last, rank=2)
    need = memory.need(facts, 1, settings, 4, gpu=False)
    attached = methods.attach(model, settings)
    optimizer = torch.optim.AdamW(attached.parameters.values())
    for parameter in attached.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = {p.data_ptr(): p.nbytes for p in model.parameters()}
    norm = 64 * (method == "partial")  # the final norm trains too
    assert need.trained + norm == sum(p.numel() for p in attached.parameters.values())
    assert need.weights == sum(held.values())
    assert need.gradients + 4 * norm == sum(p.grad.nbytes for p in attached.parameters.values())
    states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert need.optimizer + 8 * norm == sum(value.nbytes for value in states)


def test_lacos_training_is_refused_with_its_parts(monkeypatch):
    """89 GB for 4.9 B parameters on an 80 GB card, whose memory is 85: with Adam in 8 bits it fits."""
    facts = registry.get("llama-2-7b").facts
    settings = Settings(method="full", autocast="bfloat16")
    need = memory.need(facts, 9, settings, 2)
    assert need.bytes == 18 * (6_738_415_616 - 9 * 202_383_360)
    monkeypatch.setattr(memory, "capacity", lambda device: 85e9)
    with pytest.raises(UserError, match="takes 89 GB .weights 30 GB, gradients 20 GB, optimizer 39 GB.*ZeRO-2.*8-bit"):
        memory.check_training("llama-2-7b", need, settings, "cuda")
    smaller = replace(settings, optimizer="paged-adamw-8bit")
    memory.check_training("llama-2-7b", memory.need(facts, 9, smaller, 2), smaller, "cuda")
