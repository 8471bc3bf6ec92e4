"""Models whose layers differ from their config: the differences, and how they are saved and rebuilt.

Each kind of difference registers how it is read from a model and how it is built into a new one from the config.
`common.models.checkpoint` writes the differences into ``structure.json`` beside the weights:

    {"format": 1, "parts": {kind: description, ...}}

and loads the weights into a model built accordingly. Plain Hugging Face code does not read this file: if shapes differ
it refuses the weights, if modules are missing it initialises them at random and warns (`why_not_plain` says which
models those are).
"""

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from torch import nn

from common.utils.errors import UserError
from common.utils.plugins import import_modules

FORMAT = 1
FILE = "structure.json"
# What registers each kind of `common.models`, in the order in which they are built; those of `common.baselines` follow.
_OWN = {"halves": "common.models.layers.sublayers", "widths": "common.models.layers.widths"}

Describe = Callable[[nn.Module], Any]
Build = Callable[[nn.Module, Any], None]


class _Kind(NamedTuple):
    describe: Describe
    build: Build
    reason: str


_KINDS: dict[str, _Kind] = {}


def register_structure(kind: str, describe: Describe, build: Build, reason: str) -> None:
    """Register a kind of difference from the config, so that it can be saved.

    ``describe`` returns a JSON-able description of a model's difference; None if the model is as its config says.
    ``build`` builds a description into a model of the config, without weights yet. ``reason`` says to people why plain
    code cannot load such a model.
    """
    _KINDS[kind] = _Kind(describe, build, reason)


def describe(model: nn.Module) -> dict[str, Any]:
    """Return every difference of a model from its config, by kind; empty for a plain model."""
    _registered()
    descriptions = {kind: _KINDS[kind].describe(model) for kind in _kinds()}
    return {kind: description for kind, description in descriptions.items() if description is not None}


def why_not_plain(model: nn.Module) -> str | None:
    """Return why plain Hugging Face code cannot load the saved model; None if it can (patches aside)."""
    return "; ".join(_KINDS[kind].reason for kind in describe(model)) or None


def write(model: nn.Module, directory: Path) -> None:
    """Write ``structure.json`` if the model differs from its config."""
    if parts := describe(model):
        content = {"format": FORMAT, "parts": parts}
        (directory / FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def read(directory: Path) -> dict[str, Any]:
    """Return the differences of a saved model; empty without ``structure.json``.

    Raises:
        UserError: the file cannot be read, or holds a difference that this version does not know.
    """
    file = directory / FILE
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version, parts = content["format"], dict(content["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot load {file}: it cannot be read ({type(error).__name__}); save the model again"
        ) from error
    if version != FORMAT:
        raise UserError(f"cannot load {file}: format {version!r}, this version reads {FORMAT}")
    _registered(parts)
    if strange := sorted(parts.keys() - _KINDS.keys()):
        raise UserError(
            f"cannot load {file}: it has a difference of kind {strange[0]!r}; known: {', '.join(sorted(_KINDS))}"
        )
    return parts


def model_class(config, parts: Mapping[str, Any]) -> type[nn.Module]:
    """Return the config's model class with these differences built in, for ``from_pretrained``."""
    plain = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]

    def initialise(self, config, *args, **kwargs):
        plain.__init__(self, config, *args, **kwargs)
        for kind in (kind for kind in _kinds() if kind in parts):
            _KINDS[kind].build(self, parts[kind])

    return type(plain.__name__, (plain,), {"__init__": initialise, "__module__": plain.__module__})


def _kinds() -> list[str]:
    return [*_OWN, *(kind for kind in _KINDS if kind not in _OWN)]


def _registered(kinds: Iterable[str] = ()) -> None:
    """Import what registers: late, because some of it imports the checkpoint's module, which imports this one."""
    for name in _OWN.values():
        importlib.import_module(name)
    if not _KINDS.keys() >= set(kinds):
        import_modules("common.baselines")
