"""Perplexity against the number of layers removed: a table and a picture, and no weights.

The model is read again for every number, the largest first, so that a method may reuse a longer search. Measurements
are written after every number. If the next one is interrupted they stay, and the same command continues from there. A
number without a result says why.
"""

import csv
import json
import time
from pathlib import Path

from common.cli import card, checks, measure, printable
from common.cli.forecast import Stages
from common.cli.job import Job
from common.cli.options import SWEEP, stopped_sweep
from common.console.progress import clock, say, track
from common.console.text_tables import markdown
from common.records import results
from common.utils import atomic_files
from common.utils.errors import UserError, one_line, plural

FIELDS = ("removed", "cut_alone", "repaired", "repaired_stderr", "layers", "reason")


def run(job: Job, stages: Stages) -> dict:
    """Measure every number of layers of `--sweep`; write sweep.csv, sweep.md, sweep.png and sweep.json to --out."""
    counts, started, unsaved = job.counts, time.perf_counter(), None
    job.options.remove = max(counts)
    dtype = checks.stored_dtype(job.source)
    job.load()
    checks.check_finite(job.model)
    stopped = _stopped_report(job)
    if not stopped:
        stages.begin("original", "measuring the original model")
    before = stopped["dense"] if stopped else measure.original(job)
    rows: list[dict] = [row for row in stopped["rows"] if row["repaired"] is not None] if stopped else []
    remaining = sorted(set(counts).difference(row["removed"] for row in rows), reverse=True)
    stages.begin("sweep", f"{len(remaining)} numbers of layers")
    steps = track(remaining, "sweep", total=len(counts), initial=len(rows), unit="number", each=True)
    for count in steps:
        job.options.remove = count
        if count != remaining[0]:
            job.load()
        try:
            facts = job.method.apply(job)
            measure.round_to(job.model, dtype)
            after = measure.perplexity(job, job.model, f"without {plural(count, 'layer')}")
            rows.append(_row(count, job, facts, after))
            steps.note(f"{plural(count, 'layer')}: {measure.perplexity_text(rows[-1]['repaired'])}")
        except UserError as error:
            rows.append(dict.fromkeys(FIELDS) | {"removed": count, "layers": [], "reason": one_line(error)})
            say(f"{plural(count, 'layer')}: {rows[-1]['reason']}")
            if len(rows) == len(counts) and all(row["reason"] for row in rows):
                raise
        report = _report(job, before, sorted(rows, key=lambda row: row["removed"]), time.perf_counter() - started)
        report |= {"missing": sorted(set(counts).difference(row["removed"] for row in rows)), "of": job.files}
        if any(row["repaired"] is not None for row in rows):
            try:
                _write(job, report)
                unsaved = None
            except OSError as error:  # a full disk should not cost what was measured, nor the rest
                unsaved = error.strerror or error
                say(f"warning: cannot write to {job.options.out}: {unsaved}. The sweep goes on")
    job.clear()
    print(_table(report))
    if unsaved:
        raise UserError(f"the table above is not in {job.options.out}: {unsaved}. Copy it, or free space and run again")
    print(f"saved to {job.options.out} (sweep.md, sweep.csv, sweep.png), {clock(report['seconds'])}")
    return report


def _report(job: Job, before: dict, rows: list[dict], seconds: float) -> dict:
    return {
        "package": job.method.package,
        "paper": job.method.paper,
        "title": job.method.title,
        "model": printable.public(job.options.model),
        "options": job.asked,
        "text": {"calibration": printable.public(job.text), "test": printable.public(job.test), "window": job.length},
        "dense": before,
        "rows": rows,
        "seconds": round(seconds, 1),
        "environment": results.environment() | {"written_at": results.now()},
    }


def _write(job: Job, report: dict) -> None:
    def write(folder: Path) -> None:
        (folder / SWEEP).write_text(json.dumps(card.finite(report), indent=1, allow_nan=False) + "\n")
        (folder / "sweep.md").write_text(_table(report), encoding="utf-8")
        with (folder / "sweep.csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, FIELDS)
            lines.writeheader()
            lines.writerows({**row, "layers": " ".join(map(str, row["layers"]))} for row in report["rows"])
        _draw(folder / "sweep.png", report)

    place = job.place(replace=job.options.force or job.shared.get("swept") == job.options.out)
    job.shared["swept"] = place
    atomic_files.put(place.resolve(), write)


def _stopped_report(job: Job) -> dict | None:
    """Return what a stopped sweep measured; None where it is all to be measured.

    Raises:
        UserError: model or texts have changed since.
    """
    report = None if job.options.force else stopped_sweep(job.options.out, job.asked)
    if report is None:
        return None
    if report.get("of") != job.files:
        raise UserError(
            f"the sweep in {job.options.out} was stopped, and model or texts have changed since; choose another directory, "
            "or replace it with --force"
        )
    job.shared["swept"] = job.options.out
    say(f"going on from {job.options.out}: {', '.join(map(str, report['missing']))} left")
    return report


def _row(count: int, job: Job, facts: dict, after: dict) -> dict:
    return {
        "removed": count,
        "cut_alone": job.unrepaired.get("perplexity"),
        "repaired": after["perplexity"],
        "repaired_stderr": after["perplexity_stderr"],
        "layers": list(facts["removed"]),
        "reason": None,
    }


def _title(report: dict) -> str:
    return f"{report['title']} on {report['model']}, perplexity on {report['text']['test']}"


def _table(report: dict) -> str:
    before = report["dense"]
    lines = [["0 (original)", measure.perplexity_text(before["perplexity"]), "", ""]]
    for row in report["rows"]:
        alone, repaired = (
            "" if row[key] is None else measure.perplexity_text(row[key]) for key in ("cut_alone", "repaired")
        )
        lines.append([row["removed"], alone, repaired, ", ".join(map(str, row["layers"])) or row["reason"]])
    table = markdown(["removed", "no repair", "repaired", "layers"], lines, "rrrl")
    missing = ", ".join(map(str, report["missing"]))
    stopped = (
        f"\nNot measured yet: {missing}. The same command continues from here. Leave out --force, which begins again.\n"
        if missing
        else ""
    )
    return f"**{_title(report)}**\n\n{table}\n{stopped}"


def _draw(path: Path, report: dict) -> None:
    """Perplexity on a logarithmic axis over the number of layers removed, the dense model's as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    before, rows = report["dense"], [row for row in report["rows"] if row["repaired"] is not None]
    counts = [row["removed"] for row in rows]
    for key, label, style in (("cut_alone", "no repair", "o--"), ("repaired", "repaired", "s-")):
        axes.plot(counts, [row[key] for row in rows], style, label=label, color={"o": "0.5", "s": "C0"}[style[0]])
    axes.axhline(before["perplexity"], color="black", linewidth=0.8, label="original")
    broken = measure.BROKEN * before["perplexity"]
    if any(row["repaired"] > broken or (row["cut_alone"] or 0) > broken for row in rows):
        axes.axhline(broken, color="C3", linewidth=0.8, linestyle=":", label="broken from here on")
    axes.set(yscale="log", xlabel="layers removed", ylabel="perplexity per token")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(FuncFormatter(lambda value, place: f"{value:.3g}"))
    axes.set_title(_title(report), fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
