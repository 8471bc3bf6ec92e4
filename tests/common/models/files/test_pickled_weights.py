"""Models without safetensors on their main revision: the bot's conversion, or our own when asked; never unasked."""

import json
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import Discussion, constants
from safetensors.torch import load_file
from weights import changed_weights, weights

from common.models import loading
from common.models.files import hub, pickled_weights
from common.utils.errors import UserError

NAME, HUB_ID = "vicuna-7b-v1.5", "lmsys/vicuna-7b-v1.5"
TITLE = "Adding `safetensors` variant of this model"
MAIN, PROPOSED = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch, tmp_path):
    monkeypatch.delenv("LAYERLAB_HUB", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["one file", "two files", "an old file", "an index left beside a file"])
def write_pickled(request, write_checkpoint, make_tiny):
    """`write(path)` -> a checkpoint as it was before safetensors, and the model that it holds."""

    def write(path):
        model = make_tiny().to(torch.bfloat16)
        write_checkpoint(path, model=model)
        (path / "model.safetensors").unlink()
        state = model.state_dict()
        if request.param == "two files":
            names = sorted(state)
            shards = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in range(2)}
            for shard, tensors in shards.items():
                torch.save({name: state[name] for name in tensors}, path / shard)
            index = {"weight_map": {name: shard for shard, tensors in shards.items() for name in tensors}}
            (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        else:
            zipped = request.param != "an old file"
            if request.param.startswith("an index"):  # of shards that are gone; transformers reads the file
                (path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"lm_head.weight": "gone.bin"}}')
            torch.save(state, path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return model

    return write


class Hub:
    """A hub with folders as revisions, and pull requests on the model."""

    def __init__(self, revisions, proposals=()):
        self.revisions, self.proposals, self.downloads = revisions, proposals, []

    def model_info(self, _hub_id, revision=None):
        _, folder = self.revisions[revision or "main"]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file.name) for file in folder.iterdir()])

    def get_repo_discussions(self, hub_id, *, author, discussion_type, discussion_status):
        assert (discussion_type, discussion_status) == ("pull_request", "open")
        for num, title, by in self.proposals:
            if by == author or by == "spoofed":
                yield Discussion(title, "open", num, hub_id, "model", by, True, datetime(2024, 1, 1), "")

    def snapshot_download(self, hub_id, revision=None, local_files_only=False, ignore_patterns=()):
        """As the client lays its cache out: snapshots by commit, a file per reference."""
        repository = Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"
        reference = repository / "refs" / (revision or "main")
        if local_files_only:
            path = repository / "snapshots" / (reference.read_text() if reference.is_file() else revision or "none")
            if not path.is_dir():
                raise FileNotFoundError(path)
            return str(path)
        commit, folder = self.revisions[revision or "main"]
        self.downloads.append(revision)
        path = repository / "snapshots" / commit
        patterns = [pattern for pattern in ignore_patterns if pattern.startswith("*")]
        shutil.copytree(folder, path, ignore=shutil.ignore_patterns(*patterns), dirs_exist_ok=True)
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
        return str(path)


@pytest.fixture
def serve(monkeypatch):
    """`serve(hub)`: that hub answers."""

    def install(served):
        monkeypatch.setattr(hub, "unreachable_because", lambda *_: None)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: served)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", served.snapshot_download)
        return served

    return install


@pytest.fixture
def cut_off(monkeypatch):
    return lambda: monkeypatch.setattr(hub, "unreachable_because", lambda *_: "no network")


def refused():
    with pytest.raises(UserError) as caught:
        loading.load(NAME)
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_same(loaded, model):
    assert loaded.dtype == torch.bfloat16
    assert not changed_weights(loaded, weights(model))


def test_in_the_mirror(write_pickled, tmp_path, monkeypatch):
    path = tmp_path / "mirror" / "models" / HUB_ID
    model = write_pickled(path)
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "mirror"))
    before = sorted(path.iterdir())
    assert "pickled ones are never read unasked; `python -m reproductions fetch TARGET --convert-weights`" in refused()
    converted = loading.resolve(NAME, convert_weights=True)
    assert not list(converted.glob("*.bin*"))
    assert sorted(path.iterdir()) == before
    monkeypatch.setattr(torch, "load", lambda *_a, **_k: pytest.fail("unpickled again"))
    loaded, tokenizer = loading.load(NAME, dtype="bfloat16")
    assert_same(loaded, model)
    assert tokenizer.decode(tokenizer("a stream")["input_ids"]) == "a stream"
    assert loaded.source == {"name": NAME, "path": str(converted), "revision": None}
    os.utime(next(path.glob("*.bin")), (1, 1))  # another file in its place is another model
    assert "--convert-weights" in refused()


