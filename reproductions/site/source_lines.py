"""Where the names that texts use for modules, functions and classes stand in the source."""

import ast
import re
from functools import cache

from common.records.results import ROOT

PACKAGES = ("common", "papers", "extensions", "reproductions", "figures")


@cache
def sources() -> dict[str, tuple[str, int]]:
    """Return every module, class, function and method by its dotted name, as (file, line)."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found[module] = file, 1
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found[f"{module}.{node.name}"] = file, node.lineno
                for inner in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
                    if isinstance(inner, ast.FunctionDef):
                        found[f"{module}.{node.name}.{inner.name}"] = file, inner.lineno
    return found


def place(name: str, package: str) -> tuple[str, int] | None:
    """Return (file, line) of a name in a text about a package: dotted, or short if it is unique.

    ``method.select(variant="S")``, ``common.pruning.selection.best_window`` and ``figures/style.py`` are such names.
    """
    name = name.partition("(")[0].strip()
    if name.endswith(".py"):
        return (name, 1) if (ROOT / name).is_file() else None
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return None
    for dotted in (name, f"{package}.{name}"):
        if dotted in sources():
            return sources()[dotted]
    ends = [
        where for dotted, where in sources().items() if dotted.startswith(f"{package}.") and dotted.endswith(f".{name}")
    ]
    if not ends and name.count(".") and name.startswith("common."):
        last = name.rpartition(".")[2]
        ends = [
            where for dotted, where in sources().items() if dotted.endswith(f".{last}") and dotted.startswith("common.")
        ]
    return ends[0] if len(set(ends)) == 1 else None


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
        where = place(name, package)
        return f"../{self.address(*where)}" if where else None


def name(file: str) -> str:
    """Return the name of a source file's page."""
    return f"code/{file.removesuffix('.py').replace('/', '.')}"
