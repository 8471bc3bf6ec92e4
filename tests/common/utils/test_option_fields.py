"""Flags made of fields: what argparse makes of them, and what comes back for the field."""

from dataclasses import dataclass

import pytest

from common.utils.errors import Parser
from common.utils.option_fields import Flag, option


@dataclass(frozen=True)
class Step:
    name: str = option(help="what it is called")
    kind: str = option("round", "the shape", choices=("round", "square"))
    count: int | None = option(None, "how many", least=1, most=9)
    share: float = option(0.5, "of the whole")
    repeated: bool = option(True, "do it once")
    loud: bool = option(False, "say so")


def parsed(*flags, given=()):
    parser = Parser()
    for flag in flags:
        flag.add(parser)
    return parser, parser.parse_args(given)


@pytest.mark.parametrize(
    "flag, given, value",
    [
        (Flag(Step, "kind"), [], "round"),
        (Flag(Step, "kind", "form"), ["--form", "square"], "square"),
        (Flag(Step, "kind", default=None), [], None),
        (Flag(Step, "count"), [], None),
        (Flag(Step, "count", "at-most"), ["--at-most", "3"], 3),
        (Flag(Step, "share"), ["--share", "1e-3"], 0.001),
        (Flag(Step, "repeated", "once"), [], True),
        (Flag(Step, "repeated", "once"), ["--once"], False),
        (Flag(Step, "repeated", default=False), ["--repeated"], True),
        (Flag(Step, "loud"), [], False),
        (Flag(Step, "loud"), ["--loud"], True),
        (Flag(Step, "name", default="it"), [], "it"),
    ],
)
def test_a_flag_gives_the_field_its_value(flag, given, value):
    assert flag.value(parsed(flag, given=given)[1]) == value


def test_types_and_choices_are_the_fields(capsys):
    flags = (Flag(Step, "kind"), Flag(Step, "count"), Flag(Step, "share", choices=()))
    for given in (["--kind", "flat"], ["--count", "1.5"], ["--share", "half"]):
        with pytest.raises(SystemExit):
            parsed(*flags, given=given)
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["--kind", "--count", "--share"]
    assert "does not know 'flat'" in said[0] and "'1.5'" in said[1] and "'half' is not a number" in said[2]
    with pytest.raises(SystemExit):
        parsed(Flag(Step, "kind", choices=("square",)), given=["--kind", "round"])


def test_help_says_what_the_field_says_and_the_default_that_the_tool_has():
    flags = (Flag(Step, "kind"), Flag(Step, "count", default=None, says="by model"), Flag(Step, "share", default=0.25))
    shown = " ".join(parsed(*flags)[0].format_help().split())
    for part in (
        "{round,square} the shape (default: round)",
        "N how many (default: by model)",
        "whole (default: 0.25)",
    ):
        assert part in shown
