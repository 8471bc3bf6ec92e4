"""Read and extend the published results: a few files a model, in place of one file a record.

    <model>/recipes.jsonl               one recipe a line, sorted by its hash
    <model>/records/<benchmark>.jsonl   one record a line, sorted by its recipe's hash
    <model>/items/<benchmark>.npz       outcomes per item (`common.records.outcomes`)
    <model>/shared.jsonl                long values of details and provenance, by digest
    environments.jsonl                  packages, Python, machine, by digest
    task_configs.jsonl                  lm-eval's configurations of tasks, by digest

A record's line names what is kept under a digest: ``{"$ref": digest}``. Values that many records share are stored once, and
two branches that add results merge line by line. Every file is replaced whole; `fold` writes a record's line last, so a kill
leaves each record with what it names and with its own outcomes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from common.records import record_json
from common.records.record_json import SCHEMA, Unreadable
from common.utils import atomic_files

if TYPE_CHECKING:
    import numpy as np

    from common.records.outcomes import Outcomes


ENVIRONMENT = ("packages", "python", "platform", "cpus", "device", "gpu")
REFERENCE = "$ref"
LONG = 64  # characters of a value's JSON above which it is kept by digest
DEFAULTS = {"status": "ok", "reason": None, "stderr": {}, "details": {}, "schema": SCHEMA}  # left out of a line
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")  # of a function in a task's configuration: another one in every process
_INSTALLED = re.compile(r"^.*/(?=lm_eval/)")  # the folder of the machine that measured


def _measured_at(row: dict) -> str:
    return (row.get("provenance") or {}).get("measured_at", "")


class Lines:
    """One file of JSON lines, which need not exist, sorted by a key that occurs once."""

    def __init__(self, path: Path, key: str = "id") -> None:
        self.path, self.key = path, key
        self.rows: dict[str, dict] = {}
        self.read: dict[str, dict] = {}  # what has been made of a line
        self._text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for number, line in enumerate(self._text.splitlines(), 1):
            key, row = self._row(line, number)
            earlier = self.rows.setdefault(key, row)  # a merge by union may leave a key twice: the newer counts
            self.rows[key] = row if _measured_at(row) >= _measured_at(earlier) else earlier

    def _row(self, line: str, number: int) -> tuple[str, dict]:
        try:
            row = json.loads(line)
            if not isinstance(row[self.key], str):
                raise TypeError(self.key)
            return row[self.key], row
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Unreadable("corrupt", f"line {number} of {self.path} is no JSON object with {self.key!r}") from error

    def keep(self, value: object) -> dict[str, str]:
        """Store a value under its digest; return the reference to it."""
        digest = hashlib.sha256(compact(value).encode()).hexdigest()[:12]
        self.rows.setdefault(digest, {self.key: digest, "value": value})
        return {REFERENCE: digest}

    def save(self) -> None:
        """Replace the file, unless it has the same content."""
        text = "".join(compact(self.rows[key]) + "\n" for key in sorted(self.rows))
        if text == self._text:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_files.whole(self.path) as file:
            file.write_text(text, encoding="utf-8")
        self._text = text


@cache
def _model_folder(folder: Path, model: str) -> Path:
    return folder / model.replace("/", "--")


@cache
def _records_file(folder: Path, benchmark: str) -> Path:
    return folder / "records" / f"{benchmark}.jsonl"


class Published:
    """The published results of a folder, read on request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, tuple[tuple[int, int], object]] = {}

    def get(self, model: str, recipe_hash: str, benchmark: str) -> dict | None:
        """Return the fields of a result, None if there is none.

        Raises:
            Unreadable: A file is damaged, or a line refers to a missing one.
        """
        lines = self._lines(self.records_file(model, benchmark), "recipe")
        if recipe_hash in lines.rows and recipe_hash not in lines.read:
            lines.read[recipe_hash] = self._fields(model, lines.rows[recipe_hash])
        return lines.read.get(recipe_hash)

    def of_benchmark(self, model: str, benchmark: str) -> Iterator[dict]:
        """Yield the fields of each record of a benchmark on a model."""
        for recipe_hash in self._lines(self.records_file(model, benchmark), "recipe").rows:
            yield self.get(model, recipe_hash, benchmark)

    def __iter__(self) -> Iterator[dict]:
        """Yield the fields of every record."""
        for model in self.models():
            for benchmark in self.benchmarks(model):
                yield from self.of_benchmark(model, benchmark)

    def items(self, model: str, recipe_hash: str, benchmark: str, mark: str) -> dict[str, np.ndarray]:
        """Return the outcomes per item that belong to a result with this `mark`: name -> array; {} if none are stored.

        Raises:
            Unreadable: The archive is damaged.
        """
        outcomes = self._cached(self.items_file(model, benchmark), _outcomes)
        return outcomes.get(recipe_hash, mark) if outcomes else {}

    def models(self) -> list[str]:
        """List the models that have results, as recipes name them."""
        return sorted(path.parent.name.replace("--", "/") for path in self.folder.glob("*/recipes.jsonl"))

    def benchmarks(self, model: str) -> list[str]:
        """List the benchmarks for which a model has results."""
        return sorted(path.name.removesuffix(".jsonl") for path in (self._of(model) / "records").glob("*.jsonl"))

    def records_file(self, model: str, benchmark: str) -> Path:
        """Return the file with a benchmark's records."""
        return _records_file(self._of(model), benchmark)

    def items_file(self, model: str, benchmark: str) -> Path:
        """Return the file with a benchmark's outcomes per item."""
        return self._of(model) / "items" / f"{benchmark}.npz"

    def _of(self, model: str) -> Path:
        return _model_folder(self.folder, model)

    def _lines(self, path: Path, key: str = "id") -> Lines:
        return self._cached(path, lambda file: Lines(file, key)) or Lines(path, key)

    def _cached(self, path: Path, parse):
        """Return what `parse` makes of a file, read again once the file is another; None where there is none."""
        try:
            status = path.stat()
        except OSError:
            return None
        state = status.st_ino, status.st_mtime_ns
        if self._files.get(path, (None,))[0] != state:
            self._files[path] = state, parse(path)
        return self._files[path][1]

    def _fields(self, model: str, row: Mapping) -> dict:
        """Return a record's fields from its line."""
        recipe = self._lines(self._of(model) / "recipes.jsonl", "hash").rows.get(row["recipe"])
        if recipe is None:
            raise Unreadable("corrupt", f"recipes.jsonl of {model} lacks {row['recipe']}")
        shared = self._lines(self._of(model) / "shared.jsonl")
        details = dict(row.get("details", {}))
        evaluated = details.pop("lm_eval", None)
        details = {name: _resolved(value, shared) for name, value in details.items()}
        if evaluated:
            config = _resolved({REFERENCE: evaluated[REFERENCE]}, self._lines(self.folder / "task_configs.jsonl"))
            details["lm_eval"] = config | {name: evaluated[name] for name in evaluated if name == "results"}
        provenance = dict(row.get("provenance", {}))
        environment = _resolved(provenance.pop("environment", {}), self._lines(self.folder / "environments.jsonl"))
        provenance = environment | {name: _resolved(value, shared) for name, value in provenance.items()}
        fields = DEFAULTS | dict(row) | {"recipe": recipe["recipe"], "recipe_hash": row["recipe"]}
        fields |= {"details": details, "provenance": provenance}
        return record_json.checked(fields)


