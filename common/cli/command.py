"""Run a tool from its command line: refuse impossible requests within a second, and only then load torch and the tool."""

import importlib
import sys

from common.cli.options import parsed
from common.console import startup, threads
from common.utils.errors import UserError, one_line


def main(tool: str, arguments: list[str] | None = None) -> int:
    """Run the tool of a module such as ``papers.laco``; return the exit status."""
    try:
        options = parsed(importlib.import_module(f"{tool}.options").OPTIONS, arguments)
    except UserError as error:
        return failed(error)
    threads.settle()
    with startup.nothing_begun():
        method = importlib.import_module(f"{tool}.tool").METHOD
        run = importlib.import_module("common.cli.run")
    return run.main(method, options)


def failed(error: object) -> int:
    """Print on one line why a request cannot be met; return the exit status."""
    print(one_line(f"error: {error}"), file=sys.stderr)
    return 2
