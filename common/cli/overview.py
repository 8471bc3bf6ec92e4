"""List a package's tools, and the steps that recipes can name."""

import dataclasses
import importlib
import textwrap
from collections.abc import Sequence

from common.cli.options import tools
from common.console.command_line import answering, option, parse


@dataclasses.dataclass(kw_only=True)
class Overview:
    """List the tools that prune a model."""

    steps: bool = option(False, "list the steps that a recipe can name instead, with their options")


@answering
def main(package: str, arguments: Sequence[str] | None = None) -> int:
    """Print a package's tools, or the steps; return the exit status."""
    options = parse(Overview, arguments, prog=f"python -m {package}")
    _steps() if options.steps else _tools(package)
    return 0


def _tools(package: str) -> None:
    for kind in tools([package]):
        print(f"python -m {kind.TOOL}")
        text = " ".join(f"{kind.TITLE}: {kind.__doc__}".split())
        print(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  "))
    print("\n--help after a command lists its options. `--model ./my-model --remove 8 --plan` is a first look.")
    print("A hub id or a registered name may stand in place of ./my-model. docs/prune-your-model.md has examples.")


def _steps() -> None:
    """Print the steps by the part of a recipe that they stand in; options that may be left out have brackets or a default."""
    import common.pruning.steps  # noqa: F401 - registers its steps
    from common import baselines
    from common.pruning.recipe import PARTS, registered_steps

    baselines.load_steps()
    for name in ("papers", "extensions"):
        importlib.import_module(name).load_steps()
    for part in PARTS[:3]:
        print(f"{part}:")
        for name, step in sorted(registered_steps(part).items()):
            lines = (step.__doc__ or "").strip().splitlines()
            print(f"  {name:<22} {lines[0] if lines else ''}")
            if options := [_with_default(field) for field in dataclasses.fields(step)]:
                print(f"  {'':<22} {' '.join(options)}")


def _with_default(field: dataclasses.Field) -> str:
    """Return an option by name: with its default, or in brackets if that is None."""
    if field.default is None:
        return f"[{field.name}]"
    return field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
