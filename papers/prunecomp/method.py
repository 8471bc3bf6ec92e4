"""Prune&Comp from calibration tokens to a smaller, rescaled model (Algorithm 1, and its parts for the ablation).

    repeat n times:  idx <- Metric(M, C);  alpha <- gap at idx, before its removal;  M <- Prune(M, idx);  M <- Comp

The printed algorithm prunes before it compensates; alpha needs the layer still in place, as in the text and the
official code.
"""

import logging
from collections.abc import Callable, Collection, Sequence

from torch import Tensor, nn

from common.calibration import Statistics, collect
from common.console.progress import track
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.selection import best_block, lowest, runs
from papers.prunecomp.factor import check_architecture, check_interface, fuse_factor, fuse_factors, magnitude_factor
from papers.prunecomp.search import Search, check

log = logging.getLogger(__name__)


def prune_and_compensate(
    model: nn.Module,
    sequences: Tensor,
    count: int,
    *,
    metric: str = "bi",
    iterative: bool = True,
    compensate: bool = True,
    metric_sequences: Tensor | None = None,
    protected: Collection[int] | None = None,
    known: Sequence[int] = (),
    layers: Sequence[int] | None = None,
    begun: Sequence[tuple[int, float | None]] = (),
    after: Callable[[list[int], list[float | None]], object] = lambda removed, factors: None,
    chosen: Callable[[list[int]], object] | None = None,
    window_factor: str = "direct",
    fidelity: str = "paper",
    batch_size: int = 8,
    progress: bool = False,
) -> dict:
    """Remove layers by Prune&Comp (Algorithm 1), in place; a plain Hugging Face model remains.

    Args:
        model: The model; it is changed.
        sequences: Calibration tokens [samples, tokens] for the factors, and for the metric unless ``metric_sequences`` is
            given.
        count: Number of layers to remove.
        metric: One of METRICS: BI, CL, PPL, Taylor+, Mag+.
        iterative: Select again after every removal (+IterPrune); otherwise all at once in the original model. CL
            removes one block at once in either case: iterated one by one it would be BI.
        compensate: Fuse a factor at every interface (+MagComp); later selections see earlier factors. One-shot factors
            are those of the original model, multiplied where several adjacent layers are removed.
        metric_sequences: Calibration tokens of the metric alone: SLEB's lines for PPL and ten C4 crops for Taylor+ in the
            official code.
        protected: Layers that stay; default: the first four and last two for Taylor+ and Mag+, none for the others.
        known: Result of `choose` for this metric, its tokens and this model, which saves the first scoring.
        layers: Layers to remove, in this order, instead of a selection.
        begun: Layers that an earlier search with the same settings removed, in order, with their factors. This search
            continues from there, bit for bit. Only for iterative searches other than CL with fidelity ``paper``.
        after: Called after each step of such a search with the removed layers and their factors.
        chosen: Called with the layers to remove before the model is changed (the loop of fidelity ``code`` has no such
            moment).
        window_factor: Alpha of CL's block, see `magnitude_factor`.
        fidelity: ``paper`` keeps the weights unchanged while selecting, and multiplies each once at the end by the
            product of its factors. ``code`` fuses after each removal into the weights as they are stored; its CL takes
            the cosine along tokens per channel and spares the ends, its PPL keeps the first and the last remaining
            layer. Two things of the official code are not repeated: it scales a tied head with the embedding, and
            rounds alpha to half precision.
        batch_size: Samples per batch.
        progress: Show a progress bar.

    Returns:
        The removed layers in order (original indices), the factor of each (for CL, one; None where the last layer was
        removed, since only the final norm follows it), the fused interfaces [position in the pruned model, factor], and
        the layer executions (one per layer and batch).

    Raises:
        UserError: unknown metric or fidelity, an impossible count or choice, more removals than unprotected layers,
            an architecture without norms before its attention and MLP, offloaded weights, or a model with patches.
    """
    decoder = Decoder(model)
    keep = None if protected is None else frozenset(protected)
    if metric_sequences is sequences:
        metric_sequences = None
    search = Search(metric, fidelity, compensate, keep, sequences, metric_sequences, batch_size, progress, tuple(known))
    check(search, decoder, count, layers)
    began = decoder.executions
    given, chosen = None if layers is None else list(layers), chosen or (lambda removed: None)
    if metric == "cl" and given is None:
        report = _block(search, decoder, count, window_factor, chosen)
    elif fidelity == "code" and iterative:
        report = _in_place(search, decoder, count, given)
    else:
        report = _streamed(search, decoder, count, iterative, given, chosen, begun, after)
    return report | {"layer_executions": decoder.executions - began}


