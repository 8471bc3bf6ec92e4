"""Lay out tables of texts: for a terminal of any width (rich), as LaTeX and HTML (pandas), as Markdown. Nothing is left out.

Two things are done here, since the libraries do less for a reader. rich squeezes the columns of a table that is too wide
until numbers break; here such a table becomes several, or is turned. tabulate, behind pandas' Markdown, pads each column, so
that one longer cell changes all lines of a committed page; `markdown` does not pad.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas
    import rich.table

NARROWEST = 40  # what is narrower is wrapped by the terminal itself
UNLIMITED = 1_000_000  # characters of a line where nothing limits it
GAP = 2  # spaces between columns
SENTENCE = 60  # a cell of more characters is no number: its column is wrapped between words
# Characters that pdfLaTeX lacks, that its default fonts lack, and that would be an option of the rule or row before them.
LATEX = {"−": "$-$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "→": r"$\rightarrow$"}
LATEX |= {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", "\n[": "\n{[}", "\n*": "\n{*}"}
LAST = "\u2fff"  # characters behind it are East Asian, which pdfLaTeX does not set


class Styled(str):
    """A text with a style for the terminal, such as ``bold``; elsewhere it is plain text."""

    style = ""

    def __new__(cls, text: str, style: str) -> Styled:
        """Return the text with its style."""
        styled = super().__new__(cls, text)
        styled.style = style
        return styled


@dataclass(frozen=True)
class TextTable:
    """A table of texts.

    Attributes:
        header: Names of the columns.
        lines: Cells of each row.
        labels: Number of first columns that name a row.
        numbers: Whether the other columns hold numbers, which are aligned to the right, or sentences.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    labels: int
    numbers: bool = True

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return markdown(self.header, self.lines, "l" * self.labels + ("r" if self.numbers else "l"))

    def html(self) -> str:
        """Return the table as an HTML element."""
        return self._frame().to_html(index=False, border=0, justify="left")

    def latex(self) -> str:
        r"""Return the table as a ``tabular`` with the rules of booktabs; special characters are escaped."""
        numbers = len(self.header) - self.labels
        text = self._frame().to_latex(index=False, escape=True, column_format="l" * self.labels + "r" * numbers)
        for character, command in LATEX.items():
            text = text.replace(character, command)
        return "% Compile with LuaLaTeX and a font for these characters.\n" * (max(text) > LAST) + text.strip()

    def _frame(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame([list(map(str, line)) for line in self.lines], columns=list(self.header))

    def terminal(self, width: int | None) -> list[rich.table.Table]:
        """Return the table for lines of ``width`` characters; None: no limit.

        One that is too wide is split into several below each other, in the shorter way.
        """
        if width is None or not self.numbers:
            return [self._table(range(len(self.header)))]
        turned = TextTable(
            [" ".join(self.header[: self.labels]), *(" ".join(line[: self.labels]) for line in self.lines)],
            [list(cells) for cells in zip(self.header, *self.lines, strict=True)][self.labels :],
            1,
        )
        best = min((self, turned), key=lambda grid: len(grid._parts(width)))
        return [best._table([*range(best.labels), *part], best._room(width)) for part in best._parts(width)]

    def _room(self, width: int) -> int:
        """Return the characters that a terminal has beside the labels, which are wrapped if they take more than half."""
        labels = sum(self._size(column) + GAP for column in range(self.labels))
        return width - min(labels, width // 2)

    def _parts(self, width: int) -> list[list[int]]:
        """Return the columns of each table that fits the width: as few tables as can be, and as even."""
        room = self._room(width)
        sizes = [min(self._size(column), room) + GAP for column in range(self.labels, len(self.header))]
        fewest = len(_packed(sizes, self.labels, room + GAP))
        even = next(limit for limit in range(room + GAP + 1) if len(_packed(sizes, self.labels, limit)) == fewest)
        return _packed(sizes, self.labels, even)

    def _size(self, column: int) -> int:
        """Return the width of a column: that of its longest cell, the header being broken between words."""
        from rich.cells import cell_len

        words = self.header[column].split() if column >= self.labels else [self.header[column]]
        return max(map(cell_len, [*words, *(line[column] for line in self.lines)]), default=0)

    def _table(self, columns: Sequence[int], room: int | None = None) -> rich.table.Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for column in columns:
            numeric, size = self.numbers and column >= self.labels, self._size(column)
            side = "right" if numeric and size <= SENTENCE else "left"
            width = min(size, room) if numeric and room else None
            table.add_column(Text(self.header[column]), justify=side, width=width, overflow="fold")
        for line in self.lines:
            table.add_row(*(Text(line[column], style=getattr(line[column], "style", "")) for column in columns))
        return table


def _packed(sizes: Sequence[int], first: int, room: int) -> list[list[int]]:
    """Return the columns from the first on, in order, as many in each part as there is room for, and at least one."""
    parts, free = [], 0
    for column, size in enumerate(sizes, first):
        if not parts or size > free:
            parts, free = [*parts, []], room
        parts[-1].append(column)
        free -= size
    return parts


def terminal_width() -> int | None:
    """Return the characters in a line of the terminal, or of ``COLUMNS``; None, without limit, if neither exists."""
    columns = os.environ.get("COLUMNS", "")
    if not sys.stdout.isatty() and not (columns.isdecimal() and int(columns)):
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def coloured() -> bool:
    """Return whether standard output is a terminal with colours that the user has not switched off (``NO_COLOR``)."""
    from rich.console import Console

    console = Console()
    return console.color_system is not None and not console.no_color


def laid_out(blocks: Iterable[str | TextTable], width: int | None = None, colours: bool = False) -> str:
    """Format paragraphs and tables for lines of ``width`` characters (None: no limit), with an empty line in between.

    Paragraphs are wrapped between words. ``colours``: styles are written, as escape sequences.
    """
    from rich.console import Console
    from rich.text import Text

    def rendered(part: object) -> str:
        out = StringIO()
        colour = "standard" if colours else None
        console = Console(file=out, width=width or UNLIMITED, color_system=colour, legacy_windows=False)
        console.print(part, crop=False)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def paragraph(text: str) -> Text:
        lines = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) if width else text
        return Text(lines, getattr(text, "style", ""), overflow="ignore")

    parts = []
    for block in blocks:
        parts += block.terminal(width) if isinstance(block, TextTable) else [paragraph(block)]
    return "\n\n".join(map(rendered, parts)) + "\n"


def markdown(header: Sequence[object], lines: Iterable[Sequence[object]], align: str) -> str:
    """Return a table in Markdown; bars within cells are escaped.

    ``align`` has ``l`` or ``r`` for each column; the last letter also serves those that follow.
    """
    rule = [{"l": "---", "r": "---:"}[align[min(column, len(align) - 1)]] for column in range(len(header))]
    escaped = [[str(cell).replace("|", "\\|") for cell in line] for line in (header, rule, *lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)
