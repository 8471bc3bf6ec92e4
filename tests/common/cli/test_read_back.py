"""A saved result that computes something else than the model in memory is told."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.cli import main, read_back
from common.models import checkpoint
from common.models.surgery import remove_layers
from papers.linearpatch import tool as linearpatch


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
def command(write_checkpoint, tmp_path):
    """What removes two layers of a tiny model and replaces them by a patch, without --out."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} The layers of a model are removed and scaled.\n\n" for n in range(200)))
    command = ["--model", str(write_checkpoint(tmp_path / "model")), "--remove", "2", "--text", str(text)]
    return [*command, "--length", "32", "--samples", "4", "--windows", "2", "--no-evaluation"]


def test_a_process_of_its_own_reads_what_was_saved(command, tmp_path, monkeypatch):
    """Patches too, which only their method's package can rebuild."""
    monkeypatch.setattr(read_back, "in_fresh_process", FRESH)
    assert main(linearpatch.METHOD, [*command, "--out", str(tmp_path / "out")]) == 0
    assert not json.loads((tmp_path / "out" / "pruning.json").read_text())["broken"]


def test_patches_count(tiny_llama, make_patch, tmp_path, monkeypatch):
    from common.hooks import PATCH_LOADERS, attach_patch

    patch = make_patch(0.4)
    monkeypatch.setitem(PATCH_LOADERS, patch.kind, lambda tensors, options: make_patch(-0.4))
    attach_patch(tiny_llama, 3, patch)
    assert "is another model" in read_back.difference(tiny_llama, checkpoint.save(tiny_llama, None, tmp_path / "model"))


def damaging(monkeypatch, damage):
    """Let something damage the files between saving and the end."""
    save = checkpoint.save

    def damaged(*arguments, **options):
        path = save(*arguments, **options)
        damage(path)
        return path

    monkeypatch.setattr(checkpoint, "save", damaged)


def test_a_tool_that_saved_another_model_exits_with_3(command, tmp_path, capsys, monkeypatch):
    assert main(linearpatch.METHOD, [*command, "--out", str(tmp_path / "good")]) == 0
    damaging(monkeypatch, scaled)
    assert main(linearpatch.METHOD, [*command, "--out", str(tmp_path / "bad")]) == 3
    assert "the saved checkpoint is another model" in capsys.readouterr().err


def test_a_tool_whose_fresh_process_cannot_read_what_was_saved_exits_with_3(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(read_back, "in_fresh_process", FRESH)
    damaging(monkeypatch, cut_off)
    assert main(linearpatch.METHOD, [*command, "--out", str(tmp_path / "bad")]) == 3
    error = capsys.readouterr().err
    assert "the saved checkpoint cannot be read back" in error and "model.norm.weight" in error
