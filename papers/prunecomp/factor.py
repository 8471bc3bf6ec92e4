"""The magnitude factor and its fusion into the weights before the pruning interface (Prune&Comp, "Magnitude Compensation").

Notation: layer l is removed; X^(l) [batch, tokens, channels] is the residual stream before it and X^(l+1) after it;
alpha multiplies X^(l) before layer l + 1 (Eq. 10). After fusion nothing of alpha is left at run time. The norms before
every attention and every MLP are invariant to the scale of the residual stream, so scaling everything that was added to
the stream scales the stream.
"""

import math
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from common.calibration import Statistics
from common.models.architectures import SUPPORTED
from common.models.decoder import Decoder
from common.utils.errors import UserError, UserValueError, unknown

BLOCK_FACTORS = ("direct", "product")


def magnitude_factor(statistics: Statistics, start: int, stop: int | None = None, *, how: str = "direct") -> float:
    """Compute alpha of the removed layers ``[start, stop)``, in float64 (Eq. 9).

    Per calibration sequence and channel it is the L1 norm over tokens of X^(stop) over that of X^(start); then the mean
    over channels and sequences. The official code averages per channel over sequences first: the same number. A channel
    that is zero in X^(start) of a sequence counts as 1 there; the official code divides by zero.

    Args:
        statistics: Statistics of the model with these layers.
        start: First removed layer.
        stop: Layer after the last removed one; None: one layer.
        how: For several layers, which the paper leaves open: ``direct`` is the ratio across all of them (the official
            code for CosSim(CL)), ``product`` the product of each layer's factor.

    Raises:
        UserError: an unknown ``how``, or a run longer than the statistics' span.
    """
    if how not in BLOCK_FACTORS:
        raise unknown("factor of a block", how, BLOCK_FACTORS)
    stop = start + 1 if stop is None else stop
    if how == "direct":
        return statistics.ratio(start, stop).mean().item()
    return math.prod(statistics.ratio(layer, layer + 1).mean().item() for layer in range(start, stop))


def fuse_factor(model: nn.Module, position: int, factor: float) -> None:
    """Multiply the input of layer ``position`` of the pruned model by ``factor``, in its weights (Eqs. 11-13).

    Scales the token embedding and, in layers 0 .. position - 1, the parameters that write into the residual stream:
    weights and biases of ``o_proj`` and ``down_proj`` (of every expert), or Gemma 2's post-norm gains, w <- alpha (1 +
    w) - 1. A tied head is scaled with the embedding and stays tied: the final norm's gain is divided by alpha. Exact as
    the norms' epsilon goes to 0. The paper's "k in [1, l - 1]" counts layers from 1: with layer 0 left out, Eq. 10
    would not hold.

    Args:
        model: The pruned model; its weights are changed.
        position: Layer after the pruning interface, in the pruned model.
        factor: Alpha.

    Raises:
        UserError: no such position, the final norm (nothing after it sees the factor), a factor that is not a positive
            number, or an architecture without norms before its attention and MLP.
    """
    fuse_factors(model, {position: factor})


def fuse_factors(model: nn.Module, factors: Mapping[int, float]) -> None:
    """Fuse the factors of several interfaces into the weights, in place.

    Every weight is multiplied once, by the product of all factors at later interfaces. The product is formed in float64
    and the weight in float32 at least, so n interfaces round a weight once and not n times.

    Args:
        model: The pruned model; its weights are changed.
        factors: Layer after the interface, in the pruned model -> alpha.

    Raises:
        UserError: as `fuse_factor`.
    """
    decoder = Decoder(model)
    for position, factor in factors.items():
        check_interface(position, decoder.num_layers)
        if not (math.isfinite(factor) and factor > 0):
            raise UserValueError(f"the factor at layer {position} is {factor}; it must be a positive number")
    if not factors:
        return
    check_architecture(decoder.architecture)
    last = max(factors)
    writers = {layer: decoder.residual_writers(layer) for layer in range(last)}
    if not decoder.streamed:
        check_loaded([decoder.embed.weight, *(writer.tensor for tensors in writers.values() for writer in tensors)])
    all_factors = math.prod(factors.values())
    for writer in decoder.embedding_writers():
        writer.scale_(all_factors)
    if decoder.tied:
        for gain in decoder.final_gains():
            gain.scale_(1 / all_factors)
    for layer, tensors in writers.items():
        product = math.prod(factor for position, factor in factors.items() if position > layer)
        for writer in tensors:
            writer.scale_(product)


def check_loaded(weights: Iterable[Tensor]) -> None:
    """Refuse weights that are not in memory."""
    if any(weight.is_meta for weight in weights):
        raise UserError(
            "offloaded weights can be neither scored nor scaled; load the model where it fits, e.g. on 'cpu'"
        )


def check_interface(position: int, layers: int) -> None:
    """Refuse a pruning interface that is not before one of the present model's layers."""
    if position == layers:
        raise UserValueError(
            f"nothing follows the pruning interface at X[{position}] but the final norm, which does not see the "
            "residual stream's scale: after removing the last layer a factor has nothing to act on; keep the last "
            "layer, or prune without compensation"
        )
    if not 0 <= position < layers:
        raise UserValueError(f"no layer {position} to receive a scaled residual stream: the model has 0..{layers - 1}")


def check_architecture(name: str) -> None:
    """Refuse an architecture whose attention or MLP reads the residual stream without a norm (OLMo 2).

    Raises:
        UserError: the message names the architecture.
    """
    if not all(sublayer.norm for sublayer in SUPPORTED[name].sublayers.values()):
        raise UserError(
            f"architecture {name!r} has no norm before its attention and MLP. They see the scale of the residual stream, "
            "so a factor cannot be fused into the weights. Leave the weights as they are (--no-compensation), or use another "
            "method, such as papers.linearpatch"
        )
