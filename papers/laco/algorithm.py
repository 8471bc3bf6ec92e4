"""Layer Collapse: which layers merge (LaCo, section 2.2, Algorithm 1), and the search for a given number of layers.

Algorithm 1 counts layers from 1, and so do `l`, `L` and `H` here; layer `l` is `model.model.layers[l - 1]`.

Cost of the search: the pointer only falls, by I or by 1, so the layers up to `l` are unchanged whenever `l` is tried.
So one pass over the original model gives its outputs *and* every layer input that the search will start from. An
attempt runs the merged layer and the layers after it, nothing else. It needs memory for the model and one more layer's
weights; a rejected merge restores the layer's tensors. The notebooks copy the entire model for every attempt and run
both models from the embedding (`benchmarks/laco.py` compares).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from common.console.progress import track
from common.hooks import refuse_patches
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.importance import layer_inputs
from common.utils.errors import UserValueError
from papers.laco.merge import Merge, check_alike
from papers.laco.outputs import DEFAULT_COSINE, output_similarity, tokenise

LEAST_LAYERS = 2  # what `common.models.surgery` leaves at least
Remembered = Callable[[tuple, Callable[[], float]], float]


@dataclass(frozen=True)
class CollapseSettings:
    """Settings of Algorithm 1, except its threshold.

    The notebooks fix I = 1; every row of Tables 5 and 6 has I = 2.

    Attributes:
        C: Number of layers that one merge combines.
        I: Minimum distance, in layers, between two merges.
        L: First layer considered, 1-based.
        H: Last layer considered, 1-based; None for the model's last layer.
        merge: Rule for the weights, a name in `papers.laco.merge.RULES`.
        cosine: Similarity of outputs, see `output_similarity`.
    """

    C: int
    I: int = 2
    L: int = 1
    H: int | None = None
    merge: str = "paper"
    cosine: str = DEFAULT_COSINE

    def within(self, layers: int) -> CollapseSettings:
        """Return the settings for a model of ``layers`` layers, with H filled in.

        Raises:
            UserError: Algorithm 1 could not run, or would do nothing for any model: C outside 2..layers, a range
                outside 1..layers or without room for C layers, or I below 1.
        """
        C, I, L, H = self.C, self.I, self.L, layers if self.H is None else self.H
        if not 2 <= C <= layers:
            raise UserValueError(
                f"cannot merge C = {C} layers at a time: the model has {layers}; use 2 to {layers - 1}"
            )
        if not 1 <= L <= H <= layers:
            raise UserValueError(
                f"the range of layers [{L}, {H}] is empty or outside 1..{layers}; L and H count from 1"
            )
        if H - C < L:
            raise UserValueError(
                f"the range of layers [{L}, {H}] is empty for C = {C}: l starts at H - C = {H - C} < L; merge fewer layers "
                "at a time (--combine)"
            )
        if I < 1:
            raise UserValueError(f"the interval I = {I} must be at least 1, or the pointer never moves on")
        return replace(self, H=H)


@dataclass(frozen=True)
class Attempt:
    """One iteration of Algorithm 1's loop.

    Attributes:
        l: The pointer, 1-based.
        K: Number of layers merged into layer l.
        similarity: The similarity s. None if it is not finite, or if the merge would leave fewer than two layers.
        accepted: Whether the merge was kept.
        layers: Number of layers after the attempt.
    """

    l: int
    K: int
    similarity: float | None
    accepted: bool
    layers: int


@dataclass(frozen=True)
class Collapse:
    """Result of a collapse.

    Attributes:
        removed: Original 0-based indices of the removed layers, in order of removal.
        trace: Every attempt, in order.
        threshold: The similarity threshold T of the run.
        layers: Number of layers left.
        layer_executions: Layer calls summed over all sentences, the original model's pass included; without those of
            attempts that a stopped run had made.
    """

    removed: list[int]
    trace: list[Attempt]
    threshold: float
    layers: int
    layer_executions: int


def pointer(layers: int, C: int, L: int, H: int, I: int) -> Generator[tuple[int, int], bool, None]:
    """Run lines 8-22 of Algorithm 1 without a model.

    Line 16's reset cannot happen, because a merge leaves at least l layers. It is kept as written. (The paper's text,
    "l falls below the total layer count", has the comparison backwards.) For C, L, H and I see `CollapseSettings`.

    Yields:
        Pairs (l, K): merge K layers into layer l, 1-based. Send back whether the merge was accepted.
    """
    l, count = H - C, layers
    while l >= L:
        K = min(C - 1, count - l)
        l, count = _moved(l, count, K, C, I) if (yield l, K) else (l - 1, count)


def _moved(l: int, count: int, K: int, C: int, I: int) -> tuple[int, int]:
    """Pointer and number of layers after K of them were merged into layer l."""
    count -= K
    l -= I
    return (count - C if l > count else l), count


def reachable(layers: int, C: int, I: int) -> list[int]:
    """Return all numbers of layers that Algorithm 1 can leave, in ascending order (extension).

    The search covers all of a model's layers (L = 1, H = ``layers``) and every sequence of accepted and rejected
    merges.
    """
    starts, left = {(layers - C, layers)}, set()
    while starts:
        l, count = starts.pop()
        if l < 1:
            left.add(count)
            continue
        starts.add((l - 1, count))
        K = min(C - 1, count - l)
        if count - K >= LEAST_LAYERS:
            starts.add(_moved(l, count, K, C, I))
    return sorted(left)


def _computed(attempt: tuple, compute: Callable[[], float]) -> float:
    return compute()


class _Search:
    """The model as a sequence of accepted merges, undone and redone at will; the layers themselves stay in place.

    state: accepted (l, K), in order. undoable: keep the former weights of accepted merges, one layer each. bar: counts the
    attempts that are computed.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        sentences: Sequence[str],
        settings: CollapseSettings,
        undoable: bool,
        progress: bool = False,
        remembered: Remembered = _computed,
    ) -> None:
        refuse_patches(model, "LaCo")
        self.bar = track(None, "LaCo", unit="attempt", shown=progress, each=True)
        self.decoder, self.undoable, self.remembered = Decoder(model), undoable, remembered
        self.layers = self.decoder.num_layers
        self.settings = settings.within(self.layers)
        check_alike(self.decoder.layers[self.settings.L - 1 :])  # before anything is changed
        self.state: tuple[tuple[int, int], ...] = ()
        self.order = list(range(self.layers))
        self._merges: list[Merge] = []
        self._known: dict[tuple, float] = {}
        self.inputs: list[list[Tensor]] = []  # [sentence][layer] -> X[layer]
        self.outputs: list[Tensor] = []
        for ids in tokenise(tokenizer, sentences):
            states = list(layer_inputs(self.decoder, ids, self.order))
            self.outputs.append(self.decoder.norm(states.pop())[0])
            self.inputs.append(states)

    def walk(self, T: float) -> tuple[tuple, list[Attempt]]:
        """Return one run of Algorithm 1's loop: the accepted merges, and every attempt."""
        settings = self.settings
        moves = pointer(self.layers, settings.C, settings.L, settings.H, settings.I)
        state, trace, count = (), [], self.layers
        try:
            l, K = next(moves)
            while True:
                s = self.similarity(state, l, K) if count - K >= LEAST_LAYERS else math.nan
                accepted = s > T
                if accepted:
                    state, count = (*state, (l, K)), count - K
                trace.append(Attempt(l, K, s if math.isfinite(s) else None, accepted, count))
                l, K = moves.send(accepted)
        except StopIteration:
            return state, trace

    def similarity(self, state: tuple, l: int, K: int) -> float:
        """Return S of line 11 for merging K layers into layer l after the merges `state`; compute each value once."""
        if (state, l) not in self._known:
            s = self._known[state, l] = self.remembered((state, l, K), lambda: self._tried(state, l, K))
            self.bar.note(f"{K} layers merged into {l - 1}: similarity {s:.4f}")
            self.bar.update()
        return self._known[state, l]

    def _tried(self, state: tuple, l: int, K: int) -> float:
        self.go(state)
        trial = self._merged(l, K)
        try:
            order = [l - 1, *self.order[l + K :]]
            runs = (self.decoder.run(states[l - 1], layers=order) for states in self.inputs)
            outputs = [self.decoder.norm(hidden)[0] for hidden in runs]
            return output_similarity(outputs, self.outputs, self.settings.cosine)
        finally:
            trial.undo()

    def go(self, state: tuple) -> None:
        """Bring the weights to the accepted merges `state`, keeping what it shares with the present ones."""
        shared = 0
        while shared < min(len(state), len(self.state)) and state[shared] == self.state[shared]:
            shared += 1
        if shared < len(self.state):
            for merge in reversed(self._merges[shared:]):
                merge.undo()
            del self._merges[shared:]
            self.order = list(range(self.layers))
            for l, K in state[:shared]:
                del self.order[l : l + K]
        for l, K in state[shared:]:
            self._merges.append(self._merged(l, K))
            if not self.undoable:
                self._merges[-1].keep()
            del self.order[l : l + K]
        self.state = state

    def finish(self, state: tuple, trace: list[Attempt], T: float, chosen: Callable | None = None) -> Collapse:
        """Leave the model with the accepted merges `state`, without the layers merged into others."""
        order, removed = list(range(self.layers)), []
        for l, K in state:
            removed += order[l : l + K]
            del order[l : l + K]
        if chosen is not None and removed:
            self.go(())
            chosen(removed)
        self.go(state)
        if removed:
            remove_layers(self.decoder.model, removed)
        return Collapse(removed, trace, T, self.decoder.num_layers, self.decoder.executions)

    def _merged(self, l: int, K: int) -> Merge:
        group = [self.decoder.layers[index] for index in self.order[l - 1 : l + K]]
        return Merge(group, self.settings.merge)


