"""One run of a tool: the model before and after its weights are read, and the text it is calibrated and measured on."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from common import calibration
from common.calibration import corpora
from common.cli.method import Method
from common.cli.options import QUICK, ToolOptions, numbers, sweep_options
from common.cli.texts import read
from common.console.progress import say
from common.evaluation.windowed_perplexity import split_into_sequences
from common.models import checkpoint, loading
from common.models.decoder import Decoder
from common.models.registry import TOY
from common.pruning.recipe import MIXED, Calibration, share
from common.utils import atomic_files
from common.utils.errors import UserError, UserValueError

# Options that change nothing about what is trained.
_NO_MATTER = (
    *("out", "force", "plan", "measure", "quick", "sweep", "test_samples", "tasks", "limit", "no_evaluation"),
    *("json", "push_to_hub"),
    "remove",  # in the folder's name
)
TEST = "wikitext2-test"  # the test text of every model but the toy model
SHARE = 0.9  # of a text file, for calibration; the samplers' share too
MANY = 3  # times that sequences read a text, from which on the card says so


def resume_folder(out: Path | None) -> Path:
    """Return the hidden folder beside the result for checkpoints of long work."""
    out = Path("plan" if out is None else out).resolve()
    return out.parent / f".{out.name}.work"


@dataclass
class Job:
    """One run of a tool.

    Attributes:
        source: Directory of the model.
        config: The model's config, read before any weights.
        work: Folder for checkpoints of long work, kept until the result is saved.
        model: The model; None until `load`.
        notes: Lines for card and terminal.
        shared: Values that the runs of a sweep share, and values read before the weights.
        unrepaired: Measurements of the model without the removed layers, before any repair.
        held_out_count: Number of last calibration sequences that share no token with the others.
        only_removed: Whether the remaining layers are unchanged.
        asked: The options of a sweep as they were given: methods fill in others.
    """

    method: Method
    options: ToolOptions
    source: Path
    config: Any
    tokenizer: Any
    work: Path
    model: nn.Module | None = None
    notes: list[str] = field(default_factory=list)
    shared: dict = field(default_factory=dict)
    unrepaired: dict = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)
    held_out_count: int = 0
    only_removed: bool = False
    asked: dict = field(init=False)

    def __post_init__(self):
        self.asked = sweep_options(self.options)

    def load(self) -> None:
        """Read the weights; every run of a sweep reads them again."""
        self.model = None  # there may be room for one only
        self.__dict__.pop("decoder", None)  # which holds it, too
        self.model = self.read()
        self.notes, self.unrepaired, self.removed = [], {}, []

    def read(self) -> nn.Module:
        """Read the original model's weights."""
        device, dtype = self.options.device, self.options.dtype
        stream = None if self.options.stream is None else int(self.options.stream * 1e9)
        return loading.load(self.source, device=device, dtype=dtype, stream=stream)[0]

    @cached_property
    def decoder(self) -> Decoder:
        """A view of the model; it follows surgery."""
        return Decoder(self.model)

    def given_options(self, *names: str, **renamed: str) -> dict:
        """Return the options of these names that are set.

        ``renamed`` returns options under other names, {name: the option's name}.
        """
        where = {name: name for name in names} | renamed
        values = {name: getattr(self.options, option) for name, option in where.items()}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def layers(self) -> int:
        """Number of decoder layers of the original model."""
        return self.config.num_hidden_layers

    @property
    def named_layers(self) -> list[int] | None:
        """The layers that the user named, in their order."""
        return numbers(self.options.layers, "layers")

    @property
    def counts(self) -> list[int]:
        """The numbers of layers to remove: one, or those of a sweep; none if the method finds the number."""
        if self.options.sweep:
            return numbers(self.options.sweep, "sweep")
        if self.options.max_perplexity_increase is not None and self.options.remove is None:
            return self._possible()
        layers = self.named_layers
        count = self.options.remove if layers is None else len(layers)
        return [] if count is None else [count]

    def _possible(self) -> list[int]:
        """Return the numbers of layers that the method can remove.

        Raises:
            UserError: there is none; why not for the smallest.
        """
        counts, reasons = [], []
        for count in range(1, self.layers - 1):
            try:
                self.method.refuse(self, count)
                counts.append(count)
            except UserError as error:
                reasons.append(error)
        if not counts:
            raise reasons[0]
        return counts

    @property
    def count(self) -> int | None:
        """Return the number of layers to remove in this run."""
        return self.options.remove if self.named_layers is None else len(self.named_layers)

    @property
    def batch_size(self) -> int:
        """Calibration samples in a batch: several short ones suit a CPU, one long one fits into a GPU's memory."""
        return 8 if self.model.device.type == "cpu" else 1

    @property
    def toy(self) -> bool:
        """Return whether the model is the toy model."""
        return self.options.model == TOY

    @cached_property
    def length(self) -> int:
        """Tokens in a sequence: as requested, else 2048 or the model's limit (the toy model: its training length)."""
        context = getattr(self.config, "max_position_embeddings", 2048)
        if self.options.length is None:
            return 256 if self.toy else min(2048, context)
        if self.options.quick and self.options.length == QUICK["length"]:
            return min(QUICK["length"], context)
        if self.options.length > context:
            raise UserError(f"--length {self.options.length} is more than the model's context of {context} tokens")
        return self.options.length

    @property
    def text(self) -> str:
        """The calibration text's name."""
        return self.options.text or ("standin-calibration" if self.toy else self.method.text)

    @property
    def test(self) -> str:
        """The test text's name; by default the last tenth of calibration files."""
        return test_text(self.options) or ("standin-test" if self.toy else TEST)

    def crops(self, count: int, apart: int = 0) -> Tensor:
        """Draw ``count`` calibration sequences [count, length] from the text.

        The first sequences of a larger count are those of a smaller one. ``apart``: see `sample_crops`.

        Raises:
            UserError: the text is too short.
        """
        whole = Calibration(self.text, length=self.length, count=count, seed=self.options.seed, apart=apart)
        parts = []
        for entry in whole.parts(texts(self.text)):
            try:
                parts.append(calibration.sample_crops(self._calibration_ids(entry.corpus), **entry.drawing()))
            except UserValueError as error:
                raise UserError(f"--text {entry.corpus}: {error}") from error
        return calibration.interleaved(parts)

    @cached_property
    def sequences(self) -> Tensor:
        """Calibration sequences [samples, length]."""
        return self.crops(self.options.samples, self.held_out_count)

    def read_over(self) -> str | None:
        """Return a note if the calibration sequences read a text many times over, so that fits see little text."""
        if "sequences" not in vars(self):  # a method that reads other pieces of text
            return None
        names = texts(self.text)
        fewest = min(names, key=lambda name: len(self._ids(name)))
        tokens = len(self._ids(fewest))
        times = self.sequences.numel() / len(names) / tokens
        if times < MANY:
            return None
        return (
            f"{fewest} has {tokens:,} tokens, of which the calibration sequences read each {times:.0f} times on average: "
            "name more text, or fewer --samples"
        )

    @cached_property
    def test_sequences(self) -> Tensor:
        """Held-out sequences [sequences, length]: disjoint, from the start of the test text (a shared file's last tenth)."""
        return calibration.interleaved([self._held_out(name) for name in texts(self.test)])[: self.options.test_samples]

    @cached_property
    def held_out_sequences(self) -> Tensor:
        """Calibration text [sequences, length] that neither calibration nor test reads (`_calibration_ids`)."""
        parts = []
        for name in texts(self.text):
            ids = self._ids(name)
            begin, end = int(len(self._calibration_ids(name)) * SHARE), int(len(ids) * SHARE)
            try:
                parts.append(split_into_sequences(ids[begin:end], self.length))
            except UserValueError as error:
                raise UserError(
                    f"the text {name} (the part that is held out for --max-perplexity-increase): {error}; use a longer text "
                    "or a smaller --length"
                ) from error
        return calibration.interleaved(parts)[: self.options.test_samples]

    def _calibration_ids(self, name: str) -> Tensor:
        """Return the tokens that samplers read the first nine tenths of.

        With --max-perplexity-increase they get the first nine tenths alone: the last tenth of these is held out.
        """
        ids = self._ids(name)
        return ids if self.options.max_perplexity_increase is None else ids[: int(len(ids) * SHARE)]

    @property
    def shared_texts(self) -> list[str]:
        """Test texts that are also calibration texts; their last tenth is reserved for evaluation."""
        return [name for name in texts(self.test) if any(_same(name, other) for other in texts(self.text))]

    def _held_out(self, name: str) -> Tensor:
        ids, part = self._ids(name), ""
        if name in self.shared_texts:
            ids, part = ids[int(len(ids) * SHARE) :], " (its last tenth, kept for evaluation)"
        try:
            return split_into_sequences(ids, self.length)[: self.options.test_samples]
        except UserValueError as error:
            raise UserError(f"the test text {name}{part}: {error}; use a longer text or a smaller --length") from error

    def documents(self, least: int = 1) -> list[str]:
        """Return the calibration text in pieces: documents of a corpus, or paragraphs of a file's first nine tenths.

        No piece has text that is reserved for evaluation. A file with fewer than ``least`` paragraphs is taken line by
        line. A mix gives equally many pieces of each text, in turn.

        Raises:
            UserError: a file has too few lines as well.
        """
        names = texts(self.text)
        pieces_by_text = [self._pieces(name, share(least, place, len(names))) for place, name in enumerate(names)]
        return [piece for pieces in zip(*pieces_by_text, strict=False) for piece in pieces]

    def _pieces(self, name: str, least: int) -> list[str]:
        if not is_file(name):
            documents = corpora.texts(name)
            shared = any(_same(name, other) for other in texts(self.test))
            held_out = shared or self.options.max_perplexity_increase is not None
            return self._before_held_out(name, documents, corpora.SEPARATOR) if held_out else documents
        counts = []
        for separator in ("\n\n", "\n"):
            before = self._before_held_out(name, read(name).split(separator), separator)
            pieces = [piece for piece in before if piece.strip()]
            if len(pieces) >= least:
                return pieces
            counts.append(len(pieces))
        raise UserError(
            f"the text {name} has {counts[0]} paragraphs and {counts[1]} lines in its first nine tenths, but "
            f"{least} pieces are needed; put blank lines between paragraphs or ask for fewer"
        )

    def _before_held_out(self, name: str, pieces: list[str], separator: str) -> list[str]:
        """Return the first pieces of a text, joined no more than the tokens before those that are kept for evaluation."""
        most = int(len(self._calibration_ids(name)) * SHARE)

        def tokens(count: int) -> int:
            return len(corpora.encode(self.tokenizer, separator.join(pieces[:count])))

        # What so many pieces come to grows with them: the first number of pieces that is too many is found by halving.
        return pieces[: bisect.bisect_right(range(len(pieces) + 1), most, key=tokens) - 1]

    def shifted_attention(self) -> str | None:
        """Return a note if the remaining layers' attention types differ from those that the config's class would give."""
        fields = self.model.config.to_dict()
        lists = {name: fields.pop(name, None) for name in ("layer_types", "no_rope_layers")}
        pattern = type(self.model.config).from_dict(fields)
        shifted = [name for name, values in lists.items() if getattr(pattern, name, None) not in (None, values)]
        if not shifted:
            return None
        linear = "linear_attention" in (lists["layer_types"] or ())
        what = {
            "layer_types": "have linear attention" if linear else "attend to a sliding window alone",
            "no_rope_layers": "have no rotary positions",
        }[shifted[0]]
        return (
            f"which layers {what} is in this model's config ({shifted[0]}), no longer in the pattern that its architecture "
            "has: a program that follows the pattern (llama.cpp does with some; not tried) computes something else"
        )

    def refuse_patches(self, remedy: str) -> None:
        """Refuse a model with patches beside its weights; ``remedy`` says what to do instead.

        Raises:
            UserError: the model has patches.
        """
        if (self.source / checkpoint.PATCHES_JSON).exists():
            raise UserError(f"the model carries patches; {remedy}")

    def folder(self, name: str, count: object = None) -> Path:
        """Return the folder for checkpoints of this run's long work of a kind; another command has another folder.

        So has every other number of layers to remove; ``count`` names another than this run's.
        """
        options = {key: str(value) for key, value in vars(self.options).items() if key not in _NO_MATTER}
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
        return self.work / f"{name}-{digest[:8]}-{count or self.count or 0}"

    @cached_property
    def files(self) -> str:
        """Names, sizes and times of the files that the results come from, in short."""
        names = (*texts(self.text), *texts(self.test), getattr(self.options, "data", None) or "")
        files = [*self.source.iterdir(), *(Path(name) for name in names if is_file(name))]
        facts = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def remembered(self, name: str, candidate: Any, compute: Callable[[], Any]) -> Any:
        """Return the result of one candidate of a search: from a stopped run of this command, else computed and kept.

        Args:
            name: Name of the search; its `folder` keeps the results until the model is saved. A plan keeps none.
            candidate: Facts that decide the result, besides options and files.
            compute: Function that returns the result, which JSON can hold.
        """
        if self.options.plan:
            return compute()
        digest = hashlib.sha256(repr((self.files, candidate)).encode()).hexdigest()
        path = self.folder(name) / f"{digest[:16]}.json"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())
        result = compute()
        with contextlib.suppress(OSError):  # a full disk costs a later run the same work
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_files.whole(path) as file:
                file.write_text(json.dumps(result))
        return result

    def clear(self) -> None:
        """Delete the folders of this command, and say if others stay beside them."""
        several = self.options.sweep or self.options.max_perplexity_increase is not None
        for folder in self.work.glob(self.folder("*", "*" if several else None).name):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not there, or not empty
            self.work.rmdir()
        if any(path.is_dir() for path in self.work.glob("*")):
            size = sum(path.stat().st_size for path in self.work.rglob("*") if path.is_file())
            say(
                f"{self.work} ({size / 1e6:,.1f} MB) has checkpoints of commands with other options, which were stopped: "
                "they continue from there, or delete the folder"
            )

    def place(self, replace: bool) -> Path:
        """Return the place of the result: `--out`, or a free name beside it if `--out` may no longer be replaced.

        ``replace`` allows to replace an earlier result of this project. The options get the place, so that all later
        steps agree.
        """
        out = self.options.out
        reason = checkpoint.not_replaceable(out)
        if reason is None and not replace and out.is_dir() and any(out.iterdir()):
            reason = "another run has saved there"
        if reason is not None:
            names = (out.with_name(f"{out.name}-{number}") for number in itertools.count(2))
            beside = next(path for path in names if not path.exists())
            say(f"warning: --out {out} cannot be used any more: {reason}; saving to {beside}")
            self.options.out = beside
        return self.options.out

    def _ids(self, name: str) -> Tensor:
        ids = self.shared.setdefault("ids", {})
        if name not in ids:
            file = is_file(name)
            ids[name] = corpora.encode(self.tokenizer, read(name)) if file else corpora.joined_ids(self.tokenizer, name)
        return ids[name]


def texts(name: str) -> list[str]:
    """Return the texts that an option names: one, or several with `MIXED` in between; a file's name may contain it."""
    names, parts = [], name.split(MIXED)
    while parts:
        longest_first = [MIXED.join(parts[:count]) for count in range(len(parts), 0, -1)]
        existing = (text for text in longest_first if text in corpora.CORPORA or Path(text).is_file())
        names.append(next(existing, parts[0]))
        parts = parts[names[-1].count(MIXED) + 1 :]
    return names


def test_text(options: ToolOptions) -> str:
    """Return the test text that the options name, or else their calibration files; '' without any."""
    return options.test or MIXED.join(name for name in texts(options.text or "") if is_file(name))


def _same(name: str, other: str) -> bool:
    """Return whether two names mean one text, however a file is spelt."""
    if is_file(name) and is_file(other):
        return Path(name).resolve() == Path(other).resolve()
    return name == other


def is_file(name: str) -> bool:
    """Return whether a text's name means a file: an existing path, or one with a dot or a slash, that is no corpus."""
    return name not in corpora.CORPORA and (Path(name).exists() or "/" in name or "." in name)
