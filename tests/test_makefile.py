"""What make asks of the command line: a stand-in for Python prints its arguments, one a line."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest

from common.utils.paths import ROOT
from reproductions.command_line import parser

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
PYTHON = f"""#!/bin/sh
case "$*" in
  "-c "*) cd {ROOT} && exec {sys.executable} "$@" ;;
  "-m reproductions list") printf 'table1-laco  title\nfigure-search-laco  title\ntable1-linearpatch  title\n' ;;
  *) printf '%s\n' "$@" ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """make in a copy of the repository's Makefile whose environment is built: (exit status, arguments, errors)."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".venv" / ".stamp").touch()
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    def run(*arguments, **variables):
        done = subprocess.run(["make", *arguments], cwd=tmp_path, env=plain | variables, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()[2:], done.stderr

    return run


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["table1-laco"], ["run", "table1-laco"]),
        (["grid", "LIMIT=20"], ["run", "grid", "--limit", "20"]),
        (["figureA-reassessing-render", "FORMAT=md"], ["show", "figureA-reassessing", "--format", "md"]),
        (["grid-render", "COLUMNS=WIKI-2,PTB", "EVERY_ROW=1"], ["show", "grid", "--columns", "WIKI-2,PTB", "--every-row"]),
        (["grid", "EVERY_ROW=1"], ["run", "grid", "--every-row"]),
        (["grid-fetch", "MODEL=a", "CONVERT_WEIGHTS=1"], ["fetch", "grid", "--model", "a", "--convert-weights"]),
        (["table1-laco", "FORCE=1"], ["run", "table1-laco", "--force"]),
        *((["table1-laco", f"FORCE={value}"], ["run", "table1-laco"]) for value in ("", "0", "no", "false")),
        (["table1-laco", "PROFILE=", "ROW=", "MODEL=", "DEVICE= "], ["run", "table1-laco"]),
        (["table1-laco", "ROW=O'Brien"], ["run", "table1-laco", "--row", "O'Brien"]),
        (["table1-laco", 'ROW="; exit 7; `exit 8` #'], ["run", "table1-laco", "--row", '"; exit 7; `exit 8` #']),
        (["table1-laco", "MODEL=a b'c", "REMOVE=7,9"],
         ["run", "table1-laco", "--model", "a", "--model", "b'c", "--remove", "7,9"]),
        (["table1-laco", "SAMPLES=16", "SEED=3", "TEXT=c4-train", "ALPHA=0.9", "PICTURES=png"],
         ["run", "table1-laco", "--samples", "16", "--seed", "3", "--text", "c4-train", "--alpha", "0.9",
          "--pictures", "png"]),
        (["laco", "ROW=O'Brien"], ["run", "table1-laco", "figure-search-laco", "--row", "O'Brien"]),
    ],
)  # fmt: skip
def test_values_reach_the_command_line_as_they_are(make, arguments, asked):
    assert make(*arguments) == (0, asked, "")
    parser().parse_args(asked)


@pytest.fixture
def assert_refused(make):
    """`assert_refused(arguments, *messages)`: make says these messages and asks nothing of the command line."""

    def check(arguments, *messages):
        status, asked, error = make(*arguments)
        assert status == 2 and not asked and all(message in error for message in messages)

    return check


@pytest.mark.parametrize(
    ("variable", "nearest"), [("MODLE", "'MODEL'"), ("SAMPLE", "'SAMPLES'"), ("row", "'ROW'"), ("ALFA", "'ALPHA'")]
)
@pytest.mark.parametrize("target", ["table1-laco", "laco", "help"])
def test_a_variable_that_no_target_reads_is_refused_with_the_nearest(assert_refused, target, variable, nearest):
    assert_refused([target, f"{variable}=a b"], f"unknown variable '{variable}'", nearest)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["setup", "MODLE=a"], "unknown variable MODLE; known: ALPHA"),
        (["tabel1-laco"], "error: make has no target tabel1-laco; make help lists all\n"),
    ],
)
def test_without_an_environment_mistakes_are_refused_too(assert_refused, tmp_path, arguments, message):
    shutil.rmtree(tmp_path / ".venv")
    assert_refused(arguments, message)


def test_each_variable_that_the_makefile_reads_is_known():
    text = (ROOT / "Makefile").read_text()
    read = set(re.findall(r"\$\(([A-Z_]+)\)", text)) | {"PYTHON", "WORKERS"}
    own = set(re.findall(r"^([A-Z_]+) *:?=", text, re.M))  # the Makefile's, which no user gives
    reads = re.findall(r"^READS_[a-z-]+ := (.*)", text, re.M)
    known = {word for line in reads for word in line.split() if re.fullmatch("[A-Z_]+", word)} | {"PYTHON", "VENV"}
    assert read - own - {"MAKEFLAGS", "MAKECMDGOALS", "VARIABLES"} <= known <= read | {"VENV"}


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["table1-laco", "PLAN=1"], "PLAN= has no effect on table1-laco. It applies to: prune."),
        (["laco", "QUICK=1"], "QUICK= has no effect on laco. It applies to: prune."),
        (["prune", "MODEL=m", "REMOVE=2", "ROW=a"], "ROW= has no effect on prune. It applies to: tables and figures such as "
         "table1-linearpatch, TARGET-render, TARGET-fetch."),
        (["grid-render", "FORCE=1"], "FORCE= has no effect on grid-render. It applies to: tables and figures such as "
         "table1-linearpatch, prune."),
        (["report", "PORT=80"], "PORT= has no effect on report. It applies to: serve."),
        (["LIMIT=2"], "LIMIT= has no effect on help."),
        (["prune", "MODEL=m"], "Give one, for instance REMOVE=8"),
        (["prune", "MODEL=m", "REMOVE=2", "METHOD=lacos"], "unknown METHOD lacos. Use one of refit"),
        (["table1-laco", "WHOLE=1"], "WHOLE= has a new name: use FULL_TEST_SETS=1"),
        (["table1-laco", "FULL=1"], "FULL= has a new name: use PAPER_BUDGET=1"),
    ],
)  # fmt: skip
def test_variables_that_a_target_does_not_take_are_refused_with_what_it_does(assert_refused, arguments, refused):
    assert_refused(arguments, refused)


def test_each_variable_is_taken_by_each_target_that_reads_it(make, tmp_path):
    """As the recipes print it in a dry run: the Makefile's lists hold none that has no effect."""
    lists = dict(re.findall(r"^READS_([a-z-]+) := (.*)", (ROOT / "Makefile").read_text(), re.M))
    lists["render"] = f"{lists['fetch'].replace('CONVERT_WEIGHTS', '')} COLUMNS FORMAT PICTURES EVERY_ROW"
    lists["table"] = f"{lists['render']} DEVICE FORCE"
    targets = {"fetch": "grid-fetch", "render": "grid-render", "table": "grid"}
    for kind, variables in lists.items():
        target, needed = targets.get(kind, kind), ["MODEL=m", "REMOVE=2"] * (kind == "prune")
        dry = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
        plain = dry(["make", "--dry-run", target, *needed])
        for name in variables.split():
            value = "laco" if name == "METHOD" else 7
            given = [*(one for one in needed if not one.startswith(name)), f"{name}={value}"]
            changed = dry(["make", "--dry-run", target, *given])
            assert changed.returncode == 0, changed.stderr
            assert changed.stdout != plain.stdout, (target, name)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["MODEL=./my-model", "REMOVE=8"], ["--model", "./my-model", "--remove", "8", "--out", "my-model-pruned"]),
        (["MODEL=m", "LAYERS=2-3,5"], ["--model", "m", "--layers", "2-3,5", "--out", "m-pruned"]),
        (
            ["MODEL=/data/my models/it's b/", "REMOVE=4"],
            ["--model", "/data/my models/it's b/", "--remove", "4", "--out", "it's b-pruned"],
        ),
        (
            ["MODEL=/data/llama/a/..", "REMOVE=4"],
            ["--model", "/data/llama/a/..", "--remove", "4", "--out", "llama-pruned"],
        ),
        (
            ["MODEL=org/name", "REMOVE=2", "METHOD=laco", "OUT=a b", "TASKS=piqa", "PLAN=1", "QUICK=1"],
            ["--model", "org/name", "--remove", "2", "--out", "a b", "--tasks", "piqa", "--plan", "--quick"],
        ),
    ],
)
def test_prune_is_a_tool_on_a_model_of_ones_own(make, arguments, asked):
    assert make("prune", *arguments) == (0, asked, "")


@pytest.mark.parametrize("name", ["table", "figure", "tabel1-laco", "tests", "it's", "table.o"])
def test_what_is_no_target_is_looked_up(make, name):
    status, asked, error = make(name)
    assert (status, error) == (0, "") and asked[:2] in (["show", name], ["run", name])
    assert "Makefile" not in asked


def test_the_width_of_a_terminal_is_no_choice_of_columns(make):
    assert make("table1-laco", COLUMNS="80")[1] == ["run", "table1-laco"]
    assert make("table1-laco-render", COLUMNS="80")[1] == ["show", "table1-laco"]
    assert make("table1-laco", "COLUMNS=HeSw", COLUMNS="80")[1] == ["run", "table1-laco", "--columns", "HeSw"]
