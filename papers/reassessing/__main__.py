"""``python -m papers.reassessing``: prune the last layers of a model, fine-tune what is then last. `--help` says how."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from common import instructions, launch
from common.context import around
from common.errors import UserError
from common.finetuning import Settings, check_layers, finetune, four_bit
from common.finetuning.learner import checked
from common.product import Job, Method, main, require
from common.product.checks import stored_dtype
from common.product.job import is_file
from common.surgery import remove_layers
from papers.reassessing.metrics import LENGTH, METRICS, NEED_TOKENS, SAMPLES, sample_line_crops
from papers.reassessing.steps import Metric

ARMS = ("partial", "lora", "qlora", "full", "none")
# A model of the stand-in's size learns nothing at 1e-5; these are its settings in this repository's tables.
STANDIN = {"learning_rate": 1e-4, "batch": 8, "warmup_steps": 2, "evaluate_every": 12, "save_every": 12, "rows": 96}
PAPER = {
    "learning_rate": 1e-5,
    "batch": 64,
    "warmup_steps": 100,
    "evaluate_every": 100,
    "save_every": 200,
    "rows": None,
}


def add_options(group: argparse.ArgumentParser) -> None:
    """Reassessing's own options."""
    reads = f"default: reverse-order; taylor and bi read lines cropped to {LENGTH} tokens, ppl windows"
    group.add_argument("--metric", default="reverse-order", choices=METRICS, help=reads)
    group.add_argument("--finetune", default="partial", choices=ARMS, help="partial: head, final norm, last layers")
    group.add_argument("--last", type=int, default=3, metavar="K", help="layers that partial trains (default: 3)")
    data = "alpaca-cleaned, standin, or a JSON-lines file with columns instruction, input, output"
    group.add_argument("--data", metavar="DATA", help=f"{data} (default: by model)")
    group.add_argument("--rows", type=int, metavar="N", help="only the first N training examples")
    group.add_argument("--epochs", type=float, default=2, metavar="N", help="default: 2")
    group.add_argument(
        "--batch", type=int, metavar="N", help="examples in an optimiser step (default: 64; stand-in: 8)"
    )
    group.add_argument("--learning-rate", type=float, metavar="R", help="default: 1e-5 (stand-in: 1e-4)")
    heads = "give a tied head its own copy of the embedding and train that: the model grows by it"
    group.add_argument("--untie-head", action="store_true", help=heads)


def check(job: Job) -> None:
    """Refuse trainings that cannot be, before the weights are read, and read what metric and training need.

    Raises:
        UserError: more layers to fine-tune than remain, impossible settings, QLoRA without bitsandbytes, missing or unfit
            data, a text with too few lines that are long enough.
    """
    options = job.options
    require(options, "last", 0)
    require(options, "rows", 1)
    require(options, "epochs", 1e-9, 1000)
    require(options, "batch", 1, 65_536)
    require(options, "learning_rate", 1e-12, 1)
    if options.metric in NEED_TOKENS and job.given is None:
        job.kept["calibration"] = _calibration(job)
    if options.finetune == "partial":
        for count in job.counts:
            check_layers(job.layers - count, options.last)
    if options.finetune == "qlora":
        four_bit()
    if options.finetune != "none":
        if is_file(_source(options)):
            _examples(_source(options))
        elif _source(options) not in instructions.SOURCES:
            raise UserError(f"--data {_source(options)}: use {', '.join(instructions.SOURCES)} or a JSON-lines file")
        train, valid = job.kept["rows"] = _rows(job)
        _settings(job, len(train))
        tokens = options.epochs * sum(len(row["input_ids"]) for row in train)
        # forward and backward of what trains; what is frozen runs forward once for all epochs
        share = min(1.0, (options.last + 1) / job.layers) if options.finetune == "partial" else 1.0
        job.kept["training_passes"] = tokens * (3 * share + (1 - share) / max(1.0, options.epochs))
        checked(train, "training", job.config.vocab_size)
        checked(valid, "validation", job.config.vocab_size)


def apply(job: Job) -> dict:
    """Choose, remove, fine-tune; the facts hold what was chosen and the training's report, losses included."""
    options = job.options
    if job.given is not None:
        removed, how = job.given, "by hand"
    else:
        context = around(job.model, job.tokenizer, job.kept.get("calibration"), fidelity=options.fidelity)
        removed = Metric(options.metric, job.count, options.seed).choose(context)
        how = f"by {options.metric}"
    job.chosen(removed)
    remove_layers(job.model, removed)
    facts = {"removed": removed}
    if options.finetune == "none" or options.plan:
        job.notes.append(f"chosen {how}; not fine-tuned")
        return facts
    train, valid = job.kept["rows"]
    settings = _settings(job, len(train))
    if settings.method == "partial" and job.decoder.tied and not options.untie_head:
        settings = replace(settings, untie=False)
    where = {"folder": job.folder("training"), "store_dtype": _kept_dtype(job), "progress": True}
    _, report = finetune(job.model, job.tokenizer, train, valid, settings, **where)
    if report["status"] != "ok":
        raise UserError(f"the training diverged ({report.get('reason', 'no reason given')}); lower --learning-rate")
    trained = f"last {options.last} layers, head and final norm" if options.finetune == "partial" else options.finetune
    if not settings.untie:
        trained = (
            f"last {options.last} layers and final norm; the tied head stays as it is (--untie-head trains a copy)"
        )
    job.notes.append(f"chosen {how}; fine-tuned: {trained}")
    reached = f"{report.get('peak_rate', math.nan):.2g} reached, warm-up of {settings.warmup_steps} steps"
    job.notes.append(
        f"{len(train):,} examples of {Path(_source(options)).name}, {report['steps']:,} steps, learning rate "
        f"{settings.learning_rate:g} ({reached}), "
        f"{report['seconds']:,.0f} s"
    )
    if report["store"]["bytes"]:
        calls = ", ".join(f"{epoch['layer_executions']:,}" for epoch in report["epochs"])
        kept = f"{report['store']['bytes'] / 2**20:,.0f} MiB in {report['store']['kind']}"
        job.notes.append(f"layer calls by epoch: {calls} (what frozen layers put out was kept: {kept})")
    return facts | {"training": report, "data_sha256": instructions.digest(train)}


