"""Every benchmark in one run, and its ratios as benchmarks/README.md: `make benchmarks`, `make benchmarks ONLY=scoring`.

Each script runs in a process of its own, one after the other, and prints what it prints; its ratios come back as lines of
JSON (`common.utils.ratios`) and are kept in benchmarks/results, a file a script, from which the page is written. A
script that fails has a row that says why, and the others go on. ONLY=a,b runs those alone; all other rows stay, with
their own date.
"""

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from string import ascii_uppercase

import torch

from common.console.command_line import answering, option, parse
from common.console.text_tables import markdown
from common.utils.errors import unknown
from common.utils.ratios import VARIABLE, Ratio

HERE = Path(__file__).parent
ROOT = HERE.parent
LIMIT = 3600  # seconds that a script may take
APART = 4  # rows of one kind whose names and ratios are all shown
EDGE = 2048  # of the matrices whose product gives the peak
NONE = "–"  # an empty cell that repeats no other
PAGE = """\
# Benchmarks

After this page you know what each benchmark compares and how to repeat it. `make benchmarks` runs the usual ones
and writes this page. `make benchmarks ONLY=scoring,search` runs some; `python benchmarks/NAME.py` runs one script.

{}

A ratio is to a baseline measured by the same script in the same run. An empty cell repeats the cell above, and
– means that no goal is set. Up to four measurements of one kind are one row, with their ratios in the same order.
Of more it has the number in brackets, the median ratio, and the lowest and highest. The folder `results` has
each of them, with times, memory and versions.

{}

{}
"""


@dataclass(frozen=True)
class Entry:
    """One script with its arguments. usual: part of a run that names none. needs: ``cuda`` or ''."""

    name: str
    question: str = ""
    arguments: tuple[str, ...] = ()
    usual: bool = True
    needs: str = ""
    script: str = ""

    def command(self, folder: Path) -> list[str]:
        """Return the command line of the script in this folder."""
        return [str(folder / (self.script or f"{self.name}.py")), *self.arguments]


ENTRIES = (
    Entry("scoring", "Does scoring real tasks cost more than a bare forward pass, and less than lm-eval's own way?"),
    Entry("calibration", "What does one pass for selection, scales and least squares cost?"),
    Entry("repairs", "What does each repair in closed form cost?"),
    Entry("search", "What does SLEB's search save by reusing prefixes?"),
    Entry("prunecomp", "What does Prune&Comp's loop save by reusing passes?"),
    Entry("laco", "What does LaCo's search save by running only the changed layers?"),
    Entry("distillation", "What does a teacher that shares layers with the student save?"),
    Entry("finetuning", "What do kept states of frozen layers save?"),
    Entry("hadamard", "Is the fast Hadamard transform faster than the product?"),
    Entry(
        "half_products", "What do half-precision products through float32 save on a CPU without instructions for them?"
    ),
    Entry("threads", "Do threads by free cores help on a loaded machine, and cost nothing on an idle one?"),
    Entry("larger_than_memory", "Are the forecasts for models larger than memory right?"),
    Entry(
        "seven_billion",
        "The same for a model of 7 billion parameters",
        ("--shape", "llama-2-7b", "--samples", "4", "--length", "128", "--test-samples", "4", "--limit", "3"),
        usual=False,
        script="larger_than_memory.py",
    ),
    Entry("gpu_shapes", "Which times and memories do the papers' shapes take on a GPU?", usual=False, needs="cuda"),
)


