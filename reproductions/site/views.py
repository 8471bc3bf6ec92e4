"""Summarise tables for pages: which tab is open, what is counted, which pictures there are."""

import ast
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from common.utils.errors import first_of
from common.utils.paths import ROOT
from reproductions.audit.engine import Finding
from reproductions.site import table_grids
from reproductions.spec import registry, subjects

FIGURES = ROOT / "figures" / "rendered"
WIDE = 450  # points; in a narrow window such a drawing keeps its size


def drawn(table: registry.Table) -> list[dict]:
    """Return a target's figures, real models' first: file, words, whether it is wide.

    Pictures of a part of the rows or of the items are left out.
    """
    labels = {f"-{name}": subjects.of_model(name).label for name in subjects.PUBLISHED_MODELS} | {"": "the toy model"}
    files = {f"{table.target}{ending}.svg": label for ending, label in labels.items()} if table.draw else {}
    present = {file: label for file, label in files.items() if (FIGURES / file).is_file()}
    return [
        {"file": file, "caption": f"{table.title}, on {label}", "alt": f"{words(table.draw)}; on {label}"}
        | {"wide": _points(FIGURES / file) > WIDE}
        for file, label in present.items()
    ]


def _points(drawing: Path) -> float:
    """Return the width that a drawing says of itself."""
    return float(re.search(r'<svg[^>]* width="([\d.]+)pt"', drawing.read_text(encoding="utf-8"))[1])


def words(draw: str) -> str:
    """Describe a drawing function's figure (``module:name``): the first sentence of its docstring, without "Draw"."""
    module, _, name = draw.partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    first = " ".join(ast.get_docstring(function).partition("\n\n")[0].split()).replace("`", "")
    sentence = re.split(r"(?<!\bEq)\. (?=[A-Z])", first)[0].rstrip(".").removeprefix("Draw ")
    return sentence[:1].upper() + sentence[1:]


def fullest(grids: list[table_grids.Grid]) -> int:
    """Return the tab to open first: the first model's with most of its cells measured, else the fullest."""
    shares = []
    for grid in grids:
        counts = table_grids.tally(grid)
        full = sum(counts.get(status, 0) for status in ("measured", "match", "differs"))
        shares.append(full / (full + counts.get("not-run", 0) or 1))
    return next((at for at, share in enumerate(shares) if share >= 0.5), shares.index(max(shares)) if shares else 0)


def with_counts(grid: table_grids.Grid) -> dict:
    """Return a grid with a description of its content, and the reasons of its cells without a number."""
    counts = table_grids.tally(grid)
    words = {
        "reported": "reported",
        "match": "match",
        "differs": "differ",
        "measured": "from the models’ shape" if grid.shape else "measured",
        "not-run": "not run",
    }
    summary = ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts.get(key))
    reasons: dict[str, list[str]] = {}
    for line in grid.lines:
        for head, cell in zip(grid.headings, line.cells, strict=True):
            if cell.status in ("no-data", "no-record", "failed", "diverged") and cell.why:
                reasons.setdefault(f"{cell.label}: {cell.why}", []).append(
                    f"{line.sparsity} {line.method} {head.label}"
                )
    listed = [f"{first_of(places, 4)}: {why}" for why, places in reasons.items()]
    first = ranking_column(grid)
    return {
        **grid.__dict__,
        "counts": f"Cells: {summary}" if summary else "No cell has a number",
        "reasons": listed,
        "size_first": fullest_size(grid),
        "ranked_by": "" if first is None else grid.headings[first].label,
    }


def ranked(grid: table_grids.Grid) -> table_grids.Grid:
    """Return a grid with its best rows first, for every number of removed layers, and with its best numbers marked.

    `ranking_column` ranks. A row is full if it has a number in each column with a direction that at least half of the
    measured rows have.
    """
    judged = [at for at, heading in enumerate(grid.headings) if heading.better]
    first = ranking_column(grid)
    if first is None:
        return grid

    def value(line: table_grids.Line, at: int) -> float | None:
        return float(line.cells[at].sort) if line.cells[at].reproduced else None

    def worse(line: table_grids.Line, at: int) -> float:
        number = value(line, at)
        return math.inf if number is None else number if grid.headings[at].better == table_grids.DOWN else -number

    measured = [line for line in grid.lines if any(value(line, at) is not None for at in judged)]
    needed = [at for at in judged if 2 * sum(value(line, at) is not None for line in measured) >= len(measured)]
    groups: dict[str, list[table_grids.Line]] = {}
    for line in grid.lines:
        groups.setdefault(line.sparsity, []).append(line)
    lines = []
    for group in groups.values():
        least = {at: min((worse(line, at) for line in group if not line.dense), default=math.inf) for at in judged}
        for line in sorted(group, key=lambda line: (not line.dense, worse(line, first))):
            marked = tuple(
                replace(cell, best=at in least and cell.reproduced is not None and worse(line, at) == least[at])
                for at, cell in enumerate(line.cells)
            )
            full = bool(needed) and all(value(line, at) is not None for at in needed)
            lines.append(replace(line, cells=line.cells if line.dense else marked, full=full))
    return replace(grid, lines=tuple(lines))


def ranking_column(grid: table_grids.Grid) -> int | None:
    """Return the index of the column that ranks a grid's rows: average perplexity, or the first with a direction."""
    average, judged = grid.index("PPL AVG"), [at for at, heading in enumerate(grid.headings) if heading.better]
    return average if average in judged else next(iter(judged), None)


def fullest_size(grid: table_grids.Grid) -> str:
    """Return the n/N with the most full rows, '' if none has any."""
    sizes = Counter(line.sparsity for line in grid.lines if line.full and not line.dense)
    return sizes.most_common(1)[0][0] if sizes else ""


def target_of(finding: Finding) -> str:
    """Return the target that shows a finding's first cell, '' if none does."""
    numbers = {(table.paper, table.number): name for name, table in registry.targets().items()}
    return next((numbers[cell[:2]] for cell in finding.cells if cell[:2] in numbers), "")
