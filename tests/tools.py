"""The tools: `python -m <module of a method>`."""

import importlib
import json


def module_of(name: str) -> str:
    return f"{'extensions' if name == 'refit' else 'papers'}.{name}"


def status_of(main, arguments) -> int:
    """The exit status of a command line, whether it is returned or raised."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code


def method_of(name: str):
    return importlib.import_module(f"{module_of(name)}.tool").METHOD


def edited_config(**changes):
    """Return what changes a checkpoint folder's config."""

    def damage(folder):
        content = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(content))

    return damage
