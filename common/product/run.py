"""From the command line to a saved checkpoint: measure, prune, measure, write."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import transformers

from common import checkpoint, hooks, hub, models, results
from common.errors import UserError, quiet_logging
from common.evaluation import harness
from common.evaluation.perplexity import summarise, token_nlls
from common.product import card
from common.product import options as shared
from common.product.job import Job, check_texts
from common.selection import check_count

REPORT = "pruning.json"


def main(method: shared.Method, arguments: list[str] | None = None) -> int:
    """Run a method's tool; returns the exit status."""
    options = shared.parser(method).parse_args(arguments)
    quiet_logging()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        run(method, options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (MemoryError, torch.OutOfMemoryError):
        print("error: out of memory; use a larger --device, --dtype bfloat16 or fewer --samples", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; --out is as it was, or holds the whole new checkpoint", file=sys.stderr)
        return 130
    return 0


def run(method: shared.Method, options: argparse.Namespace) -> dict:
    """Prune as asked and save; returns the report that is saved beside the model.

    Raises:
        UserError: whatever of the request cannot be met; then `--out` is as it was.
    """
    shared.check(options)
    check_texts(options)
    torch.set_flush_denormal(True)
    torch.manual_seed(options.seed)
    started = time.perf_counter()
    model, tokenizer = models.load(_located(options.model), device=options.device, dtype=options.dtype)
    work = options.out.parent / f".{options.out.name}.work"
    job = Job(model, tokenizer, options, work, method.sampler)
    layers, dense = job.decoder.num_layers, _count(model)
    check_count(options.remove, layers)
    method.check(options, layers)
    _check_room(options.out, model, options.remove / layers)
    before = _measured(job, "before")
    _say(f"{method.title}: removing {options.remove} of {layers} layers")
    facts = method.apply(job)
    after = _measured(job, "after")
    report = {
        "paper": method.paper,
        "model": _public(options.model),
        "options": _plain(vars(options)),
        "layers": {"before": layers, "after": job.decoder.num_layers},
        "parameters": {"before": dense, "after": _count(model)},
        "text": {"calibration": _public(job.text), "test": _public(job.test), "window": job.length},
        "facts": facts,
        "evaluation": {"before": before, "after": after},
        "notes": job.notes,
        "seconds": round(time.perf_counter() - started, 1),
        "environment": results.environment() | {"device": options.device, "written_at": results.now()},
    }
    texts = {"README.md": card.card(method, report), REPORT: json.dumps(report, indent=1) + "\n"}
    checkpoint.save(model, tokenizer, options.out, texts)
    shutil.rmtree(work, ignore_errors=True)
    print(card.summary(report))
    print(f"saved to {options.out} (card: README.md, facts: {REPORT})")
    return report


def _located(name: str) -> str:
    """A directory or registered name as it is; any other hub id is fetched."""
    known = name in models.REGISTRY or any(name == spec.hub_id for spec in models.REGISTRY.values())
    if known or name.count("/") != 1 or name.startswith((".", "/", "~")) or Path(name).is_dir():
        return name
    return str(hub.snapshot(name, None))


def _public(name: str) -> str:
    """A name to print in a card: hub ids and short names as given, of a path its last part."""
    path = Path(name).expanduser()
    return path.resolve().name if path.exists() or name.startswith(("/", ".", "~")) else name


def _plain(options: dict) -> dict:
    """The options as JSON; of paths the last part."""
    shown = {key: value for key, value in options.items() if key not in ("out", "force")}
    named = ("model", "text", "test", "data")
    return {key: _public(value) if key in named and value else value for key, value in shown.items()}


def _count(model) -> int:
    """Parameters, those of patches included."""
    return sum(p.numel() for p in (*model.parameters(), *hooks.patch_parameters(model)))


def _check_room(out: Path, model, removed_share: float) -> None:
    """Refuse now what would fail for want of disk after the work is done."""
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise UserError(f"cannot save to {out}: {folder} is not writable; choose another directory")
    needed = sum(p.numel() * p.element_size() for p in model.parameters()) * (1 - removed_share)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"cannot save to {out}: about {needed / 2**20:,.0f} MiB are needed and {free / 2**20:,.0f} MiB are free; "
            "free space or choose another directory"
        )


def _measured(job: Job, when: str) -> dict:
    """Perplexity per token on the test windows, and the accuracies of the tasks asked for; {} where none is wanted."""
    options = job.options
    if options.no_evaluation:
        return {}
    windows = job.test_windows
    found = summarise(token_nlls(job.model, windows, progress=f"perplexity {when}"))
    measured = {"perplexity": found["perplexity"], "perplexity_stderr": found["stderr"], "windows": len(windows)}
    tasks = [task for task in options.tasks.split(",") if task]
    if tasks:
        scored = harness.evaluate(job.model, job.tokenizer, tasks, limit=options.limit)
        kept = ("acc", "acc_stderr", "acc_norm", "acc_norm_stderr", "n")
        measured["tasks"] = {task: {key: scored[task].get(key) for key in kept} for task in tasks}
    _say(f"perplexity {when}: {found['perplexity']:.4g}")
    return measured


def _say(line: str) -> None:
    print(line, file=sys.stderr)
