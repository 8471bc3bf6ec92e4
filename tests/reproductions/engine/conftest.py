"""Processes that measure with a stub in place of models."""

import collections
import os
from types import SimpleNamespace

import pytest

from common.records.results import Store
from common.utils.paths import ROOT
from reproductions.engine import runner, workers


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Where processes leave their records, and what they began: `begun()` -> {(recipe, benchmark): times}."""
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "records"))
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    monkeypatch.setattr(workers, "LOOK", 0.1)
    monkeypatch.setattr(runner, "PAUSE", 0.01)

    def begun():
        lines = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        return collections.Counter(tuple(line.split()[1:]) for line in lines)

    store = Store(tmp_path / "records", None)
    return SimpleNamespace(store=store, begun=begun, folder=tmp_path, set=monkeypatch.setenv)
