"""The options that all tools share, and the checks within a second, before torch is loaded.

A tool adds the fields of a subclass in `papers.<paper>.options`.
"""

import importlib
import inspect
import json
import os
import pkgutil
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from common.cli import printable
from common.cli.texts import read
from common.console.command_line import HIDDEN, Parser, option, parser, share
from common.models import registry
from common.models.removal import check_count, check_layers
from common.pruning.recipe import FIDELITIES, MIXED
from common.utils import atomic_files
from common.utils.errors import UserError, with_sentence

O = TypeVar("O", bound="ToolOptions")  # noqa: E741 - a type
INPUT, REMOVE, REPAIR, CALIBRATION, EVALUATION, OUTPUT = GROUPS = (
    "input",
    "what to remove (give one)",
    "repair",
    "calibration",
    "evaluation",
    "output",
)
EPILOG = """\
A text is a UTF-8 file, the name of a corpus (wikitext2-train, c4-train, ...), or several joined by +, read in equal
parts. The last tenth of a file is kept for evaluation. Layers count from 0.

Exit status: 0 done, 1 saved but not pushed to the hub, 2 the request cannot be met, 3 done but the model is broken,
130 interrupted."""
SWEEP = "sweep.json"
QUICK = {"samples": 16, "length": 256, "test_samples": 8}
MOST = 100_000  # sequences; more than any paper draws, and a typing error's worth of memory
PACKAGES = ("papers", "extensions")


def _model_name(name: str) -> str:
    """Return a model as people call it: the toy model has another name in results."""
    return registry.TOY if name == registry.TOY_ID else _expand_home(name)


def _expand_home(name: str) -> str:
    """Return the name with the home directory for its ``~``, which a shell leaves alone after ``=``; so in each text."""
    return MIXED.join(os.path.expanduser(part) for part in name.split(MIXED))


