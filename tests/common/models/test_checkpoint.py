"""Pruned, patched models survive save and load to the last bit; everything broken is refused with one clear line."""

import json
import os
import shutil
import sys

import pytest
import torch
from heads import detach_patches
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from weights import changed_weights, weights

from common import hooks
from common.hooks import attach_patch, patches
from common.models import checkpoint
from common.models.surgery import remove_layers
from common.utils.errors import UserError


@pytest.fixture(autouse=True)
def loader(make_patch, monkeypatch):
    """The loader of the test patch, registered for one test."""

    def rebuild(tensors, options):
        patch = make_patch(0.0, options["width"])
        patch.load_state_dict(tensors)
        return patch

    monkeypatch.setitem(hooks.PATCH_LOADERS, "test.shift", rebuild)


@torch.no_grad()
def test_pruned_and_patched_round_trip(tiny, ids, tiny_tokenizer, make_patch, greedy, tmp_path):
    remove_layers(tiny, [1, 2])
    attach_patch(tiny, 1, make_patch(0.4))
    attach_patch(tiny, 4, make_patch(-0.1))
    expected = tiny(ids, use_cache=False).logits
    state = weights(tiny)

    checkpoint.save(tiny, tiny_tokenizer, tmp_path / "model")
    loaded, tokenizer = checkpoint.load(tmp_path / "model")

    assert not loaded.training
    assert torch.equal(loaded(ids, use_cache=False).logits, expected)
    assert not changed_weights(loaded, state)
    assert [(patch.position, patch.kind) for patch in patches(loaded)] == [(1, "test.shift"), (4, "test.shift")]
    assert torch.equal(greedy(loaded, ids, use_cache=True), greedy(tiny, ids, use_cache=False))
    assert tokenizer("a model")["input_ids"] == tiny_tokenizer("a model")["input_ids"]

    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]  # plain Hugging Face code: the pruned model without its patches
    detach_patches(tiny)
    assert torch.equal(plain.eval()(ids, use_cache=False).logits, tiny(ids, use_cache=False).logits)


def test_dtypes_are_kept(tiny_llama, make_patch, tmp_path):
    tiny_llama.to(torch.bfloat16)
    attach_patch(tiny_llama, 2, make_patch(0.4))
    checkpoint.save(tiny_llama, None, tmp_path / "model")
    loaded, tokenizer = checkpoint.load(tmp_path / "model")
    assert (loaded.dtype, patches(loaded)[0].module.gain.dtype, tokenizer) == (torch.bfloat16, torch.float32, None)
    assert checkpoint.load(tmp_path / "model", dtype=torch.float32)[0].dtype == torch.float32
    # not the logits: `.to(bfloat16)` also rounded the rotary frequencies of the model in memory
    assert not changed_weights(loaded, weights(tiny_llama))