def machine() -> dict:
    """Return the CPU (and GPU), the usable cores, and their rate on matrix products, GFLOP/s by type."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {"cpu": _cpu(), "cores": cores, "torch": torch.__version__, "gflops": {}}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(EDGE, EDGE, dtype=dtype)
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            matrix @ matrix.T  # as a linear layer multiplies; the other way round some CPUs are a hundred times slower
            seconds.append(time.perf_counter() - started)
        facts["gflops"][str(dtype).removeprefix("torch.")] = round(2e-9 * EDGE**3 / min(seconds), 1)
    return facts


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*: (.*)$", text, re.M)
    return match[1] if match else platform.machine()


def run(entries: Sequence[Entry], only: Sequence[str], folder: Path, this_machine: dict | None = None) -> list[str]:
    """Run the usual entries, or those in ``only``, keep what each hands over, and write the page; names of those that failed.

    folder: holds the scripts, results/ and README.md. this_machine: None: looked at now.

    Raises:
        UserError: ``only`` names what there is not.
    """
    names = [entry.name for entry in entries]
    for name in only:
        if name not in names:
            raise unknown("benchmark", name, names)
    this_machine, failed = this_machine or machine(), []
    for entry in entries:
        if entry.name not in only if only else not entry.usual:
            continue
        if entry.needs == "cuda" and not torch.cuda.is_available():
            print(f"== {entry.name}: not run, there is no CUDA device", flush=True)
            continue
        print(f"== {entry.name}", flush=True)
        result = measured(entry, folder) | {"date": date.today().isoformat(), "machine": this_machine}
        path = folder / "results" / f"{entry.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        if "failed" in result:
            failed.append(entry.name)
            print(f"failed: {result['failed']}", flush=True)
        # Now, so that a run that is cut off has shown something.
        (folder / "README.md").write_text(page(entries, folder))
    (folder / "README.md").write_text(page(entries, folder))
    return failed


def measured(entry: Entry, folder: Path) -> dict:
    """Run one script: its rows, the seconds it took, or why it failed."""
    with tempfile.TemporaryDirectory() as work:
        rows, errors = Path(work, "rows"), Path(work, "errors")
        rows.touch()
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {VARIABLE: str(rows), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        started, reason = time.perf_counter(), ""
        command = [sys.executable, *entry.command(folder)]
        with errors.open("w") as stream:
            try:
                status = subprocess.run(command, env=environment, stderr=stream, timeout=LIMIT).returncode
            except subprocess.TimeoutExpired:
                status, reason = 124, f"took more than {LIMIT // 60} minutes"
        seconds = round(time.perf_counter() - started, 1)
        stderr = errors.read_text(errors="replace")
        ratios = [json.loads(line) for line in rows.read_text().splitlines()]
    if status:
        sys.stderr.write(stderr)
        lines = [line for line in stderr.splitlines() if line.strip()]
        reason = reason or (lines[-1].strip() if lines else f"exit status {status}")
        return {"failed": reason.replace(str(ROOT), ".").replace(str(Path.home()), "~")[:200], "seconds": seconds}
    if not ratios:
        return {"failed": "it handed no ratios over", "seconds": seconds}
    return {"rows": ratios, "seconds": seconds}


def page(entries: Sequence[Entry], folder: Path) -> str:
    """Return the text of README.md, from the stored results."""
    paths = {entry.name: folder / "results" / f"{entry.name}.json" for entry in entries}
    results = {name: json.loads(path.read_text()) if path.is_file() else None for name, path in paths.items()}
    machines: list[dict] = []
    for result in filter(None, results.values()):
        if result["machine"] not in machines:
            machines.append(result["machine"])
    questions = []
    for entry in entries:
        result = results[entry.name]
        facts = (_conditions(result, machines), result.get("seconds") or "", result["date"]) if result else ("", "", "")
        command = f": `{shlex.join(['python', *entry.command(Path('benchmarks'))])}`" if entry.arguments else ""
        questions.append((entry.name, entry.question + command, *facts))
    measured_on = []
    for letter, host in zip(ascii_uppercase, machines):
        peak = ", ".join(f"{dtype} {rate}" for dtype, rate in host["gflops"].items())
        cpu = " and ".join(filter(None, [host["cpu"], host.get("gpu")]))
        measured_on.append((letter, cpu, host["cores"], peak))
    ratios = [row for entry in entries for row in _rows(entry, results[entry.name])]
    products = f"Products of matrices {EDGE} x {EDGE}, GFLOP/s"
    tables = (
        markdown(("Benchmark", "Question", "Measured on", "Seconds", "Date"), questions, "lllrl"),
        markdown(("Benchmark", "What", "Ratio", "Baseline", "Goal"), ratios, "llrll"),
        markdown(("Machine", "CPU", "Cores", products), measured_on, "llrl"),
    )
    return PAGE.format(*tables)


def _conditions(result: dict, machines: list[dict]) -> str:
    """Return the machine's letter, the types computed in and the threads."""
    rows = result.get("rows", [])
    types = sorted({row["dtype"] for row in rows} - {""})
    threads = sorted({row["threads"] for row in rows} - {None})
    counts = [f"{' or '.join(map(str, threads))} thread{'s' * (threads != [1])}"] if threads else []
    return ", ".join([ascii_uppercase[machines.index(result["machine"])], *types, *counts])


