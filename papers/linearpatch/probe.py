"""Take the patch apart: pieces of A, weaker or stronger (extension).

A = H diag(d) H^T is measured and applied in a basis in which no channel stands out. All entries of H are +-1/sqrt(C),
so every entry of A's diagonal is the mean of d; the other entries mix channels. The pieces:

    A         as the paper has it
    d         diag(d), d measured without the rotation: the paper's +d
    factor    A's diagonal: one factor, the mean of the rotated scales
    massive   x_m A + x_r diag(d): of the residual stream x the massive channels x_m go through A, the rest x_r through d
    others    x_m diag(d) + x_r A
"""

import torch
from torch import Tensor

from common.calibration.statistics import Statistics
from common.hadamard import hadamard_matrix
from common.utils.errors import unknown
from papers.linearpatch.patch import patch_values

PIECES = ("A", "d", "factor", "massive", "others")
# A channel is massive where its mean magnitude at the pruning interface is so many times the median channel's.
MASSIVE = 10.0


def massive_channels(magnitudes: Tensor) -> Tensor:
    """Return a mask of the massive channels of ``magnitudes``, bool [channels]."""
    return magnitudes >= MASSIVE * magnitudes.median()


def piece_matrix(
    statistics: Statistics,
    start: int,
    stop: int,
    *,
    piece: str = "A",
    estimator: str = "ratio-of-means",
    strength: float = 1.0,
) -> Tensor:
    """Compute I + strength (P - I) for a piece P of the patch (extension), float64 [channels, channels].

    States are rows: x becomes x times the matrix. ``piece`` is a name in `PIECES` (module docstring), ``estimator`` that
    of `papers.linearpatch.patch.patch_values`. Strength 0 is no patch, 1 the piece itself.

    Raises:
        UserError: an unknown piece, or settings that `patch_values` refuses.
    """
    if piece not in PIECES:
        raise unknown("piece of the patch", piece, PIECES)
    scales = {
        kind: patch_values(statistics, start, stop, kind=kind, estimator=estimator) for kind in ("hadamard", "diagonal")
    }
    rotation = hadamard_matrix(len(scales["hadamard"])).to(scales["hadamard"])
    rotated, plain = rotation * scales["hadamard"] @ rotation.T, torch.diag(scales["diagonal"])
    eye = torch.eye(len(plain)).to(plain)
    massive = massive_channels(statistics.magnitude(start)).to(plain.device)[:, None]
    matrix = {
        "A": rotated,
        "d": plain,
        "factor": scales["hadamard"].mean() * eye,
        "massive": torch.where(massive, rotated, plain),
        "others": torch.where(massive, plain, rotated),
    }[piece]
    return eye + strength * (matrix - eye)