def test_saving_again_replaces_patches_too(tiny_llama, make_patch, tmp_path):
    attach_patch(tiny_llama, 2, make_patch(0.4))
    checkpoint.save(tiny_llama, None, tmp_path / "model")
    detach_patches(tiny_llama)
    checkpoint.save(tiny_llama, None, tmp_path / "model")
    assert patches(checkpoint.load(tmp_path / "model")[0]) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_earlier_checkpoint(tiny_llama, ids, tmp_path, monkeypatch):
    checkpoint.save(tiny_llama, None, tmp_path / "model")
    expected = tiny_llama(ids).logits

    def full_disk(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_patches", full_disk)
    with pytest.raises(UserError, match="No space left on device; nothing was changed"):
        checkpoint.save(tiny_llama, None, tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert torch.equal(checkpoint.load(tmp_path / "model")[0](ids).logits, expected)


@pytest.mark.parametrize(
    "name", ["thesis.tex", "figures/one.png", ".git/HEAD", "notes/", "model-00002-of-00002.safetensors"]
)
def test_a_checkpoint_that_holds_anything_else_is_not_replaced(tiny_llama, tmp_path, name):
    directory = checkpoint.save(tiny_llama, None, tmp_path / "model")
    added = directory / name
    added.parent.mkdir(exist_ok=True)
    added.mkdir() if name.endswith("/") else added.write_text("years of work")
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    with pytest.raises(UserError, match=f"it holds {name}, which was not saved with the checkpoint"):
        checkpoint.save(tiny_llama, None, directory)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    top = directory / name.split("/")[0]
    shutil.rmtree(top) if top.is_dir() else top.unlink()
    checkpoint.save(tiny_llama, None, directory)


@pytest.mark.parametrize("streamed", [False, True])
def test_weights_that_were_trained_in_place_are_not_replaced(tiny_llama, tiny_tokenizer, tmp_path, streamed):
    directory = checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "model")
    if streamed:
        checkpoint.save(*checkpoint.load(directory, stream=0), directory)
    trained, _ = checkpoint.load(directory)
    with torch.no_grad():
        trained.model.norm.weight.fill_(7)
    if streamed:
        (file,) = (f for f in directory.glob("*.safetensors") if "model.norm.weight" in load_file(f))
        save_file(load_file(file) | {"model.norm.weight": trained.model.norm.weight.detach()}, file, {"format": "pt"})
    else:
        trained.save_pretrained(directory)  # as a trainer would, by the same name and of the same size
        file = directory / "model.safetensors"
    with pytest.raises(UserError, match=rf"cannot save to .*model: it holds {file.name} of another .*; move it away"):
        checkpoint.save(tiny_llama, tiny_tokenizer, directory)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(directory).model.norm.weight, trained.model.norm.weight)
    file.unlink()
    assert checkpoint.not_replaceable(directory) is None  # nothing left to lose


def test_what_was_not_touched_is_replaced_wherever_it_was_moved(tiny_llama, tiny_tokenizer, tmp_path):
    directory = checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "model", {"README.md": "card"})
    (directory / "README.md").write_text("a longer card")
    checkpoint.load(directory)
    moved = directory.rename(tmp_path / "moved")
    checkpoint.save(tiny_llama, tiny_tokenizer, moved)
    checkpoint.save(tiny_llama, tiny_tokenizer, shutil.copytree(moved, tmp_path / "copied"))


def test_a_checkpoint_of_an_earlier_version_is_replaced(tiny_llama, tiny_tokenizer, tmp_path):
    """Its marker named the files alone."""
    directory = checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "model")
    fields_then = ("format", "written_by", "files")
    marker = json.loads((directory / ".layer-pruning.json").read_text())
    (directory / ".layer-pruning.json").write_text(json.dumps({name: marker[name] for name in fields_then}))
    os.utime(directory / "model.safetensors")
    checkpoint.save(tiny_llama, tiny_tokenizer, directory)


def test_what_is_saved_has_the_modes_of_the_umask(tiny_llama, tiny_tokenizer, make_patch, tmp_path):
    attach_patch(tiny_llama, 2, make_patch(0.4))
    before = os.umask(0o027)
    try:
        directory = checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "model", {"README.md": "a card"})
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o640}


def test_a_link_to_a_directory_stays_a_link(tiny_llama, tmp_path):
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "model").symlink_to("large-disk")
    for _ in range(2):
        checkpoint.save(tiny_llama, None, tmp_path / "model")
    assert (tmp_path / "model").is_symlink() and (tmp_path / "large-disk" / "config.json").is_file()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["large-disk", "model"]