@dataclass(kw_only=True)
class ToolOptions:
    """The options of every tool; a tool adds the fields of a subclass, whose docstring describes it.

    Attributes:
        TOOL: The module that `python -m` runs.
        TITLE: The method's name.
        INSTEAD: Options of the tool that give the number of layers to remove, instead of --remove.
        CHOOSES: Options of the tool that only select layers.
        OWN_QUICK: Values of the tool's options under --quick.
        STREAMS: Whether the tool works with two layers in memory.
    """

    GROUPS: ClassVar[tuple[str, ...]] = GROUPS
    TOOL: ClassVar[str] = ""
    TITLE: ClassVar[str] = ""
    INSTEAD: ClassVar[tuple[str, ...]] = ()
    CHOOSES: ClassVar[tuple[str, ...]] = ()
    OWN_QUICK: ClassVar[dict[str, Any]] = {}
    STREAMS: ClassVar[bool] = True

    model: str = option(
        help="a directory, a registered name, or a hub id", group=INPUT, metavar="MODEL", read=_model_name
    )
    device: str = option("cpu", "cpu, cuda, cuda:1, or auto to spread the model", group=INPUT, metavar="NAME")
    dtype: str | None = option(
        None,
        "compute in float32, bfloat16 or float16",
        group=INPUT,
        metavar="NAME",
        usual="float32 on a CPU, else as saved",
    )
    stream: float | None = option(
        None,
        "hold two layers at a time, for models larger than memory, and GB of hidden states; computes as saved without "
        "--dtype",
        group=INPUT,
        metavar="GB",
        bare=1.0,
        least=0,
        most=100_000,
    )
    remove: int | None = option(None, "remove N layers, which the method chooses", group=REMOVE, least=1)
    layers: str | None = option(None, "remove these layers: 21-28,30", group=REMOVE, metavar="LIST")
    sweep: str | None = option(
        None, "measure perplexity for each number of layers: 1-8 or 2,4,6", group=REMOVE, metavar="LIST"
    )
    target_ratio: float | None = option(
        None,
        "remove the fewest layers that hold this share of the parameters: 25%",
        group=REMOVE,
        metavar="SHARE",
        read=share,
        least=0.001,
        most=0.99,
        why="a share is written 25% or 0.25",
    )
    max_perplexity_increase: float | None = option(
        None,
        "remove the most layers that keep perplexity on held-out calibration text within this: 10%",
        group=REMOVE,
        metavar="SHARE",
        read=share,
        least=0,
        most=10,
        why="a share is written 10% or 0.1",
    )
    text: str | None = option(
        None, "calibrate on a file, a corpus, or A+B", group=CALIBRATION, metavar="TEXT", read=_expand_home
    )
    samples: int = option(128, "calibration sequences", group=CALIBRATION, least=1, most=MOST)
    length: int | None = option(
        None,
        "tokens in a sequence",
        group=CALIBRATION,
        usual="2048, or the model's context",
        least=2,
        why="a sequence needs at least 2 tokens",
    )
    seed: int = option(2, "seed of all random choices", group=CALIBRATION, least=0, most=2**32 - 1)
    test: str | None = option(
        None, "measure perplexity on a file or a corpus", group=EVALUATION, metavar="TEXT", read=_expand_home
    )
    test_samples: int = option(64, "test sequences", group=EVALUATION, least=1, most=MOST, old=("windows",))
    tasks: str = option("", "also score these lm-eval tasks, zero-shot", group=EVALUATION, metavar="A,B")
    limit: int | None = option(
        None, "score only N items of each task", group=EVALUATION, least=2, why="1 item leaves no standard error"
    )
    no_evaluation: bool = option(False, "measure nothing", group=EVALUATION)
    out: Path | None = option(None, "save the new checkpoint to DIR", group=OUTPUT, metavar="DIR")
    force: bool = option(False, "replace an earlier result of these tools at --out", group=OUTPUT)
    push_to_hub: str | None = option(
        None, "upload the result to a hub repository; a new one is private", group=OUTPUT, metavar="REPO"
    )
    json: bool = option(False, "print the result as JSON on standard output", group=OUTPUT)
    plan: bool = option(False, "forecast time, memory and disk, and write nothing", group=OUTPUT)
    measure: bool = option(False, "with --plan: also name the layers and measure the effect", group=OUTPUT)
    quick: bool = option(
        False,
        f"give a rough answer soon: {QUICK['samples']} calibration and {QUICK['test_samples']} test sequences of "
        f"{QUICK['length']} tokens",
        group=OUTPUT,
    )

    @property
    def instead(self) -> list[str]:
        """The names of the options that say which layers to remove, or how many."""
        return ["remove", "layers", "sweep", "target_ratio", "max_perplexity_increase", *self.INSTEAD]


@dataclass(kw_only=True)
class PaperOptions(ToolOptions):
    """The options of a paper's tool."""

    fidelity: str = option("paper", "follow the paper's text or its official code", group=REPAIR, choices=FIDELITIES)


def needs_whole_model() -> Any:
    """Return the declaration of --stream for a tool that refuses it (STREAMS is False)."""
    return option(None, HIDDEN, group=INPUT, metavar="GB", bare=1.0)


def tool_parser(kind: type[ToolOptions]) -> Parser:
    """Return the parser of a tool."""
    description = f"{kind.TITLE}: {inspect.getdoc(kind)}"
    return parser(kind, prog=f"python -m {kind.TOOL}", description=description, epilog=EPILOG, owners=_owners)


def parsed(kind: type[O], arguments: Sequence[str] | None = None) -> O:
    """Return a tool's options from its command line, after all checks that need no torch.

    Raises:
        UserError: a request that cannot be met.
        SystemExit: a command line that cannot be parsed; a message is printed.
    """
    own_parser = tool_parser(kind)
    options = kind(**vars(own_parser.parse_args(arguments)))
    if options.quick:  # parsed again, because a typed value may equal a default
        for name, value in (QUICK | kind.OWN_QUICK).items():
            default = getattr(kind, name)
            own_parser.set_defaults(**{name: value if default is None else min(value, default)})
        options = kind(**vars(own_parser.parse_args(arguments)))
    check(options)
    return options


