"""Distil a refitted model for a few steps: train the layers next to each pruning interface (extension).

    min over the weights W of these layers of E_x KL(p_original(. | x) || p_W(. | x))

The divergence is over the entire vocabulary, averaged over the tokens of the calibration text. The layers are those
that the refit changes: the last kept one before each interface and `following` ones after it. All other layers are
frozen and shared with the original, whose logits are computed for each batch, without a store. So memory also holds the
removed layers and the original weights of the trained layers. Trained layers are float32 during the training. The
result is a plain checkpoint.

Short distillation after pruning is NVIDIA's recipe (Minitron, arXiv 2407.14679; there all layers train, and for
longer).
"""

import copy
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from common.cli import Job
from common.models.decoder import Decoder
from common.pruning.selection import runs
from common.training.distillation import Distillation, train
from common.training.fitting import Fitting
from common.training.teacher_store import model_digest
from common.utils.errors import UserError
from extensions.refit.method import FOLLOWING, plan_of

BATCH = 4  # sequences in a step, run one at a time
# Learning rate, as a share of the trained matrices' root mean square: AdamW changes every weight by about the rate, large
# or small (Shazeer and Stern, arXiv 1804.04235, section 8). Chosen on held-out calibration text, 7 layers removed: for
# SmolLM2-135M-Instruct (root mean square 0.19) 0.005 was the best of 0.0005, 0.0016 and 0.005; for
# Qwen2.5-Coder-0.5B-Instruct (0.015), in 16 steps, 0.0017 was a gain and 0.005 was none.
RATE = 0.002
FITTING = Fitting(final_share=0.1, weight_decay=0.0, warmup_share=0.1, clip=1.0, accumulate=BATCH, save_every=25)
TRAINED_BYTES = 24  # of a parameter in float32: weight, gradient, two moments and two copies to go back to


def _run_student(decoder: Decoder, positions: Sequence[int], hidden: Tensor) -> Tensor:
    """Run the pruned model's layers at these positions, which are in float32."""
    return decoder.run(hidden.float(), layers=positions).to(hidden.dtype)


def neighbours(layers: int, removed: Sequence[int], following: int) -> list[int]:
    """Return the kept layers next to the interfaces of a model of ``layers`` layers, which a refit changes.

    >>> neighbours(10, [4, 5], 2)
    [3, 6, 7]
    """
    return list(plan_of(layers, removed, following))


def trained_parameters(
    model: nn.Module, layers: int, removed: Sequence[int], following: int
) -> dict[str, nn.Parameter]:
    """Return the parameters of the `neighbours` in a pruned ``model`` that had ``layers`` layers."""
    kept = [layer for layer in range(layers) if layer not in removed]
    parts = {layer: Decoder(model).layers[kept.index(layer)] for layer in neighbours(layers, removed, following)}
    return {f"{layer}.{name}": p for layer, part in parts.items() for name, p in part.named_parameters()}


def fitting_for(parameters: Iterable[Tensor]) -> Fitting:
    """Return the learning rate, schedule and batch size for a training of these parameters.

    The rate has three digits, so that weights which differ in their last bits can continue a training.

    >>> round(fitting_for([torch.full((2, 3), 0.2), torch.ones(3)]).learning_rate, 6)
    0.0004
    """
    matrices = [parameter.detach().float() for parameter in parameters if parameter.ndim > 1]
    mean_square = sum(m.square().sum().item() for m in matrices) / sum(m.numel() for m in matrices)
    return replace(FITTING, learning_rate=float(f"{RATE * mean_square**0.5:.3g}"))


