"""The command line: ``python -m reproductions {list,run,status,show,fetch,audit}``.

Results go to standard output and files, progress and messages to standard error. Exit status: 0 all well, 1 a cell
failed (the others are measured and kept), 2 a request that cannot be met, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys

from common.pruning.recipe import MIXED
from common.utils import startup
from common.utils.errors import Parser, UserError, one_line, quiet_logging, unknown
from reproductions.engine import distributed
from reproductions.render.tables import check_format
from reproductions.spec.changes import Changes

DTYPES = ("float32", "bfloat16", "float16")
PICTURES = ("svg", "png", "pdf")
RENAMED = {"--whole": "--full-test-sets", "--full": "--paper-budget"}  # for one release


class _Renamed(argparse.Action):
    """Refuse the old name of an option."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"{option_string} has a new name: use {self.const}")


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    top = Parser(prog="python -m reproductions", description="Run and show the papers' tables.")
    top.add_argument("--verbose", action="store_true", help="log details and tracebacks to standard error")
    commands = top.add_subparsers(dest="command", required=True, metavar="{list,run,status,show,fetch,audit}")

    listing = commands.add_parser("list", help="every target with its title")
    listing.add_argument("--json", action="store_true", help="as JSON")

    run = commands.add_parser("run", help="measure what a target still lacks, one record per cell")
    run.add_argument("targets", nargs="+", metavar="TARGET", help="as `list` prints them, e.g. table1-linearpatch")
    _narrowing(run)
    _columns(run)
    run.add_argument(
        "--device", help="cpu, cuda, cuda:1, or auto to spread a model (default: cuda where there is a GPU)"
    )
    run.add_argument(
        "--force",
        action="store_true",
        help="measure again what has a record, with its searches and trainings; the record is replaced. Cut off, it begins "
        "anew with --force; without, records it had not come to stay beside the new ones",
    )

    run.add_argument("--no-show", action="store_true", help="do not print the tables afterwards")
    distributed.add_options(run)
    _shown(run)

    status = commands.add_parser("status", help="cells done, running, failed and left, with rates")
    status.add_argument("targets", nargs="+", metavar="TARGET")
    _narrowing(status)
    _columns(status)

    show = commands.add_parser("show", help="print tables, or draw figures, from records; measures nothing")
    show.add_argument("targets", nargs="+", metavar="TARGET", help="several are shown one after another")
    _narrowing(show)
    _shown(show)

    fetch = commands.add_parser("fetch", help="download every model and dataset a target needs, then run offline")
    fetch.add_argument("target", metavar="TARGET")
    _narrowing(fetch, default="the paper's; the stand-in needs nothing")
    fetch.add_argument(
        "--convert-weights",
        action="store_true",
        help="convert pickled weights to safetensors where a model has no others",
    )

    audit = commands.add_parser("audit", help="check the papers' own arithmetic")
    audit.add_argument("--json", action="store_true", help="as JSON")
    return top


def _shown(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", default="terminal", help="terminal, md, csv, latex or json (default: terminal)")
    command.add_argument(
        "--pictures",
        default="svg",
        metavar="FORMS",
        help="forms of a figure, as svg,png,pdf (default: svg)",
    )
    command.add_argument(
        "--every-row",
        action="store_true",
        help="a line for each row without a number, too (else one line counts those that follow one another)",
    )
    command.add_argument(
        "--also", default="", help=argparse.SUPPRESS
    )  # the Makefile's own targets, to be suggested too


def _narrowing(command: argparse.ArgumentParser, default: str = "the stand-in's") -> None:
    command.add_argument("--profile", help=f"standin or paper (default: as the model has it; without one, {default})")
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="standin, a registered model, a hub id or a directory; one of the paper's own is taken as printed; repeatable",
    )
    command.add_argument(
        "--remove", metavar="N,N", help="layers to remove from the model (default: the paper's shares)"
    )
    command.add_argument(
        "--full-test-sets",
        action="store_true",
        help="a model that is not the paper's: measure on whole test sets and texts (default: parts of them)",
    )
    command.add_argument(
        "--paper-budget",
        action="store_true",
        help="the same, and calibrate and train on as much text as the papers, which gives other rows",
    )
    for old, new in RENAMED.items():
        command.add_argument(old, nargs=0, action=_Renamed, const=new, help=argparse.SUPPRESS)
    command.add_argument("--row", metavar="PATTERN", help="only rows whose method fits, e.g. 'LinearPatch*'")
    command.add_argument("--limit", type=int, metavar="N", help="a quick look: only N items of each task")
    command.add_argument(
        "--dtype",
        help="float32, bfloat16 or float16, of weights and computation; records of one type are not those of another "
        "(default: float32 for the stand-in, float16 for the papers' models, bfloat16 for any other)",
    )
    changed = command.add_argument_group("changed rows, with results of their own; shown beside the unchanged ones")
    changed.add_argument("--samples", type=int, metavar="N", help="calibrate on N sequences, lines or sentences")
    changed.add_argument("--seed", type=int, metavar="N", help="draw calibration samples with this seed")
    changed.add_argument("--text", metavar="CORPUS", help="calibrate on this corpus")
    changed.add_argument("--alpha", type=float, metavar="X", help="multiply LinearPatch's patch by X (its section 3.2)")


