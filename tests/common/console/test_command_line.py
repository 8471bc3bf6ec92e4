"""Command lines declared as dataclasses: values, errors of one line, and help."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from common.console.command_line import HIDDEN, Parser, add_commands, option, parse, parser, share


@dataclass(kw_only=True)
class Shape:
    """Draw a shape.

    A second paragraph.
    """

    kind: str = option("round", "draw this form", group="form", choices=("round", "square"))
    name: str = option(help="call it so", group="form", metavar="NAME")
    count: int | None = option(None, "draw N of them", least=1, most=9, usual="by form", old=("quantity",))
    share_left: float = option(0.5, "leave so much", read=share, least=0, most=1, why="a share is at most all")
    width: float | None = option(None, "draw a frame", bare=1.5)
    loud: bool = option(False, "say so")
    of: list[str] = option([], "repeat for each")
    sizes: list[int] = option([1, 2], "draw these sizes")
    where: str = option("", "draw there", name="--from")
    out: Path | None = option(None, "write to FILE")
    secret: str = option("", HIDDEN)


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        parse(Shape, arguments, prog="draw")
    printed = capsys.readouterr()
    assert stop.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
    return printed.err.removeprefix("error: ").removesuffix(" `draw --help` lists all options\n")


@pytest.mark.parametrize(
    "arguments, name, value",
    [
        ([], "kind", "round"),
        (["--kind", "square"], "kind", "square"),
        ([], "count", None),
        (["--count", "3"], "count", 3),
        ([], "share_left", 0.5),
        (["--share-left", "25%"], "share_left", 0.25),
        (["--share-left=0.25"], "share_left", 0.25),
        ([], "width", None),
        (["--width"], "width", 1.5),
        (["--width", "1e-3"], "width", 0.001),
        (["--loud"], "loud", True),
        (["--of", "a", "--of", "b"], "of", ["a", "b"]),
        ([], "of", []),
        ([], "sizes", [1, 2]),
        (["--sizes", "3", "4"], "sizes", [3, 4]),
        (["--from", "here"], "where", "here"),
        (["--out", "~/x"], "out", Path("~/x").expanduser()),
        (["--secret", "s"], "secret", "s"),
    ],
)
def test_an_option_gives_the_field_its_value(arguments, name, value):
    assert getattr(parse(Shape, ["--name", "it", *arguments]), name) == value


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--kind", "flat"], "--kind does not know 'flat'. Use one of 'round', 'square'."),
        (["--count", "1.5"], "--count '1.5' is not a whole number. Write digits alone, as in --count 8."),
        (["--count", "10"], "--count 10: use 1 to 9."),
        (["--count"], "--count needs a value. Write it after the option."),
        (["--share-left", "half"], "--share-left 'half' is not a share. Write it as in --share-left 10%."),
        (["--share-left", "200%"], "--share-left 2.0: a share is at most all; use 0 to 1."),
        (["--share-left", "nan"], "--share-left nan: a share is at most all; use 0 to 1."),
        (["--quantity", "3"], "--quantity has a new name. Use --count."),
        (["--loud=yes"], "--loud takes no value. Leave 'yes' out."),
        (["--knid", "round"], "there is no option --knid. Did you mean --kind?"),
        (["--quantitiy"], "there is no option --quantitiy."),
        (["--name="], "--name has an empty value. Give it a value, or leave it out."),
        (["--name", ""], "--name has an empty value. Give it a value, or leave it out."),
        (["rest"], "'rest' is no option and belongs to none. Quote a value that holds a space."),
    ],
)
def test_a_mistake_is_one_line_with_cause_and_fix(arguments, message, capsys):
    assert refused(capsys, "--name", "it", *arguments) == message


def test_a_required_option_and_another_commands_option_are_named(capsys):
    assert refused(capsys, "--loud") == "--name is missing. Add it to the command."
    with pytest.raises(SystemExit):
        parse(Shape, ["--colour", "red"], prog="draw", owners=lambda: {"--colour": "paint"})
    assert "there is no option --colour here. It belongs to paint." in capsys.readouterr().err


def test_help_has_groups_defaults_and_nothing_hidden(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = parser(Shape, prog="draw").format_help()
    lines = " ".join(shown.split())
    assert shown.startswith("usage: draw --name NAME [options]\n\nDraw a shape.\n\nA second paragraph.\n")
    assert lines.index("form:") < lines.index("--kind {round,square} draw this form (default: round)")
    assert "--count N draw N of them (default: by form)" in lines and "--width [X]" in lines
    assert "secret" not in shown and "--quantity" not in shown and max(map(len, shown.splitlines())) < 80


def test_subcommands_have_their_own_options(capsys):
    @dataclass(kw_only=True)
    class Join:
        """Put shapes together. Nothing is drawn."""

        parts: list[str] = option(help="the shapes", positional=True, metavar="PART")
        glue: bool = False

    top = Parser(prog="shapes")
    add_commands(top, {"draw": Shape, "join": Join})
    options = top.parse_args(["join", "a", "b", "--glue"])
    assert (options.command, options.parts, options.glue) == ("join", ["a", "b"], True)
    for arguments, message in (
        (["jion"], "COMMAND does not know 'jion'. Use one of 'draw', 'join'. Did you mean join?"),
        (["join", "a", "--name", "x"], "there is no option --name."),
        (["join"], "PART is missing. Add it to the command."),
    ):
        with pytest.raises(SystemExit):
            top.parse_args(arguments)
        assert message in capsys.readouterr().err
