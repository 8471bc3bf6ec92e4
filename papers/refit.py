"""Removing layers and refitting, in closed form, what the kept ones around each cut write into the stream. Ours.

After the layers [a, b) are removed, layer b receives X[a] in place of X[b]. The output matrices of the layers around the cut
are refitted one after the other, each by ridge regression on what the repaired model now feeds it, towards the dense
model's stream X:

    W <- W + D,   D = argmin |H D' - (T - S)|^2 + r |D|^2

H [tokens, features]: the inputs of the matrix in the repaired model. S: the repaired stream after the matrix has written,
T: the dense stream at the same place. `down_proj` of the last layer before the cut goes first, towards X[b]; then `o_proj`
and `down_proj` of the `following` kept layers, towards the dense stream after their attention and after their MLP. r is
`ridge` times the mean eigenvalue of H'H: directions that calibration hardly shows are left as they are.

Nothing is added and nothing is trained: the result is a plain checkpoint of the pruned shape.

Sources: ReplaceMe (arXiv 2505.02819) maps the last kept MLP's output by one C x C matrix, fused into `down_proj`, towards
X[b]; Ghosted Layers (2605.15491) maps the stream itself, by a matrix that stays in the model. Refitting the whole of
`down_proj` (features x channels in place of channels x channels), and refitting later layers in turn on the repaired
stream, was found in neither; 2606.02559 fits modules in the place of removed halves of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.context import Context
from common.decoder import Decoder, at_hand
from common.errors import UserError, UserValueError
from common.progress import track
from common.recipe import Repair, register
from common.selection import check_layers
from common.surgery import remove_layers

FOLLOWING = 3
RIDGE = 1e-3
ATTENTION, MLP = "self_attn.o_proj", "mlp.down_proj"


@register("refit")
@dataclass(frozen=True)
class Refit(Repair):
    """Refits the output matrices around every cut; options: see `refit`."""

    following: int = FOLLOWING
    ridge: float = RIDGE

    def apply(self, context: Context) -> None:
        options = {"following": self.following, "ridge": self.ridge, "batch_size": context.batch_size}
        reports = refit(context.model, context.windows(), context.removed, progress=context.progress, **options)
        context.details["refitted"] = reports


@dataclass
class Moments:
    """Sums over tokens, float64: gram H'H [features, features], cross H'E [features, channels], error |E|^2."""

    gram: Tensor | float = 0.0
    cross: Tensor | float = 0.0
    error: float = 0.0

    def add(self, inputs: Tensor, missing: Tensor) -> None:
        """A batch: ``inputs`` [..., features] and what the stream lacks behind them, ``missing`` [..., channels]."""
        inputs, missing = inputs.flatten(0, -2).double(), missing.flatten(0, -2).double()
        self.gram = self.gram + inputs.T @ inputs
        self.cross = self.cross + inputs.T @ missing
        self.error += missing.square().sum().item()

    def solved(self, ridge: float) -> tuple[Tensor, float]:
        """The change D' [features, channels], and the squared error that it leaves on the calibration tokens."""
        damping = ridge * self.gram.trace() / len(self.gram)
        damped = self.gram + damping * torch.eye(len(self.gram), dtype=torch.float64, device=self.gram.device)
        change = torch.cholesky_solve(self.cross, torch.linalg.cholesky(damped))
        left = self.error - 2 * (change * self.cross).sum().item() + (change * (self.gram @ change)).sum().item()
        return change, max(left, 0.0)


