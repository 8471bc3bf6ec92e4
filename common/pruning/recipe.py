"""Describe how a pruned model is made: a recipe, and the typed steps that it names.

A recipe is a value: JSON in, JSON out, and its hash names the records of what was measured. A step is what a name in a
recipe stands for: a frozen dataclass of typed options with the method's code behind `apply`, registered where it is
defined. ``common.pruning.pipeline`` carries a recipe out. Nothing here loads torch, so that tables can be listed quickly.
"""

import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar

from common.utils.errors import UserError, unknown

PARTS = ("selection", "repair", "training", "calibration")
SHAPE_ONLY = "shape only"  # the weights of a recipe that needs none
FIDELITIES = ("paper", "code")  # where the official code differs from the paper's text
MIXED = "+"  # between the names of texts that calibrate together


class Options:
    """Base of the frozen dataclasses that a recipe's JSON is read into.

    A field that is None is left out of the JSON; a field typed with another such class is a mapping within the mapping.
    """

    @classmethod
    def title(cls) -> str:
        """Return the name that errors use."""
        return cls.__name__.lower()

    @classmethod
    def from_json(cls, mapping: Mapping) -> typing.Self:
        """Return the options that `to_json` wrote.

        Raises:
            UserError: an unknown option, or a missing one.
        """
        fields_by_name = {field.name: field for field in fields(cls)}
        for name in mapping:
            if name not in fields_by_name:
                raise unknown(f"option of the {cls.title()}", name, fields_by_name)
        for name, field in fields_by_name.items():
            if name not in mapping and field.default is MISSING and field.default_factory is MISSING:
                raise UserError(f"the {cls.title()} lacks {name!r}; give it {', '.join(fields_by_name)}")
        inner = _inner(cls)
        return cls(**{name: _read(inner.get(name), value) for name, value in mapping.items()})

    def to_json(self) -> dict:
        """Return the mapping that a recipe holds."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _spelled(value) for name, value in values.items() if value is not None}

    def options(self, *left_out: str) -> dict:
        """Return the options that are given, but for those named; a step's method is none."""
        return {name: value for name, value in self.to_json().items() if name not in ("method", *left_out)}

    def reads(self) -> Iterator[tuple[str, str]]:
        """Yield the data that must be available, as pairs of ``corpus`` or ``instructions`` and a name."""
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), Options):
                yield from value.reads()


