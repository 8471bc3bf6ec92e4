"""The command line: ``python -m reproductions {list,run,show,fetch,audit}``.

Results go to standard output and files, progress and messages to standard error. Exit status: 0 all well, 1 a cell
failed (the others are measured and kept), 2 a request that cannot be met, 130 interrupted.
"""

import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from common.console import command_line, startup
from common.console.command_line import HIDDEN, Parser, option
from common.pruning.recipe import MIXED
from common.utils.errors import UserError, one_line, quiet_logging, unknown
from reproductions.engine import workers
from reproductions.engine.work import count_cells
from reproductions.spec.changes import Changes

DTYPES = ("float32", "bfloat16", "float16")
PICTURES = ("svg", "png", "pdf")
SHOWN, MEASURED, CHANGED, WHERE, OUTPUT = GROUPS = (
    "what to show",
    "how to measure",
    "changed rows, with results of their own; shown beside the unchanged ones",
    workers.WHERE,
    "output",
)
TARGETS = "as `list` prints them, for instance table1-linearpatch"


@dataclass(kw_only=True)
class ListCommand:
    """Name every target with its title."""

    json: bool = option(False, "print JSON")


@dataclass(kw_only=True)
class NarrowingOptions:
    """The options that narrow a target to a model, to rows, or to a part of the data."""

    GROUPS: ClassVar[tuple[str, ...]] = GROUPS
    profile: str | None = option(
        None, "toy or paper", group=SHOWN, metavar="NAME", usual="as the model has it; the toy model's without one"
    )
    model: list[str] = option(
        [],
        "measure a registered model, a hub id or a directory; the paper's own models as printed; repeatable",
        group=SHOWN,
        metavar="NAME",
    )
    remove: str | None = option(None, "remove so many layers", group=SHOWN, metavar="N,N", usual="the paper's shares")
    row: str | None = option(None, "only rows whose method fits, as 'LinearPatch*'", group=SHOWN, metavar="PATTERN")
    full_test_sets: bool = option(
        False,
        "read whole test sets for a model that is not the paper's, not parts of them",
        group=MEASURED,
        old=("whole",),
    )
    paper_budget: bool = option(
        False,
        "the same, and calibrate and train on as much text as the papers: other rows",
        group=MEASURED,
        old=("full",),
    )
    limit: int | None = option(
        None,
        "take a quick look: only N items of each task and sequences of each text",
        group=MEASURED,
        least=2,
        why="1 item leaves no standard error",
    )
    dtype: str | None = option(
        None,
        "use float32, bfloat16 or float16 for weights and computation; each has its own records",
        group=MEASURED,
        metavar="NAME",
        usual="float32 for the toy model, float16 for the papers' models, else bfloat16",
    )
    samples: int | None = option(
        None, "calibrate on N sequences, lines or sentences", group=CHANGED, least=1, why="nothing would calibrate"
    )
    seed: int | None = option(None, "draw calibration samples with this seed", group=CHANGED, least=0)
    text: str | None = option(None, "calibrate on this corpus, not on a file", group=CHANGED, metavar="CORPUS")
    alpha: float | None = option(None, "multiply LinearPatch's patch by X (its section 3.2)", group=CHANGED)


@dataclass(kw_only=True)
class ShowingOptions(NarrowingOptions):
    """The options of what is printed."""

    columns: str = option(
        "", "only columns whose labels fit, as 'WIKI-2,PTB'", group=SHOWN, metavar="PATTERN,...", usual="all"
    )
    format: str = option("terminal", "print terminal, md, csv, latex, html or json", group=OUTPUT, metavar="FORM")
    pictures: str = option("svg", "draw figures as svg, png, pdf", group=OUTPUT, metavar="FORMS")
    every_row: bool = option(
        False, "print rows, columns and claims without a number, too, not their count", group=OUTPUT
    )
    also: str = option("", HIDDEN)  # the Makefile's own targets, to be suggested too


@dataclass(kw_only=True)
class RunCommand(workers.SpreadingOptions, ShowingOptions):
    """Measure what a target still lacks, one record per cell."""

    targets: list[str] = option(help=TARGETS, positional=True, metavar="TARGET")
    device: str | None = option(
        None,
        "cpu, cuda, cuda:1, or auto to spread a model",
        group=WHERE,
        metavar="NAME",
        usual="cuda where there is a GPU",
    )
    force: bool = option(
        False,
        "re-measure cells that have results, including searches and training; if interrupted, give --force again to start "
        "over",
        group=MEASURED,
    )
    no_show: bool = option(False, "do not print the tables afterwards", group=OUTPUT)