def remove_and_compensate(
    model: nn.Module, statistics: Statistics, removed: Collection[int], *, window_factor: str = "product"
) -> dict:
    """Remove layers and fuse the original model's factors at each interface, in place (one-shot + MagComp).

    Args:
        model: The model; it is changed.
        statistics: Its statistics before the removal, with a span of the longest run.
        removed: Layers to remove.
        window_factor: Alpha of several adjacent layers, see `magnitude_factor`.

    Returns:
        The fused interfaces: [position in the pruned model, factor].

    Raises:
        UserError: the last layer is removed, so that a factor would have no effect.
    """
    decoder = Decoder(model)
    removed_runs = runs(removed)
    for _, stop in removed_runs:
        check_interface(stop, decoder.num_layers)
    check_architecture(decoder.architecture)
    factor_by_position, removed_before = {}, 0
    for start, stop in removed_runs:
        factor_by_position[start - removed_before] = magnitude_factor(statistics, start, stop, how=window_factor)
        removed_before += stop - start
    remove_layers(model, removed)
    fuse_factors(model, factor_by_position)
    return {"cuts": [list(cut) for cut in factor_by_position.items()]}


def repeat(model: nn.Module, removed: Sequence[int], factors: Sequence[float | None]) -> dict:
    """Remove layers with the factors that an earlier search found for each, in place; a factor None is not applied.

    The searches are greedy: the first k layers of a longer removal, with their factors, are the removal of k layers
    (not for CL).
    """
    decoder = Decoder(model)
    factor_by_position = _factor_by_position(list(removed), factors, decoder.num_layers)
    if factor_by_position:
        check_architecture(decoder.architecture)
    return _shortened(model, removed, factors, factor_by_position)


def _block(search: Search, decoder: Decoder, count: int, window_factor: str, chosen: Callable) -> dict:
    """Run CosSim(CL), Eq. 5: the block that changes the residual stream least, at once; one factor across it."""
    kind = "channel" if search.fidelity == "code" else "token"
    options = {"span": count, "rotate": False, "batch_size": search.batch_size, "progress": search.progress}
    metric_sequences = search.sequences if search.metric_sequences is None else search.metric_sequences
    statistics = collect(decoder, metric_sequences, kinds=(kind,), **options)
    sparing = {"exclude_ends": search.fidelity == "code", "protect": search.protected or ()}
    start, stop = best_block(statistics, count, kind, **sparing)
    factor = None
    if search.compensate and stop < decoder.num_layers:
        if search.metric_sequences is not None:
            statistics = collect(decoder, search.sequences, kinds=(), pairs=(), **options)
        factor = magnitude_factor(statistics, start, stop, how=window_factor)
    elif search.compensate:
        _nothing_follows(stop - 1)
    chosen(list(range(start, stop)))
    factor_by_position = {} if factor is None else {start: factor}
    return _shortened(decoder.model, range(start, stop), [factor] if search.compensate else [], factor_by_position)