def _spelled(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _read(kind: type[Options] | None, value: Any) -> Any:
    if kind is not None and isinstance(value, Mapping):
        return kind.from_json(value)
    return tuple(value) if isinstance(value, list) else value


@cache
def _inner(cls: type) -> dict[str, type[Options]]:
    """Return the fields of a class that are options themselves."""
    return {
        name: kind
        for name, hint in typing.get_type_hints(cls).items()
        for kind in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
        if isinstance(kind, type) and issubclass(kind, Options)
    }


@dataclass(frozen=True)
class Calibration(Options):
    """Calibration text, and the way to draw tokens or sentences from it.

    corpus: its name, or a mix of several in equal parts, their names with `MIXED` in between. sampler: how tokens are
    drawn, see `common.pruning.calibration_text.SAMPLERS`. length: tokens in a sequence. count: of sequences, lines or
    documents. shuffle: of SLEB's lines. apart: number of last crops that share no token with the others. sentences:
    their number, if a method reads sentences (LaCo).
    """

    corpus: str
    sampler: str | None = None
    length: int | None = None
    count: int | None = None
    seed: int | None = None
    shuffle: str | None = None
    apart: int | None = None
    sentences: int | None = None

    def drawing(self) -> dict:
        """Return the options of a sampler: the given fields, without the text and the sampler's name."""
        return self.options("corpus", "sampler")

    def parts(self, names: Sequence[str] | None = None) -> list[typing.Self]:
        """Return one entry for each text of a mix, with its share of the sequences; this entry alone for a single text.

        ``names`` are the texts, if they are not those in the corpus's name.
        """
        names = names or self.corpus.split(MIXED)
        if len(names) == 1:
            return [self]
        entries = []
        for place, name in enumerate(names[: self.count]):  # of fewer sequences than texts the last texts have none
            options = {"corpus": name}
            if self.count is not None:
                options["count"] = share(self.count, place, len(names))
                if self.apart:  # the last ones, of whichever text they are
                    options["apart"] = options["count"] - share(self.count - self.apart, place, len(names))
            entries.append(replace(self, **options))
        return entries

    def reads(self) -> Iterator[tuple[str, str]]:
        """Yield the kind and the name of each text that calibration reads."""
        for name in self.corpus.split(MIXED):
            yield "corpus", name


def check_fidelity(fidelity: str) -> None:
    """Refuse what is none of the FIDELITIES."""
    if fidelity not in FIDELITIES:
        raise unknown("fidelity", fidelity, FIDELITIES)


def share(total: int, place: int, of: int) -> int:
    """Return how many of ``total`` things one of ``of`` places gets when they are dealt in turn."""
    return len(range(place, total, of))


class Step(Options):
    """One step from a model to a smaller one. Its subclasses are the parts of a recipe.

    ``apply(context)`` changes the model in place. ``method`` is the name in recipes, given by `register`.
    """

    part: ClassVar[str]
    method: ClassVar[str] = ""
    family: ClassVar[str] = "weights"  # or the model's shape alone

    @classmethod
    def title(cls) -> str:
        """Return the kind and the name of the step."""
        return f"{cls.part} {cls.method}".strip()

    @classmethod
    def from_json(cls, mapping: Mapping) -> typing.Self:
        """Return the step that a mapping names, of this part of a recipe.

        Raises:
            UserError: an unknown step, or options that it does not have.
        """
        return read(cls.part, mapping, cls.family)

    def to_json(self) -> dict:
        """Return the step's name and its options."""
        return {"method": self.method} | super().to_json()

    def apply(self, context) -> None:
        """Change the context's model in place, and note facts in ``context.details``."""
        raise NotImplementedError


class Selection(Step):
    """Select layers, and leave the model as it is.

    searches: the selection takes long, so layers that results of the same recipe name (`Context.recorded`) are not
    selected again.
    """

    part = "selection"
    searches: ClassVar[bool] = False

    def choose(self, context) -> Sequence[int]:
        """Return the layers to remove, in order of removal."""
        raise NotImplementedError

    def apply(self, context) -> None:
        """Set the context's layers to remove; of a long search, those that a result already names."""
        known = context.recorded.get("removed") if self.searches else None
        context.details["removed"] = [int(layer) for layer in (self.choose(context) if known is None else known)]


class Pruning(Step):
    """Select, remove and repair in one step, and note the layers in ``context.details["removed"]``."""

    part = "selection"


class Repair(Step):
    """Remove the selected layers, ``context.removed``, and repair the model.

    ``context.details["repair"]`` gets the number of calibration tokens and the seconds, surgery included. A pass that
    the selection made, or that was stored, does not count.
    """

    part = "repair"

    def tokens(self, context) -> int:
        """Return the number of calibration tokens that the repair reads."""
        return context.sequences().numel() if context.calibrated else 0


class Training(Step):
    """Train the pruned model."""

    part = "training"


_STEPS: dict[tuple[str, str, str], type[Step]] = {}


def register(name: str):
    """Register a step under the name that recipes give (class decorator).

    Raises:
        ValueError: the name is taken.
    """

    def registered(kind: type[Step]) -> type[Step]:
        other = _STEPS.get((kind.family, kind.part, name))
        if other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ValueError(f"{kind.part} {name!r} is taken by {other.__module__}.{other.__qualname__}")
        kind.method = name
        _STEPS[kind.family, kind.part, name] = kind
        return kind

    return registered


def registered_steps(part: str, family: str = "weights") -> dict[str, type[Step]]:
    """Return the registered steps of a part of a recipe, by name."""
    return {name: kind for (where, what, name), kind in _STEPS.items() if (where, what) == (family, part)}


def read(part: str, mapping: Mapping, family: str = "weights") -> Step:
    """Return the step that a mapping names, with its options.

    Raises:
        UserError: an unknown step of this part of a recipe, or options that it does not have.
    """
    steps = registered_steps(part, family)
    if mapping.get("method") not in steps:
        error = unknown(part, mapping.get("method"), steps)
        raise UserError(f"{error}. Import the module that has it, or all: import reproductions.spec.steps")
    options = {name: value for name, value in mapping.items() if name != "method"}
    return super(Step, steps[mapping["method"]]).from_json(options)


@dataclass(frozen=True)
class Recipe:
    """Complete configuration of a pruned model: the model, the selection of layers, the repair and the training.

    weights: digest or pinned revision of the weights. selection, repair, training, calibration: steps or mappings,
    which may leave out options with a default. They are held as the mappings that steps write, so that a stated default
    and an omitted one give the same recipe. (The mapping of a step that is not registered yet is not changed.) limit:
    the number of items a task is limited to, None for all; a limited recipe is another recipe, so it is never mistaken
    for the complete measurement. dtype: of the weights and the computation; float32 is left out of the canonical form,
    as in recipes from before this field existed.
    """

    model: str
    profile: str
    weights: str | None = None
    selection: Mapping | None = None
    repair: Mapping | None = None
    training: Mapping | None = None
    calibration: Mapping | None = None
    fidelity: str = "paper"
    limit: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for part in PARTS:
            value = getattr(self, part)
            with suppress(UserError):  # whoever asks for the step is told
                value = self.step(part) if self._registered(part) else value
            if isinstance(value, Options):
                object.__setattr__(self, part, value.to_json())

    @property
    def _family(self) -> str:
        return "shape" if self.weights == SHAPE_ONLY else "weights"

    def _registered(self, part: str) -> bool:
        """Return whether the part is a mapping whose step is known."""
        value = getattr(self, part)
        return isinstance(value, Mapping) and (
            part == "calibration" or value.get("method") in registered_steps(part, self._family)
        )

    def canonical_json(self) -> str:
        """Return one spelling per recipe: sorted keys, no spaces."""
        content = {key: value for key, value in vars(self).items() if (key, value) != ("dtype", "float32")}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits of the canonical JSON's SHA-256."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:16]

    def step(self, part: str) -> Any:
        """Return one part of the recipe as a step; None if the recipe does not have it.

        Raises:
            UserError: an unknown name or option.
        """
        mapping = getattr(self, part)
        if mapping is None:
            return None
        if part == "calibration":
            return Calibration.from_json(mapping)
        return read(part, mapping, self._family)

    def reads(self) -> list[tuple[str, str]]:
        """Return what the steps read, without repetition: pairs of ``corpus`` or ``instructions`` and a name."""
        steps = [step for part in PARTS if (step := self.step(part)) is not None]
        return list(dict.fromkeys(pair for step in steps for pair in step.reads()))
