"""Run recipes: the context of their steps, and the order in which they run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import calibration
from common.console.progress import say
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.calibration_text import SAMPLERS
from common.pruning.recipe import Calibration, Pruning, Recipe, Repair, Selection, Step
from common.utils import atomic_files, locks
from common.utils.errors import UserError, plural, unknown
from common.utils.paths import ROOT

log = logging.getLogger(__name__)

_REMEMBERED = 4  # calibration passes remembered; a table's recipes differ in little else than how they use one
_STATISTICS: list[tuple[Path, calibration.Statistics]] = []  # with the file that keeps it, the last used at the end
_MADE: set[Path] = set()  # long work of this very process, which forcing need not do again
_LOCKED: set[Path] = set()  # folders that are ours while their recipe is carried out


def work_folder() -> Path:
    """Return the folder for checkpoints of long work: ``$LAYERLAB_WORK``, or ``.cache/work`` in the repository."""
    return Path(os.environ.get("LAYERLAB_WORK") or ROOT / ".cache" / "work")


@dataclass
class Context:
    """A model that a recipe describes, and the facts found while it is pruned.

    Attributes:
        model: The model; steps change it.
        parameters: Number of parameters of the original model.
        details: Facts for every result of the recipe.
        provenance: Versions and machine, for every result of the recipe.
        force: Repeat long work that an earlier run finished.
        progress: Show progress bars.
        calibration_ids: Calibration tokens ``[samples, tokens]`` instead of the recipe's text.
        keep: Keep results of searches on disk.
        search_folder: Their folder; None: the one that all recipes of a model share.
        locks: Locks that are released when the recipe is done.
        recorded: Details of an earlier result of this recipe: layers, factors.
    """

    model: torch.nn.Module
    tokenizer: object
    recipe: Recipe
    parameters: int
    details: dict = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)
    force: bool = False
    progress: bool = False
    calibration_ids: Tensor | None = None
    keep: bool = True
    search_folder: Path | None = None
    locks: ExitStack = field(default_factory=ExitStack, repr=False)
    recorded: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> Decoder:
        """A view of the model; it follows surgery and counts layer executions."""
        return Decoder(self.model)

    @property
    def selection(self) -> Step | None:
        """The recipe's typed selection."""
        return self.recipe.step("selection")

    @property
    def calibration(self) -> Calibration | None:
        """The recipe's typed calibration entry."""
        return self.recipe.step("calibration")

    @property
    def calibrated(self) -> bool:
        """Return whether there are calibration tokens."""
        return self.calibration_ids is not None or self.recipe.calibration is not None

    @property
    def removed(self) -> list[int]:
        """The selected layers, in order of removal."""
        return self.details["removed"]

    @property
    def batch_size(self) -> int:
        """Calibration samples in a batch: several short ones suit a CPU, one long one fits into a GPU's memory."""
        return 8 if self.model.device.type == "cpu" else 1

    @property
    def pass_options(self) -> dict:
        """Options of a pass over calibration text: the size of its batches, and whether it shows its progress."""
        return {"batch_size": self.batch_size, "progress": self.progress}

    @property
    def folder(self) -> Path:
        """Return the folder of this recipe's checkpoints, created on first use; the same recipe always gets the same one.

        Another process that needs the folder waits until the recipe is done.
        """
        path = work_folder() / self.recipe.model / self.recipe.hash
        if path not in _LOCKED:
            self.locks.enter_context(_exclusive(path))
            _LOCKED.add(path)
            self.locks.callback(_LOCKED.discard, path)
        if self.force and path not in _MADE:
            shutil.rmtree(path, ignore_errors=True)
        _MADE.add(path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def searched(
        self,
        name: str,
        facts: Mapping,
        search: Callable[..., Any],
        *,
        count: int = 0,
        steps: Callable[[Any], int] = len,
        onward: bool = False,
    ) -> Any:
        """Return the result of a long search, which is kept as JSON and reused by other recipes and interrupted runs.

        Args:
            name: Name of the search.
            facts: Everything that it depends on, besides the model, its weights and its type.
            search: The search.
            count: Number of steps that a greedy search needs; a kept result is reused if it has as many.
            steps: Function from a result to its number of steps.
            onward: ``search`` takes a shorter result to continue from (None: there is none), and a function that keeps
                the result so far, so that an interruption loses one step at most.
        """
        if not self.keep:
            return search(None, lambda result: None) if onward else search()
        path = self._work_file(name, facts, ".json")

        def read() -> Any:
            return self._read_work(path, lambda: json.loads(path.read_text()))

        def keep(result: Any) -> None:
            self._write_work(path, json.dumps(result, indent=1).encode() + b"\n")

        result = read()
        if result is None or steps(result) < count:
            with _exclusive(path):
                result = read()  # another process may have searched meanwhile
                if result is None or steps(result) < count:
                    if onward and result and self.progress:
                        say(f"continuing an earlier search ({name}) after {plural(steps(result), 'step')}")
                    result = search(result, keep) if onward else search()
                    keep(result)
        return result

    def _work_file(self, name: str, facts: Any, suffix: str) -> Path:
        """Return the file of work that depends on these facts, the model, its weights and its type."""
        recipe = self.recipe
        identity = [recipe.profile, recipe.model, recipe.weights, str(self.model.dtype), name, facts]
        if recipe.weights is None and (commit := getattr(self.model, "source", {}).get("revision")):
            identity.append(commit)  # nothing is pinned: the hub's model may become another one
        if self.calibration_ids is not None:
            identity.append(hashlib.sha256(self.calibration_ids.cpu().numpy().tobytes()).hexdigest())
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        return (self.search_folder or work_folder() / recipe.model) / f"{name}-{digest}{suffix}"

    def _read_work(self, path: Path, read: Callable[[], Any]) -> Any:
        """Return the content of a file of kept work; None if the file is missing, unreadable, or made before ``force``."""
        if self.force and path not in _MADE:
            return None
        try:
            return read()
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever a damaged pickle does: there is no common base
            log.warning("%s is unreadable (%s); doing its work again", path, error)
            return None

    def _write_work(self, path: Path, content: bytes) -> None:
        """Write kept work whole or not at all; a folder that cannot be written to costs the next run the same work."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_files.whole(path) as file:
                file.write_bytes(content)
        except OSError as error:
            log.warning("cannot keep what was found in %s: %s; the next run will search again", path, error.strerror)
        _MADE.add(path)

    def calibrated_on(self, entry: Calibration | None) -> Context:
        """Return a context of the same model and layer executions, with other calibration tokens.

        None keeps the tokens; an entry replaces them, given ones (`calibration_ids`) too.
        """
        if entry is None:
            return self
        other = replace(self, recipe=replace(self.recipe, calibration=entry), calibration_ids=None)
        other.decoder = self.decoder
        return other

    def tokens(self, entry: Calibration) -> Tensor:
        """Return the token ids ``[samples, tokens]`` of a calibration entry, drawn by its sampler.

        The samples of a mix of texts alternate between the texts.

        Raises:
            UserError: an unknown sampler, or a text that is too short for it.
        """
        if entry.sampler not in SAMPLERS:
            raise unknown("sampler", entry.sampler, SAMPLERS)
        return calibration.interleaved([SAMPLERS[entry.sampler](self, part) for part in entry.parts()])

    def sequences(self) -> Tensor:
        """Return the recipe's calibration tokens ``[samples, tokens]``.

        Raises:
            UserError: the recipe has no calibration entry.
        """
        if self.calibration_ids is not None:
            return self.calibration_ids
        if self.calibration is None:
            raise UserError("the recipe has no calibration entry, but one of its steps reads calibration tokens")
        return self.tokens(self.calibration)

    def statistics(self, span: int, kinds: Sequence[str] = ("token",), **options) -> calibration.Statistics:
        """Return the calibration statistics of the original model, shared by recipes that use them differently.

        A pass costs minutes, and further blocks and cosines only seconds. So it also collects what a table's other
        recipes would need (every block of up to a third of the layers, the papers' largest share), and is kept in
        memory and on disk; one with least-squares matrices, which are large, is not. Call it before layers are removed.
        ``options`` are those of `calibration.collect`.
        """
        layers, kinds = self.decoder.num_layers, tuple(kinds)
        needed = {"span": span, "kinds": kinds} | options
        if not self.keep or self.calibration_ids is not None or options.get("matrices"):
            return self._collected(needed)
        facts = [self.recipe.calibration, self.batch_size]
        facts += [{"skip": options["skip"]}] if options.get("skip") else []
        path = self._work_file("statistics", facts, ".pt")
        passes = [statistics for file, statistics in _STATISTICS if file == path]
        pairs = calibration.default_pairs(layers, span)

        def sufficient() -> calibration.Statistics | None:
            return next((statistics for statistics in passes if statistics.holds(pairs, **needed)), None)

        def read() -> None:
            if statistics := self._read_work(path, lambda: calibration.Statistics.read(path, self.decoder.device)):
                passes.append(statistics)

        if not passes:
            read()
        if (statistics := sufficient()) is None:
            with _exclusive(path) as waited:
                if waited or not passes:  # another process has collected, for as much perhaps
                    read()
                if (statistics := sufficient()) is None:
                    longest = max([span, layers // 3, *(earlier.span for earlier in passes)])
                    kinds = tuple(dict.fromkeys([*kinds, *(kind for earlier in passes for kind in earlier.kinds)]))
                    more = {"span": longest, "kinds": kinds, "pairs": calibration.all_pairs(layers, longest)}
                    statistics = self._collected(needed | more).joined(passes)
                    self._write_work(path, statistics.to_bytes())
        others = [entry for entry in _STATISTICS if entry[1] is not statistics]
        _STATISTICS[:] = others[1 - _REMEMBERED :] + [(path, statistics)]
        return statistics

    def _collected(self, options: Mapping) -> calibration.Statistics:
        return calibration.collect(self.decoder, self.sequences(), **options, **self.pass_options)


@contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock of the work that `path` keeps; yield whether another process held it before.

    The work of that process is new, so ``force`` does not repeat it.
    """
    with locks.locked(path.with_name(f"{path.name}.lock")) as waited:
        if waited and path.exists():
            _MADE.add(path)
        yield waited


def context_of(
    model: torch.nn.Module,
    tokenizer=None,
    sequences: Tensor | None = None,
    *,
    search_folder: Path | None = None,
    **recipe,
) -> Context:
    """Return a context around a given model and calibration tokens, to call steps directly.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        sequences: Calibration tokens [samples, tokens].
        search_folder: Folder for results of searches; also give ``weights``, which identify this model. By default
            nothing is kept on disk.
        recipe: Other fields of `Recipe`.
    """
    facts = {"model": "at hand", "profile": "at hand"} | recipe
    parameters = sum(p.numel() for p in model.parameters())
    options = {"calibration_ids": sequences, "keep": search_folder is not None, "search_folder": search_folder}
    return Context(model, tokenizer, Recipe(**facts), parameters, progress=True, **options)


def run_recipe(context: Context) -> None:
    """Run the context's recipe: select layers, remove them and repair the pruning interface, and train, as far as it says.

    Raises:
        UserError: an unknown step or option, a repair after a selection that repairs itself, or an error of a step.
    """
    steps = [context.recipe.step(part) for part in ("selection", "repair", "training")]
    with context.locks:
        if steps[0] is not None:
            _remove(context, *steps[:2])
        if steps[2] is not None:
            steps[2].apply(context)


def _remove(context: Context, selection: Selection | Pruning, repair: Repair | None) -> None:
    layers = context.decoder.num_layers
    if isinstance(selection, Pruning) and repair is not None:
        raise UserError(f"{selection.title()} repairs by itself; leave the recipe's repair out")
    selection.apply(context)
    if repair is not None:
        started = time.perf_counter()
        repair.apply(context)
        seconds = round(time.perf_counter() - started, 2)
        context.details["repair"] = {"calibration_tokens": repair.tokens(context), "seconds": seconds}
    elif isinstance(selection, Selection):
        remove_layers(context.model, context.removed)
    context.details |= {"layers": layers, "layer_executions": context.decoder.executions}