@pytest.mark.parametrize("kind, module", [("somepaper", "the package of its method"), ("test.shift", __name__)])
def test_an_unregistered_patch_says_what_to_import(kind, module, tiny_llama, make_patch, tmp_path, monkeypatch):
    attach_patch(tiny_llama, 2, make_patch(0.4), kind=kind)
    checkpoint.save(tiny_llama, None, tmp_path / "model")
    monkeypatch.delitem(hooks.PATCH_LOADERS, kind, raising=False)  # as in a process that has not imported it
    with pytest.raises(UserError, match=f"kind '{kind}'.*; import {module} first"):
        checkpoint.load(tmp_path / "model")


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def drop_tensor(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors.pop("model.layers.3.mlp.down_proj.weight")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def test_what_loads_as_another_model_or_reads_other_tokens_has_another_digest(
    tiny_llama, ids, tiny_tokenizer, make_patch, tmp_path
):
    def logits(directory):
        return checkpoint.load(directory)[0](ids, use_cache=False).logits

    def tokens(directory):
        return AutoTokenizer.from_pretrained(directory)("a model").input_ids

    attach_patch(tiny_llama, 2, make_patch(0.4))
    saved = checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "one")
    detach_patches(tiny_llama)
    attach_patch(tiny_llama, 4, make_patch(0.4))
    moved = checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "moved")
    other_tokens = shutil.copytree(saved, tmp_path / "told")
    edit_json(
        other_tokens / "tokenizer.json",
        lambda content: content["model"].update(merges=content["model"]["merges"][:3]),
    )
    same = shutil.copytree(saved, tmp_path / "same")
    for name in ("README.md", "chat_template.jinja", "generation_config.json"):
        (same / name).write_text("{}")
    assert tokens(saved) == tokens(moved) == tokens(same) != tokens(other_tokens)
    with torch.no_grad():
        assert torch.equal(logits(saved), logits(same)) and not torch.equal(logits(saved), logits(moved))
    assert checkpoint.digest(saved) == checkpoint.digest(same)
    assert len({checkpoint.digest(directory) for directory in (saved, moved, other_tokens)}) == 3


def edit(name, **changes):
    return lambda directory: edit_json(directory / name, lambda content: content.update(changes))


# What is wrong without a patch too, in tests/common/cli/test_bad_inputs.py.
@pytest.mark.parametrize(
    "damage, message",
    [
        (drop_tensor, "1 tensors are missing or misshapen"),
        (edit("config.json", num_hidden_layers=8), "the files have no weights of layers 6, 7"),
        (lambda d: (d / "patches.json").write_text("{"), "cannot load the patches"),
        (edit("patches.json", format=9), "format 9, this version reads 1"),
        (lambda d: (d / "patches.safetensors").unlink(), "cannot load the patches"),
        (lambda d: (d / "patches.json").unlink(), "patches.json is missing"),
        (lambda d: d.rename(d.parent / "elsewhere"), "no such directory"),
    ],
)
def test_broken_checkpoints_are_refused_in_one_line(tiny_llama, make_patch, tmp_path, damage, message):
    attach_patch(tiny_llama, 2, make_patch(0.4))
    directory = checkpoint.save(tiny_llama, None, tmp_path / "model")
    damage(directory)
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(directory)
    assert "\n" not in str(caught.value)


def test_remote_code_does_not_run_unasked(write_checkpoint, tmp_path):
    directory = write_checkpoint(tmp_path / "model")
    (directory / "evil.py").write_text("raise SystemExit('remote code ran')\n")
    edit_json(
        directory / "config.json",
        lambda c: c.update(auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}, model_type="evil"),
    )
    with pytest.raises(UserError, match="'evil' is not supported"):
        checkpoint.load(directory)
    edit_json(directory / "config.json", lambda c: c.update(model_type="llama"))
    checkpoint.load(directory)  # a supported type uses the library's own code
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    ("family", "name", "place"),
    [
        ("glm4_moe", "num_nextn_predict_layers", "model.layers.6."),
        ("qwen3_5_text", "mtp_num_hidden_layers", "mtp.layers.0."),
    ],
)
def test_a_saved_config_asks_for_no_layer_that_is_not_saved(family, name, place, write_checkpoint, tmp_path, ids):
    """A layer that predicts further tokens: transformers leaves its weights out."""
    folder = write_checkpoint(tmp_path / "model", family)
    tensors = load_file(folder / "model.safetensors")
    extra = {
        key.replace("model.layers.5.", place): value.clone()
        for key, value in tensors.items()
        if "model.layers.5." in key
    }
    save_file(tensors | extra, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: 1}))
    model, tokenizer = checkpoint.load(folder)
    out = checkpoint.save(model, tokenizer, tmp_path / "out", source=folder)
    assert not any(place in key for key in load_file(out / "model.safetensors"))
    assert json.loads((out / "config.json").read_text())[name] == 0
    assert torch.equal(AutoModelForCausalLM.from_pretrained(out).eval()(ids).logits, model(ids).logits)