def compact(value: object) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fold(folder: Path, results: Iterable[tuple[Mapping, str, Mapping]]) -> None:
    """Add results to the published ones of a folder, replacing earlier ones of the same recipe and benchmark.

    A result is its fields as `common.records.record_json.read` gives them, its mark, and its outcomes per item.

    Raises:
        OSError: A file cannot be written; earlier published results stay readable.
    """
    by_model: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for fields, mark, items in results:
        by_model[fields["recipe"]["model"]][fields["benchmark"]].append((fields, mark, items))
    published = Published(folder)
    for model, by_benchmark in sorted(by_model.items()):
        _fold_model(published, model, by_benchmark)


def _fold_model(published: Published, model: str, by_benchmark: Mapping[str, list]) -> None:
    from common.records import outcomes

    place = published._of(model)
    tables = {name: Lines(published.folder / f"{name}.jsonl") for name in ("environments", "task_configs")}
    tables |= {"shared": Lines(place / "shared.jsonl"), "recipes": Lines(place / "recipes.jsonl", "hash")}
    packed = {
        benchmark: {fields["recipe_hash"]: _packed(fields, tables) for fields, _, _ in entries}
        for benchmark, entries in by_benchmark.items()
    }
    for lines in tables.values():  # before the records that name them
        lines.save()
    for benchmark, entries in sorted(by_benchmark.items()):
        records = Lines(published.records_file(model, benchmark), "recipe")
        file, earlier, added = published.items_file(model, benchmark), {}, {}
        if file.exists() or any(items for *_, items in entries):
            archive = _outcomes(file)
            earlier = {key: archive.get(*key) for key in archive.records()}
            added = {(fields["recipe_hash"], mark): items for fields, mark, items in entries if items}
        if added:  # the earlier records' outcomes go when the records have gone
            outcomes.write(file, earlier | added)
        records.rows |= packed[benchmark]
        records.save()
        remaining = {key: arrays for key, arrays in earlier.items() if key[0] not in packed[benchmark]} | added
        if remaining.keys() != (earlier | added).keys():
            outcomes.write(file, remaining)


