"""A process killed at any moment of a save leaves the old checkpoint or the new one, and the next start clears up."""

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
import torch
from killed import killed_at

from common.models import checkpoint
from common.utils import atomic_files
from common.utils.errors import UserError


@pytest.fixture(params=["at once", "two renames"])
def way(request, monkeypatch):
    """With the system's exchange of two directories, and without."""
    if request.param == "two renames":
        monkeypatch.setattr(atomic_files, "exchange", lambda one, other: False)
    elif not exchange_works():
        pytest.skip("the system cannot exchange two directories")


def exchange_works():
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder) / "one", Path(folder) / "two"
        one.mkdir()
        two.mkdir()
        return atomic_files.exchange(one, two)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(way, earlier, make_tiny, tiny_tokenizer, tmp_path):
    old, new = make_tiny("llama"), make_tiny("llama")
    with torch.no_grad():
        new.model.norm.weight += 1
    path = tmp_path / "model"
    outcomes = []
    for moment in range(1, 200):
        if earlier and not path.exists():
            checkpoint.save(old, tiny_tokenizer, path, {"README.md": "old"})
        dead = killed_at(moment, lambda: checkpoint.save(new, tiny_tokenizer, path, {"README.md": "new"}))
        if not dead:
            break
        try:
            model, tokenizer = checkpoint.load(path)
        except UserError:
            assert not earlier, f"nothing can be loaded after a kill at moment {moment}"
            outcomes.append("nothing")
        else:
            which = new if torch.equal(model.model.norm.weight, new.model.norm.weight) else old
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), which.parameters(), strict=True))
            assert tokenizer is not None
            text = (path / "README.md").read_text()
            assert text == ("new" if which is new else "old")
            outcomes.append(text)
        atomic_files.recover(path)
        assert [entry.name for entry in tmp_path.iterdir()] in (["model"], [])  # nothing stays behind
        if path.exists():
            assert checkpoint.not_replaceable(path) is None
            checkpoint.save(old, tiny_tokenizer, path, {"README.md": "old"}) if earlier else clear(path)
    assert len(outcomes) > 15 and not dead
    assert set(outcomes) == {"old" if earlier else "nothing", "new"}


def test_what_was_replaced_does_not_come_back_where_its_successor_was_moved(way, tmp_path):
    path, taken, left = tmp_path / "model", tmp_path / "taken", 0

    def put(text):
        atomic_files.put(path, lambda folder: (folder / "a").write_text(text))

    put("old")
    for moment in range(1, 200):
        dead = killed_at(moment, lambda: put("new"))
        if not path.exists():
            atomic_files.recover(path)  # of two renames the second was to come
        if (path / "a").read_text() == "new":
            left += len(list(tmp_path.iterdir())) - 1
            path.rename(taken)
            with pytest.raises(UserError, match="no such directory"):
                checkpoint.load(path)
            taken.rename(path)
        atomic_files.recover(path)
        assert list(tmp_path.iterdir()) == [path]
        if not dead:
            break
        put("old")
    assert left and not dead  # a kill after the one took the other's place and before that was cleared away


def clear(path):
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def test_only_what_is_ours_and_whose_process_is_dead_is_swept(tmp_path):
    path = tmp_path / "model"

    def left(name, marker=None, file="weights"):
        folder = tmp_path / name
        folder.mkdir()
        if file:
            (folder / file).write_text("x")
        if marker is not None:
            (folder / atomic_files.MARKER).write_text(json.dumps(marker))
        return folder

    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)  # a number that no process has now
    ours = {"format": 1, "host": None}
    dead = [left(f".model.new-{child}-00000000", ours), left(f".model.new-{child}-00000001", file=None)]
    dead += [left(f".model.old-{child}-00000002", file=f"{atomic_files.MARKER}.tmp")]
    kept = [left(f".model.new-{os.getppid()}-00000003", ours)]  # its process lives
    kept += [left(f".model.new-{child}-00000004")]  # no marker: not ours
    kept += [left(f".model.new-{child}-00000005", {"format": 1, "host": "elsewhere"})]  # may be at work there
    kept += [left(f".another.new-{child}-00000006", ours), left(".model.new-copy", ours), left("model-backup", ours)]
    atomic_files.recover(path)
    assert not any(folder.exists() for folder in dead)
    assert all((folder / "weights").exists() for folder in kept)
    os.utime(kept[2], (0, 0))
    atomic_files.recover(path)
    assert not kept[2].exists()


@pytest.mark.parametrize("earlier", [True, False])
def test_another_host_leaves_alone_what_is_about_to_go_in_place(way, earlier, tmp_path, monkeypatch):
    path = tmp_path / "model"
    if earlier:
        atomic_files.put(path, lambda folder: (folder / "a").write_text("old"))
    own, settle, rename, looked = socket.gethostname(), atomic_files._settle, Path.rename, []

    def look_from_elsewhere():
        with monkeypatch.context() as there:
            there.setattr(socket, "gethostname", lambda: "elsewhere")
            there.setattr(os, "getpid", lambda: 1 << 30)
            there.setattr(os, "kill", no_such_process)
            there.setattr(Path, "rename", rename)
            atomic_files.recover(path)
            looked.append(path.exists())

    def no_such_process(*_):
        raise ProcessLookupError

    def renamed(source, target):
        moved = rename(source, target)
        look_from_elsewhere()
        return moved

    monkeypatch.setattr(atomic_files, "_settle", lambda folder: (settle(folder), look_from_elsewhere()))
    monkeypatch.setattr(Path, "rename", renamed)
    atomic_files.put(path, lambda folder: (folder / "a").write_text("new"))
    assert looked and (path / "a").read_text() == "new" and atomic_files.files(path) == {"a"}
    assert list(tmp_path.iterdir()) == [path]
    assert own not in (path / atomic_files.MARKER).read_text()


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "model"
    atomic_files.put(path, lambda folder: (folder / "a").write_text("old"))

    def fail(folder):
        (folder / "a").write_text("new")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        atomic_files.put(path, fail)
    assert (path / "a").read_text() == "old" and atomic_files.files(path) == {"a"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