@torch.no_grad()
def collapse(
    model: nn.Module,
    tokenizer,
    sentences: Sequence[str],
    *,
    T: float,
    chosen: Callable[[list[int]], object] | None = None,
    progress: bool = False,
    remembered: Remembered = _computed,
    **settings,
) -> Collapse:
    """Collapse layers by Algorithm 1, in place.

    Deviation: a merge that would leave a single layer is not tried (`common.models.surgery` keeps two).

    Args:
        model: The model; it is changed.
        tokenizer: The model's tokenizer.
        sentences: D, the calibration sentences (the paper: ten from Wikipedia).
        T: Similarity threshold, -1 to 1. A merge is accepted if the outputs' cosine similarity is above it.
        chosen: Called with the layers to remove while the model has all its original weights. The search then keeps the
            former weights of every merged layer.
        progress: Show a progress bar.
        remembered: Function that returns an attempt's similarity, from an earlier search or by calling its second argument.
            The first is the attempt: the merges accepted before it, l and K.
        settings: Fields of `CollapseSettings`; `C` is required: `collapse(model, tokenizer, sentences, C=4, T=0.65)`.

    Returns:
        The removed layers, and every attempt of the search.

    Raises:
        UserError: impossible settings, a sentence without tokens, layers of different shapes, or unknown names.
    """
    if not -1 <= T <= 1:
        raise UserValueError(f"the threshold T = {T} is no cosine; use a number from -1 to 1")
    search = _Search(
        model, tokenizer, sentences, CollapseSettings(**settings), chosen is not None, progress, remembered
    )
    with search.bar:
        state, trace = search.walk(T)
    return search.finish(state, trace, T, chosen)


