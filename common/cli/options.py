"""What can be asked of every paper's tool, and what is refused at a look at the options alone."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.cli import printable
from common.pruning.recipe import MIXED
from common.utils import atomic_files
from common.utils.errors import Parser, UserError
from common.utils.option_fields import Flag

EPILOG = """\
Text is a UTF-8 file or the name of a corpus (standin-calibration, wikitext2-train, c4-train, ...), or several with + between
them, read in equal parts (questions.txt+wikitext2-train). Of a file, calibration uses the first nine tenths and evaluation
the last tenth. Without --text the stand-in reads its own text.
Layers count from 0. A checkpoint is saved in the dtype the model came in.
Exit status: 0 done, 2 a request that cannot be met, 3 done, but the model is broken (its perplexity is over ten times the
dense model's, or no number), 130 interrupted."""
OWN_TEXT = "--text FILE (of which the last tenth is measured on, or --test FILE)"
SWEEP = "sweep.json"
QUICK = {"samples": 16, "length": 256, "windows": 8}
MOST = 100_000  # windows; more than any paper draws, and a typing error's worth of memory


@dataclass(frozen=True)
class Method:
    """One paper's method as a tool.

    package, paper: where it is, `python -m package.paper`. title, description: for help and card. apply: changes
    `job.model` in place and returns JSON-able facts, among them `removed` (original indices); it calls
    `job.chosen(removed)` while the model is still whole. flags: its own options. check: refuses, before the weights are
    read, what does not fit the job, and reads what the method needs. samples, seed: defaults; text: of every model but
    the stand-in. loader: the import without which a saved model is not whole (patches), else ''. alternatives: its own
    options that say how many layers go, in place of --remove. fidelity: the default. passes: how often the calibration
    tokens run through the model, of a method that can do with two layers in memory (its check refuses what cannot);
    None: it cannot. beside: of such a method, the float64 operations and the bytes of memory that it takes beside those
    passes. own_text: how text of one's own is given, said where a corpus cannot be had. chooses: its own options that
    do no more than choose layers.
    fidelities: the values of --fidelity; no option where there is one alone. architectures: those it can prune, by the
    config's model_type; (): all that are supported. quick: what --quick sets of its own options. work:
    what `tokens` returns, where that is not the passes over the calibration windows and a training.
    """

    paper: str
    title: str
    description: str
    apply: Callable[..., dict]
    flags: tuple[Flag, ...]
    check: Callable[..., None] = lambda job: None
    samples: int = 128
    seed: int = 2
    text: str = "wikitext2-train"
    loader: str = ""
    alternatives: tuple[str, ...] = ()
    fidelity: str = "paper"
    passes: Callable[..., float] | None = None
    beside: Callable[..., tuple[float, int]] = lambda job: (0.0, 0)
    own_text: str = OWN_TEXT
    chooses: tuple[str, ...] = ()
    package: str = "papers"
    fidelities: tuple[str, ...] = ("paper", "code")
    architectures: tuple[str, ...] = ()
    quick: tuple[tuple[str, Any], ...] = ()
    work: Callable[..., float] | None = None

    def tokens(self, job) -> float:
        """Tokens that a run calibrates and trains on, each once through the whole model forward."""
        if self.work is not None:
            return self.work(job)
        once = job.options.samples * job.length
        return (self.passes(job) if self.passes else 1) * once + job.kept.get("training_passes", 0)


def parser(method: Method) -> argparse.ArgumentParser:
    """The command line of a method: what all share, and its own options."""
    top = Parser(
        prog=f"python -m {method.package}.{method.paper}",
        description=textwrap.fill(f"{method.title}: {method.description}", 100),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = "a directory, a short name, or a hub id"
    top.add_argument("--model", required=True, type=_home, metavar="NAME_OR_PATH", help=what)
    top.add_argument("--out", type=lambda name: Path(_home(name)), metavar="DIR", help="where the new checkpoint goes")
    top.add_argument("--force", action="store_true", help="replace an earlier checkpoint of ours at --out")
    which = top.add_argument_group("which layers (one of these)")
    which.add_argument("--remove", type=int, metavar="N", help="how many decoder layers go; the method chooses them")
    which.add_argument("--layers", metavar="LIST", help="these go, by your own choice: 21-28,30")
    which.add_argument(
        "--sweep",
        metavar="LIST",
        help="perplexity for each of these numbers of layers, 1-8 or 2,4,6: a table and a picture",
    )
    top.add_argument("--plan", action="store_true", help="forecast time, memory and disk within seconds; write nothing")
    top.add_argument(
        "--measure", action="store_true", help="with --plan: also name the layers and measure the effect, as a run does"
    )
    few = ", ".join(f"{value} {name}" for name, value in QUICK.items())
    top.add_argument("--quick", action="store_true", help=f"a rough answer soon: {few}, where these are not given")
    own = top.add_argument_group(f"options of {method.title}")
    if len(method.fidelities) > 1:
        kinds = f"paper (its text) or code (its official code); default: {method.fidelity}"
        own.add_argument("--fidelity", default=method.fidelity, help=kinds)
    else:
        top.set_defaults(fidelity=None)
    for flag in method.flags:
        flag.add(own)
    text = top.add_argument_group("text")
    named = "a file (plain, or JSON lines with a column text), a corpus, or A+B in equal parts"
    reads = f"calibration text: {named} (default: {method.text})"
    text.add_argument("--text", type=_home, metavar="TEXT", help=reads)
    samples = f"calibration windows (default: {method.samples})"
    text.add_argument("--samples", type=int, default=method.samples, metavar="N", help=samples)
    text.add_argument(
        "--length", type=int, metavar="N", help="tokens in a window (default: 2048, or the model's context)"
    )
    text.add_argument("--seed", type=int, default=method.seed, help=f"of all random choices (default: {method.seed})")
    evaluation = top.add_argument_group("evaluation, before and after")
    evaluation.add_argument("--test", type=_home, metavar="TEXT", help="held-out text, named likewise")
    evaluation.add_argument("--windows", type=int, default=64, metavar="N", help="test windows read (default: 64)")
    evaluation.add_argument("--tasks", default="", metavar="A,B", help="also these lm-eval tasks, zero-shot")
    evaluation.add_argument("--limit", type=int, metavar="N", help="only N items of each task")
    evaluation.add_argument("--no-evaluation", action="store_true", help="measure nothing")
    machine = top.add_argument_group("machine")
    machine.add_argument(
        "--device", default="cpu", help="cpu, cuda, cuda:1, or auto to spread the model (default: cpu)"
    )
    machine.add_argument(
        "--stream",
        type=float,
        nargs="?",
        const=1.0,
        metavar="GB",
        help="not with this tool, which needs the whole model in memory"
        if method.passes is None
        else "for models larger than memory: hold two layers at a time, and so many GB of hidden states (default: 1)",
    )
    machine.add_argument(
        "--dtype",
        help="to compute in: float32, bfloat16 or float16 (default: float32 on a CPU, as saved on a GPU and with --stream)",
    )
    return top


def settle(method: Method, options: argparse.Namespace) -> None:
    """Give options that were left out the values of --quick, where it is asked for."""
    if options.quick:
        default = parser(method).get_default
        for name, value in (QUICK | dict(method.quick)).items():
            if getattr(options, name) == default(name):
                setattr(options, name, value)


def check(method: Method, options: argparse.Namespace) -> None:
    """Refuse what can be seen to fail without looking at model or text.

    Raises:
        UserError: impossible numbers, lists that are none, an output that would overwrite something.
    """
    if options.fidelity not in (None, *method.fidelities):
        raise UserError(f"unknown fidelity {options.fidelity!r}; use {' or '.join(method.fidelities)}")
    _check_which(method, options)
    for flag in method.flags:
        require(options, flag.dest, flag.option.metadata["least"], flag.option.metadata["most"])
    require(options, "remove", 1)
    require(options, "samples", 1, MOST)
    require(options, "windows", 1, MOST)
    require(options, "seed", 0, 2**32 - 1)
    if options.length is not None and options.length < 2:
        raise UserError(f"--length {options.length}: a window needs at least 2 tokens")
    if options.limit is not None and options.limit < 2:
        raise UserError(f"--limit {options.limit} leaves no standard error; use at least 2")
    if wrong := [task for task in tasks(options) if not re.fullmatch(r"[\w.:+-]+", task)]:
        raise UserError(f"--tasks {wrong[0]!r} is no task's name; separate names by commas: piqa,arc_easy")
    _check_stream(method, options)
    if (tasks(options) or options.limit is not None) and (options.no_evaluation or options.sweep):
        without = "--no-evaluation leaves" if options.no_evaluation else "--sweep, which measures perplexity, leaves"
        raise UserError(f"{without} --tasks and --limit out; give one of the two")
    if options.layers is not None:
        default = parser(method).get_default
        if idle := [
            f"--{name.replace('_', '-')}" for name in method.chooses if getattr(options, name) != default(name)
        ]:
            raise UserError(f"{' and '.join(idle)} would choose layers, which --layers names; give one of the two")
    if options.sweep and options.no_evaluation:
        raise UserError("--sweep measures perplexity, which --no-evaluation leaves out; give one of the two")
    _check_out(options)


def _check_stream(method: Method, options: argparse.Namespace) -> None:
    if options.stream is None:
        return
    require(options, "stream", 0, 100_000)
    if method.passes is None:
        raise UserError(f"{method.title} needs the whole model in memory; leave --stream out")
    if options.sweep:
        raise UserError("--sweep reads the model again for every number of layers; with --stream ask for one")
    if options.device == "auto":
        raise UserError("--device auto spreads a model that is held whole; with --stream name one device")


def _check_which(method: Method, options: argparse.Namespace) -> None:
    names = ("remove", "layers", "sweep", *method.alternatives)
    given = [f"--{name}" for name in names if getattr(options, name) is not None]
    if len(given) != 1:
        choices = ", ".join(f"--{name}" for name in names)
        what = f"{' and '.join(given)} contradict each other" if given else "nothing says which layers go"
        raise UserError(f"{what}; give one of {choices}")
    if options.measure and not options.plan:
        raise UserError("--measure adds to --plan what a run would do. Add --plan, or leave --measure out")
    for name in ("layers", "sweep"):
        numbers(getattr(options, name), name)
    if options.sweep and options.plan:
        raise UserError("--sweep and --plan contradict each other; a sweep writes no weights either")


def _home(name: str) -> str:
    """The name with the home directory for its ``~``, which a shell leaves alone after ``=``; so in each text of a mix."""
    return MIXED.join(os.path.expanduser(part) for part in name.split(MIXED))


def _check_out(options: argparse.Namespace) -> None:
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
        held, wanted = ("a sweep" if one else "a checkpoint" for one in sweeps)
        if not options.force:
            if all(sweeps) and stopped_sweep(options):
                return
            raise UserError(f"--out {out} holds {held}; choose another directory, or replace it with --force")
        if held != wanted:
            raise UserError(
                f"--out {out} holds {held}, which --force does not replace by {wanted}; choose another directory"
            )


def require(options: argparse.Namespace, name: str, least: float, most: float = math.inf) -> None:
    """Refuse a number option outside of a range, or that is no number; None is not given.

    Raises:
        UserError: names the option, the value and the range.
    """
    value = getattr(options, name)
    if isinstance(value, int | float) and not least <= value <= most:
        upto = "or more" if most == math.inf else f"to {most:,}"
        raise UserError(f"--{name.replace('_', '-')} {value}: use {least:,} {upto}")


def numbers(text: str | None, name: str) -> list[int] | None:
    """The whole numbers of a list like ``21-28,30``, in the order given; None for None.

    Raises:
        UserError: no such list, a range from high to low, a number twice.
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
        if match is None:
            raise UserError(f"--{name} {text!r}: {part!r} is neither a number nor a range; write 21-28,30")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"--{name} {text!r}: the range {part.strip()} runs backwards; write {last}-{first}")
        found += range(first, last + 1)
    if repeated := sorted(number for number, times in Counter(found).items() if times > 1)[:3]:
        raise UserError(f"--{name} {text!r} names {', '.join(map(str, repeated))} more than once; name each once")
    return found


def tasks(options: argparse.Namespace) -> list[str]:
    """The lm-eval tasks asked for, each once."""
    return list(dict.fromkeys(task.strip() for task in options.tasks.split(",") if task.strip()))


def stopped_sweep(options: argparse.Namespace) -> dict | None:
    """The report in `--out` of a sweep with these options that was stopped; None where there is none."""
    try:
        found = json.loads((options.out / SWEEP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    asked = json.loads(json.dumps(sweep_options(options)))
    return found if isinstance(found, dict) and found.get("missing") and found.get("options") == asked else None


def sweep_options(options: argparse.Namespace) -> dict:
    """Return the options of a sweep as its report holds them."""
    return printable.plain(vars(options)) | {"remove": None}
