"""What is made once: whole or not at all, by one maker, with the disk's refusals in one line."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.utils import cache
from common.utils.errors import UserError


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "thing"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_follows_the_variables(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("LAYERLAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.folder() == Path("/home/somebody/.cache/layerlab")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache.folder() == Path("/var/cache/layerlab")
    monkeypatch.setenv("LAYERLAB_CACHE", "~/here")
    assert cache.folder() == Path("/home/somebody/here")


def test_two_makers_at_once_make_it_once(target):
    started, made_by = threading.Barrier(2), []

    def make(work, result):
        (work / "scratch").write_text("x")
        made_by.append(threading.get_ident())
        (result / "weights").write_text("all of them")

    def ask(_):
        started.wait()
        return cache.once(target, make, "it")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [target, target]
    assert len(made_by) == 1
    assert names(target) == ["weights"]
    assert names(target.parent) == [".thing.lock", "thing"]
    cache.once(target, lambda *_: pytest.fail("made again"), "it")


def test_a_failure_leaves_nothing_and_what_a_kill_left_is_swept(target):
    target.parent.mkdir()
    (target.parent / ".thing.making-killed").mkdir()
    (target.parent / ".thing.making-killed" / "half").write_text("x" * 100)
    (target.parent / ".other.making-busy").mkdir()

    def fail(_work, result):
        (result / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.once(target, fail, "it")
    assert names(target.parent) == [".other.making-busy", ".thing.lock"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(28, "No space left on device"),
            "the disk is full; free space there, or name a folder on a larger disk",
        ),
        (OSError(5, "Input/output error"), "Input/output error; name another folder in LAYERLAB_CACHE"),
    ],
)
def test_the_disk_refuses_in_one_line(target, error, message):
    def fail(*_):
        raise error

    with pytest.raises(UserError) as caught:
        cache.once(target, fail, "tiny")
    assert str(caught.value).startswith(f"could not make tiny in {target.parent}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    (target.parent.parent / "file").write_text("")
    with pytest.raises(UserError, match="LAYERLAB_CACHE"):
        cache.once(target.parent.parent / "file" / "thing", fail, "tiny")


def test_the_oldest_entries_are_forgotten_until_the_others_fit():
    for most, left in ((9, "abc"), (8, "bc"), (5, "bc"), (4, "c"), (3, "c"), (2, ""), (0, "")):
        entries = {"a": 4, "b": 2, "c": 3}
        cache.forget(entries, lambda size: size, most)
        assert "".join(entries) == left
