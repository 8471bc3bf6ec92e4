"""Where the names that texts use for modules, functions and classes stand in the source."""

import ast
import re
from functools import cache

from common.records.results import ROOT

PACKAGES = ("common", "papers", "extensions", "reproductions", "figures")


@cache
def sources() -> dict[str, tuple[str, int]]:
    """Return every module, class, function and method by its dotted name, as (file, line)."""
    places = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            places[module] = file, 1
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    places[f"{module}.{node.name}"] = file, node.lineno
                for inner in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
                    if isinstance(inner, ast.FunctionDef):
                        places[f"{module}.{node.name}.{inner.name}"] = file, inner.lineno
    return places


def place(name: str, package: str) -> tuple[str, int] | None:
    """Return (file, line) of a name in a text about a package: dotted, or short if it is unique.

    ``method.select(variant="S")``, ``common.pruning.selection.best_block`` and ``figures/style.py`` are such names.
    """
    name = name.partition("(")[0].strip()
    if name.endswith(".py"):
        return (name, 1) if (ROOT / name).is_file() else None
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return None
    for dotted in (name, f"{package}.{name}"):
        if dotted in sources():
            return sources()[dotted]
    places = _ending(package, name)
    if not places and name.startswith("common."):
        places = _ending("common", name.rpartition(".")[2])
    return places.pop() if len(places) == 1 else None


def _ending(package: str, name: str) -> set[tuple[str, int]]:
    """Return the places of the names in a package that end in a name."""
    inside = {dotted: place for dotted, place in sources().items() if dotted.startswith(f"{package}.")}
    return {place for dotted, place in inside.items() if dotted.endswith(f".{name}")}


class SourcePages:
    """The pages of source files: their addresses, and the files that need one."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def address(self, file: str, line: int = 1) -> str:
        """Return the address of a line's page, from the site's first folder."""
        self.files.add(file)
        return f"{name(file)}.html" + (f"#L-{line}" if line > 1 else "")

    def documented(self, package: str, name: str) -> str | None:
        """Return the address of the object that a page of the API reference describes, relative to that page."""
        file_and_line = place(name, package)
        return f"../{self.address(*file_and_line)}" if file_and_line else None


def name(file: str) -> str:
    """Return the name of a source file's page."""
    return f"code/{file.removesuffix('.py').replace('/', '.')}"
