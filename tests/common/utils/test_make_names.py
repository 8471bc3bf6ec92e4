"""Messages under make name its variables; without make they stay."""

import re

import pytest

from common.utils import make_names
from common.utils.errors import one_line
from common.utils.paths import ROOT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Give --text FILE (of which a tenth is measured on, or --test FILE)",
         "Give TEXT=FILE (of which a tenth is measured on, or --test FILE)"),
        ("--out my-model-pruned holds a checkpoint", "OUT=my-model-pruned holds a checkpoint"),
        ("--out ./a/b_c is the model itself", "OUT=./a/b_c is the model itself"),
        ("--text own.txt: the calibration text has few tokens", "TEXT=own.txt: the calibration text has few tokens"),
        ("say which with --model (make: MODEL=)", "say which with MODEL="),
        ("say --device cpu (make: DEVICE=cpu) to do it anyway", "say DEVICE=cpu to do it anyway"),
        ("FORCE=1 (--force) measures it anew", "FORCE=1 measures it anew"),
        ("use --force, or --dtype bfloat16", "use FORCE=1, or DTYPE=bfloat16"),
        ("write for instance --remove 7,9.", "write for instance REMOVE=7,9."),
        ("--limit 1 leaves no standard error", "LIMIT=1 leaves no standard error"),
        ("`python -m reproductions fetch table1-laco` fetches it", "`make table1-laco-fetch` fetches it"),
        ("`python -m reproductions run table1-laco --model ./a-model --full-test-sets --row 'La Co*'` measures it",
         "`make table1-laco MODEL=./a-model FULL_TEST_SETS=1 ROW='La Co*'` measures it"),
        ("A whole number. `python -m reproductions run --help` lists all options",
         "A whole number. `make help` lists targets and variables"),
        ("a well--known fact", "a well--known fact"),
    ],
)  # fmt: skip
def test_options_become_variables_under_make_alone(text, expected, monkeypatch):
    monkeypatch.delenv(make_names.VARIABLE, raising=False)
    assert one_line(text) == text
    monkeypatch.setenv(make_names.VARIABLE, "1")
    assert one_line(text) == expected


def test_a_tools_options_that_make_does_not_take_are_said_once_to_need_the_python_command(monkeypatch):
    monkeypatch.setenv(make_names.VARIABLE, "prune")
    advice = "For --swep, --sweep run the python command itself, as in `make shell`"
    text = one_line("--swep is unknown. Did you mean --sweep?")
    assert text == f"--swep is unknown. Did you mean --sweep? {advice}" and one_line(text) == text
    assert one_line("leave --model out") == "leave MODEL= out"


def test_each_variable_that_is_named_is_the_makefiles():
    makefile = (ROOT / "Makefile").read_text()
    for option in make_names._FLAGS | make_names._VALUES:
        variable = "DRYRUN" if option == "dry-run" else option.replace("-", "_").upper()
        assert re.search(rf"\$\({variable}\)", makefile), variable
