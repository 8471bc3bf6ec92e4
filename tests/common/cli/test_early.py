"""Most mistakes in a tool's command line are refused before torch is loaded; what is right passes."""

import importlib
import json
import subprocess
import sys

import pytest

import extensions
import papers
from common.cli import early
from common.utils.paths import ROOT

PACKAGES = (papers, extensions)
TOOLS = [(package, tool) for package in PACKAGES for tool in package.TOOLS]


def look(package, tool, arguments):
    early.look(["python", "-m", f"{package.__name__}.{tool}", *arguments], package.__name__, package.TOOLS)


def test_every_option_of_a_tool_is_known_beforehand():
    for package, tool in TOOLS:
        method = importlib.import_module(f"{package.__name__}.{tool}.__main__").METHOD
        assert sorted(package.TOOLS[tool].names) == sorted(flag.name or flag.field for flag in method.flags)
        assert package.TOOLS[tool].instead == method.alternatives


MODEL = ["--model", "./nowhere", "--remove", "2", "--out", "out"]
WRONG = [
    (["--model", "llama2-7b", "--remove", "2", "--out", "out"], "did you mean 'llama-2-7b'"),
    (["--model", "./nowhere", "--remove", "2", "--out", "out"], "no such directory"),
    ([*MODEL, "--remvoe", "3"], "did you mean --remove"),
    ([*MODEL, "--device", ""], "--device has an empty value"),
    ([*MODEL, "--device="], "--device has an empty value"),
    ([*MODEL, "--samples", "some"], "--samples 'some' is not a whole number"),
    ([*MODEL, "--sweep", "1-3"], "--remove and --sweep contradict each other"),
    ([*MODEL, "--text", "nowhere.txt"], "cannot read the text nowhere.txt"),
    (["--model", "smollm2-135m", "--remove", "29", "--out", "out"], "cannot remove 29 of 30 layers; choose 1..28"),
    (["--model", "smollm2-135m", "--layers", "30", "--out", "out"], "the model has layers 0 to 29"),
    (["--remove", "2"], "--model is missing"),
]


@pytest.mark.parametrize("package, tool", TOOLS)
@pytest.mark.parametrize("arguments, said", WRONG)
def test_a_mistake_is_one_line(package, tool, arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        look(package, tool, arguments)
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.count("\n") == 1 and printed.startswith("error: ")
    assert said.lower() in printed.lower()


def test_an_option_of_another_tool_names_it(capsys):
    with pytest.raises(SystemExit):
        look(papers, "laco", [*MODEL, "--distill", "4"])
    assert "there is no option --distill here. It belongs to papers.linearpatch" in capsys.readouterr().err


def test_what_is_right_passes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    (tmp_path / "text.txt").write_text("a text")
    look(extensions, "refit", ["--model", "model", "--layers", "2-3", "--out", "out", "--no-graft"])
    look(papers, "laco", ["--model", "model", "--threshold", "0.5", "--out", "out"])
    look(papers, "laco", ["--model", "model", "--remove=2", "--out=out", "--text", "text.txt"])
    look(extensions, "refit", ["--help"])
    for command in (
        ["python", "-m", "reproductions", "list", "--nothing"],
        ["pytest"],
        ["python", "-m", "papers", "--x"],
    ):
        early.look(command, "papers", papers.TOOLS)
    assert capsys.readouterr().err == "" and not (tmp_path / "out").exists()


def test_torch_is_not_loaded_for_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = sys.modules['transformers'] = None")
    command = [sys.executable, "-m", "extensions.refit", "--model", "smollm2-135m", "--remove", "29", "--out", "out"]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "choose 1..28" in done.stderr and len(done.stderr.splitlines()) == 1
