"""The patch: channel scales from calibration statistics, and the matrix they make (LinearPatch, section 3).

Notation as in the paper: layers [l, l + n) are removed; X^(l) [batch, tokens, channels] is the stream before them and
X^(l+n) after them; H [C, C] is the orthonormal Walsh-Hadamard matrix; d [C] are the scales; A = H diag(d) H^T.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from common.calibration import Statistics
from common.checkpoint import register_patch
from common.decoder import Decoder
from common.errors import UserError, UserValueError, unknown
from common.hadamard import hadamard_matrix
from common.hooks import Patch, attach_patch
from common.selection import runs
from common.surgery import replace_runs

KINDS = ("hadamard", "diagonal")


def channel_scales(
    statistics: Statistics, start: int, stop: int, *, rotated: bool = True, estimator: str = "ratio-of-means"
) -> Tensor:
    """The scales d, float64 [channels], for the removed run ``[start, stop)`` (section 3.2, Eq. 4).

    rotated: on X H, as LinearPatch; otherwise on X, the ablation "+d" of Table 5.
    estimator: ``ratio-of-means`` (default) is what the official code computes: per sample, the mean over tokens of
    |X^(l+n)| over that of |X^(l)|, then the mean over samples. ``elementwise`` is Eq. 4 as printed, the mean of
    element-wise ratios, which near-zero denominators dominate. ``pooled-l1`` is the ratio of L1 norms of the whole set.
    """
    return statistics.ratio(start, stop, estimator, rotated)


class LinearPatch(nn.Module):
    """Multiplies the stream by A = H diag(d) H^T (kind ``hadamard``) or by diag(d) (kind ``diagonal``).

    Args:
        scales: d, [channels].
        kind: ``hadamard`` holds the dense symmetric A [C, C] (section 3.3: one matrix product at inference);
            ``diagonal`` holds d.

    Computed in float32 and cast back to the stream's dtype. The official code builds A from an fp16 H; here A is built in
    float64 and rounded once to float32.
    """

    def __init__(self, scales: Tensor, kind: str = "hadamard") -> None:
        super().__init__()
        if kind not in KINDS:
            raise unknown("patch kind", kind, KINDS)
        if scales.ndim != 1 or not torch.isfinite(scales).all():
            raise UserValueError(f"scales must be finite numbers [channels], not {list(scales.shape)}")
        self.options = {"kind": kind}
        scales = scales.double()
        if kind == "hadamard":
            rotation = hadamard_matrix(len(scales)).to(scales.device)
            scales = rotation * scales @ rotation.T  # H diag(d) H^T
        self.weight = nn.Parameter(scales.float(), requires_grad=False)

    @property
    def channels(self) -> int:
        """Width of the stream it fits."""
        return self.weight.shape[-1]

    def matrix(self) -> Tensor:
        """The patch as a dense matrix [C, C], float32."""
        return self.weight if self.options["kind"] == "hadamard" else torch.diag(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., channels]`` -> same shape and dtype."""
        wide = hidden.float()
        changed = wide @ self.weight if self.options["kind"] == "hadamard" else wide * self.weight
        return changed.to(hidden.dtype)


def _load(tensors: dict[str, Tensor], options: dict) -> LinearPatch:
    weight = tensors["weight"]
    patch = LinearPatch(torch.ones(weight.shape[-1]), "diagonal")
    patch.options = dict(options)
    patch.weight = nn.Parameter(weight, requires_grad=False)
    return patch


register_patch("linearpatch", _load)


def insert_patch(model: nn.Module, position: int, patch: LinearPatch) -> Patch:
    """Let ``patch`` act on what layer ``position`` of the present (pruned) model receives; N means the final norm.

    Raises:
        UserError: the patch does not fit the model's width, or there is no such position.
    """
    channels = Decoder(model).hidden_size
    if patch.channels != channels:
        raise UserValueError(f"a patch of {patch.channels} channels does not fit a model of {channels}")
    return attach_patch(model, position, patch, "linearpatch")


def cut_patches(
    statistics: Statistics,
    removed: Collection[int],
    *,
    kind: str = "hadamard",
    estimator: str = "ratio-of-means",
) -> dict[tuple[int, int], LinearPatch]:
    """One patch per maximal run of removed layers, with the dense model's scales: {(start, stop): patch}.

    The paper patches one contiguous cut. For several runs its procedure is unpublished; this is our reading.

    Raises:
        UserError: scales that are not finite, or what `channel_scales` refuses.
    """
    found = {}
    for start, stop in runs(removed):
        d = channel_scales(statistics, start, stop, rotated=kind == "hadamard", estimator=estimator)
        if not torch.isfinite(d).all():
            raise UserError(f"the scales across layers [{start}, {stop}) are not finite; use another estimator or text")
        found[start, stop] = LinearPatch(d, kind)
    return found


def patch_cuts(
    model: nn.Module,
    statistics: Statistics,
    removed: Collection[int],
    *,
    kind: str = "hadamard",
    estimator: str = "ratio-of-means",
) -> list[dict]:
    """Remove layers and put one patch at the end of each maximal removed run (`cut_patches`), in place.

    Returns a summary per patch: run, position in the pruned model, and the mean, least and largest scale.
    """
    made = cut_patches(statistics, removed, kind=kind, estimator=estimator)
    summaries = []
    for (start, stop), position in zip(made, replace_runs(model, made, "linearpatch")):
        d = channel_scales(statistics, start, stop, rotated=kind == "hadamard", estimator=estimator)
        summary = {"mean": d.mean().item(), "min": d.min().item(), "max": d.max().item()}
        summaries.append({"run": [start, stop], "position": position, "scales": summary})
    return summaries
