"""``python -m reproductions.documents.notebooks [PAPER...]``: run the papers' notebooks and write them with what they show.

The source is ``papers/PAPER/PAPER.nb.py``; the notebook beside it is made from it, and never edited.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from common.console.command_line import answering, option, parse
from common.records.results import ROOT
from common.utils.errors import unknown
from reproductions.spec.registry import PAPERS

TIMEOUT = 600  # seconds a cell


def source(paper: str) -> Path:
    """Return the file that a paper's notebook is made from."""
    return ROOT / "papers" / paper / f"{paper}.nb.py"


def executed(path: Path) -> NotebookNode:
    """Return a source's notebook with the outputs of its cells, run in the repository's folder.

    The environment variable NOTEBOOK_MODEL names the model (default: SmolLM2-135M-Instruct).

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = jupytext.read(path)
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
        cell.id = f"cell-{number}"  # drawn when the source is read
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
    for paper in papers or PAPERS:
        target = source(paper).with_name(f"{paper}.ipynb")
        nbformat.write(executed(source(paper)), target)
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
