"""HumanEval without the hub's metric: lm-eval's prompts and stops, with programs run here in a separate process.

A model writes the programs. Nothing runs them unless the environment says LAYERLAB_RUN_CODE=1; then each gets a new
interpreter in an empty folder, limits on time, memory and files, and no environment. That limits accidents; it is no
protection against malicious programs: use a container or a machine of no value.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from common.utils.errors import UserError

VARIABLE = "LAYERLAB_RUN_CODE"
SECONDS = 10
MEMORY = 4 << 30
FILE_BYTES = 1 << 20


def check_allowed() -> None:
    """Raise a UserError unless the user has allowed generated code to run."""
    if os.environ.get(VARIABLE) != "1":
        raise UserError(
            "task humaneval runs programs that the model writes; in a container or on a machine of no value, set "
            f"{VARIABLE}=1 to allow it"
        )


def config(original: Mapping) -> dict:
    """Return the configuration of lm-eval's task with this module's metric instead of the hub's.

    ``original`` is the content of lm-eval's `humaneval.yaml`.
    """
    settings = {
        key: value for key, value in original.items() if key not in ("metric_list", "filter_list", "unsafe_code")
    }
    metric = {"metric": "pass_at_1", "aggregation": "mean", "higher_is_better": True}
    return settings | {"metric_list": [metric], "process_results": passed}


def passed(doc: Mapping, results: list[str]) -> dict[str, float]:
    """Return whether the prompt with its generated continuation passes the item's tests."""
    program = f"{doc['prompt']}{results[0]}\n\n{doc['test']}\n\ncheck({doc['entry_point']})\n"
    return {"pass_at_1": float(runs(program))}


def runs(program: str) -> bool:
    """Return whether a program ends without an error within the limits.

    Raises:
        UserError: running code is not allowed.
    """
    check_allowed()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(path)],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                preexec_fn=_limit if os.name == "posix" else None,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def _limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
