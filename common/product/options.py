"""What can be asked of every paper's tool, and what is refused before anything large is read."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import checkpoint, exchange
from common.errors import UserError

EPILOG = """\
Text is a UTF-8 file or the name of a corpus (standin-calibration, wikitext2-train, c4-train, ...). Of a file, calibration
uses the first nine tenths and evaluation the last tenth. Without --text: the stand-in's own text for the stand-in,
WikiText-2 from the hub for every other model. Exit status: 0 done, 2 a request that cannot be met, 130 interrupted."""


@dataclass(frozen=True)
class Method:
    """One paper's method as a tool.

    paper: its package. title, description: for help and card. apply: changes `job.model` in place and returns JSON-able
    facts, among them `removed` (original indices). add_options: its own options. check: refuses option values that do not
    fit the number of layers. sampler: how calibration windows are drawn (`common.calibration.SAMPLERS`). samples, seed:
    defaults. loader: the import without which a saved model is not whole (patches), else ''.
    """

    paper: str
    title: str
    description: str
    apply: Callable[..., dict]
    add_options: Callable[[argparse.ArgumentParser], object]
    check: Callable[[argparse.Namespace, int], None] = lambda options, layers: None
    sampler: str = "linearpatch-train"
    samples: int = 128
    seed: int = 2
    loader: str = ""


def parser(method: Method) -> argparse.ArgumentParser:
    """The command line of a method: what all share, and its own options."""
    top = argparse.ArgumentParser(
        prog=f"python -m papers.{method.paper}",
        description=textwrap.fill(f"{method.title}: {method.description}", 100),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--model", required=True, metavar="NAME_OR_PATH", help="a directory, a short name, or a hub id")
    top.add_argument("--remove", required=True, type=int, metavar="N", help="how many decoder layers go")
    top.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the new checkpoint goes")
    top.add_argument("--force", action="store_true", help="replace an earlier checkpoint at --out")
    own = top.add_argument_group(f"options of {method.title}")
    own.add_argument("--fidelity", default="paper", help="paper (its text) or code (its official code); default: paper")
    method.add_options(own)
    text = top.add_argument_group("text")
    text.add_argument("--text", metavar="TEXT", help="calibration text: a file or a corpus")
    samples = f"calibration windows (default: {method.samples})"
    text.add_argument("--samples", type=int, default=method.samples, metavar="N", help=samples)
    text.add_argument(
        "--length", type=int, metavar="N", help="tokens in a window (default: 2048, or the model's context)"
    )
    text.add_argument("--seed", type=int, default=method.seed, help=f"of all random choices (default: {method.seed})")
    evaluation = top.add_argument_group("evaluation, before and after")
    evaluation.add_argument("--test", metavar="TEXT", help="held-out text: a file or a corpus")
    evaluation.add_argument("--windows", type=int, default=64, metavar="N", help="test windows read (default: 64)")
    evaluation.add_argument("--tasks", default="", metavar="A,B", help="also these lm-eval tasks, zero-shot")
    evaluation.add_argument("--limit", type=int, metavar="N", help="only N items of each task")
    evaluation.add_argument("--no-evaluation", action="store_true", help="measure nothing")
    machine = top.add_argument_group("machine")
    machine.add_argument(
        "--device", default="cpu", help="cpu, cuda, cuda:1, or auto to spread the model (default: cpu)"
    )
    machine.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU, else as saved)")
    return top


def check(options: argparse.Namespace) -> None:
    """Refuse what can be seen to fail without reading the model.

    Raises:
        UserError: impossible numbers, text files that are not there, an output that would overwrite something.
    """
    if options.fidelity not in ("paper", "code"):
        raise UserError(f"unknown fidelity {options.fidelity!r}; use paper or code")
    for name in ("remove", "samples", "windows"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: use 1 or more")
    if options.length is not None and options.length < 2:
        raise UserError(f"--length {options.length}: a window needs at least 2 tokens")
    if options.limit is not None and options.limit < 2:
        raise UserError(f"--limit {options.limit} leaves no standard error; use at least 2")
    out = options.out
    if Path(options.model).is_dir() and out.exists() and out.samefile(options.model):
        raise UserError(f"--out {out} is the model itself; choose another directory")
    exchange.recover(out.resolve())
    if reason := checkpoint.not_replaceable(out):
        raise UserError(f"--out {out} cannot be used: {reason}, or choose another directory")
    if out.is_dir() and any(out.iterdir()) and not options.force:
        raise UserError(f"--out {out} holds a checkpoint; choose another directory, or replace it with --force")
