"""Share what the tests of the tools patch."""

import pytest

from common.cli import measure


@pytest.fixture
def short(monkeypatch):
    """Speed and samples are measured on a few tokens."""
    for name, value in (("REPEATS", 1), ("BATCHES", (1,)), ("SHOWN", 4)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)  # half a second in a process of this size
    monkeypatch.setattr(measure.threads, "idle", lambda: 99.0)
