"""From the command line to a saved checkpoint: measure, prune, measure, write."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError

from common.cli import card, checks, forecast, measure, printable, sweep
from common.cli import options as shared
from common.cli.job import Job, work_folder
from common.models import checkpoint, half_precision
from common.models.architectures import absent
from common.records import results
from common.utils.errors import NoData, UserError, first_of, one_line, quiet_logging
from common.utils.progress import clock, say

TERMS = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
MEMORY = "out of memory; use a larger --device, --dtype bfloat16 or fewer --samples"


def main(method: shared.Method, arguments: list[str] | None = None) -> int:
    """Run a method's tool; returns the exit status."""
    options = shared.parser(method).parse_args(arguments)
    quiet_logging()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        report = run(method, options)
    except NoData as error:
        return _failed(f"{error}; or name what you have: {method.own_text}")
    except UserError as error:
        return _failed(error)
    except (MemoryError, torch.OutOfMemoryError):
        return _failed(MEMORY)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # what a CPU's allocator says
            raise
        return _failed(MEMORY)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, SafetensorError) as error:  # the latter of a full disk, too
        return _failed(f"{error}; --out is as it was")
    except Exception as error:
        if "No space left on device" not in str(error):  # what writing a tokenizer raises: of no class of its own
            raise
        return _failed(f"{error}; --out is as it was")
    except KeyboardInterrupt:
        kept = "of a sweep the numbers that were measured" if options.sweep else "the whole new checkpoint"
        print(f"interrupted; --out is as it was, or holds {kept}", file=sys.stderr)
        if (work := work_folder(options.out)).is_dir():
            print(
                f"{work} has what was trained or searched so far: the same command goes on from there", file=sys.stderr
            )
        return 130
    return 3 if report.get("broken") else 0


def run(method: shared.Method, options: argparse.Namespace) -> dict:
    """Prune as asked and save; returns the report that is saved beside the model.

    Raises:
        UserError: whatever of the request cannot be met; then `--out` is as it was.
    """
    started = time.perf_counter()
    job = checks.checked(method, options)
    torch.set_flush_denormal(True)
    torch.manual_seed(options.seed)
    say(f"reading {options.model}")
    if options.sweep:
        return sweep.run(job)
    dtype = checks.stored_dtype(job.source)
    job.load()
    checks.check_finite(job.model)
    if job.decoder.streamed:
        slow = job.model.streamed.dtype == torch.float16 and not half_precision.has_instructions(torch.float16)
        if options.device == "cpu" and slow and half_precision.has_instructions(torch.bfloat16):
            say("this CPU has instructions for bfloat16 and none for float16: --dtype bfloat16 may take less time")
        expected = forecast.forecast(job)
        say(expected.line())
        if options.plan:
            print(f"plan: {expected.line()}\nnothing was written; which layers go is known after the calibration pass")
            return {"forecast": asdict(expected)}
    if dtype is not None and torch.finfo(dtype).bits > torch.finfo(job.model.dtype).bits:
        kind = str(job.model.dtype).removeprefix("torch.")
        job.notes.append(f"computed in {kind}: all weights were rounded to it, and stored as before")
    sizes = measure.sizes(job, dtype)
    before = measure.whole(job, "of the dense model")
    aim = f"removing {job.count} of {job.layers} layers" if job.count else f"shortening {job.layers} layers"
    say(f"{method.title}: {aim}")
    facts = method.apply(job)
    made_from = card.lineage(job.source)
    of_source = (card.already_pruned(made_from), card.tokenizer_note(job.tokenizer), checks.rounded(job.source, dtype))
    for note in (job.read_over(), job.shifted_attention(), *of_source):
        if note:
            job.notes.append(note)
    measure.round_to(job.model, dtype)
    after = measure.whole(job, "of the result")
    broken = measure.verdict(before, after)
    if not broken and (bad := checks.not_finite(job.model)):  # what was not measured may hold them, too
        broken = f"it holds NaN or infinite weights in {first_of(bad, 3)}"
    against = measure.against_the_cut(job.cut, after)
    if not broken and (note := measure.worse_than_the_cut(against)):
        job.notes.append(note)
    evaluation = {"before": before, "cut": job.cut, "after": after, "against_cut": against}
    report = _report(job, facts, dtype, evaluation)
    report |= {"made_from": made_from, "broken": broken, "seconds": round(time.perf_counter() - started, 1)}
    for key, value in measure.sizes(job, dtype).items():
        report[key] = {"before": sizes[key], "after": value}
    if report["bytes"]["after"] >= sizes["bytes"]:
        job.notes.append("the result is NOT smaller than the model it was made from")
    if options.plan:
        print(plan(report, job))
        return report
    _save(job, report, dtype)
    print(card.summary(report))
    print(f"saved to {options.out} (card: README.md, facts: {card.REPORT})")
    if broken:
        say(f"warning: {broken}")
    return report


def plan(report: dict, job: Job) -> str:
    """What a run with these options would do, from one that did all but train and write."""
    removed = ", ".join(map(str, sorted(report["facts"]["removed"])))
    peak = measure.highest_memory()
    lines = [
        f"plan: {card.command(report, printable.said(vars(job.options)))}",
        f"layers that go: {removed}",
        card.summary(report),
    ]
    lines.append(f"memory: {peak / 1e9:.1f} GB at most so far" if peak else "memory: not told by this system")
    passes, before = job.kept.get("training_passes"), report["evaluation"]["before"]
    more = "; training and its effect come on top" if passes else ""
    if passes and before:
        seconds = passes * before["seconds"] / (before["windows"] * job.length)
        more = f", and about {clock(seconds)} of training, whose effect is not in these numbers"
    lines.append(f"time: {clock(report['seconds'])}, as much again for the run itself{more}")
    return "\n".join([*lines, "nothing was written"])


def _report(job: Job, facts: dict, dtype: torch.dtype | None, evaluation: dict) -> dict:
    options = job.options
    return {
        "package": job.method.package,
        "paper": job.method.paper,
        "model": printable.public(options.model),
        "source": card.source_facts(options.model, job.source),
        "options": printable.plain(vars(options)),
        "layers": {"before": job.layers, "after": job.decoder.num_layers},
        "dtype": str(dtype or job.model.dtype).removeprefix("torch."),
        "computed_in": str(job.model.dtype).removeprefix("torch."),
        "text": {
            "calibration": printable.public(job.text),
            "test": printable.public(job.test),
            "held_out": ", ".join(map(printable.public, job.shared_texts)),
            "window": job.length,
        },
        "facts": facts,
        "evaluation": evaluation,
        "notes": job.notes,
        "environment": results.environment() | {"device": options.device, "written_at": results.now()},
    }


def _save(job: Job, report: dict, dtype: torch.dtype | None) -> None:
    for parameter in job.model.parameters():
        if dtype is not None and parameter.is_floating_point() and not absent(parameter):
            parameter.data = parameter.data.to(dtype)
    content = json.dumps(card.finite(report), indent=1, allow_nan=False)
    texts = _terms(job.source) | {"README.md": card.card(job.method, report), card.REPORT: content + "\n"}
    checkpoint.save(job.model, job.tokenizer, job.place(replace=job.options.force), texts, job.source)
    job.clear()


def _terms(source: Path) -> dict[str, str]:
    """The texts under whose terms the weights are, by file name: they go with what is made of them."""
    found = [file for kind in TERMS for file in sorted(source.glob(kind)) if file.is_file()]
    return {file.name: file.read_text(encoding="utf-8", errors="replace") for file in found}


def _failed(error: object) -> int:
    print(one_line(f"error: {error}"), file=sys.stderr)
    return 2