def _columns(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--columns",
        default="",
        metavar="PATTERN,...",
        help="measure only the columns whose labels fit, e.g. 'WIKI-2,PTB' (default: all)",
    )


def _check(options: argparse.Namespace) -> None:
    if options.limit is not None and options.limit < 2:
        raise UserError(f"--limit {options.limit} leaves no standard error; use at least 2")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise unknown("dtype", options.dtype, DTYPES)
    if options.samples is not None and options.samples < 1:
        raise UserError(f"--samples {options.samples} leaves nothing to calibrate on; use at least 1")
    if options.seed is not None and options.seed < 0:
        raise UserError(f"--seed {options.seed} is negative; use 0 or more")
    if options.alpha is not None and not (math.isfinite(options.alpha) and options.alpha > 0):
        raise UserError(f"--alpha {options.alpha} scales no patch; use a number above 0, such as 0.9")
    if options.alpha == 1:
        raise UserError("--alpha 1 is the patch as it is; use another number, or leave the option out")
    if options.text is not None:
        from common.calibration import corpora

        for name in options.text.split(MIXED):
            corpora.get(name)
    if hasattr(options, "format"):
        check_format(options.format)
        for form in options.pictures.split(","):
            if form not in PICTURES:
                raise unknown("form of a picture", form, PICTURES)


def _subjects(options: argparse.Namespace, tables: list) -> list[tuple]:
    """(subject, models of the paper's own to narrow it to) for each that a command names; [] when it names none."""
    from dataclasses import replace

    from common.models import registry as model_registry
    from reproductions.spec import subjects as settings

    remove = _counts(options.remove)
    profile = options.profile
    printed = {row.model for table in tables for row in table.rows(settings.PAPER, None)}
    of_paper, found = [], []
    for name in options.model:
        name = spec.name if (spec := model_registry.find(name)) else name  # a hub id means the same model
        if profile == "standin" and name != settings.STANDIN.model:
            raise unknown("model in the standin profile", name, [settings.STANDIN.model])
        if name in printed and not remove:
            of_paper.append(name)
        else:
            subject = settings.of_model(name, remove, profile)
            if any(other.name == subject.name and other != subject for other, _ in found):
                from common.models import loading  # loads torch, as describing these directories has

                loading.resolve(subject.name)  # refuses, naming both
            found.append((subject, ()))
    found = list(dict.fromkeys(found))  # who is named twice is shown once
    if remove and not options.model:
        raise UserError("--remove says how many layers a model loses: say which with --model (make: MODEL=)")
    if of_paper or (profile and not options.model):
        found.insert(0, (settings.subject("paper" if of_paper else profile), tuple(of_paper)))
    if options.paper_budget or options.full_test_sets:
        if not any(subject.small for subject, _ in found):
            asked = "--paper-budget" if options.paper_budget else "--full-test-sets"
            raise UserError(
                f"{asked} reads all of what the tables of a model that is not the paper's "
                "read a part of: say which with --model (make: MODEL=); the stand-in and the papers' own models have one size"
            )
        sizes = {"paper_budget": options.paper_budget, "full_test_sets": options.full_test_sets}
        found = [(replace(subject, **sizes), models) for subject, models in found]
    if options.dtype:
        default = [] if found else [(settings.STANDIN, ())]
        found = [(replace(subject, dtype=options.dtype), models) for subject, models in found or default]
    changes = Changes(options.samples, options.seed, options.text, options.alpha)
    if changes:
        found = [(replace(subject, changes=changes), models) for subject, models in found or [(settings.STANDIN, ())]]
    return found


