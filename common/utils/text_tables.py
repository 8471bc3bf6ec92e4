"""Tables of text: in Markdown, and so that they fit a terminal: texts wrapped, columns in blocks, rows and columns exchanged.

Nothing is left out.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

NARROWEST = 40  # what is narrower is wrapped by the terminal itself
_GAP = 2  # spaces between columns
_WORD = 6  # a column of texts is not wrapped to fewer characters

Cell = list[str]  # the lines of one cell


def terminal_width() -> int | None:
    """Characters in a line of the terminal, or of ``COLUMNS``; None, without limit, where neither is there."""
    given = os.environ.get("COLUMNS", "")
    if not sys.stdout.isatty() and not (given.isdecimal() and int(given)):
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def filled(text: str, width: int | None) -> str:
    """A paragraph in lines of at most `width` characters, or as it is."""
    return text if width is None else textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def markdown(header: Sequence[object], lines: Iterable[Sequence[object]], align: str) -> str:
    """A table in Markdown; a bar ends no cell.

    align: ``l`` or ``r`` for each column, the last letter for those that follow.
    """
    rule = [{"l": "---", "r": "---:"}[align[min(column, len(align) - 1)]] for column in range(len(header))]
    escaped = [[str(cell).replace("|", "\\|") for cell in line] for line in (header, rule, *lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def aligned(
    header: Sequence[str], lines: Sequence[Sequence[str]], labels: int, width: int | None = None, right: bool = True
) -> str:
    """A table with a rule under its header; of one wider than `width` blocks of columns, whichever way round takes fewer.

    labels: how many of the first columns say what a row is; every block begins with them. right: numbers stand to the right.
    """
    columns = [[[cell] for cell in column] for column in zip(header, *lines, strict=True)]
    if width is None or _total(columns) <= width:
        return _block(columns, labels, right)
    upright = _blocks(header, lines, labels, width, right)
    exchanged = _blocks(*_exchanged(header, lines, labels), 1, width, right)
    return "\n\n".join(min(upright, exchanged, key=len))


def _exchanged(header: Sequence[str], lines: Sequence[Sequence[str]], labels: int) -> tuple[list[str], list[list[str]]]:
    """Rows as columns: their labels, one below the other, are the header."""
    top = ["\n".join(line[:labels]) for line in [header, *lines]]
    return top, [[header[i], *(line[i] for line in lines)] for i in range(labels, len(header))]


def _blocks(header: Sequence[str], lines: Sequence[Sequence[str]], labels: int, width: int, right: bool) -> list[str]:
    """The table cut into blocks of columns, each of at most `width` characters and as even as can be."""
    columns = [list(column) for column in zip(header, *lines, strict=True)]
    rest = [_wrapped(column, _least(column)) for column in columns[labels:]]
    first = _narrowed(columns[:labels], max(width // 2, width - _GAP - _total(rest)))
    room = width - _total(first) - _GAP
    rest = [column if _width(column) <= room else _wrapped([" ".join(c) for c in column], room) for column in rest]
    fewest = len(_packed(rest, room))
    even = next(limit for limit in range(1, room + 1) if len(_packed(rest, limit)) == fewest)
    return [_block([*first, *part], labels, right) for part in _packed(rest, even)]


def _least(column: list[str]) -> int:
    """The width of a column whose cells stay on one line, its header wrapped between words if it is wider than they are."""
    header, *cells = column
    return max(map(len, [*header.split(), *cells]), default=0)


def _narrowed(columns: list[list[str]], room: int) -> list[list[Cell]]:
    """Columns of labels in `room` characters: the widest is wrapped first."""
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    while (excess := sum(widths) + _GAP * (len(widths) - 1) - room) > 0 and max(widths) > _WORD:
        widest = widths.index(max(widths))
        second = max([_WORD, *(w for w in widths if w < widths[widest])])
        widths[widest] = max(second, widths[widest] - excess)
    return [_wrapped(column, width) for column, width in zip(columns, widths, strict=True)]


def _wrapped(column: list[str], width: int) -> list[Cell]:
    return [
        [part for line in cell.split("\n") for part in textwrap.wrap(line, max(1, width)) or [""]] for cell in column
    ]


def _packed(columns: list[list[Cell]], room: int) -> list[list[list[Cell]]]:
    """The columns in order, as many as fit in each part; a column that is wider than all the room is a part of its own."""
    parts: list[list[list[Cell]]] = []
    for column in columns:
        if parts and _total([*parts[-1], column]) <= room:
            parts[-1].append(column)
        else:
            parts.append([column])
    return parts


def _width(column: list[Cell]) -> int:
    return max(len(line) for cell in column for line in cell)


def _total(columns: list[list[Cell]]) -> int:
    return sum(map(_width, columns)) + _GAP * (len(columns) - 1)


def _block(columns: list[list[Cell]], labels: int, right: bool) -> str:
    widths = [_width(column) for column in columns]
    pad = [str.rjust if right and i >= labels else str.ljust for i in range(len(columns))]
    text = []
    for number, row in enumerate(zip(*columns, strict=True)):
        for i in range(max(map(len, row))):
            parts = [cell[i] if i < len(cell) else "" for cell in row]
            text.append((" " * _GAP).join(p(t, w) for p, t, w in zip(pad, parts, widths, strict=True)).rstrip())
        if number == 0:
            text.append((" " * _GAP).join("-" * w for w in widths))
    return "\n".join(text)
