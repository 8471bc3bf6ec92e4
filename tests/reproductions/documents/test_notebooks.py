"""The annotated notebooks run as they are committed, say what their sources say, and define nothing of their own."""

import ast
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

from reproductions.claims import verdicts
from reproductions.documents import notebooks
from reproductions.spec import registry

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [notebooks.source(paper) for paper in registry.PAPERS]


def cells(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells if cell.source.strip()]


def committed(source: Path) -> Path:
    return source.with_name(source.name.removesuffix(".nb.py") + ".ipynb")


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_notebook_runs(source, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("NOTEBOOK_MODEL", "toy")  # which needs no download
    ran = notebooks.executed(source)
    shown = [cell for cell in ran.cells if cell.cell_type == "code" and cell.outputs]
    assert shown


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_committed_notebook_is_its_source_with_outputs(source):
    notebook = nbformat.read(committed(source), as_version=4)
    assert cells(notebook) == cells(jupytext.read(source))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [name for cell in notebook.cells for name in re.findall(r"\]\((.*\.svg)\)", cell.source)]
    assert pictures and all((source.parent / name).is_file() for name in pictures)
    assert not any(output.output_type == "error" for output in outputs)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_a_notebook_opens_with_its_question_and_ends_with_a_verdict_on_every_claim(source):
    notebook = nbformat.read(committed(source), as_version=4)
    assert "?**" in notebook.cells[0].source.split("\n\n")[1]
    (output,) = notebook.cells[-1].outputs
    lines = output["data"]["text/markdown"].splitlines()
    tables = [table for table in registry.targets().values() if table.paper == source.parent.name]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:] if line.startswith("|")]
    claims = {claim.text for table in tables for claim in table.claims}
    told = [row[0].replace(r"\|", "|") for row in rows]
    assert len(told) > 10 and set(told) <= claims  # all of them once it is run again
    for row in rows:
        assert len(row) == 6 and all(cell.startswith((*verdicts.WORDS, "no number")) for cell in row[1:4]), row


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_notebook_defines_nothing(source):
    tree = ast.parse(source.read_text())
    defined = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))]
    assert not defined, [node.name for node in defined]


def test_the_command_line_has_help_and_names_an_unknown_paper(capsys):
    with pytest.raises(SystemExit) as done:
        notebooks.main(["--help"])
    assert done.value.code == 0 and "PAPER" in capsys.readouterr().out
    assert notebooks.main(["lakko"]) == 2 and "did you mean 'laco'" in capsys.readouterr().err
