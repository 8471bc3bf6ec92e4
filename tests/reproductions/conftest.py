"""The published results and the site, built once; and `show` as a program reads it."""

import contextlib
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from common.console import progress
from common.pruning.pipeline import Context
from common.pruning.recipe import Recipe
from reproductions.__main__ import main
from reproductions.render.evidence import Evidence, Loaded
from reproductions.site import pages


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    """The published records alone."""
    return Evidence(Loaded(None))


def _once(tmp_path_factory: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """Return a folder that one process of a run has written."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name / "report"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / "lock"):
        if not folder.exists():
            write(folder)
    return folder


@pytest.fixture(scope="session")
def site(evidence, tmp_path_factory):
    """The sources of the site's pages, and the files that they load, in one folder. `finished` has the pages."""
    return _once(tmp_path_factory, "site", lambda folder: pages.Site(evidence, folder, folder).write())


@pytest.fixture(scope="session")
def finished(evidence, tmp_path_factory):
    """The folder of the finished site, which Sphinx built without a warning."""

    def write(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as warnings:
            patch.setattr(progress, "MOMENT", math.inf)  # no line says how far it is
            pages.build(evidence, folder)
        assert warnings.getvalue() == ""

    return _once(tmp_path_factory, "finished", write)


@pytest.fixture
def show_json(capsys):
    """`show_json(*arguments)` -> what `show` prints of a target as JSON."""

    def show(*arguments: str):
        capsys.readouterr()
        assert main(["show", *arguments, "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return show


@pytest.fixture
def prepared(tiny_llama, tiny_tokenizer) -> Context:
    """The tiny Llama as the runner prepares an original model."""
    return Context(tiny_llama, tiny_tokenizer, Recipe(model="small", profile="paper"), 1)
