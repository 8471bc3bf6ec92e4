"""``python -m reproductions.documents.notebooks [PAPER...]``: run the papers' notebooks and keep what they show."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.console.command_line import answering, option, parse
from common.utils.errors import unknown
from common.utils.paths import ROOT
from reproductions.spec.registry import PAPERS

if TYPE_CHECKING:
    from nbformat import NotebookNode

TIMEOUT = 600  # seconds a cell


def notebook_of(paper: str) -> Path:
    """Return the file of a paper's notebook."""
    return ROOT / "papers" / paper / f"{paper}.ipynb"


def executed(path: Path) -> NotebookNode:
    """Return a notebook with new outputs of its cells, run in the repository's folder.

    The environment variable NOTEBOOK_MODEL names the model (default: SmolLM2-135M-Instruct).

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbformat  # takes two seconds
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        coalesce_streams=True,  # else their parts are cut as the kernel happens to send them
    )
    client.execute()
    for number, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)  # when each cell ran
        cell.id = f"cell-{number}"  # an editor draws others
    return notebook


@dataclass(kw_only=True)
class NotebookCommand:
    """Run the papers' notebooks and write them anew."""

    papers: list[str] = option([], f"{', '.join(PAPERS)} (default: all)", positional=True, metavar="PAPER")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Run the notebooks that a command line names and return the exit status."""
    papers = parse(NotebookCommand, arguments, prog="python -m reproductions.documents.notebooks").papers
    for paper in papers:
        if paper not in PAPERS:
            raise unknown("paper", paper, PAPERS)
    import nbformat

    for paper in papers or PAPERS:
        nbformat.write(executed(notebook_of(paper)), notebook_of(paper))
        print(notebook_of(paper))
    return 0


if __name__ == "__main__":
    sys.exit(main())
