"""The patch: channel scales from calibration statistics, and the matrix they make (LinearPatch, section 3).

Notation as in the paper: layers [l, l + n) are removed; X^(l) [batch, tokens, channels] is the residual stream before them
and X^(l+n) after them; H [C, C] is the orthonormal Walsh-Hadamard matrix; d [C] are the scales; A = H diag(d) H^T.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from common.calibration.massive_activations import massive
from common.calibration.statistics import Statistics
from common.hadamard import hadamard_matrix, hadamard_transform
from common.hooks import Patch, attach_patch, register_patch
from common.models.decoder import Decoder
from common.models.surgery import replace_runs
from common.pruning.selection import runs
from common.utils.errors import UserError, UserValueError, unknown

KINDS = ("hadamard", "diagonal", "scalar", "rotated", "matrix")
TOKENS = ("all", "ordinary", "massive")  # which a patch changes
# What a pass has to be asked for by name, and under which name of `common.calibration.collect`.
_NAMED = {"elementwise": "elementwise", "least-squares": "moments"}


def named_statistics(kind: str, estimator: str, pairs: Collection[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    """Return the options of `common.calibration.collect` that a patch needs at the interfaces ``pairs``.

    {} means that the default statistics suffice.
    """
    option = "matrices" if kind == "matrix" else _NAMED.get(estimator)
    return {option: sorted(pairs)} if option else {}


def channel_scales(
    statistics: Statistics, start: int, stop: int, *, rotated: bool = True, estimator: str = "ratio-of-means"
) -> Tensor:
    """Return the scales d for the removed run ``[start, stop)`` (section 3.2, Eq. 4).

    Args:
        statistics: Statistics of the model with all its layers.
        start: First removed layer.
        stop: Layer after the last removed one.
        rotated: On X H, as LinearPatch; otherwise on X, the ablation "+d" of Table 5.
        estimator: One of `Statistics.ratio`. ``ratio-of-means`` is what the official code computes; ``elementwise`` is
            Eq. 4 as printed, the mean of element-wise ratios, which near-zero denominators dominate.

    Returns:
        Scales, float64 [channels].

    Raises:
        UserError: an unknown estimator, or statistics that were not collected.
    """
    return statistics.ratio(start, stop, estimator, rotated)


def patch_values(
    statistics: Statistics,
    start: int,
    stop: int,
    *,
    kind: str = "hadamard",
    estimator: str = "ratio-of-means",
    alpha: float = 1.0,
) -> Tensor:
    """Return the values of a patch of ``kind`` for the removed run ``[start, stop)``.

    Args:
        statistics: Statistics of the model with all its layers.
        start: First removed layer.
        stop: Layer after the last removed one.
        kind: ``hadamard``, or an ablation. A ``scalar`` (extension) is the mean over channels of the plain ratios
            (Prune&Comp's factor), or the least-squares factor. A ``matrix`` (extension) is the ridge regression of X^(l+n) on
            X^(l), and has no other estimator.
        estimator: See `channel_scales`.
        alpha: Section 3.2's perturbation coefficient, by which all of them are multiplied.

    Returns:
        Scales [channels], one factor [], or a matrix [C, C].

    Raises:
        UserError: an unknown kind or estimator, one that does not go with the kind, or values that are not finite.
    """
    if kind not in KINDS:
        raise unknown("patch kind", kind, KINDS)
    if kind == "matrix":
        if estimator != "least-squares":
            raise UserValueError(f"a matrix cannot be computed by {estimator!r}; use the estimator 'least-squares'")
        values = statistics.least_squares(start, stop).matrix()
    elif kind == "scalar" and estimator == "least-squares":
        values = torch.tensor(statistics.least_squares(start, stop).scalar(), dtype=torch.float64)
    else:
        rotated = kind in ("hadamard", "rotated")
        values = channel_scales(statistics, start, stop, rotated=rotated, estimator=estimator)
        values = values.mean() if kind == "scalar" else values
    if not torch.isfinite(values).all():
        raise UserError(
            f"the scales across layers [{start}, {stop}) are not finite; use float32 or bfloat16, other text, or another "
            "estimator"
        )
    return values if alpha == 1.0 else alpha * values


class LinearPatch(nn.Module):
    """Multiply the residual stream by a patch matrix, stored as compactly as its kind allows.

    Computed in float32 and cast back to the residual stream's dtype. The official code builds A in float32 and evaluates
    it rounded to fp16 (only d is measured with an fp16 H); here A is built in float64 and rounded once to float32.

    Args:
        values: The numbers that ``kind`` needs.
        kind: ``hadamard``: scales d [channels], stored as the dense symmetric A = H diag(d) H^T (section 3.4: one
            matrix product at inference). ``rotated``: the same map, stored as d and applied by two fast transforms, so
            that d alone can be trained. ``diagonal``: d [channels], diag(d). ``scalar``: one factor, []. ``matrix``:
            any A [C, C].
        channels: Width of the residual stream; required for a ``scalar``.
        acts_on: ``all`` tokens; ``ordinary`` (extension): all but massive ones
            (`common.calibration.massive_activations`); ``massive`` (extension): massive ones alone. Unless it is
            ``all``, states must be [batch, tokens, channels], of sequences that begin with their first tokens.
            Generation with a cache passes later tokens alone, and these count as ordinary.
    """

    def __init__(
        self, values: Tensor, kind: str = "hadamard", channels: int | None = None, acts_on: str = "all"
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise unknown("patch kind", kind, KINDS)
        if acts_on not in TOKENS:
            raise unknown("tokens of a patch", acts_on, TOKENS)
        dimensions = {"scalar": 0, "matrix": 2}.get(kind, 1)
        if values.ndim != dimensions or (dimensions == 2 and len(set(values.shape)) > 1):
            expected_values = ("one number", "one scale per channel", "a square matrix")[dimensions]
            raise UserValueError(
                f"a patch of kind {kind!r} cannot hold values of shape {list(values.shape)}; give it {expected_values}"
            )
        if not torch.isfinite(values).all():
            raise UserValueError(
                "the scales of a patch must be finite numbers; some are not: calibrate in float32 or bfloat16"
            )
        channels = values.shape[-1] if dimensions else channels
        if channels is None:
            raise UserValueError("a patch of kind 'scalar' has to be told the residual stream's width: channels=...")
        self.options = {"kind": kind, "channels": channels} | ({} if acts_on == "all" else {"acts_on": acts_on})
        values = values.detach().double()
        if kind == "hadamard":
            rotation = hadamard_matrix(channels).to(values.device)
            values = rotation * values @ rotation.T  # H diag(d) H^T
        self.weight = nn.Parameter(values.float(), requires_grad=False)

    @property
    def channels(self) -> int:
        """Width of the residual stream that the patch fits."""
        return self.options["channels"]

    @property
    def compares_tokens(self) -> bool:
        """Whether the patch tells massive tokens from the others of their sequence."""
        return self.options.get("acts_on", "all") != "all"

    def matrix(self) -> Tensor:
        """Return the patch as a dense matrix [C, C], float32."""
        kind, weight = self.options["kind"], self.weight
        if kind in ("hadamard", "matrix"):
            return weight
        if kind == "rotated":
            rotation = hadamard_matrix(self.channels).to(weight)
            return rotation * weight @ rotation.T
        return torch.diag(weight.expand(self.channels))

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the patch to states [..., channels]; return the same shape and dtype."""
        wide, kind = hidden.float(), self.options["kind"]
        if kind in ("hadamard", "matrix"):
            changed = wide @ self.weight
        elif kind == "rotated":
            changed = hadamard_transform(hadamard_transform(wide) * self.weight, transpose=True)
        else:
            changed = wide * self.weight
        changed = changed.to(hidden.dtype)
        acts_on = self.options.get("acts_on", "all")
        if acts_on == "all":
            return changed
        spared = massive(hidden) if acts_on == "ordinary" else ~massive(hidden)
        return torch.where(spared[..., None], hidden, changed)


def _load(tensors: dict[str, Tensor], options: dict) -> LinearPatch:
    weight = tensors["weight"]
    kind, channels = options["kind"], options.get("channels", weight.shape[-1] if weight.ndim else None)
    # The weight is kept as it was saved: a dense A is not built a second time from scales.
    patch = LinearPatch(torch.ones(channels), "diagonal")
    patch.options = options | {"kind": kind, "channels": channels}
    patch.weight = nn.Parameter(weight, requires_grad=False)
    return patch


register_patch("linearpatch", _load)


def insert_patch(model: nn.Module, position: int, patch: LinearPatch) -> Patch:
    """Insert ``patch`` before layer ``position`` of the present (pruned) model; N means the final norm.

    Raises:
        UserError: the patch does not fit the model's width, is not in float32, or there is no such position.
    """
    check_fit(patch, Decoder(model))
    if patch.weight.dtype != torch.float32:
        name = str(patch.weight.dtype).removeprefix("torch.")
        raise UserValueError(
            f"the patch is in {name}; patches compute in float32 whatever the model's dtype: patch.float()"
        )
    return attach_patch(model, position, patch, "linearpatch")


def check_fit(patch: LinearPatch, decoder: Decoder) -> None:
    """Refuse a patch whose width is not the model's."""
    if patch.channels != decoder.hidden_size:
        raise UserValueError(
            f"a patch of {patch.channels} channels does not fit a model of {decoder.hidden_size}; make it from statistics "
            "of this model"
        )


def make_patches(
    statistics: Statistics, removed: Collection[int], *, kind: str = "hadamard", acts_on: str = "all", **options
) -> dict[tuple[int, int], LinearPatch]:
    """Compute one patch per maximal run of removed layers from the original model's statistics, by (start, stop).

    The paper patches one contiguous block. For several runs its procedure is unpublished; this is this project's
    reading. Options and errors are those of `patch_values`; for ``acts_on`` see `LinearPatch`.
    """
    channels = statistics.magnitudes[False].shape[-1]
    return {
        run: LinearPatch(patch_values(statistics, *run, kind=kind, **options), kind, channels, acts_on)
        for run in runs(removed)
    }


def patch_interfaces(
    model: nn.Module, statistics: Statistics, removed: Collection[int], *, acts_on: str = "all", **options
) -> list[dict]:
    """Remove layers and insert one patch at each interface (`make_patches`), in place.

    Before layer 0 the patch acts on the embedding, after the last layer on the final norm's input.

    Args:
        model: The model; it is changed.
        statistics: Its statistics, with a span of the longest run.
        removed: Layers to remove.
        acts_on: Tokens that are patched, see `LinearPatch`.
        options: Kind, estimator and alpha of `patch_values`.

    Returns:
        A summary per patch: run, position in the pruned model, and the mean, smallest and largest scale (of a matrix:
        of its diagonal).

    Raises:
        UserError: statistics of a model of another shape, or an error of `patch_values`. The model is unchanged then.
    """
    decoder = Decoder(model)
    shape = (statistics.layers, statistics.magnitudes[False].shape[-1])
    if shape != (decoder.num_layers, decoder.hidden_size):
        raise UserValueError(
            f"the statistics are of a model of {shape[0]} layers and {shape[1]} channels, this one has "
            f"{decoder.num_layers} and {decoder.hidden_size}; collect them from this model, before its surgery"
        )
    patches = make_patches(statistics, removed, acts_on=acts_on, **options)
    summaries = []
    for run, position in zip(patches, replace_runs(model, patches, "linearpatch"), strict=True):
        d = patch_values(statistics, *run, **options)
        d = d.diagonal() if d.ndim == 2 else d
        scales = {"mean": d.mean().item(), "min": d.min().item(), "max": d.max().item()}
        summaries.append({"run": list(run), "position": position, "scales": scales})
    return summaries
