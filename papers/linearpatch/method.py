"""LinearPatch from calibration tokens to a patched model (sections 3.1 to 3.4, Eq. 8)."""

from collections.abc import Sequence

from torch import Tensor, nn

from common.calibration import collect, default_pairs
from common.calibration.statistics import COSINES, Statistics
from common.models.decoder import Decoder
from common.models.removal import check_count, check_layers
from common.pruning.importance import block_influence
from common.pruning.recipe import check_fidelity
from common.pruning.selection import best_block, one_shot, runs
from common.utils.errors import UserValueError, unknown
from papers.linearpatch.options import VARIANTS
from papers.linearpatch.patch import named_statistics, patch_interfaces


def default_cosine(variant: str, fidelity: str) -> str:
    """Return the default cosine of a selection: ``token``, but ``channel`` for the official code's block."""
    return "channel" if (variant, fidelity) == ("L", "code") else "token"


def select(
    statistics: Statistics, count: int, variant: str = "L", fidelity: str = "paper", cosine: str | None = None
) -> list[int]:
    """Select the layers to remove: ``L``, the block of highest cosine (Eq. 2), or ``S``, the lowest BI as in ShortGPT.

    Args:
        statistics: Statistics of one pass with a span of ``count`` at least.
        count: Number of layers to remove.
        variant: ``L`` or ``S``.
        fidelity: ``paper`` takes the cosine per token and the argmax over all starts; ``code`` is the official code's
            cosine along tokens per channel, over starts 1..N-n-1. For ``S`` both are the same.
        cosine: Another kind of cosine (`common.calibration.statistics`), which must have been collected.

    Returns:
        Original indices, in order of removal.

    Raises:
        UserError: an unknown variant, fidelity or cosine, or statistics without that cosine.
    """
    _check_names(variant, fidelity, cosine)
    cosine = cosine or default_cosine(variant, fidelity)
    if variant == "S":
        return one_shot(block_influence(statistics, cosine), count)
    return list(range(*best_block(statistics, count, cosine, exclude_ends=fidelity == "code")))


def _check_names(variant: str, fidelity: str, cosine: str | None) -> None:
    if variant not in VARIANTS:
        raise unknown("LinearPatch variant", variant, VARIANTS)
    check_fidelity(fidelity)
    if cosine is not None and cosine not in COSINES:
        raise unknown("cosine", cosine, COSINES)


def check_model(model: nn.Module) -> None:
    """Refuse a model whose matrices differ in dtype, because its layers could not follow one another.

    Quantised weights are integers and are ignored.

    Raises:
        UserError: floating-point matrices of several dtypes; the message names them.
    """
    name_by_dtype: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.ndim > 1:
            name_by_dtype.setdefault(str(parameter.dtype).removeprefix("torch."), name)
    if len(name_by_dtype) > 1:
        where = ", ".join(f"{dtype} ({name})" for dtype, name in name_by_dtype.items())
        raise UserValueError(f"the model mixes dtypes: {where}; bring it to one with model.to(dtype)")


def prune(
    model: nn.Module,
    sequences: Tensor,
    count: int,
    *,
    variant: str = "L",
    layers: Sequence[int] | None = None,
    cosine: str | None = None,
    kind: str = "hadamard",
    estimator: str = "ratio-of-means",
    acts_on: str = "all",
    fidelity: str = "paper",
    batch_size: int = 8,
    progress: bool = False,
) -> dict:
    """Remove ``count`` layers and patch the pruning interface, in place (sections 3.1 to 3.4).

    One pass over the tokens gives both selection and scales. Only the matrix of a computed selection takes a second pass: its
    C x C moments are too large to be kept for every block there is.

    Args:
        model: The model; it is changed.
        sequences: Calibration tokens [samples, tokens].
        count: Layers to remove.
        variant: See `select`.
        layers: Layers to remove in place of a computed selection (published ones: `papers.linearpatch.published_block`).
        cosine: See `select`.
        kind: See `patch_values`.
        estimator: See `channel_scales`.
        acts_on: Tokens that are patched, see `LinearPatch`.
        fidelity: See `select`.
        batch_size: Sequences a batch.
        progress: Show a progress bar.

    Returns:
        The removed layers (original indices), and per patch its run, position and scales.

    Raises:
        UserError: an impossible count; an unknown variant, cosine, kind, estimator or fidelity; a model of mixed dtypes.
    """
    choice = {"variant": variant, "layers": layers, "cosine": cosine, "kind": kind, "estimator": estimator}
    options = {"fidelity": fidelity, "batch_size": batch_size, "progress": progress}
    removed, statistics = survey(model, sequences, count, **choice, **options)
    patches = patch_interfaces(model, statistics, removed, kind=kind, estimator=estimator, acts_on=acts_on)
    return {"removed": removed, "patches": patches}


def survey(
    model: nn.Module,
    sequences: Tensor,
    count: int,
    *,
    variant: str = "L",
    layers: Sequence[int] | None = None,
    cosine: str | None = None,
    kind: str = "hadamard",
    estimator: str = "ratio-of-means",
    fidelity: str = "paper",
    others: Sequence[int] = (),
    batch_size: int = 8,
    progress: bool = False,
) -> tuple[list[int], Statistics]:
    """Select the layers that `prune` would remove, and collect the statistics for their patches.

    The model is not changed.

    Args:
        model: The model.
        sequences: Calibration tokens [samples, tokens].
        count: Number of layers to remove.
        variant: See `select`.
        layers: Layers to remove instead of a computed selection.
        cosine: See `select`.
        kind: Kind of the patches, see `patch_values`.
        estimator: See `channel_scales`.
        fidelity: See `select`.
        others: Further numbers of layers that the same statistics must serve (`select`, `patch_interfaces`); not for a
            computed matrix.
        batch_size: Sequences per batch.
        progress: Show a progress bar.

    Returns:
        The layers (original indices, in order of removal) and the statistics.

    Raises:
        UserError: as `prune`.
    """
    decoder = Decoder(model)
    check_count(count, decoder.num_layers)
    _check_names(variant, fidelity, cosine)
    check_model(model)
    if layers is not None:
        check_layers(layers, decoder.num_layers, count)
    cosine = cosine or default_cosine(variant, fidelity)
    options = {"rotate": kind in ("hadamard", "rotated"), "batch_size": batch_size, "progress": progress}
    counts = {count, *others}
    if layers is not None:
        blocks, pairs = runs(layers), []
    else:  # every run that a selection may remove: blocks for ``L``, runs of any length for ``S``
        lengths = counts if variant == "L" else range(1, max(counts) + 1)
        blocks = [(start, start + n) for n in lengths for start in range(decoder.num_layers - n + 1)]
        pairs = sorted({pair for number in counts for pair in default_pairs(decoder.num_layers, number)})
    later = kind == "matrix" and layers is None
    named = {} if later else named_statistics(kind, estimator, blocks)
    statistics = collect(decoder, sequences, span=max(counts), pairs=pairs, kinds=(cosine,), **named, **options)
    removed = list(layers) if layers is not None else select(statistics, count, variant, fidelity, cosine)
    if later:
        named = named_statistics(kind, estimator, runs(removed))
        statistics = collect(decoder, sequences, span=count, pairs=[], **named, **options)
    return removed, statistics
