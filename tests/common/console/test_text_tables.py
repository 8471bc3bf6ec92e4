"""Tables in a terminal of any width, with and without colours, and in LaTeX: every cell must be there and be readable."""

import random
import re
import shutil
import subprocess

import pytest

from common.console import text_tables
from common.console.text_tables import Styled, TextTable, laid_out

WORDS = ["CosSim(BI),", "iterative,", "matrix,", "LLM-Streamline(None)", "LinearPatch[S]", "one-shot", "(not", "run)"]


def chunks(line: str) -> dict[int, str]:
    """Return the texts of a line that two spaces set apart, by where they end: numbers of a column end below each other."""
    return {match.end(): match.group() for match in re.finditer(r"\S+( \S+)*", line)}


@pytest.mark.parametrize("seed", range(20))
def test_every_cell_is_in_its_row_and_column(seed):
    rng = random.Random(seed)
    rows, wide = rng.randrange(1, 30), rng.randrange(1, 16)
    names = [f"c{j}" + rng.choice(["", "", ", in order (extension)"]) for j in range(wide)]
    kinds = ("", "{}.{:02}±1", "{}.{:02} | 27.0 (-0.1) differs")
    cells = [[rng.choice(kinds).format(i, j) for j in range(wide)] for i in range(rows)]
    labels = [f"r{i}: " + " ".join(rng.choices(WORDS, k=rng.randrange(1, 8))) for i in range(rows)]
    lines = [["Some model", f"{i}/32", label, *own] for i, (label, own) in enumerate(zip(labels, cells, strict=True))]
    width = rng.choice([40, 60, 80, 120])
    text = laid_out([TextTable(["Model", "n/N", "Method", *names], lines, 3)], width)
    assert max(map(len, text.splitlines())) <= width
    ends_by_cell, head, under = {}, [], []
    for line in text.splitlines():
        if set(line) == {"─"}:
            under, head = head, []
        elif not line:
            head = []
        else:
            head.append(line)
        for end, cell in chunks(line).items():
            above = " ".join(text for other in under for at, text in chunks(other).items() if at == end)
            ends = {word.strip(",") for word in (above + " " + line[: end - len(cell)]).split()}
            ends_by_cell.setdefault(re.split("[ ±]", cell)[0], []).append(ends)
    for i, own in enumerate(cells):
        for j, cell in enumerate(own):
            if cell:
                [ends] = ends_by_cell[f"{i}.{j:02}"]
                assert {f"c{j}", f"{i}/32"} <= ends


def test_few_rows_of_many_columns_are_turned_and_many_of_few_are_not():
    few = [["4/16", f"method {i}", *map(str, range(10000, 10014))] for i in range(5)]
    header = ["n/N", "Method", *(f"benchmark {j}" for j in range(14))]
    turned = laid_out([TextTable(header, few, 2)], 80)
    assert "\n\n" not in turned and turned.count("4/16") == 5
    many = laid_out([TextTable(header, few * 10, 2)], 80)
    assert [block.count("4/16") for block in many.split("\n\n")] == [50] * many.count("Method")


def test_what_fits_stands_in_one_table_and_a_pipe_has_no_width():
    text = laid_out([TextTable(["a", "number"], [["x", "1"], ["long", "22"]], 1)], 12)
    assert text == "a     number\n────────────\nx          1\nlong      22\n"
    line = ["x" * 300, *map(str, range(10**9, 10**9 + 200))]
    assert laid_out(["y " * 500, TextTable(["a"] * 201, [line], 1)]).splitlines()[-1].split() == line


def test_sentences_are_wrapped_and_east_asian_characters_count_twice():
    sentence = " ".join(WORDS * 4)
    text = laid_out([TextTable(["id", "text"], [["1", sentence]], 1)], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "".join(sentence.split()) in "".join(text.split()).replace("─", "")
    wide = laid_out([TextTable(["a", "n"], [["个件", "1"], ["b", "2"]], 1)], 40)
    assert wide.splitlines()[2:] == ["个件  1", "b     2"]


def test_styles_are_written_only_where_colours_are_asked_for():
    grid = TextTable(["a", "n"], [["x", Styled("1", "bold")], ["y", Styled("2", "red")]], 1)
    plain, coloured = laid_out([grid]), laid_out([grid], 40, colours=True)
    assert "\x1b" not in plain and "\x1b[1m1\x1b[0m" in coloured and "\x1b[31m2\x1b[0m" in coloured
    assert [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", coloured).splitlines()] == plain.splitlines()


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_colours_are_for_terminals_that_have_them(monkeypatch, terminal, environment, expected):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(text_tables.sys.stdout, "isatty", lambda: terminal, raising=False)
    assert text_tables.coloured() == expected


@pytest.mark.parametrize(
    ("columns", "terminal", "expected"),
    [(None, False, None), ("100", False, 100), ("0", False, None), ("wide", False, None), ("9", False, 40), ("90", True, 90)],
)  # fmt: skip
def test_the_width_is_the_terminals(monkeypatch, columns, terminal, expected):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(text_tables.sys.stdout, "isatty", lambda: terminal, raising=False)
    assert text_tables.terminal_width() == expected


def test_markdown_aligns_columns_and_lets_no_bar_end_a_cell():
    lines = text_tables.markdown(["n", "method", "x", "y"], [[3, "a|b", 1.5, ""], [10, "c", "", 2]], "rlr").splitlines()
    assert lines == [
        "| n | method | x | y |",
        "| ---: | --- | ---: | ---: |",
        "| 3 | a\\|b | 1.5 |  |",
        "| 10 | c |  | 2 |",
    ]
    assert [len(re.split(r"(?<!\\)\|", line)) for line in lines] == [6] * 4


SPECIAL = [["[S]", r"a_b & 50% #1 $x$ {y} ~z^2 \n"], ["*", "−1 ≤ 2 | <3> ±0.1 · × † “q”"]]


def test_latex_has_no_character_that_would_be_a_command():
    text = TextTable(["[L] |", "n_1"], SPECIAL, 1).latex()
    assert r"{[}S] & a\_b \& 50\% \#1 \$x\$ \{y\}" in text and r"{[}L] \textbar{} & n\_1" in text
    assert not re.search(r"^[\[*]|[|<>−≤]", text, re.M) and "LuaLaTeX" not in text
    assert TextTable(["a"], [["件"]], 1).latex().startswith("% Compile with LuaLaTeX")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="LaTeX is not installed")
def test_latex_compiles(tmp_path):
    table = TextTable(["[L] |", "n_1"], SPECIAL, 1).latex()
    before = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "t.tex").write_text(before + table + r"\end{document}")
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, stdin=subprocess.DEVNULL)
