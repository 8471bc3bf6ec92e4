"""What pages say of tables as a whole: which tab is open, what is counted, which rows a picture shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from markupsafe import Markup

from common.records.results import ROOT
from reproductions.audit.engine import Finding
from reproductions.site import cells, pictures
from reproductions.spec import registry, subjects

FIGURES = ROOT / "figures" / "rendered"
WIDE = 450  # points; in a narrow window such a drawing keeps its size


def heading(path: Path) -> str:
    """The first line of a Markdown file, its title."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def verdicts(counts: dict[str, int]) -> Markup:
    """A bar of how many claims hold, are within noise, fail and are open."""
    words = {"yes": "hold", "noise": "within noise", "no": "fail", "open": "open"}
    return pictures.bar([(kind, counts[kind], word) for kind, word in words.items()])


def drawn(table: registry.Table) -> list[dict]:
    """A target's drawn figures, real models' first: file, words, whether it is wide. None of some rows or a quick look."""
    named = {f"-{name}": subjects.of_model(name).label for name in subjects.PUBLISHED_MODELS} | {"": "the stand-in"}
    files = {f"{table.target}{ending}.svg": whose for ending, whose in named.items()} if table.draw else {}
    there = {file: whose for file, whose in files.items() if (FIGURES / file).is_file()}
    return [
        {"file": file, "caption": f"{table.title}, on {whose}", "alt": words_of(file.removesuffix(".svg"))}
        | {"wide": _points(FIGURES / file) > WIDE}
        for file, whose in there.items()
    ]


def _points(drawing: Path) -> float:
    """The width that a drawing says of itself."""
    return float(re.search(r'<svg[^>]* width="([\d.]+)pt"', drawing.read_text(encoding="utf-8"))[1])


def few(lines: list[cells.Line], most: int = 12) -> tuple[list[cells.Line], str]:
    """Of many rows the dense model's and those with most layers removed, good or bad; and which n/N are left out."""
    sizes = sorted({line.sparsity for line in lines if not line.dense}, key=_removed)
    if sum(not line.dense for line in lines) <= most or len(sizes) < 2:
        return lines, ""
    return [line for line in lines if line.dense or line.sparsity == sizes[-1]], ", ".join(sizes[:-1])


def _removed(sparsity: str) -> float:
    return float(re.match(r"[\d.]*", sparsity)[0] or 0)


def words(draw: str) -> str:
    """What is seen in a drawing, in a sentence: the first one that its function (``module:name``) says of itself."""
    module, _, name = draw.partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    first = " ".join(ast.get_docstring(found).partition("\n\n")[0].split()).replace("`", "")
    return re.split(r"(?<!\bEq)\. (?=[A-Z])", first)[0].rstrip(".")


def words_of(file: str) -> str:
    """What is seen in a drawn file, and on which model; '' of a file that no target draws."""
    targets = registry.targets()
    target = max((name for name in targets if file.startswith(name) and targets[name].draw), key=len, default="")
    if not target:
        return ""
    named = {f"-{name}": subjects.of_model(name).label for name in subjects.PUBLISHED_MODELS} | {"": "the stand-in"}
    whose = named.get(file.removeprefix(target))
    return f"{words(targets[target].draw)}; on {whose}" if whose else words(targets[target].draw)


def fullest(grids: list[cells.Grid]) -> int:
    """Which tab is open at first: the first model's with most of its cells measured, else the fullest."""
    shares = []
    for grid in grids:
        counts = cells.tally(grid)
        full = sum(counts.get(status, 0) for status in ("measured", "match", "differs"))
        shares.append(full / (full + counts.get("not run", 0) or 1))
    return next((at for at, share in enumerate(shares) if share >= 0.5), shares.index(max(shares)) if shares else 0)


def with_counts(grid: cells.Grid) -> dict:
    """A grid with what it holds in words, and the reasons of its cells without a number."""
    counts = cells.tally(grid)
    words = {
        "reported": "reported",
        "match": "match",
        "differs": "differ",
        "measured": "from the models’ shape" if grid.shape else "measured",
        "not run": "not run",
    }
    said = ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts.get(key))
    reasons: dict[str, list[str]] = {}
    for line in grid.lines:
        for head, cell in zip(grid.headings, line.cells, strict=True):
            if cell.status in ("no data", "no record", "failed", "diverged") and cell.why:
                reasons.setdefault(f"{cell.status}: {cell.why}", []).append(
                    f"{line.sparsity} {line.method} {head.label}"
                )
    listed = [
        f"{', '.join(where[:4])}{f' and {len(where) - 4} more' if len(where) > 4 else ''}: {why}"
        for why, where in reasons.items()
    ]
    return {**grid.__dict__, "counts": f"Cells: {said}" if said else "No cell has a number", "reasons": listed}


def target_of(finding: Finding) -> str:
    """The target that shows a finding's first cell, '' where none does."""
    numbers = {(table.paper, table.number): name for name, table in registry.targets().items()}
    return next((numbers[cell[:2]] for cell in finding.cells if cell[:2] in numbers), "")