@torch.no_grad()
def collapse_to(
    model: nn.Module,
    tokenizer,
    sentences: Sequence[str],
    layers: int,
    *,
    chosen: Callable[[list[int]], object] | None = None,
    progress: bool = False,
    remembered: Remembered = _computed,
    **settings,
) -> Collapse:
    """Collapse a model to exactly ``layers`` layers, in place (extension; the paper names its absence as a limitation).

    The search is over T alone. Lowering T changes nothing until it passes the highest similarity that was rejected, so
    only finitely many values matter. From T = 1 downwards every distinct run is tried once, until one leaves ``layers``
    layers; that is the highest T that does. The number of layers is not monotone in T, so a bisection could miss it.
    Attempts that two runs share are computed once. Besides the model, the search holds one layer's weights per merge.

    Args:
        model: The model; it is changed.
        tokenizer: The model's tokenizer.
        sentences: Calibration sentences.
        layers: Number of layers to leave, in place of T.
        chosen: See `collapse`.
        progress: Show a progress bar.
        remembered: See `collapse`.
        settings: See `collapse`.

    Returns:
        The removed layers, and every attempt of the search.

    Raises:
        UserError: as `collapse`; or no threshold leaves ``layers`` layers. The message lists the possible numbers, and
            the model is unchanged.
    """
    search = _Search(model, tokenizer, sentences, CollapseSettings(**settings), True, progress, remembered)
    T, reached = 1.0, set()
    with search.bar:
        while True:
            state, trace = search.walk(T)
            if trace[-1].layers == layers:
                return search.finish(state, trace, T, chosen)
            reached.add(trace[-1].layers)
            rejected = [a.similarity for a in trace if not a.accepted and a.similarity is not None]
            if not rejected:
                search.go(())
                C, I = search.settings.C, search.settings.I
                raise UserValueError(
                    f"no threshold leaves {layers} layers with C = {C}, I = {I}; "
                    f"there are thresholds for {', '.join(map(str, sorted(reached)))}; choose one of these, or another C or I"
                )
            T = math.nextafter(max(rejected), -2.0)  # line 13 asks for s > T
