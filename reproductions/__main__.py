"""Command line: ``python -m reproductions {list,run,show,fetch,audit}``.

Results go to standard output and files, progress and messages to standard error. Exit status: 0 all well, 1 a cell
failed (the others are measured and kept), 2 a request that cannot be met, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys

from common.errors import UserError, quiet_logging


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    top = argparse.ArgumentParser(prog="python -m reproductions", description="Run and show the papers' tables.")
    top.add_argument("--verbose", action="store_true", help="log details and tracebacks to standard error")
    commands = top.add_subparsers(dest="command", required=True, metavar="{list,run,show,fetch,audit}")

    listing = commands.add_parser("list", help="every target with its title")
    listing.add_argument("--json", action="store_true", help="as JSON")

    run = commands.add_parser("run", help="measure what a target still lacks, one record per cell")
    run.add_argument("targets", nargs="+", metavar="TARGET", help="as `list` prints them, e.g. table1-linearpatch")
    _narrowing(run)
    run.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, or auto to spread a model (default: cpu)")
    run.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU, else as saved)")
    run.add_argument(
        "--force",
        action="store_true",
        help="measure again what has a record, with its searches and trainings; the record is replaced",
    )

    show = commands.add_parser("show", help="print tables, or draw figures, from records; measures nothing")
    show.add_argument("targets", nargs="+", metavar="TARGET", help="several are shown one after another")
    _narrowing(show)
    show.add_argument("--format", default="terminal", help="terminal, md, csv, latex or json (default: terminal)")

    fetch = commands.add_parser("fetch", help="download every model and dataset a target needs, then run offline")
    fetch.add_argument("target", metavar="TARGET")
    _narrowing(fetch, profile="paper")

    audit = commands.add_parser("audit", help="check the papers' own arithmetic")
    audit.add_argument("--json", action="store_true", help="as JSON")
    return top


def _narrowing(command: argparse.ArgumentParser, profile: str = "standin") -> None:
    command.add_argument("--profile", default=profile, help=f"standin or paper (default: {profile})")
    command.add_argument("--model", action="append", default=[], metavar="NAME", help="only this model; repeatable")
    command.add_argument("--row", metavar="PATTERN", help="only rows whose method fits, e.g. 'LinearPatch*'")
    command.add_argument("--limit", type=int, metavar="N", help="a quick look: only N items of each task")


def _check(options: argparse.Namespace) -> None:
    from common.errors import unknown
    from reproductions.registry import PROFILES

    if options.profile not in PROFILES:
        raise unknown("profile", options.profile, PROFILES)
    if options.limit is not None and options.limit < 2:
        raise UserError(f"--limit {options.limit} leaves no standard error; use at least 2")


def _list(options: argparse.Namespace) -> int:
    from reproductions.registry import targets

    found = {name: table.title for name, table in targets().items()}
    if options.json:
        print(json.dumps([{"target": name, "title": title} for name, title in found.items()], indent=1))
    else:
        width = max(map(len, found))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in found.items()))
    return 0


def _run(options: argparse.Namespace) -> int:
    from common.results import Store
    from reproductions import registry, runner

    _check(options)
    tables = [registry.get(target) for target in options.targets]
    if options.profile == "standin":
        os.environ["HF_HUB_OFFLINE"] = "1"  # nothing of the stand-in comes from the hub: ask no network
    store = Store()
    chosen = {"models": options.model, "pattern": options.row, "limit": options.limit}
    if not runner.missing(tables, store, options.profile, force=options.force, **chosen):
        print("every cell has a record; nothing to measure", file=sys.stderr)
        return 0
    from reproductions import measure  # loads torch and transformers: only when there is something to measure

    measure.check(options.device, options.dtype)
    options_of_run = {"device": options.device, "dtype": options.dtype, "force": options.force}
    failed = runner.run(tables, store, options.profile, measure, **chosen, **options_of_run)
    if failed:
        cells = "1 cell" if failed == 1 else f"{failed} cells"
        print(f"{cells} failed; the reasons are recorded and the next run tries again", file=sys.stderr)
    return 1 if failed else 0


def _show(options: argparse.Namespace) -> int:
    from common import tables
    from common.results import Store
    from reproductions import registry, runner, show

    _check(options)
    if options.format not in tables.FORMATS:
        tables.render({}, options.format)  # raises, naming the formats
    wanted = [registry.get(target) for target in options.targets]
    chosen = {"models": options.model, "pattern": options.row, "limit": options.limit}
    shown = runner.fitting(wanted, options.profile, *chosen.values())
    for number, (table, _) in enumerate(shown):
        text = tables.render(show.build(table, Store(), options.profile, **chosen), options.format)
        print("\n" * (number > 0) + text, end="")
        if table.draw:
            paths = show.drawn(table, Store(), options.profile, **chosen)
            print("\n".join(map(str, paths)) or "nothing measured yet: no picture", file=sys.stderr)
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from reproductions import fetch, registry

    _check(options)
    table = registry.get(options.target)
    for what in fetch.fetch(table, options.profile, models=options.model, pattern=options.row):
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
    commands = {"list": _list, "run": _run, "show": _show, "fetch": _fetch, "audit": _audit}
    try:
        return commands[options.command](options)
    except UserError as error:
        if options.verbose:
            logging.exception("refused")
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished measurements are kept, run the same command to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
