"""The record of one measurement: what was measured, its values, and where they come from.

Measuring writes one JSON file per (recipe, benchmark), atomically, and never edits it:
``<folder>/<profile>/<model>/<recipe hash>/<benchmark>.json``. Published records lie in few files
(`common.records.published`), which ``make publish`` extends. A user's own records are preferred to published ones. What
is read is checked first; a file that is no record is set aside, and the measurement counts as missing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from common.pruning.recipe import Recipe
from common.records import record_json
from common.records.published import Published, fold
from common.records.record_json import SCHEMA, Unreadable
from common.utils import atomic_files
from common.utils.errors import UserError
from common.utils.paths import ROOT
from common.utils.peak_memory import peak_memory_bytes

log = logging.getLogger(__name__)

PUBLISHED = ROOT / "reproductions" / "results"
CODE = ("common", "extensions", "figures", "papers", "reproductions")  # the packages, as pyproject.toml has them
PACKAGES = ("torch", "transformers", "datasets", "lm-eval", "tokenizers", "numpy", "scipy")


@dataclass(frozen=True)
class Record:
    """One result.

    status: ``ok``, ``failed`` or ``no data`` (then ``reason`` says why). origin: ``yours`` or ``published``. A value
    that is not finite has diverged.
    """

    recipe: dict
    recipe_hash: str
    benchmark: str
    status: str
    values: dict = field(default_factory=dict)
    stderr: dict = field(default_factory=dict)
    details: dict = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)
    reason: str | None = None
    schema: int = SCHEMA
    origin: str = field(default="yours", compare=False)

    def content(self) -> dict:
        """Return the content of its file, which does not include the origin."""
        return {name: value for name, value in vars(self).items() if name != "origin"}

    def to_json(self) -> str:
        """Return the file's text."""
        return record_json.write(self.content())

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Return the result that `to_json` wrote.

        Raises:
            Unreadable: see `common.records.record_json.read`.
        """
        return cls(**record_json.read(text))


def user_folder() -> Path:
    """Return the folder of the user's results: ``$LAYERLAB_RESULTS``, or ``results`` in the repository."""
    return Path(os.environ.get("LAYERLAB_RESULTS") or ROOT / "results")


NOWHERE = Path(os.devnull)  # a user's folder that holds no record and takes none