def _outcomes(path: Path) -> Outcomes:
    from common.records.outcomes import Outcomes  # it loads numpy: what shows a table without intervals does without

    return Outcomes(path)


def _packed(fields: Mapping, tables: Mapping[str, Lines]) -> dict:
    """Return a record's line; what is kept by digest goes into the tables."""
    content = json.loads(record_json.write(fields))  # numbers that are not finite as words
    digest = content.pop("recipe_hash")
    tables["recipes"].rows.setdefault(digest, {"hash": digest, "recipe": content["recipe"]})
    details, provenance = content["details"], content["provenance"]
    environment = {name: provenance.pop(name) for name in ENVIRONMENT if name in provenance}
    evaluated = details.pop("lm_eval", None)
    for mapping in (details, provenance):
        for name, value in mapping.items():
            if len(compact(value)) > LONG:
                mapping[name] = tables["shared"].keep(value)
    if environment:
        provenance["environment"] = tables["environments"].keep(environment)
    if evaluated:
        config = json.loads(_ADDRESS.sub(">", json.dumps({k: v for k, v in evaluated.items() if k != "results"})))
        for task in config.get("configs", {}).values():
            if source := (task.get("metadata") or {}).get("config_source"):
                task["metadata"]["config_source"] = _INSTALLED.sub("", source)
        results = evaluated.get("results")  # a published record has none that repeat its values
        own_results = {} if results is None or _repeats(results, content) else {"results": results}
        details["lm_eval"] = tables["task_configs"].keep(config) | own_results
    return {name: value for name, value in content.items() if name not in DEFAULTS or value != DEFAULTS[name]} | {
        "recipe": digest
    }


def _repeats(results: Mapping, content: Mapping) -> bool:
    """Return whether lm-eval's results say nothing but a record's own values and standard errors."""
    if len(results) != 1:
        return False
    (scores,) = results.values()
    numbers = {name.partition(",")[0]: number for name, number in scores.items() if "," in name}
    stored = content["values"] | {f"{name}_stderr": number for name, number in content["stderr"].items()}
    return numbers == stored


def _resolved(value: object, lines: Lines) -> object:
    if not (isinstance(value, dict) and value.keys() == {REFERENCE}):
        return value
    if value[REFERENCE] not in lines.rows:
        raise Unreadable("corrupt", f"{lines.path} lacks {value[REFERENCE]}")
    return lines.rows[value[REFERENCE]]["value"]