def distill(
    model: nn.Module,
    original: nn.Module,
    sequences: Tensor,
    removed: Sequence[int],
    steps: int,
    *,
    following: int = FOLLOWING,
    held_out: Tensor | None = None,
    fitting: Fitting | None = None,
    seed: int = 0,
    start: Mapping | None = None,
    folder: str | os.PathLike | None = None,
    progress: bool = False,
) -> dict:
    """Train the layers of a pruned ``model`` next to its interfaces towards the original's logits, in place.

    Args:
        model: The pruned model; it is changed.
        original: The model before, with all its layers. It may share weights with ``model``, but not those that train.
        sequences: Token ids [samples, tokens]; each epoch takes them in a new order.
        removed: Layers of ``original`` that ``model`` lacks.
        steps: Optimizer steps.
        following: Layers after each interface that train.
        held_out: Token ids [samples, tokens]. If their divergence does not fall, the initial weights are restored, as
            after a step that diverged.
        fitting: Learning rate, schedule and batch size; None: those of `fitting_for`.
        seed: Seed of the order of sequences.
        start: JSON-able origin of the weights of ``model``, if they may differ in their last bits between runs.
        folder: Folder for checkpoints. An unfinished training with the same settings continues there, a finished one is
            loaded.
        progress: Show a progress bar.

    Returns:
        The report of `common.training.fitting.fit`, with the trained "layers" (of ``original``), whether their weights
        were "kept" and, with ``held_out``, its divergence "before" and "after".

    Raises:
        UserError: no layer to train, a changed layer that is not trained, or an error of the checkpoints.
    """
    teacher, student = Decoder(original), Decoder(model)
    kept_layers = [layer for layer in range(teacher.num_layers) if layer not in removed]
    layers = neighbours(teacher.num_layers, removed, following)
    if not layers:
        raise UserError("no layer is next to an interface. Raise following, or distil nothing")
    for place, layer in enumerate(kept_layers):  # the loss runs the original's layers in their place
        own, kept = student.layers[place].parameters(), teacher.layers[layer].parameters()
        if layer not in layers and any(not torch.equal(a, b.to(a.device)) for a, b in zip(own, kept, strict=True)):
            raise UserError(
                f"layer {layer} is not the original's, and would not be trained. Raise following to the repair's, or to more"
            )
    parameters = trained_parameters(model, teacher.num_layers, removed, following)
    fitting = fitting or fitting_for(parameters.values())
    replacements = {
        (a, b): partial(_run_student, student, [kept_layers.index(layer) for layer in range(a, b) if layer in layers])
        for a, b in runs(sorted({*layers, *removed}))
    }
    count = steps * fitting.batch_size * fitting.accumulate
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(sequences), generator=generator) for _ in range(-(-count // len(sequences)))]
    task = Distillation(teacher, replacements, sequences[torch.cat(orders)[:count]], k=None)
    judge = None if held_out is None else Distillation(teacher, replacements, held_out, k=None)
    identity = {"following": following, "start": model_digest(model) if start is None else dict(start)}
    first = [parameter.detach().clone() for parameter in parameters.values()]
    with _widened(parameters.values()):
        before = None if judge is None else judge.mean_loss()
        report = train(task, parameters, fitting, identity=identity, folder=folder, progress=progress)
        report |= {"kept": report["status"] == "finished", "learning_rate": fitting.learning_rate}
        if judge is not None and report["kept"]:
            after = judge.mean_loss()
            report |= {"before": before, "after": after, "kept": after < before, "kept_steps": report["steps"]}
    if not report["kept"]:
        with torch.no_grad():
            for parameter, value in zip(parameters.values(), first, strict=True):
                parameter.copy_(value)
    return report | {"layers": layers}


def sharing(job: Job, removed: Sequence[int]) -> nn.Module:
    """Return a copy of the model that has weights of its own only where a refit without these layers writes."""
    near = neighbours(job.layers, removed, job.options.following)
    own_weights = {id(p) for layer in near for p in job.decoder.layers[layer].parameters()}
    return copy.deepcopy(job.model, {id(p): p for p in job.model.parameters() if id(p) not in own_weights})


def distilled(job: Job, original: nn.Module, removed: Sequence[int]) -> dict:
    """Distil the job's refitted model if requested, and note the outcome; return the report."""
    options, sequences = job.options, job.sequences[: -job.held_out_count or None]
    report = distill(
        job.model,
        original,
        sequences,
        removed,
        options.distill,
        following=options.following,
        held_out=job.sequences[-job.held_out_count :] if job.held_out_count else None,
        seed=options.seed,
        start={"removed": list(removed)},  # and the folder's name stands for all options
        folder=job.folder("distillation"),
        progress=True,
    )
    outcome = f"{len(report['layers'])} layers next to the interface trained for {report['steps']:,} steps"
    if report["status"] != "finished":
        outcome += f": {report['reason']}"
    elif job.held_out_count:
        outcome += (
            f": divergence from the original {report['before']:.4g} -> {report['after']:.4g} nats on held-out text"
        )
    job.notes.append(outcome if report["kept"] else f"{outcome}; the untrained weights were kept")
    return report


def cost(job: Job) -> tuple[float, int]:
    """Return the cost of a distillation: tokens through the entire model, and bytes of memory."""
    if job.options.distill is None:
        return 0.0, 0
    tokens = job.options.distill * BATCH * job.length
    near = min(job.layers, (job.options.following + 1) * max([1, *job.counts]))
    layer = 12 * job.config.hidden_size**2
    logits = 4 * 4 * job.length * job.config.vocab_size  # the original's and ours, their logarithms and gradients
    return 4.0 * tokens, near * layer * TRAINED_BYTES + logits


@contextmanager
def _widened(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Parameters are float32 inside."""
    before = {parameter: (parameter.dtype, parameter.requires_grad) for parameter in parameters}
    for parameter in before:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, (dtype, required) in before.items():
            parameter.data, parameter.grad = parameter.data.to(dtype), None
            parameter.requires_grad_(required)
