"""Records: identity, atomic writing, and what happens to damaged or older files."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from common import results
from common.errors import UserError
from common.results import Recipe, Record, Store

RECIPE = Recipe("standin", "standin", selection={"method": "bi", "count": 4, "cosine": "token"})


def record(**fields) -> Record:
    base = {"recipe": dataclasses.asdict(RECIPE), "recipe_hash": RECIPE.hash, "benchmark": "b", "status": "ok"}
    return Record(**{**base, "values": {"acc": 0.5}, **fields})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "mine", tmp_path / "published")


def test_the_hash_ignores_the_order_of_keys_and_sees_every_field():
    same = Recipe("standin", "standin", selection={"cosine": "token", "count": 4, "method": "bi"})
    assert same.hash == RECIPE.hash
    changed = {"weights": "w", "repair": {}, "training": {}, "calibration": {}, "fidelity": "code", "limit": 3}
    hashes = {dataclasses.replace(RECIPE, **{name: value}).hash for name, value in changed.items()}
    assert len(hashes | {RECIPE.hash}) == len(changed) + 1


def test_a_record_comes_back_as_it_was_written(store):
    store.put(record(stderr={"acc": 0.1}, provenance={"seconds": 1.5}), RECIPE)
    assert store.get(RECIPE, "b") == record(stderr={"acc": 0.1}, provenance={"seconds": 1.5})
    assert store.get(RECIPE, "b").origin == "yours"
    assert store.get(RECIPE, "other") is None


def test_own_records_are_preferred_to_published_ones(store):
    Store(store.published, None).put(record(values={"acc": 0.1}), RECIPE)
    assert (store.get(RECIPE, "b").values, store.get(RECIPE, "b").origin) == ({"acc": 0.1}, "published")
    store.put(record(values={"acc": 0.9}), RECIPE)
    assert (store.get(RECIPE, "b").values, store.get(RECIPE, "b").origin) == ({"acc": 0.9}, "yours")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 0}', '{"schema": 1, "surprise": 2}'])
def test_damaged_and_older_records_are_set_aside_and_kept(store, content, caplog):
    path = store.put(record(), RECIPE)
    for _ in range(2):  # a second one must not overwrite the first
        path.write_text(content)
        assert store.get(RECIPE, "b") is None
    aside = list(path.parent.glob("*.set-aside"))
    assert [file.read_text() for file in aside] == [content] * 2
    assert "set aside as" in caplog.text
    store.put(record(), RECIPE)
    assert store.get(RECIPE, "b") == record()


def test_damaged_published_records_are_left_where_they_are(store, caplog):
    path = Store(store.published, None).put(record(), RECIPE)
    path.write_text("{")
    assert store.get(RECIPE, "b") is None
    assert path.read_text() == "{"
    assert "is ignored" in caplog.text


def test_a_full_disk_leaves_the_old_record_and_no_rubbish(store, monkeypatch):
    path = store.put(record(values={"acc": 0.25}), RECIPE)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device.*LAYERLAB_RESULTS"):
        store.put(record(values={"acc": 0.75}), RECIPE)
    assert store.get(RECIPE, "b").values == {"acc": 0.25}
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write records to .*file"):
        Store(tmp_path / "file" / "below").check_writable()


def test_a_killed_writer_leaves_no_half_record(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from common import results
from common.results import Recipe, Record, Store
recipe = Recipe("standin", "standin")
results.os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Store(Path({str(tmp_path)!r}), None).put(Record({{}}, recipe.hash, "b", "ok"), recipe)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ)
    assert done.returncode == -9
    assert Store(tmp_path, None).get(Recipe("standin", "standin"), "b") is None


def test_provenance_names_versions_and_code():
    found = results.environment()
    assert found["packages"]["torch"].startswith("2.13.0")
    assert set(found) >= {"python", "platform", "commit", "dirty"}
    json.dumps(found)


def test_code_is_dirty_when_code_changed_not_when_pictures_or_records_did(tmp_path, monkeypatch):
    names = ["code.py", "figures/rendered/figure.svg", "reproductions/results/record.json"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    for name in reversed(names):
        assert results.environment()["dirty"] is False
        (tmp_path / name).write_text("second")
    assert results.environment()["dirty"] is True
