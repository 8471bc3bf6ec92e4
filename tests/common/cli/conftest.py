"""Share a tiny model, a text, and the fixture that runs a tool on them."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from tools import main, method_of, paragraphs

from common.cli import measure
from common.models import checkpoint


@pytest.fixture
def short(monkeypatch):
    """Speed and samples are measured on a few tokens."""
    for name, value in (("REPEATS", 1), ("BATCHES", (1,)), ("SHOWN", 4)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)  # half a second in a process of this size
    monkeypatch.setattr(measure.threads, "idle", lambda: 99.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory, write_checkpoint):
    """The folder of a tiny Llama, for tests that do not change it."""
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def text(request, tmp_path_factory):
    """A file of 120 paragraphs, or of the test module's PARAGRAPHS."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(paragraphs(getattr(request.module, "PARAGRAPHS", 120)))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of 20 instructions to fine-tune on."""
    rows = [
        {"instruction": f"Count to {n}.", "input": "", "output": " ".join(map(str, range(n)))} for n in range(2, 22)
    ]
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@dataclass
class Run:
    """What a tool returned, printed and saved."""

    status: int
    out: Path
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line of standard error."""
        return (self.stderr.strip().splitlines() or [""])[-1]

    @cached_property
    def report(self) -> dict:
        return json.loads((self.out / "pruning.json").read_text())

    @cached_property
    def card(self) -> str:
        return (self.out / "README.md").read_text()

    @cached_property
    def rows(self) -> list[dict]:
        """The rows of a sweep."""
        return json.loads((self.out / "sweep.json").read_text())["rows"]

    @cached_property
    def model(self):
        return checkpoint.load(self.out)[0]


@pytest.fixture
def tool(model, text, tmp_path, capsys):
    """`tool(paper, *options, out=, model=, text=)` runs a paper's tool, or a method, on 4 sequences of 32 tokens -> `Run`."""
    default_model, default_text = model, text

    def run(paper, *options, out=tmp_path / "out", model=default_model, text=default_text) -> Run:
        method = method_of(paper) if isinstance(paper, str) else paper
        fixed = ["--model", model, "--text", text, "--out", out, "--samples", 4, "--length", 32, "--test-samples", 4]
        if method.paper == "reassessing" and not {"--finetune", "--data"} & set(options):
            fixed += ["--finetune", "none"]
        capsys.readouterr()
        status = main(method, [*map(str, fixed), *map(str, options)])
        printed = capsys.readouterr()
        return Run(status, Path(out), printed.out, printed.err)

    return run