@dataclass(kw_only=True)
class ShowCommand(ShowingOptions):
    """Print tables, or draw figures, from records; measure nothing."""

    targets: list[str] = option(help=TARGETS, positional=True, metavar="TARGET")


@dataclass(kw_only=True)
class FetchCommand(NarrowingOptions):
    """Download every model and dataset that a target needs; afterwards it runs offline."""

    target: str = option(help=TARGETS, positional=True, metavar="TARGET")
    profile: str | None = option(
        None, "toy or paper", group=SHOWN, metavar="NAME", usual="the paper's; the toy model needs nothing"
    )
    convert_weights: bool = option(False, "convert pickled weights to safetensors where a model has no others")


@dataclass(kw_only=True)
class AuditCommand:
    """Check the papers' own arithmetic."""

    json: bool = option(False, "print JSON")


COMMANDS = {"list": ListCommand, "run": RunCommand, "show": ShowCommand, "fetch": FetchCommand, "audit": AuditCommand}


def parser() -> Parser:
    """Return the command line's parser."""
    top = Parser(prog="python -m reproductions", description="Run and show the papers' tables.")
    top.add_argument("--verbose", action="store_true", help="log details and tracebacks to standard error")
    command_line.add_commands(top, COMMANDS)
    return top


def _check(options: NarrowingOptions) -> None:
    if options.dtype is not None and options.dtype not in DTYPES:
        raise unknown("dtype", options.dtype, DTYPES)
    if options.alpha is not None and not (math.isfinite(options.alpha) and options.alpha > 0):
        raise UserError(f"--alpha {options.alpha} scales no patch; use a number above 0, such as 0.9")
    if options.alpha == 1:
        raise UserError("--alpha 1 is the patch as it is; use another number, or leave the option out")
    if options.text is not None:
        from common.calibration import corpora

        for name in options.text.split(MIXED):
            if name not in corpora.CORPORA and os.path.isfile(os.path.expanduser(name)):
                raise UserError(
                    f"--text {name!r} is a file. A table's results are found by the name of a corpus, whose text is always "
                    "the same. Name a corpus, such as wikitext2-train. The tools that prune a model take files: "
                    "`python -m papers.linearpatch`, or make prune"
                )
            corpora.get(name)
    if hasattr(options, "format"):
        from reproductions.render.tables import check_format  # slow to import

        check_format(options.format)
        for form in options.pictures.split(","):
            if form not in PICTURES:
                raise unknown("form of a picture", form, PICTURES)


def _subjects(options: NarrowingOptions, tables: list) -> list[tuple]:
    """Return (subject, models of the paper's own to narrow it to) for each that a command names; [] when it names none."""
    from dataclasses import replace

    from reproductions.spec import subjects as settings

    named_subjects, altered = _named(options, tables), {}
    if options.paper_budget or options.full_test_sets:
        if not any(subject.small for subject, _ in named_subjects):
            flag = "--paper-budget" if options.paper_budget else "--full-test-sets"
            raise UserError(
                f"{flag} needs a model: say which with --model (make: MODEL=). Tables of the toy model "
                "and of the papers' own models have one size"
            )
        altered |= {"paper_budget": options.paper_budget, "full_test_sets": options.full_test_sets}
    if options.dtype:
        altered["dtype"] = options.dtype
    if changes := Changes(options.samples, options.seed, options.text, options.alpha):
        altered["changes"] = changes
    if not altered:
        return named_subjects
    return [(replace(subject, **altered), models) for subject, models in named_subjects or [(settings.TOY, ())]]


def _named(options: NarrowingOptions, tables: list) -> list[tuple]:
    """Return what `_subjects` does, by models and profile alone."""
    from common.models import registry as model_registry
    from reproductions.spec import subjects as settings

    remove = _counts(options.remove)
    profile = "standin" if options.profile == model_registry.TOY else options.profile
    printed = {row.model for table in tables for row in table.rows(settings.PAPER, None)}
    paper_models, subjects = [], []
    for name in options.model:
        name = spec.name if (spec := model_registry.find(name)) else name  # a hub id means the same model
        if profile == "standin" and name != settings.TOY.model:
            raise unknown("model in the toy profile", name, [model_registry.TOY])
        if name in printed and not remove:
            paper_models.append(name)
        else:
            subject = settings.of_model(name, remove, profile)
            if any(other.name == subject.name and other != subject for other, _ in subjects):
                from common.models import loading  # loads torch, as describing these directories has

                loading.resolve(subject.name)  # refuses, naming both
            subjects.append((subject, ()))
    subjects = list(dict.fromkeys(subjects))  # who is named twice is shown once
    if remove and not options.model:
        raise UserError("--remove needs a model: say which with --model (make: MODEL=)")
    if paper_models or (profile and not options.model):
        subjects.insert(0, (settings.of_profile("paper" if paper_models else profile), tuple(paper_models)))
    return subjects