def _calibration(job: Job) -> Tensor:
    """What the metric reads (appendix D): for taylor and bi short crops of the text's lines, for ppl windows of all of it.

    The official code's ppl reads the test text, and so chooses on what is measured.
    """
    options = job.options
    if options.metric == "ppl":
        return job.test_windows if options.fidelity == "code" else job.windows
    length = min(LENGTH, job.length)  # all samples are one batch of Taylor's
    lines = job.documents(options.samples)
    try:
        return sample_line_crops(job.tokenizer, lines, count=options.samples, length=length, seed=options.seed)
    except UserError as error:
        raise UserError(f"--text {job.text}: {error}") from error


def _kept_dtype(job: Job) -> torch.dtype | None:
    """What outputs of frozen layers are kept in: bfloat16 for a model that came so, else what they are computed in.

    float16 could not hold them: massive activations go beyond its range.
    """
    return torch.bfloat16 if stored_dtype(job.source) == torch.bfloat16 else None


def _defaults(options: argparse.Namespace) -> Mapping:
    return STANDIN if options.model == "standin" else PAPER


def _settings(job: Job, rows: int) -> Settings:
    """The training's settings: the paper's (for the stand-in this repository's tables'), unless asked for otherwise.

    The warm-up is the paper's 100 steps, or a tenth of a training that is shorter than ten times as long.
    """
    options = job.options
    chosen = {key: value for key, value in _defaults(options).items() if key != "rows"}
    chosen |= {"method": options.finetune, "last": options.last, "epochs": options.epochs, "seed": options.seed}
    for name in ("batch", "learning_rate"):
        if getattr(options, name) is not None:
            chosen[name] = getattr(options, name)
    steps = math.ceil(options.epochs * math.ceil(rows / chosen["batch"]))
    chosen["warmup_steps"] = min(chosen["warmup_steps"], steps // 10)
    for name in ("evaluate_every", "save_every"):
        chosen[name] = max(1, min(chosen[name], steps // 2))
    micro = max(size for size in (1, 2, 4) if chosen["batch"] % size == 0)
    return Settings.of(chosen | {"micro_batch": micro})


def _source(options: argparse.Namespace) -> str:
    return options.data or ("standin" if options.model == "standin" else "alpaca-cleaned")


def _examples(name: str) -> list[instructions.Example]:
    """The examples of a JSON-lines file.

    Raises:
        UserError: it cannot be read, a line is no JSON object, there is but one, a column is missing or a response empty.
    """
    try:
        lines = [line for line in Path(name).read_text(encoding="utf-8").splitlines() if line.strip()]
        table = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the data {name}: {error}; one JSON object a line is needed") from error
    if not table or not all(isinstance(row, dict) for row in table):
        raise UserError(f"cannot read the data {name}: one JSON object a line is needed")
    if len(table) < 2:
        raise UserError(f"{name} has one example; at least 2 are needed, one to train on and one to check")
    return instructions.from_table(table, name=Path(name).name)


def _rows(job: Job) -> tuple[list[dict], list[dict]]:
    """Training and validation rows: of a file one in ten, at most 2,000, is held out."""
    options = job.options
    source = _source(options)
    wanted = options.rows or _defaults(options)["rows"]
    if not is_file(source):
        held_out = 32 if source == "standin" else 2000
        return instructions.load(job.tokenizer, source, count=wanted, held_out=held_out)
    examples = _examples(source)
    train, valid = instructions.split(examples, max(1, min(2000, len(examples) // 10)))
    return tuple(instructions.rows(job.tokenizer, part) for part in (train[:wanted], valid))


METHOD = Method(
    paper="reassessing",
    title="Reassessing layer pruning",
    description="the last layers are removed, and the head, the final norm and the layers that are now last are fine-tuned "
    "on instructions. A training that is interrupted goes on when the command is given again.",
    apply=apply,
    add_options=add_options,
    check=check,
    samples=SAMPLES,
    seed=42,
)

if __name__ == "__main__":
    sys.exit(launch.run(main, METHOD))
