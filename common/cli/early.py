"""Refuse most mistakes in a tool's command line within a second: before torch, transformers and the tool itself are loaded.

Shared options are checked here as they are later. Of a tool's own options only the names are known, of a model and its texts
only what a look at the files says. The tool's own checks follow.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.cli import options as shared
from common.cli.texts import read
from common.models import registry
from common.pruning.recipe import MIXED
from common.pruning.removal import check_count, check_layers
from common.utils.errors import UserError, one_line


@dataclass(frozen=True)
class Own:
    """A tool's own options by name; instead: those that say how many layers go, in place of --remove."""

    names: tuple[str, ...]
    instead: tuple[str, ...] = ()


def look(command: list[str], package: str, tools: Mapping[str, Own]) -> None:
    """Exit with status 2 and one line where a tool's command line cannot be met; other commands pass.

    Args:
        command: all of it, as in `sys.orig_argv`.
        package: that of the tools.
        tools: by name.
    """
    module, arguments = _split(command)
    tool = module.removeprefix(f"{package}.").removesuffix(".__main__")
    if tool not in tools or {"-h", "--help"} & set(arguments):
        return
    try:
        check(package, tool, tools, arguments)
    except UserError as error:
        print(one_line(f"error: {error}"), file=sys.stderr)
        raise SystemExit(2) from None


def check(package: str, tool: str, tools: Mapping[str, Own], arguments: list[str]) -> None:
    """Refuse what can be seen without loading the tool.

    Raises:
        UserError: whatever of the request cannot be met.
        SystemExit: the options cannot be parsed; that is said.
    """
    method = shared.Method(tool, "", "", lambda job: {}, (), passes=lambda job: 1.0, package=package)
    parser = shared.parser(method)
    options, rest = parser.parse_known_args(arguments)
    own = {f"--{name}" for name in tools[tool].names}
    given = {part.split("=")[0] for part in rest if part.startswith("--")}
    for name in sorted(given - own):
        elsewhere = [other for other, known in tools.items() if name.removeprefix("--") in known.names]
        if elsewhere:
            raise UserError(f"there is no option {name} here. It belongs to {package}.{elsewhere[0]}")
        parser.error(parser.unknown_option(name, own))
    if given & {f"--{name}" for name in tools[tool].instead}:
        return
    shared.check(method, options)
    for option in ("text", "test"):
        name = getattr(options, option) or ""
        if ("/" in name or "." in name) and MIXED not in name:  # a file: no corpus is called so
            read(name)
    _check_model(options)


def _split(command: list[str]) -> tuple[str, list[str]]:
    """Return the module that Python runs and its arguments; ("", []) where that cannot be told."""
    if "-m" not in command[:-1]:
        return "", []
    place = command.index("-m")
    return command[place + 1], command[place + 2 :]


def _check_model(options: argparse.Namespace) -> None:
    """Refuse a name that nothing has, and numbers of layers that the model's config does not allow."""
    name, path = options.model, Path(options.model)
    spec = registry.find(name)
    if spec is not None:
        layers = spec.facts.get("layers") if spec.facts else None
    elif path.is_dir():
        try:
            layers = json.loads((path / "config.json").read_text(encoding="utf-8")).get("num_hidden_layers")
        except (OSError, ValueError, AttributeError):  # said in full later
            layers = None
    elif name.startswith((".", "/", "~")) and not path.exists():
        raise UserError(f"cannot load {name}: no such directory. Check the path")
    else:
        if "/" not in name and not path.exists():
            registry.get(name)  # raises, naming the nearest
        layers = None
    if not isinstance(layers, int) or layers < 3:
        return
    if options.layers is not None:
        given = shared.numbers(options.layers, "layers")
        check_layers(given, len(given), layers)
    for count in [options.remove] if options.remove is not None else []:
        check_count(count, layers)
