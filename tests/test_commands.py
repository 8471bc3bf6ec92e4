"""Commands of README and docs, as printed: make knows each target and variable, each module its options. None is carried out.

`test_tools` and `test_makefile` carry tools and targets out, on tiny models and a Python that prints what it is asked.
"""

import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from common.cli.options import tool_parser
from reproductions.command_line import parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("papers/*/README.md")),
    ROOT / "extensions" / "refit" / "README.md",
]
TOOLS = ("papers.linearpatch", "papers.prunecomp", "papers.laco", "papers.reassessing", "extensions.refit")


def commands(page):
    """The lines of a page's code blocks that begin as a command, without comments, and of a pipe the first part."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(?: {4}|\$ )?((?:make|python -m) .*)", line):
            yield shlex.split(match[1].split(" | ")[0], comments=True)


FOUND = [(page.relative_to(ROOT).as_posix(), command) for page in PAGES for command in commands(page)]
MADE = [(page, command) for page, command in FOUND if command[0] == "make"]
RUN = [(page, command[2:]) for page, command in FOUND if command[0] == "python"]


def test_there_are_commands():
    assert len(MADE) > 10 and len(RUN) > 5 and any(page == "README.md" for page, _ in MADE)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("page, command", MADE)
def test_make_knows_target_and_variables(page, command, tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".stamp").touch()
    done = subprocess.run([*command, "--dry-run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--also" not in done.stdout  # what is asked for is no target


@pytest.mark.parametrize("page, command", RUN)
def test_a_module_knows_its_options(page, command):
    module, arguments = command[0], command[1:]
    if module in TOOLS:
        tool_parser(importlib.import_module(f"{module}.options").OPTIONS).parse_args(arguments)
    elif module == "reproductions":
        parser().parse_args(arguments)
    else:
        assert importlib.util.find_spec(module), module
