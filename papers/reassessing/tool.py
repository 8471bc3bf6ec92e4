"""Reassessing layer pruning as a tool: prune the last layers of a model, and fine-tune the new last ones."""

import math
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from common.cli import Job, Method, measure
from common.cli.job import is_file
from common.cli.method import OWN_TEXT
from common.models import admission
from common.models.registry import TOY
from common.models.surgery import remove_layers
from common.pruning.pipeline import context_of
from common.training import instructions
from common.training.finetuning import AT_INTERFACE, Settings, check_adapters, check_tuned_layers, finetune, four_bit
from common.training.finetuning.learner import checked
from common.utils import json_lines
from common.utils.errors import UserError, listed
from papers.reassessing.last_layers import reverse_order
from papers.reassessing.metrics import sample_line_crops
from papers.reassessing.options import LENGTH, METRICS, ReassessingOptions
from papers.reassessing.steps import Metric

# A model of the toy model's size learns nothing at 1e-5; these are its settings in this repository's tables.
TOY_SETTINGS = {"learning_rate": 1e-4, "batch": 8, "warmup_steps": 2, "evaluate_every": 12, "save_every": 12}
TOY_ROWS = 96
PARTIAL_OPTIONS = ("last", "train_at_interface", "untie_head")  # options that partial fine-tuning alone uses


def check(job: Job) -> None:
    """Refuse trainings that are impossible, before the weights are read, and read the data of metric and training.

    Raises:
        UserError: options without effect, a model with patches, more layers to fine-tune than remain or follow the pruning
            interface, impossible settings, QLoRA without bitsandbytes, layers that peft cannot adapt, missing or unfit
            data, or a text with too few lines that are long enough.
    """
    options = job.options
    _check_used(options)
    job.refuse_patches("prune and fine-tune the model that they were made for")
    if METRICS[options.metric] and job.named_layers is None:
        job.shared["calibration"] = _calibration(job)
    if options.finetune == "partial":
        for count in job.counts:
            refuse(job, count)
        if options.train_at_interface:
            _check_behind(job)
    if options.finetune == "qlora":
        four_bit()
    if options.finetune in ("lora", "qlora"):
        check_adapters(admission.built(job.config, job.source), Settings())
    if options.finetune != "none":
        source = _source(options)
        if not is_file(source) and source not in instructions.SOURCES:
            raise UserError(f"--data {source}: use {', '.join(instructions.SOURCES)} or a JSON-lines file")
        train, valid = job.shared["rows"] = _rows(job)
        _settings(job, len(train))
        tokens = options.epochs * sum(len(row["input_ids"]) for row in train)
        # forward and backward of what trains, and of what is behind it; what is before it runs forward once for all epochs
        at_end = options.finetune == "partial" and not options.train_at_interface
        share = min(1.0, (options.last + 1) / job.layers) if at_end else 1.0
        job.shared["training_passes"] = tokens * (3 * share + (1 - share) / max(1.0, options.epochs))
        checked(train, "training", job.config.vocab_size)
        checked(valid, "validation", job.config.vocab_size)


