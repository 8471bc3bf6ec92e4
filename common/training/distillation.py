"""Teacher and student over one model in memory: the replacement of removed layers learns from those layers.

The teacher is the original model. The student runs the same layers, but a replacement (any module `[batch, tokens,
channels] -> same`) instead of a run of layers `[start, stop)` that is to be removed. Both share all layers before the
first interface, which therefore run once per batch and without gradients. Layer executions per batch of a model of N
layers, n of them removed, first interface at s:

    two separate models   2N - n      teacher computed online   2N - n - s
    stored teacher        N - n       target 'output'           last interface's stop - the layers removed before it

Only the replacements are trained; the model's parameters are frozen meanwhile.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from common.hooks import refuse_patches
from common.models.decoder import Decoder
from common.training.fitting import Fitting, fit
from common.training.teacher_store import DTYPE, TeacherStore, model_digest, sequences_digest, top_k
from common.utils.errors import unknown

TARGETS = {"logits": "kl", "output": "mse"}

Run = tuple[int, int]


def top_k_divergence(student: Tensor, probabilities: Tensor, indices: Tensor | None) -> Tensor:
    """Compute the mean over tokens of KL(teacher || student) on the teacher's K tokens, in float32 (LinearPatch, Eq. 9).

    Args:
        student: Logits [batch, tokens, vocabulary].
        probabilities: The teacher's probabilities [batch, tokens, K].
        indices: The teacher's K tokens [batch, tokens, K], over which the student's softmax is taken; None for the
            entire vocabulary.
    """
    probabilities = probabilities.to(student.device)
    chosen = student if indices is None else student.gather(-1, indices.to(student.device))
    log_student = chosen.float().log_softmax(-1)
    return (torch.xlogy(probabilities, probabilities) - probabilities * log_student).sum(-1).mean()


class Distillation:
    """The loss of a student on numbered sequences.

    Args:
        decoder: The original model.
        replacements: Modules that replace separate runs of layers.
        sequences: Token ids [samples, tokens].
        target: 'logits', KL on the teacher's K most likely tokens; 'output', mean squared error between a module's
            output and the run's output X^(stop), mean over runs. For 'output' no layer after the last run is executed.
        k: See `top_k`; None: the divergence over the entire vocabulary, without a store.
        store: Store of the teacher's logits, for the target 'logits'; None computes them.

    Raises:
        UserError: an unknown target, or a model that already carries patches.
    """

    def __init__(
        self,
        decoder: Decoder,
        replacements: Mapping[Run, Callable[[Tensor], Tensor]],
        sequences: Tensor,
        *,
        target: str = "logits",
        k: int | None = 100,
        store: TeacherStore | None = None,
    ):
        if target not in TARGETS:
            raise unknown("distillation target", target, TARGETS)
        refuse_patches(decoder.model, "distillation")  # the teacher is the dense model
        self.decoder, self.sequences, self.target, self.k, self.store = decoder, sequences, target, k, store
        self.replacements = dict(sorted(replacements.items()))
        self.blocks = list(self.replacements)

    def loss(self, samples: Sequence[int]) -> Tensor:
        """Return the mean loss over the sequences with these numbers, differentiable in the replacements' parameters."""
        ids = self.sequences[list(samples)]
        with torch.no_grad():
            prefix = self.decoder.run(self.decoder.embed_tokens(ids), 0, self.blocks[0][0])
        return self._output_loss(prefix) if self.target == "output" else self._logits_loss(prefix, samples)

    @torch.no_grad()
    def mean_loss(self) -> float:
        """Return the mean loss over all sequences, one at a time."""
        return sum(self.loss([sample]).item() for sample in range(len(self.sequences))) / len(self.sequences)

    def _logits_loss(self, prefix: Tensor, samples: Sequence[int]) -> Tensor:
        decoder = self.decoder
        if self.store is not None:
            probabilities, indices = self.store.read(samples)
        else:
            with torch.no_grad():
                hidden = decoder.run(prefix, self.blocks[0][0], decoder.num_layers)
                logits = decoder.logits(hidden)
                probabilities, indices = (logits.float().softmax(-1), None) if self.k is None else top_k(logits, self.k)
        hidden = prefix
        for run, upto in zip(self.blocks, [*(start for start, _ in self.blocks[1:]), decoder.num_layers]):
            hidden = decoder.run(self.replacements[run](hidden), run[1], upto)
        return top_k_divergence(decoder.logits(hidden), probabilities, indices)

    def _output_loss(self, prefix: Tensor) -> Tensor:
        decoder, hidden, losses, at = self.decoder, prefix, [], self.blocks[0][0]
        taught = prefix
        for number, (start, stop) in enumerate(self.blocks):
            with torch.no_grad():
                taught = decoder.run(taught, at, stop)
            if number:
                hidden = decoder.run(hidden, self.blocks[number - 1][1], start)
            hidden, at = self.replacements[start, stop](hidden), stop
            losses.append(nn.functional.mse_loss(hidden.float(), taught.float()))
        return torch.stack(losses).mean()


def train(
    task: Distillation,
    parameters: Mapping[str, nn.Parameter],
    how: Fitting,
    *,
    identity: Mapping,
    folder: str | os.PathLike | None = None,
    progress: bool = False,
) -> dict:
    """Train the replacements' `parameters` in place (`common.training.fitting.fit`); all other parameters are frozen.

    The loss of a float16 model is scaled against underflow. ``identity`` holds the facts that decide the result besides
    model, sequences, runs, target and ``how``.

    Returns:
        The report of `fit` with target, loss, and the number of trained parameters.
    """
    model = task.decoder.model
    facts = {
        "model": model_digest(model),
        "windows": sequences_digest(task.sequences),
        "cuts": task.blocks,
        "k": task.k,
    }
    facts |= {"target": task.target, "stored": None if task.store is None else DTYPE}
    how = replace(how, loss_scaling=how.loss_scaling or model.dtype == torch.float16)
    with frozen(model):
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        report = fit(
            parameters,
            task.loss,
            len(task.sequences),
            how,
            identity={**identity, **facts},
            folder=folder,
            counter=lambda: task.decoder.executions,
            progress=progress,
        )
    for parameter in parameters.values():
        parameter.requires_grad_(False)
    count = sum(parameter.numel() for parameter in parameters.values())
    return report | {"target": task.target, "loss": TARGETS[task.target], "parameters": count}


@contextmanager
def standing_in(decoder: Decoder, layers: Mapping[int, nn.Module]) -> Iterator[None]:
    """Put other layers at these places of the decoder while the context is open: they get its masks and positions."""
    originals = {place: decoder.layers[place] for place in layers}
    try:
        for place, layer in layers.items():
            decoder.layers[place] = layer
        yield
    finally:
        for place, layer in originals.items():
            decoder.layers[place] = layer


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Freeze all parameters and set eval mode while the context is open; both are restored afterwards."""
    required = {parameter: parameter.requires_grad for parameter in model.parameters()}
    training = model.training
    model.requires_grad_(False).eval()
    try:
        yield
    finally:
        for parameter, needs in required.items():
            parameter.requires_grad_(needs)
        model.train(training)
