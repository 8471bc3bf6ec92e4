"""Records: identity, atomic writing, and what happens to damaged or older files."""

import dataclasses
import io
import json
import math
import os
import subprocess

import numpy as np
import pytest
from killed import killed_at

from common.records import record_json, results
from common.records.results import Recipe, Record, Store, publish
from common.utils.errors import UserError

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


@pytest.mark.parametrize("ask", [Store.get, Store.items])
def test_a_folder_that_nobody_may_look_into_is_named(store, monkeypatch, ask):
    """As for others than root, who may look into every folder."""

    def refused(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(UserError, match=r"cannot look for the record .*b\.json: Permission denied; .*LAYERLAB_RESULTS"):
        ask(store, RECIPE, "b")


def test_the_layers_that_went_are_known_from_any_record_of_the_recipe(store):
    assert store.pruned(RECIPE) is None
    store.put(record(benchmark="a", status="no data", details={"removed": [9]}), RECIPE)
    assert store.pruned(RECIPE) is None
    publish(store.published.folder, [(record(benchmark="c", details={"removed": [4, 2]}), {})])
    assert store.pruned(RECIPE).details["removed"] == [4, 2]
    store.put(record(benchmark="d", details={"removed": [5, 6]}), RECIPE)
    assert store.pruned(RECIPE).details["removed"] == [5, 6]
    assert store.pruned(dataclasses.replace(RECIPE, limit=3)) is None


def test_of_a_recipe_a_record_that_was_measured_is_asked_before_a_part_of_one(store):
    """A part, "a" by its name the first and the user's own, leaves out factors that the published whole has."""
    store.put(record(benchmark="a", details={"removed": [4]}, provenance={"part_of": "c"}), RECIPE)
    assert store.pruned(RECIPE).benchmark == "a"
    whole = record(benchmark="c", details={"removed": [4], "factors": [1.5]})
    publish(store.published.folder, [(whole, {})])
    assert store.pruned(RECIPE).details["factors"] == [1.5]


def test_a_record_is_read_again_only_where_its_file_is_another(store, monkeypatch):
    texts, read = [], Record.from_json
    monkeypatch.setattr(Record, "from_json", lambda text: texts.append(text) or read(text))
    first = record(values={"acc": 0.5})
    path = store.put(first, RECIPE)
    assert [store.get(RECIPE, first.benchmark) for _ in range(3)] == [first] * 3 and len(texts) == 1
    again = record(values={"acc": 0.7})
    Store(store.user, None).put(again, RECIPE)  # as another process would, to as many bytes
    assert [store.get(RECIPE, first.benchmark) for _ in range(3)] == [again] * 3 and len(texts) == 2
    path.unlink()
    assert store.get(RECIPE, first.benchmark) is None


def test_own_records_are_preferred_to_published_ones(store):
    publish(store.published.folder, [(record(values={"acc": 0.1}), {})])
    assert (store.get(RECIPE, "b").values, store.get(RECIPE, "b").origin) == ({"acc": 0.1}, "published")
    store.put(record(values={"acc": 0.9}), RECIPE)
    assert (store.get(RECIPE, "b").values, store.get(RECIPE, "b").origin) == ({"acc": 0.9}, "yours")


@pytest.mark.parametrize("status", ["failed", "no data"])
def test_an_own_record_without_a_value_hides_no_published_one(store, status):
    store.put(record(status=status, values={}, reason="why"), RECIPE)
    for outcome, values, expected in (("failed", {}, (status, "yours")), ("ok", {"acc": 0.1}, ("ok", "published"))):
        publish(store.published.folder, [(record(status=outcome, values=values), ARRAYS)])
        stored = store.get(RECIPE, "b")
        assert (stored.status, stored.origin) == expected
    assert np.array_equal(store.items(RECIPE, "b")["acc"], ARRAYS["acc"])


def test_numbers_that_are_not_finite_are_kept_in_valid_json(store):
    values = {"perplexity": math.inf, "nll": math.nan, "least": -math.inf, "acc": 0.5}
    path = store.put(record(values=values, details={"losses": [3.5, [math.inf]], "why": None}), RECIPE)
    plain = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert plain["values"] == {"perplexity": "Infinity", "nll": "NaN", "least": "-Infinity", "acc": 0.5}
    stored = store.get(RECIPE, "b")
    assert math.isnan(stored.values.pop("nll"))
    assert stored.values == {"perplexity": math.inf, "least": -math.inf, "acc": 0.5}
    assert stored.details == {"losses": [3.5, [math.inf]], "why": None}


WHOLE = json.loads(record().to_json())
DAMAGED = {
    "empty": ("", "not valid JSON"),
    "half": ("{", "not valid JSON"),
    "a list": ("[]", "not an object"),
    "no schema": ("{}", "names no schema"),
    "older": ('{"schema": 0}', "has schema 0, not 1"),
    "unknown field": (json.dumps(WHOLE | {"surprise": 2}), "unknown field 'surprise'"),
    "missing field": (json.dumps({k: v for k, v in WHOLE.items() if k != "benchmark"}), "lacks 'benchmark'"),
    "NaN": (json.dumps(WHOLE | {"values": {"acc": math.nan}}), "not valid JSON"),
    "infinite": (json.dumps(WHOLE).replace("0.5", "1e999"), "has a number that is not finite"),
    "infinite detail": (
        json.dumps(WHOLE | {"details": {"losses": [0.25]}}).replace("0.25", "-1e400"),
        "has a number that is not finite",
    ),
    "too long": (json.dumps(WHOLE).replace("0.5", "1" * 6000), "not valid JSON"),
    "deep": (json.dumps(WHOLE).replace("0.5", "[" * 990 + "]" * 990), "nested too deeply"),
    "deeper than Python goes": ("[" * 100_000, "nested too deeply"),
    "two values": (json.dumps(WHOLE) * 2, "not valid JSON"),
    **{
        f"{field} {value!r}": (json.dumps(WHOLE | {field: value}), message)
        for field, value, message in (
            ("schema", "1", "names no schema"),
            ("schema", 1.0, "names no schema"),
            ("schema", True, "names no schema"),
            ("schema", None, "names no schema"),
            ("schema", "../../x", "names no schema"),
            ("schema", 10**300, "names no schema"),
            ("recipe", "bi", "'recipe' has the wrong type"),
            ("recipe_hash", 7, "'recipe_hash' has the wrong type"),
            ("benchmark", None, "'benchmark' has the wrong type"),
            ("status", "fine", "status is none of 'ok', 'failed' or 'no data'"),
            ("status", ["ok"], "'status' has the wrong type"),
            ("values", [0.5], "'values' has the wrong type"),
            ("values", None, "'values' has the wrong type"),
            ("values", {"acc": "0.5"}, "'acc' is not a number"),
            ("values", {"acc": None}, "'acc' is not a number"),
            ("values", {"acc": [0.5]}, "'acc' is not a number"),
            ("values", {"acc": True}, "'acc' is not a number"),
            ("stderr", {"acc": "small"}, "'acc' is not a number"),
            ("stderr", {"acc": False}, "'acc' is not a number"),
            ("benchmark", "other", f"it is of other and the recipe {RECIPE.hash}"),
            ("recipe_hash", "f" * 16, f"it is of b and the recipe {'f' * 16}"),
            ("details", "none", "'details' has the wrong type"),
            ("provenance", [], "'provenance' has the wrong type"),
            ("reason", {"a": 1}, "'reason' has the wrong type"),
        )
    },
}


def test_the_published_schema_describes_the_files_and_refuses_what_the_store_refuses():
    """`python -m reproductions.documents.readme` writes it."""
    import jsonschema  # takes seconds

    written = (results.ROOT / "docs" / "results-schema.json").read_text()
    assert written == record_json.json_schema()
    check = jsonschema.Draft202012Validator(json.loads(written))
    kinds = {"values": {"acc": 0.5, "count": 3, "nll": math.nan}, "stderr": {"acc": None}, "details": {"removed": [1]}}
    whole = json.loads(record(**kinds, reason="why").to_json())
    check.validate(whole)
    for name in ("schema", "recipe", "recipe_hash", "benchmark", "status"):
        assert not check.is_valid({key: value for key, value in whole.items() if key != name})
    changes = ({"schema": 2}, {"other": 1}, {"values": {"acc": "0.5"}}, {"values": {"acc": None}}, {"status": "fine"})
    assert not any(check.is_valid(whole | change) for change in changes)


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_no_record_is_set_aside_and_kept(store, damage, caplog):
    content, reason = DAMAGED[damage]
    path = store.put(record(), RECIPE)
    for _ in range(2):  # a second one must not overwrite the first
        path.write_text(content)
        assert store.get(RECIPE, "b") is None
    aside = list(path.parent.glob("*.set-aside"))
    assert [file.read_text() for file in aside] == [content] * 2
    assert f"record {path} is unreadable (" in caplog.text and reason in caplog.text
    assert all(f"set aside as {file.name}" in caplog.text for file in aside)
    store.put(record(), RECIPE)
    assert store.get(RECIPE, "b") == record()


def test_a_record_that_is_no_text_is_set_aside(store, caplog):
    path = store.put(record(), RECIPE)
    path.write_bytes(b"\xff\xfe{")
    assert store.get(RECIPE, "b") is None
    assert "it is not text" in caplog.text and not path.exists()


def test_what_cannot_be_set_aside_is_ignored_and_named_once(store, caplog, monkeypatch):
    path = store.put(record(), RECIPE)
    path.write_text("{")

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(results.Path, "rename", refuse)
    assert [store.get(RECIPE, "b") for _ in range(3)] == [None] * 3
    assert path.read_text() == "{"
    assert len(caplog.records) == 1 and "(Read-only file system) and is ignored" in caplog.text


ARRAYS = {"acc": np.array([True, False] * 500)}


@pytest.mark.parametrize("damage", [b"", b"PK", b"\x93NUMPY", b"no archive", "half", "one byte", "an array"])
def test_damaged_items_are_set_aside_and_count_as_absent(store, damage, caplog):
    path = store.put(record(), RECIPE, ARRAYS).with_suffix(".npz")
    assert np.array_equal(store.items(RECIPE, "b")["acc"], ARRAYS["acc"])
    whole, array = path.read_bytes(), io.BytesIO()
    np.save(array, ARRAYS["acc"])
    content = {
        "half": whole[: len(whole) // 2],
        "one byte": whole[:60] + bytes([whole[60] ^ 255]) + whole[61:],
        "an array": array.getvalue(),
    }.get(damage, damage)
    path.write_bytes(content)
    assert store.items(RECIPE, "b") == store.items(RECIPE, "b") == {}
    (aside,) = path.parent.glob("*.set-aside")
    assert aside.read_bytes() == content and not path.exists()
    assert len(caplog.records) == 1 and f"{path} is unreadable (it is no whole archive of arrays)" in caplog.text
    assert store.get(RECIPE, "b") == record()


def test_items_go_with_a_record_that_has_none(store):
    store.put(record(), RECIPE, ARRAYS)
    path = store.put(record(status="failed", values={}, reason="out of memory"), RECIPE)
    assert store.items(RECIPE, "b") == {} and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("values", [{"acc": 0.0}, {"acc": 1.0}, {}], ids=["other", "the same, later", "none"])
def test_a_kill_at_any_moment_never_pairs_a_record_with_anothers_items(store, values):
    """For either record, read by whoever comes next: its own items; none only where the second has none."""
    own = {
        "first": (record(values={"acc": 1.0}, provenance={"measured_at": "2025-01-01"}), {"acc": np.ones(8, bool)}),
        "second": (
            record(values=values, provenance={"measured_at": "2025-01-02"}),
            {"acc": np.zeros(8, bool)} if values else None,
        ),
    }
    states = set()
    for moment in range(1, 100):
        store.put(own["first"][0], RECIPE, own["first"][1])
        dead = killed_at(moment, lambda: store.put(own["second"][0], RECIPE, own["second"][1]))
        fresh = Store(store.user, None)
        stored, items = fresh.get(RECIPE, "b"), fresh.items(RECIPE, "b")
        (name,) = (name for name, (record, _) in own.items() if record == stored)
        expected = own[name][1]
        assert not items or (expected is not None and np.array_equal(items["acc"], expected["acc"]))
        assert items or not values
        states.add((name, bool(items)))
        if not dead:
            break
    assert not dead and states >= {("first", True), ("second", bool(values))}


def test_items_without_a_mark_are_read(store):
    """As earlier versions wrote them, and as most published ones are."""
    path = store.put(record(), RECIPE)
    np.savez_compressed(path.with_suffix(".npz"), **ARRAYS)
    assert np.array_equal(store.items(RECIPE, "b")["acc"], ARRAYS["acc"])


def test_a_reader_of_arrays_finds_the_items_alone(store):
    path = store.put(record(values={"acc": 0.5, "nll": math.nan}), RECIPE, ARRAYS).with_suffix(".npz")
    with np.load(path) as arrays:
        assert list(arrays) == ["acc"] and np.array_equal(arrays["acc"], ARRAYS["acc"])
    assert np.array_equal(store.items(RECIPE, "b")["acc"], ARRAYS["acc"])


def test_what_is_written_has_the_mode_of_any_file(store):
    before = os.umask(0o027)
    try:
        path = store.put(record(), RECIPE, ARRAYS)
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in (path, path.with_suffix(".npz"))] == [0o640] * 2
    assert len(list(path.parent.iterdir())) == 2


def test_a_full_disk_leaves_the_old_record_and_no_rubbish(store, monkeypatch):
    path = store.put(record(values={"acc": 0.25}), RECIPE)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device.*LAYERLAB_RESULTS"):
        store.put(record(values={"acc": 0.75}), RECIPE)
    assert store.get(RECIPE, "b").values == {"acc": 0.25}
    assert list(path.parent.iterdir()) == [path]


def test_provenance_names_versions_and_code():
    environment = results.environment()
    assert environment["packages"]["torch"].startswith("2.13.0")
    assert set(environment) >= {"python", "platform", "commit", "dirty"}
    json.dumps(environment)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one commit with code, a picture and a record."""
    for name in ("common/code.py", "figures/rendered/figure.svg", "reproductions/results/record.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        # files of the commit
        ("common/code.py", True),
        ("figures/rendered/figure.svg", False),
        ("reproductions/results/record.json", False),
        # new ones
        ("my-pruned/README.md", False),
        ("my-pruned/modeling.py", False),
        ("papers/notes.md", False),
        ("common/patch.py", True),
        ("papers/laco/a new folder/step.py", True),
    ],
)
def test_code_is_dirty_when_a_module_of_a_package_changed_or_is_new(repository, path, dirty):
    assert results.environment()["dirty"] is False
    (repository / path).parent.mkdir(parents=True, exist_ok=True)
    (repository / path).write_text("second")
    assert results.environment()["dirty"] is dirty


def test_the_packages_of_code_are_those_that_are_installed():
    folders = {path.parent.name for path in results.ROOT.glob("*/__init__.py")} - {"tests"}
    assert folders <= set(results.CODE) and all((results.ROOT / folder).is_dir() for folder in results.CODE)
