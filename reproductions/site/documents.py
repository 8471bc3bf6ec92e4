"""Markdown, notebooks and docstrings of the repository as sources of the site."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.utils.paths import ROOT
from reproductions.site import views
from reproductions.spec import registry

FOLDERS = ("docs", "papers", "extensions", "benchmarks", "common", "reproductions/results")
GUIDES = ("quick-start", "prune-your-model", "read-a-paper", "add-a-method", "add-a-model", "models")
RESULTS = (
    "docs/findings",
    "docs/tables",
    "docs/league",
    "docs/accuracy",
    "All numbers of the league <targets/league>",
    "records",
    "compare",
    "audit",
)
JUDGED = ("docs/comparing", "docs/chance-level", "docs/glossary")
REFERENCE = ("docs/python-api", "CONTRIBUTING", "CHANGELOG")
# The packages whose names are stable: docs/python-api.md
API = (
    *("common.models", "common.calibration", "common.hadamard", "common.evaluation"),
    *(f"papers.{paper}" for paper in registry.PAPERS),
    "extensions.refit",
)


def copy(source: Path) -> dict[str, list[str]]:
    """Copy the documents into a folder, under their paths in the repository; write the pages of the API reference.

    README.md and papers/AUDIT.md are left out, because pages of results replace them.

    Returns:
        The site's navigation: heading -> names of pages. The pages of papers and of results are part of it.
    """
    files = [*(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG"))]
    files += sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md") if path.name != "AUDIT.md")
    for path in files:
        _write(source, path, path.read_text(encoding="utf-8"))
    for paper in registry.PAPERS:
        path = ROOT / "papers" / paper / f"{paper}.ipynb"
        if path.is_file():
            _write(source, path, json.dumps(_described(json.loads(path.read_text(encoding="utf-8")))))
    pictures = source / "figures" / "rendered"
    pictures.mkdir(parents=True)
    for path in (ROOT / "figures" / "rendered").glob("*.svg"):
        (pictures / path.name).write_bytes(path.read_bytes())
    (source / "api").mkdir()
    for package in API:
        text = f"{package}\n{'=' * len(package)}\n\n.. automodule:: {package}\n   :members:\n"
        (source / "api" / f"{package}.rst").write_text(text, encoding="utf-8")
    with (source / "docs" / "python-api.md").open("a", encoding="utf-8") as page:
        page.write(
            "\n".join(["", "## Reference", "", "```{toctree}", *(f"/api/{package}" for package in API), "```", ""])
        )
    return _navigation([path.relative_to(ROOT).with_suffix("").as_posix() for path in files])


def _navigation(documents: Sequence[str]) -> dict[str, list[str]]:
    """Return the pages under each heading; a document that no list names stands with those of its folder."""
    pages = {
        "Guides": [f"docs/{name}" for name in GUIDES],
        "Papers": [f"papers/{paper}/README" for paper in registry.PAPERS],
        "Results": [*RESULTS, *JUDGED],
        "Reference": list(REFERENCE),
    }
    pages = {head: [n for n in names if not n.startswith("docs/") or n in documents] for head, names in pages.items()}
    listed = {name for names in pages.values() for name in names}
    for name in documents:
        if name not in listed and not name.startswith("papers/"):  # a paper's page lists what lies below it
            pages["Guides" if name.startswith("docs/") else "Reference"].append(name)
    return pages


def _write(source: Path, path: Path, text: str) -> None:
    target = source / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _described(book: dict) -> dict:
    """Return a notebook whose pictures say in words what is seen in them."""
    modules = _figure_modules(book["cells"])
    for number, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "code":
            words = _alt_text("".join(cell["source"]), modules) or f"Output of cell {number} of the notebook"
            cell["metadata"]["mystnb"] = {"image": {"alt": words}}
    return book


def _figure_modules(cells: Sequence[dict]) -> dict[str, str]:
    """Return which module of figures a notebook calls by which name."""
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names = re.findall(r"^from figures import (\w+)(?: as (\w+))?", code, re.M)
    return {short or name: f"figures.{name}" for name, short in names}


def _alt_text(code: str, modules: Mapping[str, str]) -> str:
    """Return what is seen in the picture that a cell of a notebook draws, in a sentence.

    '' where the cell does not tell.
    """
    call = next((match for match in re.finditer(r"\b(\w+)\.(\w+)\(", code) if match[1] in modules), None)
    if call:
        return views.words(f"{modules[call[1]]}:{call[2]}")
    labels = [re.search(rf'{axis}label=f?"([^"]+)"', code) for axis in "yx"]
    return " against ".join(re.sub(r"\{\w+\}", "n", label[1]) for label in labels) if all(labels) else ""