def check(options: ToolOptions) -> None:
    """Refuse requests that fail by the options, the texts and the model's config alone.

    Raises:
        UserError: options that contradict one another, malformed lists, texts that cannot be read, an output that would
            overwrite something, a model that does not exist or has too few layers.
    """
    _check_which(options)
    if wrong := [task for task in tasks(options) if not re.fullmatch(r"[\w.:+-]+", task)]:
        raise UserError(f"--tasks {wrong[0]!r} is no task's name; separate names by commas: piqa,arc_easy")
    _check_stream(options)
    if (tasks(options) or options.limit is not None) and (options.no_evaluation or options.sweep):
        without = "--no-evaluation leaves" if options.no_evaluation else "--sweep, which measures perplexity, leaves"
        raise UserError(f"{without} --tasks and --limit out; give one of the two")
    if options.limit is not None and not tasks(options):
        raise UserError("--limit has no effect without --tasks. Name tasks, or remove --limit")
    idle = [f"--{name}" for name in options.CHOOSES if getattr(options, name) != getattr(type(options), name)]
    if options.layers is not None and idle:
        raise UserError(f"{' and '.join(idle)} would choose layers, which --layers names; give one of the two")
    if options.sweep and options.no_evaluation:
        raise UserError("--sweep measures perplexity, which --no-evaluation leaves out; give one of the two")
    _check_out(options)
    for name in (options.text or "", options.test or ""):
        if ("/" in name or "." in name) and MIXED not in name:  # a file: no corpus is called so
            read(name)
    _check_model(options)


def tools(packages: Sequence[str] = PACKAGES) -> list[type[ToolOptions]]:
    """Return the options of every tool in these packages."""
    kinds = []
    for package in map(importlib.import_module, packages):
        names = (
            f"{package.__name__}.{module.name}.options"
            for module in pkgutil.iter_modules(package.__path__)
            if module.ispkg
        )
        kinds += [importlib.import_module(name).OPTIONS for name in names if find_spec(name)]
    return kinds


def _owners() -> dict[str, str]:
    """Return the tools that have an option, by the option's name."""
    tools_by_option: dict[str, list[str]] = {}
    for kind in tools():
        for field in fields(kind):
            tools_by_option.setdefault(f"--{field.name.replace('_', '-')}", []).append(kind.TOOL)
    return {name: ", ".join(sorted(owners)) for name, owners in tools_by_option.items()}


def _check_which(options: ToolOptions) -> None:
    given = [f"--{name.replace('_', '-')}" for name in options.instead if getattr(options, name) is not None]
    if len(given) != 1:
        choices = ", ".join(f"--{name.replace('_', '-')}" for name in options.instead)
        what = f"{' and '.join(given)} contradict each other" if given else "nothing says which layers to remove"
        raise UserError(f"{what}; give one of {choices}")
    if options.measure and not options.plan:
        raise UserError("--measure adds to --plan what a run would do. Add --plan, or leave --measure out")
    for name in ("layers", "sweep"):
        numbers(getattr(options, name), name)
    if options.sweep and options.plan:
        raise UserError("--sweep and --plan contradict each other; a sweep writes no weights either")
    if options.push_to_hub is not None:
        if options.sweep:
            raise UserError("--push-to-hub uploads a checkpoint, and --sweep writes none. Leave one of the two out")
        if not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", options.push_to_hub, re.ASCII):
            raise UserError(
                f"--push-to-hub {options.push_to_hub!r} is no repository's name. Write USER/NAME, in letters, digits, dots, "
                "dashes and underscores"
            )


def _check_stream(options: ToolOptions) -> None:
    if options.stream is None:
        return
    if not options.STREAMS:
        raise UserError(f"{options.TITLE} needs the whole model in memory; leave --stream out")
    if options.sweep or options.max_perplexity_increase is not None:
        name = "--sweep" if options.sweep else "--max-perplexity-increase"
        raise UserError(f"{name} reads the model again for every number of layers; with --stream ask for one")
    if options.device == "auto":
        raise UserError("--device auto spreads a model that is held whole; with --stream name one device")


