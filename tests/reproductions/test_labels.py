"""No code finds a thing by the text that people read: with every label in capitals all else stays what it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Labels of a row, a column, a claim and a status among them.
SHOWN = ("A, massive tokens as they are", "held-out loss", "the patch lowers perplexity", '"status": "not run"')


def printed(*arguments: str) -> str:
    """What tests/capitals.py prints, in a process of its own."""
    command = [sys.executable, str(ROOT / "tests" / "capitals.py"), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_labels_in_capitals_change_no_number_status_verdict_or_figure():
    plain, capitals = printed(), printed("--capitals")
    assert all(label in plain and label not in capitals for label in SHOWN)
    assert plain.upper() == capitals.upper()