class Store:
    """Results on disk: the user's (None: in `user_folder()`), and behind them the published ones (None: none)."""

    def __init__(self, user: Path | None = None, published: Path | None = PUBLISHED) -> None:
        self.user = user or user_folder()
        self.published = published and Published(published)
        self._warned: set[str] = set()
        self._known: dict[str, tuple[tuple[int, ...], Record]] = {}  # records as read, each with its file's state

    def path(self, recipe: Recipe, benchmark: str) -> Path:
        """Return the user's file of one measurement."""
        return self.user / _relative_path(recipe, benchmark)

    def get(self, recipe: Recipe, benchmark: str) -> Record | None:
        """Return the result of a measurement: the user's if it has a value, else the published one, else the user's.

        None if there is none. A damaged, misplaced or older-format file of the user's is renamed with a warning and
        then counts as missing; a published one only gives a warning.
        """
        own = self.read_file(os.path.join(self.user, _relative_path(recipe, benchmark)))
        if own is not None and own.status == "ok":
            return own
        published = self._from_published(lambda shelf: shelf.get(recipe.model, recipe.hash, benchmark))
        return published if published is not None and (published.status == "ok" or own is None) else own

    def pruned(self, recipe: Recipe) -> Record | None:
        """Return a result of this recipe, of any benchmark, that names the removed layers; None if there is none.

        A measured result has priority: a part of another one (``part_of``) may say less about how the model was made.
        """
        part = None
        for record in self._of_recipe(recipe):
            if record is None or record.status != "ok" or "removed" not in record.details:
                continue
            if "part_of" not in record.provenance:
                return record
            part = part or record
        return part

    def _of_recipe(self, recipe: Recipe) -> Iterator[Record | None]:
        for path in sorted(self.path(recipe, "any").parent.glob("*.json")):
            yield self.read_file(path)
        for benchmark in self.published.benchmarks(recipe.model) if self.published else ():
            yield self._from_published(lambda shelf, name=benchmark: shelf.get(recipe.model, recipe.hash, name))

    def put(self, record: Record, recipe: Recipe, items: Mapping | None = None, *, attempt: bool = False) -> Path:
        """Write a result; the file is complete or does not exist.

        ``items``, arrays of outcomes per item by name, are written first and marked as this result's, so that a result
        never lacks them. Outcomes of an earlier result are deleted after this one is in place. An ``attempt`` says why
        there is nothing new, and the earlier result stays. Only `attempted` reads it, until a result is written.

        Raises:
            UserError: the folder cannot be written; earlier results are unchanged.
        """
        aside = self.attempt_path(recipe, record.benchmark)
        path = aside if attempt else self.path(recipe, record.benchmark)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_files.whole(path) as file:
                file.write_text(record.to_json(), encoding="utf-8")
                if items:
                    _write_items(_pending_items_path(path), items, mark(record))
                else:
                    _pending_items_path(path).unlink(missing_ok=True)
                    _items_path(path).unlink(missing_ok=True)
            if items:
                os.replace(_pending_items_path(path), _items_path(path))
            if not attempt:
                aside.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write the record {path}: {error.strerror}; free space there or name another folder in "
                "LAYERLAB_RESULTS; records written so far are kept"
            ) from error
        return path

    def written(self, recipe: Recipe, benchmark: str) -> int | None:
        """Return when the user's result was written, in nanoseconds since the epoch; None if there is none."""
        try:
            return self.path(recipe, benchmark).stat().st_mtime_ns
        except OSError:
            return None

    def attempted(self, recipe: Recipe, benchmark: str, since: int) -> Record | None:
        """Return why an attempt after ``since`` (nanoseconds since the epoch) gave nothing, so that the old result stayed."""
        path = self.attempt_path(recipe, benchmark)
        state = _state(path)
        return self.read_file(path) if state is not None and state[-1] >= since else None

    def attempt_path(self, recipe: Recipe, benchmark: str) -> Path:
        """Return the file beside the result in which `put` stores an attempt."""
        path = self.path(recipe, benchmark)
        return path.with_name(f"{path.name.removesuffix('.json')}.attempt")

    def lock_path(self, recipe: Recipe) -> Path:
        """Return the file beside a recipe's results that the measuring process locks (`common.utils.locks`)."""
        return self.path(recipe, "any").with_name(".lock")

    def items(self, recipe: Recipe, benchmark: str) -> dict:
        """Return the outcomes per item of the result that `get` returns, by name; {} if there are none.

        Multiple choice: one bool per item and metric, in the order of the data. Perplexity: ``nll``, the mean of each
        sequence. A damaged file is treated like a damaged result, see `get`.
        """
        record = self.get(recipe, benchmark)
        if record is None:
            return {}
        if record.origin == "published":
            where = recipe.model, recipe.hash, benchmark, mark(record)
            try:
                return self.published.items(*where)
            except Unreadable as problem:
                self._warn(f"{problem}; the items are ignored")
                return {}
        path = self.path(recipe, benchmark)
        return self._items(_pending_items_path(path), record) or self._items(_items_path(path), record)

    def check_writable(self) -> None:
        """Refuse to measure if results could not be stored.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            self.user.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.user) as probe:
                probe.write(b"0" * 4096)
        except OSError as error:
            raise UserError(
                f"cannot write records to {self.user}: {error.strerror}; name another folder in LAYERLAB_RESULTS"
            ) from error

    def _from_published(self, lookup: Callable[[Published], dict | None]) -> Record | None:
        """Return a published record; None where there is none, or (with a warning) none that can be read."""
        try:
            fields = lookup(self.published) if self.published else None
        except Unreadable as problem:
            self._warn(f"a published record is unreadable ({problem}); it is ignored. Restore it with git")
            return None
        return None if fields is None else Record(**fields, origin="published")

    def _warn(self, message: str) -> None:
        """Log a warning, once."""
        if message not in self._warned:
            log.warning("%s", message)
        self._warned.add(message)

    def read_file(self, path: str | Path) -> Record | None:
        """Return the result in one file of the user's; None, with a warning, if it holds none."""
        state = _state(path)
        if state is None:
            return None
        path = str(path)
        before, record = self._known.get(path, (None, None))
        if before == state:
            return record
        try:
            with open(path, encoding="utf-8") as file:
                record = Record.from_json(file.read())
            if (record.recipe_hash, record.benchmark) != (Path(path).parent.name, Path(path).stem):
                raise Unreadable("misplaced", f"it is of {record.benchmark} and the recipe {record.recipe_hash}")
            self._known[path] = state, record
            return record
        except OSError as error:
            raise UserError(f"cannot read the record {path}: {error.strerror}; check its permissions") from error
        except UnicodeDecodeError:
            problem = Unreadable("corrupt", "it is not text")
        except Unreadable as error:
            problem = error
        self._set_aside(Path(path), problem)
        return None

    def _items(self, path: Path, record: Record) -> dict:
        import numpy

        if not _state(path):
            return {}
        try:
            with numpy.load(path, allow_pickle=False) as arrays:
                outcomes, comment = dict(arrays), arrays.zip.comment.decode()
        except FileNotFoundError:  # just moved beside its record
            return {}
        except PermissionError as error:
            raise UserError(f"cannot read the items {path}: {error.strerror}; check its permissions") from error
        except Exception as error:  # whatever a damaged archive does: zipfile, zlib and numpy have no common base
            log.debug("%s: %r", path, error)
            self._set_aside(path, Unreadable("items", "it is no whole archive of arrays"))
            return {}
        return (
            outcomes if comment in ("", mark(record)) else {}
        )  # those without a mark were written by earlier versions

    def _set_aside(self, path: Path, problem: Unreadable) -> None:
        """Move a damaged file of the user's out of the way; say so, once."""
        aside, number = path.with_suffix(f".{problem.kind}.set-aside"), 1
        while aside.exists():
            number += 1
            aside = path.with_suffix(f".{problem.kind}-{number}.set-aside")
        try:
            path.rename(aside)
            outcome = f"set aside as {aside.name}"
        except OSError as error:
            outcome = f"it could not be moved ({error.strerror}) and is ignored"
        self._warn(f"record {path} is unreadable ({problem.reason}); {outcome}")


