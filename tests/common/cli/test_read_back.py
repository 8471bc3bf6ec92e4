"""A saved result that computes something else than the model in memory is told."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.cli import read_back
from common.hooks import PATCH_LOADERS, attach_patch
from common.models import checkpoint
from common.models.surgery import remove_layers


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "opt", "deepseek_v3", "qwen3_next"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_saved_is_what_is_in_memory(name, dtype, write_checkpoint, tmp_path):
    model, _ = checkpoint.load(write_checkpoint(tmp_path / "whole", name), dtype=dtype)
    remove_layers(model, [1, 3])
    assert read_back.difference(model, checkpoint.save(model, None, tmp_path / "model")) == ""


def scaled(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.down_proj.weight"] *= 1.5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def other_base(folder):
    content = json.loads((folder / "config.json").read_text())
    content["rope_theta"] = content["rope_parameters"]["rope_theta"] = 100.0
    (folder / "config.json").write_text(json.dumps(content))


def cut_off(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [(scaled, "is another model"), (other_base, "is another model"), (cut_off, "cannot be read back")],
)
def test_another_model_on_disk_is_told(damage, message, tiny_llama, tmp_path):
    folder = checkpoint.save(tiny_llama, None, tmp_path / "model")
    damage(folder)
    assert message in read_back.difference(tiny_llama, folder)


FRESH = read_back.in_fresh_process


@pytest.fixture
def patched(tool):
    """`patched()` removes two layers and replaces them by a patch -> `Run`."""
    return lambda: tool("linearpatch", "--remove", 2, "--no-evaluation")


def test_a_process_of_its_own_reads_what_was_saved(patched, monkeypatch):
    """Patches too, which only their method's package can rebuild."""
    monkeypatch.setattr(read_back, "in_fresh_process", FRESH)
    run = patched()
    assert run.status == 0 and not run.report["broken"]


def test_patches_count(tiny_llama, make_patch, tmp_path, monkeypatch):
    patch = make_patch(0.4)
    monkeypatch.setitem(PATCH_LOADERS, patch.kind, lambda tensors, options: make_patch(-0.4))
    attach_patch(tiny_llama, 3, patch)
    assert "is another model" in read_back.difference(tiny_llama, checkpoint.save(tiny_llama, None, tmp_path / "model"))


@pytest.mark.parametrize(
    "read, damage, messages",
    [
        (read_back.of_checkpoint, scaled, ["the saved checkpoint is another model"]),
        (FRESH, cut_off, ["the saved checkpoint cannot be read back", "model.norm.weight"]),
    ],
)
def test_a_tool_exits_with_3_if_its_files_are_damaged_after_saving(read, damage, messages, patched, monkeypatch):
    save = checkpoint.save

    def damaged(*arguments, **options):
        path = save(*arguments, **options)
        damage(path)
        return path

    monkeypatch.setattr(read_back, "in_fresh_process", read)
    monkeypatch.setattr(checkpoint, "save", damaged)
    run = patched()
    assert run.status == 3 and all(message in run.stderr for message in messages)
