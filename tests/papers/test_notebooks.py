"""The annotated notebooks run as they are committed, say what their sources say, and define nothing of their own."""

import ast
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(ROOT.glob("papers/*/*.nb.py"))


def cells(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells if cell.source.strip()]


def committed(source: Path) -> Path:
    return source.with_name(source.name.removesuffix(".nb.py") + ".ipynb")


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_notebook_runs(source, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(jupytext.read(source), timeout=600, kernel_name="python3", resources=folder)
    ran = client.execute()
    shown = [cell for cell in ran.cells if cell.cell_type == "code" and cell.outputs]
    assert shown


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_committed_notebook_is_its_source_with_outputs(source):
    notebook = nbformat.read(committed(source), as_version=4)
    assert cells(notebook) == cells(jupytext.read(source))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_notebook_defines_nothing(source):
    tree = ast.parse(source.read_text())
    defined = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))]
    assert not defined, [node.name for node in defined]