def _check_used(options: ReassessingOptions) -> None:
    """Refuse options that the kind of fine-tuning does not use; --quick sets --rows."""
    training = ("data", "epochs", "batch", "learning_rate", *(() if options.quick else ("rows",)))
    unused = {"none": (*PARTIAL_OPTIONS, *training), "partial": ()}.get(options.finetune, PARTIAL_OPTIONS)
    if given := [name for name in unused if getattr(options, name) != getattr(type(options), name)]:
        names = listed(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(
            f"--finetune {options.finetune} does not use {names}. Choose another --finetune, or leave {names} out"
        )


def refuse(job: Job, count: int) -> None:
    """Refuse a removal that leaves fewer layers than are fine-tuned."""
    if job.options.finetune == "partial":
        check_tuned_layers(job.layers - count, job.options.last)


def apply(job: Job) -> dict:
    """Select, remove and fine-tune; return the layers and the training's report, losses included."""
    options = job.options
    if job.named_layers is not None:
        removed, reason = job.named_layers, "by hand"
    else:
        context = context_of(job.model, job.tokenizer, job.shared.get("calibration"), fidelity=options.fidelity)
        removed = Metric(options.metric, job.count, options.seed).choose(context)
        reason = f"by {options.metric}"
    measure.without_repair(job, removed)
    remove_layers(job.model, removed)
    facts = {"removed": removed}
    if options.finetune == "none" or options.plan:
        job.only_removed = True
        job.notes.append(f"chosen {reason}; not fine-tuned")
        return facts
    train, valid = job.shared["rows"]
    settings = _settings(job, len(train), tied=job.decoder.tied).at(removed)
    _, report = finetune(job.model, job.tokenizer, train, valid, settings, folder=job.folder("training"), progress=True)
    if report["status"] != "ok":
        raise UserError(f"the training diverged ({report.get('reason', 'no reason given')}); lower --learning-rate")
    layers = (
        f"last {options.last} layers" if settings.first is None else f"{options.last} layers from {settings.first} on"
    )
    trained = f"{layers}, head and final norm" if options.finetune == "partial" else options.finetune
    if not settings.untie:
        trained = f"{layers} and final norm; the tied head stays as it is (--untie-head trains a copy)"
    job.notes.append(f"chosen {reason}; fine-tuned: {trained}")
    reached = f"{report.get('peak_rate', math.nan):.2g} reached, warm-up of {settings.warmup_steps} steps"
    cut = sum(len(row["input_ids"]) == instructions.CUTOFF for row in train)
    ends = f" ({cut:,} of them end at {instructions.CUTOFF} tokens, the most that is read)" if cut else ""
    job.notes.append(
        f"{len(train):,} examples of {Path(_source(options)).name}{ends}, {report['steps']:,} steps, learning rate "
        f"{settings.learning_rate:g} ({reached}), {report['seconds']:,.0f} s"
    )
    return facts | {"training": report, "data_sha256": instructions.digest(train)}


def _check_behind(job: Job) -> None:
    """Refuse to train the layers behind a known pruning interface where there are too few."""
    for count in job.counts:
        removed = job.named_layers or (
            reverse_order(job.layers, count) if job.options.metric == "reverse-order" else None
        )
        if removed is not None:
            check_tuned_layers(job.layers - count, job.options.last, min(removed))


def _calibration(job: Job) -> Tensor:
    """Return the metric's tokens (appendix D): short crops of lines for taylor and bi, all of the text for ppl.

    The official code's ppl reads the test text, and so chooses on what is measured.
    """
    options = job.options
    if METRICS[options.metric] == "windows":
        return job.test_sequences if options.fidelity == "code" else job.sequences
    length = min(LENGTH, job.length)  # all samples are one batch of Taylor's
    lines = job.documents(options.samples)
    try:
        return sample_line_crops(job.tokenizer, lines, count=options.samples, length=length, seed=options.seed)
    except UserError as error:
        raise UserError(f"--text {job.text}: {error}") from error


def _settings(job: Job, rows: int, tied: bool = False) -> Settings:
    """Return the training's settings: the paper's (toy model: the tables'), unless options say otherwise.

    The warm-up is the paper's 100 steps, or a tenth of a training that is shorter than ten times as long. tied: the head is,
    and stays so in a partial fine-tuning unless it is to be untied.
    """
    renamed = {"method": "finetune", "untie": "untie_head"}
    requested = job.given_options("last", "epochs", "batch", "learning_rate", "seed", **renamed)
    requested["untie"] = requested["untie"] or not (tied and requested["method"] == "partial")
    if job.options.train_at_interface:
        requested["first"] = AT_INTERFACE
    changes = (TOY_SETTINGS if job.toy else {}) | requested
    batch = changes.get("batch", Settings.batch)
    settings = Settings(**changes, micro_batch=max(size for size in (1, 2, 4) if batch % size == 0))
    steps = math.ceil(settings.epochs * math.ceil(rows / batch))
    often = {name: max(1, min(getattr(settings, name), steps // 2)) for name in ("evaluate_every", "save_every")}
    return replace(settings, warmup_steps=min(settings.warmup_steps, steps // 10), **often)


def _source(options: ReassessingOptions) -> str:
    return options.data or ("standin" if options.model == TOY else "alpaca-cleaned")


def _examples(name: str) -> list[instructions.Example]:
    """Return the examples of a JSON-lines file.

    Raises:
        UserError: it cannot be read, a line is no JSON object, there is but one, a column is missing or a response empty.
    """
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the data {name}: {reason}; one JSON object a line is needed") from error
    table = json_lines.rows(name, text)
    if len(table) < 2:
        raise UserError(f"{name} has one example; at least 2 are needed, one to train on and one to check")
    return instructions.from_table(table, name=Path(name).name)


def _rows(job: Job) -> tuple[list[dict], list[dict]]:
    """Training and validation rows: of a file one in ten, at most 2,000, is held out."""
    options = job.options
    source = _source(options)
    count = options.rows or (TOY_ROWS if job.toy else None)
    if not is_file(source):
        held_out = 32 if source == "standin" else 2000
        return instructions.load(job.tokenizer, source, count=count, held_out=held_out)
    examples = _examples(source)
    train, valid = instructions.split(examples, max(1, min(2000, len(examples) // 10)))
    try:
        validation = instructions.rows(job.tokenizer, valid)
    except UserError as error:
        raise UserError(
            f"--data {source}, the examples held out for validation ({len(valid):,}): {error}, or give more examples"
        ) from error
    return instructions.rows(job.tokenizer, train[:count]), validation


def _work(job: Job) -> float:
    """Return the tokens through the whole model: the metric's, and the training's."""
    read = job.shared.get("calibration")
    passes = {"bi": 1.0, "taylor": 3.0, "ppl": job.layers / 2}.get(job.options.metric, 0.0)
    return (0 if read is None else read.numel() * passes) + job.shared.get("training_passes", 0)


def _beside(job: Job) -> tuple[float, int]:
    """Return the bytes that a training holds for what it trains: weights, gradients and two moments in float32."""
    layer = 12 * job.config.hidden_size**2
    trained = {"full": job.layers * layer, "partial": (job.options.last + 1) * layer}.get(job.options.finetune, 0)
    return 0.0, 16 * trained


METHOD = Method(
    ReassessingOptions,
    apply,
    check,
    own_text=f"--data FILE (JSON lines to train on; --finetune none trains nothing), {OWN_TEXT}",
    refuse=refuse,
    work=_work,
    beside=_beside,
)