def _streamed(
    search: Search,
    decoder: Decoder,
    count: int,
    iterative: bool,
    given: list[int] | None,
    chosen: Callable,
    begun: Sequence[tuple[int, float | None]],
    after: Callable,
) -> dict:
    """Run all other metrics: the model stays whole while layers are chosen, and is cut and fused once at the end."""
    stream, metric_stream = search.streams(decoder)
    streams = {id(stream): stream, id(metric_stream): metric_stream}.values()
    order = given or ([] if iterative else search.lowest(metric_stream, count))
    alphas = {layer: stream.factor(layer) for layer in order} if search.compensate and not iterative else {}
    removed: list[int] = []
    factors: list[float | None] = []

    def remove(layer: int, alpha: float | None) -> None:
        for shortened in streams:
            shortened.remove(layer, 1.0 if alpha is None else alpha)
        removed.append(layer)
        factors.append(alpha)

    for layer, alpha in begun[: count if iterative else 0]:
        for shortened in streams if alpha is not None else ():
            # as where it was measured: an interface's state is rounded after each factor
            shortened.states(shortened.layers.index(layer) + 1)
        remove(layer, alpha)
    left = range(len(removed), count)
    options = {"unit": "layer", "shown": search.progress, "each": True}
    steps = track(left, "Prune&Comp", total=count, initial=len(removed), **options)
    for step in steps:
        layer = order[step] if order else search.lowest(metric_stream)[0]
        alpha = None
        if search.compensate and layer == stream.layers[-1]:
            _nothing_follows(layer)
        elif search.compensate:
            alpha = stream.factor(layer) if iterative else alphas[layer]
        remove(layer, alpha)
        after(removed, factors)
        steps.note(f"layer {layer} removed" + ("" if alpha is None else f", factor {alpha:.4f}"))
    chosen(removed)
    return _shortened(decoder.model, removed, factors if search.compensate else [], stream.factor_by_position())


def _in_place(search: Search, decoder: Decoder, count: int, given: list[int] | None) -> dict:
    """Run the official code's loop: measure the present model, remove layers and scale the weights as stored."""
    names, total = list(range(decoder.num_layers)), decoder.num_layers
    removed: list[int] = []
    factors: list[float | None] = []
    steps = track(range(count), "Prune&Comp", unit="layer", shown=search.progress, each=True)
    for step in steps:
        stream, metric_stream = search.streams(decoder)
        if given is None:
            eligible = [names.index(layer) for layer in search.eligible(names, total)]
            place = lowest(search.scores(metric_stream, eligible))
        else:
            place = names.index(given[step])
        alpha = None
        if search.compensate and place == len(names) - 1:
            _nothing_follows(names[place])
        elif search.compensate:
            alpha = stream.factor(place)
        remove_layers(decoder.model, [place])
        if alpha is not None:
            fuse_factor(decoder.model, place, alpha)
        removed.append(names.pop(place))
        factors.append(alpha)
        steps.note(f"layer {removed[-1]} removed" + ("" if alpha is None else f", factor {alpha:.4f}"))
    return _report(removed, factors if search.compensate else [], _factor_by_position(removed, factors, total))


def _factor_by_position(removed: list[int], factors: Sequence[float | None], total: int) -> dict[int, float]:
    """Position in the model without the removed layers -> the product of the factors that act there."""
    factor_by_position: dict[int, float] = {}
    for layer, alpha in zip(removed, factors):
        position = layer - sum(earlier < layer for earlier in removed)
        if alpha is not None and position < total - len(removed):
            factor_by_position[position] = factor_by_position.get(position, 1.0) * alpha
    return factor_by_position


def _shortened(
    model: nn.Module, removed: Sequence[int], factors: Sequence[float | None], factor_by_position: dict[int, float]
) -> dict:
    """Remove the layers and fuse the factors, in place; return the report."""
    remove_layers(model, removed)
    fuse_factors(model, factor_by_position)
    return _report(removed, factors, factor_by_position)


def _report(removed: Sequence[int], factors: Sequence[float | None], factor_by_position: dict[int, float]) -> dict:
    return {
        "removed": list(removed),
        "factors": list(factors),
        "cuts": [list(cut) for cut in sorted(factor_by_position.items())],
    }


def _nothing_follows(layer: int) -> None:
    log.warning("layer %d was the last one: its factor is left out, since only the final norm follows", layer)