@torch.no_grad()
def refit(
    model: nn.Module,
    ids: Tensor,
    removed: Sequence[int],
    *,
    following: int = FOLLOWING,
    ridge: float = RIDGE,
    batch_size: int = 8,
    progress: bool = False,
) -> list[dict]:
    """Remove layers of ``model`` and refit the matrices around every cut, in place.

    ids: calibration tokens [samples, tokens]. following: kept layers after each cut whose two matrices are refitted too; 0:
    `down_proj` before the cut alone. Two streams of all calibration tokens, [samples, tokens, channels] in the model's type,
    are held, and the moments of one matrix.

    Returns one entry per refitted matrix, in order: {"layer" (of the dense model), "matrix", "error", "left"}; error: of the
    repaired stream before the refit, left: after it, both as shares of the dense stream's |X|^2 on the calibration tokens.

    Raises:
        UserError: an architecture whose output matrices do not write into the stream themselves (Gemma 2 normalises what they
            write, Mixtral mixes experts), layers that there are not, ``following`` or ``ridge`` out of range, no tokens.
    """
    decoder = Decoder(model)
    removed = sorted(map(int, removed))
    check_layers(removed, len(removed), decoder.num_layers)
    if decoder.spec.writers != (ATTENTION, MLP):
        raise UserError(
            f"architecture {decoder.architecture!r} cannot be refitted: its output matrices do not write into the stream "
            "themselves; use another repair"
        )
    if following < 0 or not 0 < ridge < float("inf"):
        raise UserValueError(f"following must be 0 or more and ridge a positive number, not {following} and {ridge}")
    if ids.ndim != 2 or not ids.numel():
        raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
    plan = _plan(decoder.num_layers, removed, following)
    reports: list[dict] = []
    if plan:
        first = min(plan)
        starts = [decoder.embed_tokens(batch) for batch in ids.split(batch_size)]
        for layer in range(first):
            starts = [decoder.run(batch, layer, layer + 1) for batch in starts]
        streams = _Streams(decoder, starts)
        for layer in track(range(first, max(plan) + 1), "refitting", unit="layer", shown=progress):
            if layer not in removed:
                after = next(i for i in range(layer + 1, decoder.num_layers + 1) if i not in removed)
                reports += streams.through(layer, after, plan.get(layer, ()), ridge)
    remove_layers(model, removed)
    return reports


def _plan(layers: int, removed: Sequence[int], following: int) -> dict[int, tuple[str, ...]]:
    """Kept layer -> its matrices that are refitted, in order."""
    plan, left = {}, 0
    for layer in range(layers):
        if layer in removed:
            left = following
            continue
        matrices = (ATTENTION, MLP) if left else (MLP,) if layer + 1 in removed else ()
        left = max(left - 1, 0)
        if matrices:
            plan[layer] = matrices
    return plan


class _Streams:
    """The dense and the repaired stream of all calibration tokens, batch by batch, at one place of the model."""

    def __init__(self, decoder: Decoder, starts: list[Tensor]):
        self.decoder = decoder
        self.dense, self.repaired = starts, list(starts)

    def through(self, layer: int, after: int, matrices: Sequence[str], ridge: float) -> list[dict]:
        """Take both streams through a kept layer, whose matrices are refitted on the way; ``after``: the next kept one."""
        targets: dict[str, list[Tensor]] = {ATTENTION: [], MLP: []}
        for batch in self.dense:
            with self._watched(layer) as seen:
                targets[MLP].append(self.decoder.run(batch, layer, layer + 1))
            if ATTENTION in matrices:
                targets[ATTENTION].append(seen.middle)
        for gone in range(layer + 1, after):
            targets[MLP] = [self.decoder.run(batch, gone, gone + 1) for batch in targets[MLP]]
        reports = [self._refit(layer, name, targets[name], ridge) for name in matrices]
        self.repaired = [self.decoder.run(batch, layer, layer + 1) for batch in self.repaired]
        self.dense = targets[MLP]
        return reports

    def _refit(self, layer: int, name: str, targets: list[Tensor], ridge: float) -> dict:
        moments, size = Moments(), 0.0
        for batch, target in zip(self.repaired, targets, strict=True):
            with self._watched(layer) as seen:
                out = self.decoder.run(batch, layer, layer + 1)
            here = seen.middle if name == ATTENTION else out
            moments.add(seen.inputs[name], target.float() - here.float())
            size += target.double().square().sum().item()
        change, left = moments.solved(ridge)
        weight = at_hand(self.decoder.layers[layer]).get_submodule(name).weight
        weight.copy_(weight.double() + change.T.to(weight.device))
        return {"layer": layer, "matrix": name, "error": moments.error / size, "left": left / size}

    def _watched(self, layer: int) -> _Watched:
        return _Watched(self.decoder.layers[layer])


class _Watched:
    """While open, keeps what goes into a layer's output matrices, and the stream between attention and MLP."""

    def __init__(self, layer: nn.Module):
        self.layer = layer
        self.inputs: dict[str, Tensor] = {}
        self.middle: Tensor | None = None

    def __enter__(self) -> _Watched:
        def keep(name: str):
            return lambda module, args: self.inputs.__setitem__(name, args[0])

        def middle(module, args) -> None:
            self.middle = args[0]

        self._handles = [
            *(self.layer.get_submodule(name).register_forward_pre_hook(keep(name)) for name in (ATTENTION, MLP)),
            self.layer.post_attention_layernorm.register_forward_pre_hook(middle),
        ]
        return self

    def __exit__(self, *_) -> None:
        for handle in self._handles:
            handle.remove()