def _counts(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise UserError(
            f"--remove {text!r} is no list of numbers of layers; write for instance --remove 7,9"
        ) from error


def _list(options: argparse.Namespace) -> int:
    from reproductions.spec.registry import targets

    found = {name: table.title for name, table in targets().items()}
    if options.json:
        print(json.dumps([{"target": name, "title": title} for name, title in found.items()], indent=1))
    else:
        width = max(map(len, found))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in found.items()))
    return 0


def _run(options: argparse.Namespace) -> int:
    from common.records.results import Store

    _check(options)
    distributed.check(options)
    tables, jobs = _wanted(options)
    store = Store()
    if all(subject.standin for subject, _ in jobs):
        os.environ["HF_HUB_OFFLINE"] = "1"  # nothing of the stand-in comes from the hub: ask no network
    work = _work(tables, store, jobs, options.force)
    if options.recipe:
        work = distributed.chosen(work, options.recipe, _work(tables, store, jobs, force=True))
    if options.list_work:
        print(distributed.list_work(options, work), end="")
        return 0
    failed = _measured(options, tables, store, jobs, work) if work else 0
    if not work:
        labels = ", ".join(dict.fromkeys("the paper's models" if one.printed else one.label for one, _ in jobs))
        print(f"every cell on {labels} has a result; nothing to measure", file=sys.stderr)
    if failed:
        cells = "1 cell" if failed == 1 else f"{failed} cells"
        again = "the reasons are recorded and the next run tries again"
        if options.force:
            again = "values of before are kept, and only --force tries those again; the next run tries the others"
        print(f"{cells} failed; {again}", file=sys.stderr)
    shown = 0 if options.no_show or options.slurm else _show(options)
    return 1 if failed else shown


def _wanted(options: argparse.Namespace) -> tuple[list, list]:
    """The tables that a command names, and whom it asks them of: (subject, options of `runner.missing`) each."""
    from reproductions.spec import registry
    from reproductions.spec import subjects as settings

    tables = [registry.get(target) for target in options.targets]
    columns = tuple(filter(None, map(str.strip, options.columns.split(","))))
    narrowed = {"pattern": options.row, "limit": options.limit, "columns": columns}
    subjects = _subjects(options, tables) or [(settings.STANDIN, ())]
    return tables, [(subject, {"models": models, **narrowed}) for subject, models in subjects]


def _work(tables: list, store, jobs: list, force: bool) -> list:
    """What is missing of what a command names (see `_wanted`); force: all of it."""
    from reproductions.engine import runner

    return [
        entry for subject, chosen in jobs for entry in runner.missing(tables, store, subject, force=force, **chosen)
    ]


def _status(options: argparse.Namespace) -> int:
    from common.records.results import Store
    from reproductions.engine import status

    _check(options)
    tables, jobs = _wanted(options)
    store = Store()
    work = _work(tables, store, jobs, force=True)
    print(status.render(*status.count(work, store)), end="")
    return 0


