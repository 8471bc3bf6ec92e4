"""Tables in a terminal of any width: each block is read back by the rule under its header, and every cell must be there."""

import random
import re

import pytest

from common.records.results import NOWHERE, Store
from common.utils import text_tables
from reproductions.render import show, tables
from reproductions.spec import registry

WORDS = ["CosSim(BI),", "iterative,", "matrix,", "LLM-Streamline(None)", "LinearPatch[S]", "one-shot", "(not", "run)"]


def columns(text: str) -> list[list[str]]:
    """Each block's columns, each one's lines without spaces."""
    found = []
    for block in text.split("\n\n"):
        lines = block.splitlines()
        rule = next(line for line in lines if set(line) == {"-", " "} or set(line) == {"-"})
        spans = [match.span() for match in re.finditer("-+", rule)]
        for line in lines:  # nothing stands between columns
            assert not "".join(line[b:c] for (_, b), (c, _) in zip(spans, spans[1:], strict=False)).strip()
        found.append([["".join(line[a:b].split()) for line in lines if line != rule] for a, b in spans])
    return found


@pytest.mark.parametrize("seed", range(40))
def test_every_cell_is_in_its_row_and_column(seed):
    rng = random.Random(seed)
    rows, wide = rng.randrange(1, 30), rng.randrange(1, 16)
    labels = [f"r{i}: " + " ".join(rng.choices(WORDS, k=rng.randrange(1, 8))) for i in range(rows)]
    names = [f"c{j}" + rng.choice(["", "", ", in order (ours)"]) for j in range(wide)]
    kinds = ("", "{}.{:02}±1", "{}.{:02} | 27.0 (-0.1) differs")
    cells = [[rng.choice(kinds).format(i, j) for j in range(wide)] for i in range(rows)]
    lines = [["Some model", f"{i}/32", label, *own] for i, (label, own) in enumerate(zip(labels, cells, strict=True))]
    width = rng.choice([40, 60, 80, 120])
    text = text_tables.aligned(["Model", "n/N", "Method", *names], lines, 3, width)
    assert max(map(len, text.splitlines())) <= width
    blocks = columns(text)
    upright = blocks[0][0][0] == "Model" and len(blocks[0]) > 2 and blocks[0][1][0] == "n/N"
    for i, (label, own) in enumerate(zip(labels, cells, strict=True)):
        for j, (name, cell) in enumerate(zip(names, own, strict=True)):
            if not cell:
                continue
            down, across = (name, label) if upright else (label, name)
            squeezed = ["".join(part.split()) for part in (down, cell, across)]
            holders = [
                block for block in blocks for column in block if all(part in "".join(column) for part in squeezed[:2])
            ]
            assert len(holders) == 1, cell
            holder = holders[0]
            column = next(c for c in holder if all(part in "".join(c) for part in squeezed[:2]))
            first = next(k for k, line in enumerate(column) if line.startswith(f"{i}.{j:02}"))
            heads = holder[2] if upright else holder[0]
            assert "".join(heads[first:]).startswith(squeezed[2])


def test_few_rows_of_many_columns_are_turned_round_and_many_of_few_are_not():
    few = [["4/16", f"method {i}", *map(str, range(10000, 10014))] for i in range(5)]
    header = ["n/N", "Method", *(f"benchmark {j}" for j in range(14))]
    turned = text_tables.aligned(header, few, 2, 80)
    assert "\n\n" not in turned and turned.splitlines()[0].split() == ["n/N", *["4/16"] * 5]
    many = text_tables.aligned(header, few * 10, 2, 80)
    assert [block.split()[:2] for block in many.split("\n\n")] == [["n/N", "Method"]] * many.count("Method")


def test_what_fits_is_left_as_it_is():
    assert text_tables.aligned(["a", "number"], [["x", "1"], ["long", "22"]], 1, 12) == (
        "a     number\n----  ------\nx          1\nlong      22"
    )


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


@pytest.mark.parametrize("paper", registry.PAPERS)
def test_every_target_fits_and_keeps_every_character(paper):
    """Blocks repeat labels and headers; nothing of what the unlimited table says is missing."""
    store = Store(NOWHERE)
    for name, table in registry.targets().items():
        if table.paper != paper:
            continue
        content = show.build(table, store, "standin")
        said = set(tables.render(content).split())
        for width in (80, 120):
            text = tables.render(content, width=width)
            over = [line for line in text.splitlines() if len(line) > width]
            assert all(len(line.split()) == 1 for line in over), (name, over)
            shorter = "".join(text.split())
            # a word that is longer than its column is cut, and so not looked for
            assert all(word in shorter for word in said if len(word) <= 6 and set(word) != {"-"}), name