def _check_out(options: ToolOptions) -> None:
    out = options.out
    if options.plan:
        return
    if out is None:
        hint = "" if options.sweep else ", or look first with --plan"
        raise UserError(f"--out is missing: name the directory for the result{hint}")
    try:
        out.resolve()
    except (OSError, RuntimeError) as error:  # the latter is what Python 3.11 says of a loop
        raise UserError(
            f"--out {out} cannot be followed: it is a link that leads back to itself. Remove the link, or choose another "
            "directory"
        ) from error
    if out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise UserError(f"--out {out} is where this runs, and a new directory takes its place; name one in it")
    if Path(options.model).is_dir():
        if out.exists() and out.samefile(options.model):
            raise UserError(f"--out {out} is the model itself; choose another directory")
        if Path(options.model).resolve() in out.resolve().parents:
            raise UserError(f"--out {out} lies in the model's own directory; choose another directory")
    atomic_files.recover(out.resolve())
    if not out.exists() and not out.is_symlink():
        return
    from common.models import checkpoint  # loads torch

    if reason := checkpoint.not_replaceable(out):
        raise UserError(f"--out {out} cannot be used: {reason}, or choose another directory")
    if out.is_dir() and any(out.iterdir()):
        sweeps = ((out / SWEEP).exists(), options.sweep is not None)
        present, requested = ("a sweep" if is_sweep else "a checkpoint" for is_sweep in sweeps)
        if not options.force:
            if all(sweeps) and stopped_sweep(out, sweep_options(options)):
                return
            raise UserError(f"--out {out} holds {present}; choose another directory, or replace it with --force")
        if present != requested:
            raise UserError(
                f"--out {out} holds {present}, which --force does not replace by {requested}; choose another directory"
            )


def numbers(text: str | None, name: str) -> list[int] | None:
    """Return the integers of a list like ``21-28,30``, in the given order; None for None.

    Raises:
        UserError: a malformed list, a range from high to low, or a repeated number.
    """
    if text is None:
        return None
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
        if match is None:
            raise UserError(f"--{name} {text!r}: {part!r} is neither a number nor a range; write 21-28,30")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"--{name} {text!r}: the range {part.strip()} runs backwards; write {last}-{first}")
        values += range(first, last + 1)
    if repeated := sorted(number for number, times in Counter(values).items() if times > 1)[:3]:
        raise UserError(f"--{name} {text!r} names {', '.join(map(str, repeated))} more than once; name each once")
    return values


def tasks(options: ToolOptions) -> list[str]:
    """Return the requested lm-eval tasks, without repetition."""
    return list(dict.fromkeys(task.strip() for task in options.tasks.split(",") if task.strip()))


def stopped_sweep(out: Path, requested: dict) -> dict | None:
    """Return the report in a directory of an interrupted sweep with these `sweep_options`; None if there is none."""
    try:
        report = json.loads((out / SWEEP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    requested = json.loads(json.dumps(requested))
    return report if isinstance(report, dict) and report.get("missing") and report.get("options") == requested else None


def sweep_options(options: ToolOptions) -> dict:
    """Return the options of a sweep as its report holds them; what was begun with --force continues without it."""
    return printable.plain(vars(options)) | {"remove": None, "force": False}


def _check_model(options: ToolOptions) -> None:
    """Refuse a name that nothing has, and numbers of layers that the model's config does not allow."""
    name, path = options.model, Path(options.model)
    spec = registry.find(name)
    if spec is not None:
        layers = spec.facts.get("layers") if spec.facts else None
    elif path.is_dir():
        try:
            layers = json.loads((path / "config.json").read_text(encoding="utf-8")).get("num_hidden_layers")
        except (OSError, ValueError, AttributeError):  # said in full later
            layers = None
    elif name.startswith((".", "/", "~")) and not path.exists():
        raise UserError(f"cannot load {name}: no such directory. Check the path")
    else:
        if "/" not in name and not path.exists():
            try:
                registry.get(name)  # raises, naming the nearest
            except UserError as error:
                raise with_sentence(error, f"There is no directory {name} here either") from error
        layers = None
    if not isinstance(layers, int) or layers < 3:
        return
    if options.layers is not None:
        layer_ids = numbers(options.layers, "layers")
        check_layers(layer_ids, layers)
    if options.remove is not None:
        check_count(options.remove, layers)