def _rows(entry: Entry, result: dict | None) -> list[tuple[str, ...]]:
    if result is None:
        needs = "needs a CUDA device; " if entry.needs else ""
        return [(entry.name, f"not run: {needs}`make benchmarks ONLY={entry.name}`", NONE, NONE, NONE)]
    if "failed" in result:
        return [(entry.name, f"failed: {result['failed']}", NONE, NONE, NONE)]
    kinds: dict[tuple[str, ...], list[Ratio]] = {}
    for row in result["rows"]:
        ratio = Ratio(**{key: value for key, value in row.items() if key != "threads"})
        kind = (*_kind(ratio.what), ratio.baseline.partition(":")[0], _goal(ratio))
        kinds.setdefault(kind, []).append(ratio)
    lines, name, above = [], entry.name, ""
    for (*_, baseline, goal), alike in kinds.items():
        baseline = alike[0].baseline if len(alike) == 1 else baseline
        lines.append((name, _named(alike), _ratios(alike), "" if baseline == above else baseline, goal))
        name, above = "", baseline
    return lines


def _kind(what: str) -> tuple[str, ...]:
    """Return what rows of one kind share: the measure behind the colon and quantities such as ``8 workers``.

    Without a colon it is all but what stands behind the last comma.
    """
    subject, colon, measure = what.rpartition(": ")
    return (measure, *re.findall(r"\d+ [a-z]+", subject)) if colon else (what.rpartition(", ")[0] or what,)


def _named(alike: Sequence[Ratio]) -> str:
    """Return one name for rows of one kind: the words in common, and between them the others or the number of rows."""
    names = [re.split(r" |(?=[:,])", ratio.what) for ratio in alike]
    if len(names) == 1:
        return alike[0].what
    first = len(os.path.commonprefix(names))
    last = os.path.commonprefix([name[first:][::-1] for name in names])[::-1]
    *others, final = (" ".join(name[first : len(name) - len(last)]) for name in names)
    middle, number = ("…", [f"({len(names)})"]) if len(names) > APART else (f"{', '.join(others)} and {final}", [])
    return re.sub(" (?=[:,])", "", " ".join([*names[0][:first], middle, *last, *number]))


def _ratios(alike: Sequence[Ratio]) -> str:
    """Return the ratios of a few rows in their order, or the median of more with the lowest and the highest."""
    if len(alike) <= APART:
        return ", ".join(f"{ratio.ratio:.3g}" for ratio in alike)
    ratios = [ratio.ratio for ratio in alike]
    return f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"


def _goal(ratio: Ratio) -> str:
    bounds = [f"≥ {ratio.least:g}"] if ratio.least is not None else []
    bounds += [f"≤ {ratio.most:g}"] if ratio.most is not None else []
    return f"{', '.join(bounds)}: {'met' if ratio.met else 'missed'}" if bounds else NONE


@dataclass(kw_only=True)
class Options:
    """The command line."""

    only: list[str] = option([], f"any of {', '.join(e.name for e in ENTRIES)}", metavar="NAME", positional=True)


@answering
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line names and return the exit status."""
    options = parse(Options, arguments, description=__doc__.splitlines()[0])
    only = [name for part in options.only for name in re.split(r"[,\s]+", part) if name]
    failed = run(ENTRIES, only, HERE)
    print(f"written to {(HERE / 'README.md').relative_to(ROOT)}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