def _measured(options: argparse.Namespace, tables: list, store, jobs: list, work: list) -> int:
    """Measure what is missing; the number of cells that failed.

    Raises:
        UserError: a device that cannot be used, or no data for anything that was asked for.
    """
    with startup.nothing_begun():  # torch and transformers: only when there is something to measure
        from reproductions.engine import execute, expected_time, fetch, runner

    # a batch job's node has its own devices
    device = options.device if options.slurm else execute.device_for(options.device, options.dtype, work)
    lacking = fetch.lacking(work)
    every = _work(tables, store, jobs, force=True)
    untouched = sum(len(e.benchmarks) for e in work) == sum(len(e.benchmarks) for e in every)
    if lacking.everything and untouched:  # where there are records, the rest is as good as it gets
        why = fetch.summary(lacking, tables).replace("fetch TARGET", f"fetch {tables[0].target}")
        mirror = "" if "LAYERLAB_HUB" in why else "; a mirror of the hub can be named in LAYERLAB_HUB"
        raise UserError(f"nothing can be measured: {why}{mirror}")
    if lacking.benchmarks or lacking.recipes:
        why = fetch.summary(lacking, tables).replace("fetch TARGET", f"fetch {tables[0].target}")
        print(one_line(f"warning: {why}"), file=sys.stderr)
    at_hand = [
        part for entry in work for part in entry.of(lambda name, recipe=entry.recipe: lacking.why(recipe, name) is None)
    ]
    print(expected_time.said(at_hand, store), file=sys.stderr)
    if options.workers or options.slurm is not None:
        return distributed.measured(options, store, work, lacking.why)
    store.check_writable()
    return runner.measured(work, store, execute, device=device, force=options.force, lacking=lacking.why)


def _show(options: argparse.Namespace) -> int:
    from common.records.results import Store
    from common.utils import text_tables
    from reproductions.engine import runner
    from reproductions.render import show, tables
    from reproductions.spec import registry
    from reproductions.spec import subjects as settings

    _check(options)
    wanted = [registry.get(target, options.also.split()) for target in options.targets]
    store = Store()
    named = _subjects(options, wanted)
    models = [model for _, of_paper in named for model in of_paper]
    chosen = {"pattern": options.row, "limit": options.limit}
    first = named[0] if named else (settings.STANDIN, ())
    shown = runner.fitting(wanted, first[0], first[1], *chosen.values())
    if first[0].changes:
        found = [show.changed(table, store, *one, **chosen) for table, _ in shown for one in named]
        print(tables.render_changes(found, options.format, text_tables.terminal_width()), end="")
        return 0
    built, pictures = [], []
    for table, _ in shown:
        subjects = [subject for subject, _ in named] or show.published(table, store, options.limit)
        built.append(show.build(table, store, subjects, models=models, **chosen))
        pictures += [(table, subject) for subject in subjects if table.draw]
    width = text_tables.terminal_width() if options.format == "terminal" else None
    found = built if len(wanted) > 1 else built[0]
    named_models = bool(options.model)  # who names a model asks for its numbers alone
    print(tables.render(found, options.format, width, every_row=options.every_row, reported=not named_models), end="")
    if options.format == "terminal":  # another form is asked for by a program
        _draw(options, store, pictures, models)
    return 0


def _draw(options: argparse.Namespace, store, pictures: list, models: list[str]) -> None:
    """Draw each (table, subject); where pictures cannot be written that is said once, and the tables are there anyway."""
    from reproductions.render import show

    for table, subject in pictures:
        narrowed = {"models": models if subject.printed else (), "pattern": options.row, "limit": options.limit}
        try:
            paths = show.drawn(table, store, subject, forms=options.pictures.split(","), **narrowed)
        except show.NotWritten as error:
            print(one_line(f"no pictures: {error}"), file=sys.stderr)
            return
        print("\n".join(map(str, paths)) or "nothing measured yet: no picture", file=sys.stderr)


def _fetch(options: argparse.Namespace) -> int:
    from reproductions.engine import fetch
    from reproductions.spec import registry
    from reproductions.spec import subjects as settings

    _check(options)
    table = registry.get(options.target)
    for subject, models in _subjects(options, [table]) or [(settings.PAPER, ())]:
        for what in fetch.fetch(
            table, subject, models=models, pattern=options.row, convert_weights=options.convert_weights
        ):
            print(what)
    return 0


def _audit(options: argparse.Namespace) -> int:
    from reproductions import audit
    from reproductions.audit import report

    print((report.as_json if options.json else report.as_text)(audit.findings()), end="")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = parser().parse_args(arguments)
    quiet_logging(options.verbose)
    commands = {"list": _list, "run": _run, "status": _status, "show": _show, "fetch": _fetch, "audit": _audit}
    try:
        return commands[options.command](options)
    except UserError as error:
        if options.verbose:
            logging.exception("refused")
        print(one_line(f"error: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished measurements are kept, run the same command to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
