"""Select the next layer: the paper's metrics over a residual stream, with their protections ("Layer Pruning Metrics").

For every metric the lowest scores are removed first; Eqs. 4 and 5 are cosines, of which the highest are removed. Eqs. 7
and 8 sum over linear weight matrices; the gains of the norms count, too, as in the official code.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from common.hooks import refuse_patches
from common.models import offload
from common.models.decoder import Decoder
from common.models.removal import check_count, check_layers
from common.pruning.importance import losses_without_each, magnitude, protect, taylor
from common.pruning.recipe import check_fidelity
from common.pruning.selection import block_starts
from common.utils.errors import UserError, UserValueError, unknown
from papers.prunecomp.factor import check_architecture, check_loaded
from papers.prunecomp.options import METRICS
from papers.prunecomp.stream import Stream


@dataclass(frozen=True)
class Search:
    """Constants of a search for the layers to remove.

    Attributes:
        metric: A name in `METRICS`.
        fidelity: ``paper`` or ``code``, the official code's protections.
        compensate: Whether each removal is followed by its magnitude factor.
        protected: Layers that stay; None for the metric's own rule.
        sequences: Calibration tokens [samples, tokens], for the factors and, without ``metric_sequences``, the metric.
        metric_sequences: Calibration tokens of the metric alone, if they differ.
        batch_size: Sequences per pass.
        progress: Show progress bars.
        known: Layers in order of their score in the original model, lowest first, if that order is already known.
    """

    metric: str
    fidelity: str = "paper"
    compensate: bool = False
    protected: frozenset[int] | None = None
    sequences: Tensor | None = None
    metric_sequences: Tensor | None = None
    batch_size: int = 8
    progress: bool = False
    known: tuple[int, ...] = ()

    def streams(self, decoder: Decoder) -> tuple[Stream, Stream]:
        """Return the residual streams for the factors and for the metric; they are mostly the same."""
        options = {"batch_size": self.batch_size, "progress": self.progress}
        stream = Stream(decoder, self.sequences, **options)
        return stream, stream if self.metric_sequences is None else Stream(decoder, self.metric_sequences, **options)

    def eligible(self, layers: list[int], total: int) -> list[int]:
        """Return the remaining layers that may be removed next.

        Taylor+ and Mag+ keep the first four and last two of the original model. These are also the first four and last
        two of any smaller one, which is what the official code keeps. The official code's PPL keeps the first and last
        remaining layer.
        """
        if self.protected is not None:
            return [layer for layer in layers if layer not in self.protected]
        if self.metric.endswith("+"):
            return [layer for layer in layers if layer not in protect(total)]
        return layers[1:-1] if self.metric == "ppl" and self.fidelity == "code" else layers

    def scores(self, stream: Stream, eligible: list[int]) -> dict[int, float]:
        """Return the score of each eligible layer in the current model, by original index.

        PPL removes each candidate without compensating for it.
        """
        decoder, layers = stream.decoder, stream.layers
        if self.metric == "bi":
            scores = 1 - stream.cosines()
        elif self.metric == "mag+":
            scores = magnitude(decoder, layers=layers, factors=stream.products())
        elif self.metric == "taylor+":
            options = {"micro_batch": stream.batch_size, "gains": stream.factors, "progress": self.progress}
            scores = taylor(decoder, stream.ids, layers=layers, inputs=stream.states(), **options)
        else:
            inputs = stream.states(layers.index(eligible[-1]))
            inputs = None if any(state is None for state in inputs[0]) else inputs  # not all kept: run them in passing
            options = {"batch_size": stream.batch_size, "gains": stream.factors, "progress": self.progress}
            losses = losses_without_each(decoder, stream.ids, layers, eligible, inputs=inputs, **options)
            return dict(zip(eligible, losses.tolist()))
        by_layer = dict(zip(layers, scores.tolist()))
        return {layer: by_layer[layer] for layer in eligible}

    def lowest(self, stream: Stream, count: int = 1) -> list[int]:
        """Return the ``count`` eligible layers of lowest score, lowest first; ties go to the earlier layer."""
        if len(self.known) >= count and len(stream.layers) == stream.decoder.num_layers:
            return list(self.known[:count])
        eligible = self.eligible(stream.layers, stream.decoder.num_layers)
        _check_room(count, len(eligible), len(stream.layers))
        scores = self.scores(stream, eligible)
        return sorted(scores, key=lambda layer: (math.isnan(scores[layer]), scores[layer]))[:count]

    def check(self, layers: int, count: int, given: Sequence[int] | None = None) -> None:
        """Refuse a search that is impossible in a model of ``layers`` layers.

        Protections do not apply to ``given`` layers.
        """
        if self.metric not in METRICS:
            raise unknown("pruning metric", self.metric, METRICS)
        check_fidelity(self.fidelity)
        check_count(count, layers)
        if given is not None:
            check_layers(given, layers, count)
            return
        _check_room(count, len(self.eligible(list(range(layers)), layers)), layers)
        if self.metric == "cl":
            block_starts(layers, count, exclude_ends=self.fidelity == "code", protect=self.protected or ())


def next_layer(
    stream: Stream, metric: str = "bi", *, protected: Collection[int] | None = None, progress: bool = False
) -> int:
    """Return the layer that the metric would remove next from the current model.

    Args:
        stream: The current model with its residual stream on the calibration tokens.
        metric: BI, PPL, Taylor+ or Mag+, see `METRICS`; CL has no next layer.
        protected: Layers that stay; None: those of the metric.
        progress: Show a progress bar.

    Raises:
        UserError: as `choose`.
    """
    return choose(stream, 1, metric, protected=protected, progress=progress)[0]


def choose(
    stream: Stream,
    count: int | None,
    metric: str = "bi",
    *,
    protected: Collection[int] | None = None,
    progress: bool = False,
) -> list[int]:
    """Return the layers of lowest score in the current model, without removing them.

    It covers all metrics but CL, whose block `common.pruning.selection.best_block` gives.

    Args:
        stream: The current model with its residual stream on the calibration tokens.
        count: Number of layers; None: all that may be removed.
        metric: BI, PPL, Taylor+ or Mag+, see `METRICS`.
        protected: Layers that stay; None: those of the metric.
        progress: Show a progress bar.

    Returns:
        Original indices, lowest score first.

    Raises:
        UserError: as `prune_and_compensate`.
    """
    keep = None if protected is None else frozenset(protected)
    search = Search(metric, protected=keep, sequences=stream.ids, batch_size=stream.batch_size, progress=progress)
    if metric == "cl":
        raise UserError("CosSim(CL) removes one block at once; find it with common.pruning.selection.best_block")
    check(search, stream.decoder, 1 if count is None else count)
    layers, layer_count = stream.layers, stream.decoder.num_layers
    return search.lowest(stream, len(search.eligible(layers, layer_count)) if count is None else count)


def check(search: Search, decoder: Decoder, count: int, given: Sequence[int] | None = None) -> None:
    """Refuse an impossible search before any layer runs. given: layers to remove instead of a selection."""
    search.check(decoder.num_layers, count, given)
    refuse_patches(decoder.model, "Prune&Comp")
    if search.metric == "taylor+":
        offload.refuse(decoder.model, "the metric 'taylor+'")
    if not decoder.streamed and (search.compensate or search.metric.endswith("+")):
        check_loaded(decoder.model.parameters())
    if search.compensate:
        check_architecture(decoder.architecture)


def _check_room(count: int, allowed: int, layers: int) -> None:
    if count > allowed:
        raise UserValueError(
            f"cannot remove {count} layers: only {allowed} of {layers} are not protected (Taylor+ and Mag+ keep the first "
            "four and the last two); remove fewer, choose by another metric, or name those to keep (in Python: protected=)"
        )
