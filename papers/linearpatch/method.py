"""LinearPatch from calibration tokens to a patched model (sections 3.1 to 3.3)."""

from __future__ import annotations

from torch import Tensor, nn

from common.calibration import Statistics, collect
from common.decoder import Decoder
from common.errors import unknown
from common.importance import block_influence
from common.selection import best_window, check_count, one_shot
from papers.linearpatch.patch import patch_cuts

VARIANTS = ("L", "S")
FIDELITIES = ("paper", "code")


def select(statistics: Statistics, count: int, variant: str = "L", fidelity: str = "paper") -> list[int]:
    """The layers to remove: ``L``, the window of highest cosine (Eq. 2), or ``S``, the lowest BI as ShortGPT.

    fidelity: ``paper`` takes the cosine per token and the argmax over all starts; ``code`` is the official code's cosine
    along tokens per channel, over starts 1..N-n-1. For ``S`` both are the same.
    """
    if variant not in VARIANTS:
        raise unknown("LinearPatch variant", variant, VARIANTS)
    if fidelity not in FIDELITIES:
        raise unknown("fidelity", fidelity, FIDELITIES)
    if variant == "S":
        return one_shot(block_influence(statistics), count)
    kind = "token" if fidelity == "paper" else "channel"
    return list(range(*best_window(statistics, count, kind, exclude_ends=fidelity == "code")))


def prune(
    model: nn.Module,
    windows: Tensor,
    count: int,
    *,
    variant: str = "L",
    kind: str = "hadamard",
    estimator: str = "ratio-of-means",
    fidelity: str = "paper",
    batch_size: int = 8,
    progress: bool = False,
) -> dict:
    """Remove ``count`` layers of ``model`` and patch the cut, in place, from calibration tokens [samples, tokens].

    One pass over the tokens gives both selection and scales. Returns the removed layers (original indices), and per
    patch its run, position and scales.

    Raises:
        UserError: an impossible count, or an unknown variant, kind, estimator or fidelity.
    """
    decoder = Decoder(model)
    check_count(count, decoder.num_layers)
    kinds = ("token",) if fidelity == "paper" or variant == "S" else ("channel",)
    span = count
    elementwise: list[tuple[int, int]] = []
    if estimator == "elementwise":  # Eq. 4 needs its pairs named before the pass
        elementwise = [(a, a + d) for d in range(1, count + 1) for a in range(decoder.num_layers - d + 1)]
        if variant == "L":
            elementwise = [(a, b) for a, b in elementwise if b - a == count]
    statistics = collect(
        decoder,
        windows,
        span=span,
        kinds=kinds,
        rotate=kind == "hadamard",
        elementwise=elementwise,
        batch_size=batch_size,
        progress=progress,
    )
    removed = select(statistics, count, variant, fidelity)
    return {"removed": removed, "patches": patch_cuts(model, statistics, removed, kind=kind, estimator=estimator)}