def test_the_bots_conversion_on_the_hub_is_taken(write_pickled, write_checkpoint, tmp_path, serve, cut_off):
    main, proposed, foreign = (tmp_path / name for name in ("main", "proposed", "foreign"))
    model = write_pickled(main)
    write_checkpoint(proposed, model=model)
    write_checkpoint(foreign)
    revisions = {"main": (MAIN, main), "refs/pr/3": ("c" * 40, foreign), "refs/pr/7": (PROPOSED, proposed)}
    proposals = [(2, "Update README.md", "SFconvertbot"), (3, TITLE, "spoofed"), (7, TITLE, "SFconvertbot")]
    served = serve(Hub(revisions, proposals))
    loaded, _ = loading.load(NAME, dtype="bfloat16")
    assert_same(loaded, model)
    assert loaded.source["revision"] == PROPOSED
    assert served.downloads == ["refs/pr/7"]
    cut_off()
    assert loading.load(NAME)[0].source["revision"] == PROPOSED


def test_without_a_conversion_on_the_hub(write_pickled, tmp_path, serve, cut_off):
    main = tmp_path / "main"
    model = write_pickled(main)
    served = serve(Hub({"main": (MAIN, main)}))
    assert "--convert-weights" in refused()
    assert served.downloads == []  # gigabytes that would not be read
    loading.resolve(NAME, convert_weights=True)
    cut_off()
    loaded, _ = loading.load(NAME, dtype="bfloat16")
    assert_same(loaded, model)
    assert loaded.source["revision"] == MAIN


def test_a_repository_of_other_weights_is_not_offered_a_conversion(write_pickled, tmp_path, serve):
    write_pickled(tmp_path / "main")
    for file in (tmp_path / "main").glob("*.bin*"):
        file.rename(file.with_suffix(".gguf"))
    served = serve(Hub({"main": (MAIN, tmp_path / "main")}))
    message = refused()
    assert "neither safetensors nor pickled weights" in message and "--convert-weights" not in message
    assert served.downloads == []


def test_pickled_weights_in_the_cache_are_not_read_without_network_either(write_pickled, tmp_path, serve, cut_off):
    model = write_pickled(tmp_path / "main")
    serve(Hub({"main": (MAIN, tmp_path / "main")})).snapshot_download(HUB_ID)
    cut_off()
    assert "--convert-weights" in refused()
    assert_same(loading.load(loading.resolve(NAME, convert_weights=True), dtype="bfloat16")[0], model)


class Runs:
    """What a pickle may do when it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return subprocess.call, (["touch", str(self.file)],)


@pytest.mark.parametrize("content", ["code", "nothing", "numbers"])
def test_what_is_no_weights_is_not_run(content, write_checkpoint, tmp_path, monkeypatch):
    path = tmp_path / "mirror" / "models" / HUB_ID
    write_checkpoint(path)
    (path / "model.safetensors").unlink()
    if content == "nothing":
        (path / "pytorch_model.bin").write_bytes(b"")
    else:
        torch.save({"a": Runs(tmp_path / "ran") if content == "code" else 1.0}, path / "pytorch_model.bin")
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "mirror"))
    with pytest.raises(UserError, match="cannot convert .*pytorch_model.bin: it ") as caught:
        loading.resolve(NAME, convert_weights=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
    assert not pickled_weights.folder(path, HUB_ID).exists()


def test_tied_and_transposed_weights(tmp_path):
    """safetensors refuses tensors that share memory; the values stay."""
    shared = torch.randn(4, 6)
    tensors = {"embedding": shared, "head": shared, "part": shared[:2], "turned": shared.T}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    path = pickled_weights.convert(tmp_path, "org/tied")
    stored = load_file(path / "model.safetensors")
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensors[name]) for name in tensors)
