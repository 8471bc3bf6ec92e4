"""A process killed at any moment of a save leaves the old checkpoint or the new one, and the next start clears up."""

import shutil
import threading

import pytest
import torch
from killed import killed_at

from common.models import checkpoint
from common.utils import atomic_files
from common.utils.errors import UserError


@pytest.mark.parametrize("earlier", [True, False])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(earlier, make_tiny, tiny_tokenizer, tmp_path):
    old, new = make_tiny("llama"), make_tiny("llama")
    with torch.no_grad():
        new.model.norm.weight += 1
    path = tmp_path / "work" / "model"
    path.parent.mkdir()
    whole = {}  # the bytes of a checkpoint that was saved undisturbed, and which it is
    for model, text in ((old, "old"), (new, "new")):
        saved = checkpoint.save(model, tiny_tokenizer, tmp_path / text, {"README.md": text})
        loaded, tokenizer = checkpoint.load(saved)
        assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
        assert tokenizer is not None
        whole[content(saved)] = text
    outcomes = []
    for moment in range(1, 200):
        if earlier and not path.exists():
            shutil.copytree(tmp_path / "old", path)
        dead = killed_at(moment, lambda: checkpoint.save(new, tiny_tokenizer, path, {"README.md": "new"}))
        if not dead:
            break
        try:
            checkpoint.check_directory(path)  # as `load` does first
        except UserError:
            assert not earlier, f"nothing can be loaded after a kill at moment {moment}"
            outcomes.append("nothing")
        else:
            outcomes.append(whole[content(path)])
        atomic_files.recover(path)
        assert [entry.name for entry in path.parent.iterdir()] in (["model"], [])  # nothing stays behind
        if path.exists():
            assert checkpoint.not_replaceable(path) is None
            if outcomes[-1] != "old":
                shutil.rmtree(path)
    assert len(outcomes) > 15 and not dead
    assert set(outcomes) == {"old" if earlier else "nothing", "new"}


def content(folder):
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != atomic_files.MARKER)  # it has times
    return frozenset((file.relative_to(folder), file.read_bytes()) for file in files)


def test_what_was_replaced_does_not_come_back_where_its_successor_was_moved(tmp_path):
    path, moved, left = tmp_path / "model", tmp_path / "taken", 0

    def put(text):
        atomic_files.put(path, lambda folder: (folder / "a").write_text(text))

    put("old")
    for moment in range(1, 200):
        dead = killed_at(moment, lambda: put("new"))
        if not path.exists():
            atomic_files.recover(path)  # of two renames the second was to come
        if (path / "a").read_text() == "new":
            left += len(list(tmp_path.glob(".model.old-*")))
            path.rename(moved)
            with pytest.raises(UserError, match="no such directory"):
                checkpoint.load(path)
            moved.rename(path)
        atomic_files.recover(path)
        assert list(tmp_path.iterdir()) == [path]
        if not dead:
            break
        put("old")
    assert left and not dead  # a kill after the one took the other's place and before that was cleared away


def test_only_what_bears_our_names_is_swept(tmp_path):
    path = tmp_path / "model"

    def folder(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text("x")
        return tmp_path / name

    before = folder(".model.old-00000002")  # may be all that is left
    left = [folder(".model.new-00000000"), before]
    others = [folder(".another.new-00000006"), folder(".model.new-copy"), folder("model-backup"), folder(".model.new")]
    atomic_files.recover(path)
    assert not left[0].exists() and (before / "weights").exists()
    atomic_files.put(path, lambda directory: (directory / "a").write_text("new"))
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])
    assert all((other / "weights").exists() for other in others)


@pytest.mark.parametrize("earlier", [True, False])
def test_others_leave_alone_what_is_about_to_go_in_place_and_write_after_it(earlier, tmp_path, caplog):
    path = tmp_path / "model"
    if earlier:
        atomic_files.put(path, lambda folder: (folder / "a").write_text("old"))
    contents = []

    def write(folder):
        (folder / "a").write_text("first")
        second = threading.Thread(
            target=atomic_files.put, args=(path, lambda folder: (folder / "a").write_text("second"))
        )
        second.start()
        while "waiting for it" not in caplog.text:
            second.join(0.01)
        atomic_files.recover(path)
        contents.extend([second, folder.exists(), path.exists()])

    atomic_files.put(path, write)
    contents[0].join()
    assert contents[1:] == [True, earlier]
    assert (path / "a").read_text() == "second" and atomic_files.files(path) == {"a"}
    assert list(tmp_path.iterdir()) == [path]