def _counts(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise UserError(
            f"--remove {text!r} is no list of numbers of layers; write for instance --remove 7,9"
        ) from error


def _list(options: ListCommand) -> int:
    from reproductions.spec.registry import targets

    titles = {name: table.title for name, table in targets().items()}
    if options.json:
        print(json.dumps([{"target": name, "title": title} for name, title in titles.items()], indent=1))
    else:
        width = max(map(len, titles))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
    return 0


def _run(options: RunCommand) -> int:
    from common.records.results import Store

    _check(options)
    workers.check(options)
    tables, jobs = _tables_and_jobs(options)
    store = Store()
    if all(subject.toy for subject, _ in jobs):
        os.environ["HF_HUB_OFFLINE"] = "1"  # nothing of the toy model comes from the hub: ask no network
    work = _work(tables, store, jobs, options.force)
    if options.recipe:
        work = workers.named_work(work, options.recipe, _work(tables, store, jobs, force=True))
    if not work:
        labels = ", ".join(dict.fromkeys(subject.phrase for subject, _ in jobs))
        print(f"every cell on {labels} has a result; nothing to measure", file=sys.stderr)
    if options.list_work:
        print(workers.list_work(options, work), end="")
        return 0
    failed = _measure(options, tables, store, jobs, work) if work else 0
    if failed:
        cells = "1 cell" if failed == 1 else f"{failed} cells"
        again = "the reasons are recorded and the next run tries again"
        if options.force:
            again = "values of before are kept, and only --force tries those again; the next run tries the others"
        print(f"{cells} failed; {again}", file=sys.stderr)
    shown = 0 if options.no_show or options.slurm else _show(options)
    return 1 if failed else shown


def _tables_and_jobs(options: RunCommand) -> tuple[list, list]:
    """Return the tables that a command names, and whom it asks them of: (subject, options of `runner.missing`) each."""
    from reproductions.spec import narrowing, registry
    from reproductions.spec import subjects as settings

    tables = [registry.get(target) for target in options.targets]
    subjects = _subjects(options, tables) or [(settings.TOY, ())]
    columns = [column for table in tables for subject, _ in subjects for column in table.columns_for(subject)]
    patterns = _columns(options, {name for column in columns for name in (column.label, column.id)})
    try:
        narrowing.check_columns(tables, [subject for subject, _ in subjects], patterns)
    except UserError as error:
        if options.model or options.profile:
            raise
        why = "no --model (make: MODEL=) is given, so columns are the toy model's"
        raise UserError(f"{why}: {error}") from error
    narrowed = {"pattern": options.row, "limit": options.limit, "columns": patterns}
    return tables, [(subject, {"models": models, **narrowed}) for subject, models in subjects]


def _columns(options: ShowingOptions, names: Collection[str]) -> tuple[str, ...]:
    """Return the patterns of the columns that a command names.

    names: labels and ids. They hold commas, too: the longest text that fits a name is one pattern.
    """
    from reproductions.spec.narrowing import like

    parts, patterns = options.columns.split(","), []
    while parts:
        joined = {count: ",".join(parts[:count]).strip() for count in range(len(parts), 0, -1)}
        count = next((n for n, text in joined.items() if any(like(name, text) for name in names)), 1)
        patterns.append(joined[count])
        del parts[:count]
    patterns = tuple(filter(None, patterns))
    if options.columns and not patterns:
        raise UserError("--columns names no column; leave it out for all")
    return patterns


def _work(tables: list, store, jobs: list, force: bool) -> list:
    """Return what is missing of what a command names (see `_tables_and_jobs`); force: all of it."""
    from reproductions.engine import runner

    return [
        entry for subject, chosen in jobs for entry in runner.missing(tables, store, subject, force=force, **chosen)
    ]


def _measure(options: RunCommand, tables: list, store, jobs: list, work: list) -> int:
    """Measure what is missing; the number of cells that failed.

    Raises:
        UserError: a device that cannot be used, or no data for anything that was asked for.
    """
    with startup.nothing_begun():  # torch and transformers: only when there is something to measure
        from reproductions.engine import execute, expected_time, fetch, runner

    for entry in work:
        execute.check_spelling(entry.recipe)
    # a batch job's node has its own devices
    device = options.device if options.slurm else execute.device_for(options.device, options.dtype, work)
    lacking = fetch.lacking(work)
    every = _work(tables, store, jobs, force=True)
    untouched = count_cells(work) == count_cells(every)
    originals = {} if options.recipe else _originals(options, tables, jobs)
    others, all_others = ([e for e in entries if e.recipe.hash not in originals] for entries in (work, every))
    left_out = []
    if others and lacking.everything(others) and count_cells(others) == count_cells(all_others):
        # no other row has a value, or data to get one: the original model would have nothing to be compared with
        left_out = [e for e in work if e.recipe.hash in originals and not lacking.everything([e])]
        work = others
    # as a pattern LaCo's Dense* is the others' Dense, too
    name = max((originals[entry.recipe.hash] for entry in left_out), key=len, default="")
    if lacking.everything(work) and untouched:  # where there are records, the rest is as good as it gets
        why = fetch.summary(lacking, tables).replace("fetch TARGET", f"fetch {tables[0].target}")
        mirror = (
            ""
            if os.environ.get("LAYERLAB_HUB") or "LAYERLAB_HUB" in why
            else "; a mirror of the hub can be named in LAYERLAB_HUB"
        )
        original = f". --row '{name}' measures the original model alone" if name else ""
        raise UserError(f"nothing can be measured: {why}{mirror}{original}")
    if lacking.benchmarks or lacking.recipes:
        why = fetch.summary(lacking, tables).replace("fetch TARGET", f"fetch {tables[0].target}")
        print(one_line(f"warning: {why}"), file=sys.stderr)
    if name:
        print(f"the original model is left out. --row '{name}' measures it alone", file=sys.stderr)
    at_hand = [part for entry in work for part in entry.where(lambda *cell: lacking.why(*cell) is None)]
    print(expected_time.summary(at_hand, store), file=sys.stderr)
    if options.workers or options.slurm is not None:
        return workers.spread(options, store, work, lacking.why)
    store.check_writable()
    return runner.measured(work, store, execute, device=device, force=options.force, lacking=lacking.why)


def _originals(options: RunCommand, tables: list, jobs: list) -> dict[str, str]:
    """Return the names of the original models' rows, by recipe's hash."""
    from reproductions.spec import narrowing

    asked = [(table, subject, chosen["models"]) for subject, chosen in jobs for table in tables]
    found = narrowing.fitting(asked, options.row, options.limit)
    return {row.recipe.hash: row.name for _, _, rows in found for row in rows if row.dense and row.recipe}


def _show(options: RunCommand | ShowCommand) -> int:
    from common.console import text_tables
    from common.models.registry import alias
    from common.records.results import Store
    from reproductions.render import show, tables
    from reproductions.spec import narrowing, registry

    _check(options)
    tables_named = [registry.get(target, options.also.split()) for target in dict.fromkeys(options.targets)]
    store = Store()
    named = _subjects(options, tables_named)
    models = [model for _, of_paper in named for model in of_paper]
    chosen = {"pattern": options.row, "limit": options.limit}
    asked = [
        (table, subject, of_paper)
        for table in tables_named
        for subject, of_paper in named or [(subject, ()) for subject in show.published(table, store, options.limit)]
    ]
    subjects_of: dict[str, list] = {table.target: [] for table in tables_named}
    for table, subject, _ in narrowing.fitting(asked, **chosen):
        subjects_of[table.target].append(subject)
    tables_shown = [table for table in tables_named if subjects_of[table.target]]
    terminal = {}
    if options.format == "terminal":
        terminal = {"width": text_tables.terminal_width(), "colours": text_tables.coloured()}
    if named and named[0][0].changes:
        pairs = [(table, c) for table in tables_shown for s in subjects_of[table.target] for c in table.columns_for(s)]
        columns, without = _columns_of(options, [(table.target, c.label, c.id) for table, c in pairs if not c.hidden])
        tables_shown = [table for table in tables_shown if table.target not in without]
        contents = [
            show.changed(table, store, subject, models if subject.printed else (), **chosen)
            for table in tables_shown
            for subject in subjects_of[table.target]
        ]
        for content in contents if columns else ():
            content["rows"] = [row for row in content["rows"] if row["column"] in columns]
        for table, content in zip(tables_shown, contents) if not options.model else ():
            content["published_for"] = [subject.phrase for subject in show.published(table, store, options.limit)]
        print(tables.render_changes(contents, options.format, **terminal), end="")
        return 0
    built, pictures = [], []
    for table in tables_shown:
        subjects = subjects_of[table.target]
        built.append(show.build(table, store, subjects, models=models, **chosen))
        pictures += [(table, subject) for subject in subjects if table.draw]
    ids = [(content["target"], *label_and_id) for content in built for label_and_id in content["column_ids"].items()]
    columns, without = _columns_of(options, ids)
    if columns:
        built = [show.of_columns(content, columns) for content in built if content["target"] not in without]
        pictures = [(table, subject) for table, subject in pictures if table.target not in without]
    content = built if len(tables_named) > 1 else built[0]
    named_models = bool(options.model)  # who names a model asks for its numbers alone
    how = {"every_row": options.every_row, "reported": not named_models, "given": _given(options)}
    how["typed"] = {alias(Path(name)): name for name in options.model}
    rendered = tables.render(content, options.format, **how, **terminal)
    print(rendered, end="")
    if options.format == "terminal":  # another form is asked for by a program
        _draw(options, store, pictures, models)
    return 0


def _given(options: RunCommand | ShowCommand) -> str:
    """Return the options that narrow a command, but for its models, as typed."""
    narrowing = {field.name for field in fields(NarrowingOptions)} - {"model"} | {"columns"}
    names = [field.name for field in fields(ShowingOptions) if field.name in narrowing]
    return shlex.join(command_line.typed({name: getattr(options, name) for name in names}))


def _columns_of(options: RunCommand | ShowCommand, shown: Sequence[tuple[str, str, str]]) -> tuple[set[str], set[str]]:
    """Return the labels of the columns that a command names, and the targets without one, which are said.

    Both are empty if it names no column that is shown. shown: target, label and id of each column.

    Raises:
        UserError: a pattern that fits none. What a run has measured may be hidden.
    """
    from reproductions.spec.narrowing import like

    patterns, labels = _columns(options, {name for _, *names in shown for name in names}), set()
    for pattern in patterns:
        fitting = {label for _, label, id_ in shown if like(label, pattern) or like(id_, pattern)}
        if not fitting and options.command == "show":
            raise unknown("column", pattern, {label for _, label, _ in shown})
        labels |= fitting
    if not labels:
        return set(), set()
    without = {target for target, *_ in shown} - {target for target, label, _ in shown if label in labels}
    for target in sorted(without):
        print(one_line(f"{target} is left out: it has no column {' or '.join(patterns)}"), file=sys.stderr)
    return labels, without


def _draw(options: RunCommand | ShowCommand, store, pictures: list, models: list[str]) -> None:
    """Draw each (table, subject); where pictures cannot be written that is said once, and the tables are there anyway."""
    from reproductions.render import show

    for table, subject in pictures:
        narrowed = {"models": models if subject.printed else (), "pattern": options.row, "limit": options.limit}
        try:
            paths = show.drawn(table, store, subject, forms=options.pictures.split(","), **narrowed)
        except show.NotWritten as error:
            print(one_line(f"no pictures: {error}"), file=sys.stderr)
            return
        print("\n".join(map(str, paths)) or "no picture: it needs results of more rows or columns", file=sys.stderr)


def _fetch(options: FetchCommand) -> int:
    from reproductions.spec import registry
    from reproductions.spec import subjects as settings

    _check(options)
    table = registry.get(options.target)
    from reproductions.engine import fetch  # imports torch: a wrong name is refused before

    for subject, models in _subjects(options, [table]) or [(settings.PAPER, ())]:
        for line in fetch.fetch(
            table, subject, models=models, pattern=options.row, convert_weights=options.convert_weights
        ):
            print(line)
    return 0


def _audit(options: AuditCommand) -> int:
    from reproductions import audit
    from reproductions.audit import report

    print((report.as_json if options.json else report.as_text)(audit.findings()), end="")
    return 0


@command_line.answering
def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = parser().parse_args(arguments)
    quiet_logging(options.verbose)
    commands = {"list": _list, "run": _run, "show": _show, "fetch": _fetch, "audit": _audit}
    try:
        return commands[options.command](options)
    except UserError:
        if options.verbose:
            logging.exception("refused")
        raise
    except KeyboardInterrupt:
        print("interrupted; finished measurements are kept, run the same command to continue", file=sys.stderr)
        return 130