def publish(folder: Path, entries: Iterable[tuple[Record, Mapping]]) -> None:
    """Add results with their outcomes per item to a folder of published results; see `common.records.published.fold`.

    Raises:
        OSError: A file cannot be written; earlier published results stay readable.
    """
    fold(folder, ((record.content(), mark(record), items) for record, items in entries))


def _relative_path(recipe: Recipe, benchmark: str) -> str:
    """Return where a measurement's record is in a folder of records."""
    return f"{recipe.profile}/{recipe.model}/{recipe.hash}/{benchmark}.json"


def _state(path: str | Path) -> tuple[int, ...] | None:
    """Return what changes when a file does.

    None where there is none. UserError where its folder does not let anybody look.
    """
    try:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"cannot look for the record {path}: {error.strerror}; check the permissions of its folder, or name another in "
            "LAYERLAB_RESULTS"
        ) from error


def _items_path(path: Path) -> Path:
    """Return the file of the items' outcomes that belong to a record's file."""
    return path.with_name(f"{path.name.removesuffix('.json')}.npz")


def _pending_items_path(path: Path) -> Path:
    """Return where these are until the record is in place, and where a kill just then leaves them."""
    return path.with_name(f"{_items_path(path).name}.coming")


def mark(record: Record) -> str:
    """Return the identity of a result for its outcomes: its values and time.

    They stay the same if the recipe's form changes.
    """
    identity = {"values": record.values, "measured_at": record.provenance.get("measured_at")}
    return hashlib.sha256(record_json.write(identity).encode()).hexdigest()[:16]


def _write_items(path: Path, items: Mapping, comment: str) -> None:
    """Write outcomes per item, whole or not at all, with a record's mark as the archive's comment."""
    import numpy

    with atomic_files.whole(path) as file:
        with file.open("wb") as out:  # of a path numpy would change the name
            numpy.savez_compressed(out, **items)
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = comment.encode()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _dirty() -> bool | None:
    """Return whether the code differs from its commit: a tracked file is changed, or a package has a module more.

    Pictures drawn again and records are what the code makes, and so are other untracked files. None: there is no git.
    """
    changed = _git("status", "--porcelain", "-uno", "--", ".", ":!figures/rendered", ":!reproductions/results")
    modules = (f"{package}/*.py" for package in CODE)
    added = _git("ls-files", "--others", "--exclude-standard", "--", *modules)
    return None if changed is None or added is None else bool(changed or added)


def environment() -> dict:
    """Return versions, machine and code state: the provenance of a result that does not depend on the measurement."""
    return {
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": _dirty(),
    }


def now() -> str:
    """Return the time in UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory() -> dict[str, int | None]:
    """Return the process's peak memory so far and, for GPUs, the peak since the last reset."""
    peaks = {"peak_memory_bytes": peak_memory_bytes()}
    torch = sys.modules.get("torch")  # what measures has loaded it; showing a table should not
    if torch is not None and torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        peaks["peak_device_memory_bytes"] = sum(map(torch.cuda.max_memory_allocated, devices))
    return peaks
