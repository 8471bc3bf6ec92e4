"""The annotated notebooks run as they are committed, and define nothing of their own."""

import ast
import re
from pathlib import Path

import pytest

from reproductions.claims import verdicts
from reproductions.documents import findings, notebooks
from reproductions.spec import registry

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = [notebooks.notebook_of(paper) for paper in registry.PAPERS]


def read(path: Path):
    import nbformat  # takes two seconds, which no other test needs

    return nbformat.read(path, as_version=4)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=registry.PAPERS)
def test_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("NOTEBOOK_MODEL", "toy")  # which needs no download
    ran = notebooks.executed(path)
    shown = [cell for cell in ran.cells if cell.cell_type == "code" and cell.outputs]
    assert shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=registry.PAPERS)
def test_a_committed_notebook_has_outputs_and_pictures_and_no_error(path):
    notebook = read(path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [name for cell in notebook.cells for name in re.findall(r"\]\((.*\.svg)\)", cell.source)]
    assert pictures and all((path.parent / name).is_file() for name in pictures)
    assert outputs and not any(output.output_type == "error" for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=registry.PAPERS)
def test_a_notebook_opens_with_its_question_and_ends_with_a_verdict_on_every_claim(path):
    notebook = read(path)
    assert "?**" in notebook.cells[0].source.split("\n\n")[1]
    (output,) = notebook.cells[-1].outputs
    lines = output["data"]["text/markdown"].splitlines()
    tables = [table for table in registry.targets().values() if table.paper == path.parent.name]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:] if line.startswith("|")]
    claims = {claim.text for table in tables for claim in table.claims}
    names = [row[0].replace(r"\|", "|") for row in rows]
    assert len(names) > 10 and set(names) <= claims  # all of them once it is run again
    for row in rows:
        assert len(row) == 1 + len(findings.SIDES) and all(
            cell.startswith((*verdicts.WORDS, "no number")) for cell in row[1:-2]
        ), row


@pytest.mark.parametrize("path", NOTEBOOKS, ids=registry.PAPERS)
def test_notebook_defines_nothing(path):
    cells = (cell.source for cell in read(path).cells if cell.cell_type == "code")
    tree = ast.parse(re.sub("^%.*", "", "\n".join(cells), flags=re.M))  # magics are no Python
    defined = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))]
    assert not defined, [node.name for node in defined]


def test_the_command_line_has_help_and_names_an_unknown_paper(capsys):
    with pytest.raises(SystemExit) as done:
        notebooks.main(["--help"])
    assert done.value.code == 0 and "PAPER" in capsys.readouterr().out
    assert notebooks.main(["lakko"]) == 2 and "did you mean 'laco'" in capsys.readouterr().err
