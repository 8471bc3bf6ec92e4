"""Score the importance of each layer. For every metric here the lowest score is removed first.

Scores are float64 tensors [N] over the layers 0..N-1 of the present model.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from common.calibration import Statistics
from common.console.progress import track
from common.forward.losses import next_token_loss, token_losses
from common.hooks import refuse_patches
from common.models import offload
from common.models.architectures import at_hand
from common.models.decoder import Decoder, gained
from common.utils.errors import UserValueError

# Host memory that the states of a calibration set may take; beyond it only every k-th is kept and the others run again.
STATE_BYTES = 16 * 2**30


def block_influence(statistics: Statistics, kind: str = "token") -> Tensor:
    """Compute the block influence (BI) of each layer, float64 [N]: 1 - mean cosine of input and output (ShortGPT Eq. 1).

    Prune&Comp (Eq. 4) calls the cosine itself BI and removes the highest; the order is the same. ``kind`` names the
    cosine, see `Statistics.cosine`.
    """
    return block_scores(statistics, 1, kind)


def block_scores(statistics: Statistics, count: int, kind: str = "token") -> Tensor:
    """Compute 1 - mean cosine across every block of ``count`` layers, by first layer, float64 [N - count + 1]."""
    starts = range(statistics.layers - count + 1)
    return torch.tensor([1 - statistics.cosine(kind, s, s + count) for s in starts], dtype=torch.float64)


@torch.no_grad()
def losses_without_each(
    decoder: Decoder,
    ids: Tensor,
    alive: list[int],
    candidates: list[int],
    *,
    batch_size: int = 8,
    gains: Mapping[int, float | Tensor] | None = None,
    inputs: Sequence[Sequence[Tensor]] | None = None,
    progress: bool = False,
) -> Tensor:
    """Compute the mean loss of a model without each of several layers.

    Candidates share their first layers with the complete model: each batch runs ``alive`` once, and a candidate
    continues from the input of the layer it drops. With m layers alive and the candidates between first and last that
    is (m - 2) + (m - 2)(m - 1)/2 layer executions per batch, against (m - 2)(m - 1) if each trial runs all layers.

    Args:
        decoder: The model.
        ids: Token ids [samples, tokens].
        alive: Layers that the model consists of.
        candidates: Layers of ``alive`` to leave out, one at a time.
        batch_size: Samples per batch.
        gains: Factors on the residual stream before a layer (`Decoder.run`); a candidate's factor stays without it.
        inputs: Known inputs of the layers of ``alive``, gains included: ``inputs[batch][place]``.
        progress: Show a progress bar.

    Returns:
        Losses in nats per token, float64 [candidates].

    Raises:
        UserError: a model with patches: a candidate's patch would be left out here, but not when the layer is removed.
    """
    refuse_patches(decoder.model, "trying a model without a layer")
    totals = dict.fromkeys(candidates, 0.0)
    last = max((alive.index(c) for c in candidates), default=-1)
    batches = ids.split(batch_size)
    trials = track(None, "trial losses", total=len(batches) * len(totals), unit="trial", leave=False, shown=progress)
    with trials:
        for number, batch in enumerate(batches):
            entering = layer_inputs(decoder, batch, alive, gains) if inputs is None else inputs[number]
            for place, hidden in zip(range(last + 1), entering):
                if alive[place] in totals:
                    leaving = decoder.run(hidden.to(decoder.device), layers=alive[place + 1 :], gains=gains)
                    totals[alive[place]] += next_token_loss(decoder, leaving, batch).sum().item()
                    trials.update()
    return torch.tensor(list(totals.values()), dtype=torch.float64) / len(ids)


@torch.no_grad()
def losses_without_blocks(
    decoder: Decoder,
    ids: Tensor,
    count: int,
    starts: Collection[int],
    *,
    entering: Callable[[Tensor, Tensor], Tensor] | None = None,
    batch_size: int = 8,
    progress: bool = False,
) -> dict[int, Tensor]:
    """Compute the loss of the model without each block of layers ``[start, start + count)``, on ``ids`` [samples, tokens].

    The original residual stream before the blocks is run once. A batch takes max(starts) + the sum of N - start - count
    layer executions; with ``entering`` the original residual stream continues to the last block's end. ``entering``
    makes of the state before a block and the original state after it the state that continues after the block; None
    continues with the state before it.

    Returns:
        By start, the losses in nats per token, float64 [samples].

    Raises:
        UserError: a model with patches, as `losses_without_each`.
    """
    refuse_patches(decoder.model, "trying a model without a block")
    starts = sorted(starts)
    losses, last = {start: [] for start in starts}, starts[-1] + (count if entering else 0)
    batches = track(ids.split(batch_size), "trial losses", unit="batch", leave=False, shown=progress, each=True)
    for batch in batches:
        dense, entering_states = decoder.embed_tokens(batch), {}
        for layer in range(last + 1):
            if layer in losses:
                entering_states[layer] = dense
            for start in [start for start in entering_states if entering is None or start + count == layer]:
                trial = entering_states.pop(start)
                hidden = decoder.run(entering(trial, dense) if entering else trial, start + count)
                losses[start].append(next_token_loss(decoder, hidden, batch).double().cpu())
            if layer < last:
                dense = decoder.run(dense, layer, layer + 1)
    return {start: torch.cat(parts) for start, parts in losses.items()}


@torch.no_grad()
def layer_inputs(
    decoder: Decoder, ids: Tensor, layers: Sequence[int], gains: Mapping[int, float | Tensor] | None = None
) -> Iterator[Tensor]:
    """Yield the input of each of ``layers``, gains included, in the model of these layers alone, then ``X[N]``; lazily.

    ``ids`` [batch, tokens] gives states [batch, tokens, channels]. A layer runs when the state after it is requested.
    """
    hidden = decoder.embed_tokens(ids)
    for layer in layers:
        if gains and layer in gains:
            hidden = gained(hidden, gains[layer])
        yield hidden
        hidden = decoder.run(hidden, layers=[layer])
    yield hidden


def reverse_order(layers: int) -> Tensor:
    """Return scores N-1..0, so that the deepest layer is removed first (Reassessing's best metric)."""
    return torch.arange(layers - 1, -1, -1, dtype=torch.float64)


def random_order(layers: int, seed: int) -> Tensor:
    """Return the scores of a random order, from Python's ``random`` with the given seed."""
    order = random.Random(seed).sample(range(layers), layers)
    scores = torch.empty(layers, dtype=torch.float64)
    scores[order] = torch.arange(layers, dtype=torch.float64)
    return scores


def protect(layers: int) -> tuple[int, ...]:
    """Return the positions that the "+" of Taylor+ and Mag+ keeps: the first four and the last two (Shortened LLaMA)."""
    return tuple(position for position in range(layers) if position < 4 or position >= layers - 2)


def scored_weights(layer: nn.Module, norms: bool = True) -> dict[str, nn.Parameter]:
    """Return the parameters that Taylor and magnitude sum over: every weight of the layer, without biases.

    norms: with the gains of its norms, as in both official codes. A Mixtral layer counts its router and all experts.
    """
    named = {name: p for name, p in layer.named_parameters() if not name.rpartition(".")[2].endswith("bias")}
    return {name: p for name, p in named.items() if norms or p.ndim > 1}


@torch.no_grad()
def magnitude(
    decoder: Decoder,
    power: int = 1,
    *,
    norms: bool = True,
    root: bool = False,
    layers: Sequence[int] | None = None,
    factors: Mapping[int, float] | None = None,
) -> Tensor:
    """Sum ``|w| ** power`` over each layer's weights (Prune&Comp Eq. 8; Reassessing's Magnitude-l1 and -l2), [layers].

    ``power`` is 1 or 2. Reassessing's paper writes norms; its code sums squares and takes no root. ``root`` takes the
    root of each matrix's sum before adding, as written there: each expert has matrices of its own, and a fused one is
    one. ``norms`` counts the gains of the norms. ``layers`` scores only these, in this order. ``factors`` act on layers'
    residual writers (Prune&Comp's fusion), before they are fused.
    """
    scores = []
    for layer in range(decoder.num_layers) if layers is None else layers:
        factor = (factors or {}).get(layer, 1.0)
        writers = {id(w.tensor): w for w in decoder.residual_writers(layer)} if factor != 1.0 else {}
        score = 0.0
        for weight in scored_weights(at_hand(decoder.layers[layer]), norms).values():
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            if id(weight) in writers:
                wide = writers[id(weight)].scaled(wide, factor)
            total = wide.abs().pow(power).sum((-2, -1) if root and wide.ndim > 2 else None, dtype=torch.float64)
            score += (total ** (1 / power) if root else total).sum().item()
        scores.append(score)
    return torch.tensor(scores, dtype=torch.float64)


def taylor(
    decoder: Decoder,
    ids: Tensor,
    *,
    norms: bool = True,
    micro_batch: int = 1,
    layers: Sequence[int] | None = None,
    gains: Mapping[int, float | Tensor] | None = None,
    inputs: Sequence[Sequence[Tensor]] | None = None,
    visit: Callable[[int, dict[str, Tensor], dict[str, Tensor | None]], None] | None = None,
    progress: bool = False,
) -> Tensor:
    """Estimate the change of loss to first order when a layer's weights vanish (Prune&Comp Eq. 7).

    The score is the sum over weights of ``|w g|``. g is the gradient of the mean next-token loss over ``ids``, so the
    micro-batch does not change the result (Shortened LLaMA's and Prune&Comp's code, and Reassessing's single backward pass).

    Args:
        decoder: The model.
        ids: Token ids [samples, tokens].
        norms: Count the gains of the norms.
        micro_batch: Samples that go through a layer together.
        layers: Score only these layers, in this order, of the model that consists of them alone.
        gains: Factors on the residual stream before a layer (`Decoder.run`).
        inputs: Known inputs of ``layers``, gains included, and of the final norm, per micro-batch:
            ``inputs[batch][place]`` [samples, tokens, channels]. Saves the forward pass. Any but the first and the last may
            be None; it is then run again from the one before it.
        visit: Called as ``visit(layer, weights, gradients)``, both float32 by name, as soon as a layer's are summed;
            None for an expert's that no token chose.
        progress: Show a progress bar.

    Returns:
        Scores, float32 [N] or [layers].

    The loss gradient goes back through one layer at a time for the whole set, so one layer's gradients exist at a time (their
    sum and a micro-batch's) instead of a second copy of the model, and that layer alone is widened to float32 (half precision
    would lose gradients). Held meanwhile, in host memory: every layer's input on ``ids``. Layer executions: 2 per layer and
    micro-batch, one forward and one with gradients (1 with ``inputs``).

    Raises:
        UserError: no tokens, fewer than two per sample, or a streamed model.
    """
    offload.refuse(decoder.model, "Taylor")
    if ids.ndim != 2 or len(ids) == 0 or ids.shape[1] < 2:
        raise UserValueError(f"Taylor needs tokens [samples, 2 or more], not {list(ids.shape)}")
    layers = list(range(decoder.num_layers)) if layers is None else list(layers)
    batches = ids.split(micro_batch)
    if inputs is None:
        every, last = spacing(decoder, ids), len(layers)
        inputs = [
            [
                state.cpu() if place % every == 0 or place == last else None
                for place, state in enumerate(layer_inputs(decoder, batch, layers, gains))
            ]
            for batch in batches
        ]
    inputs = [list(states) for states in inputs]
    gradients = [_loss_gradient(decoder, states.pop(), batch, len(ids)) for states, batch in zip(inputs, batches)]
    scores = torch.zeros(len(layers), dtype=torch.float64)
    places = reversed(range(len(layers)))
    for place in track(places, "Taylor", total=len(layers), unit="layer", leave=False, shown=progress, each=True):
        layer = layers[place]
        with _wide(decoder.layers[layer]):
            named = scored_weights(decoder.layers[layer], norms)
            weights = list(named.values())
            total: list[Tensor] | None = None
            for index, states in enumerate(inputs):
                fill_states(decoder, states, layers, gains)
                entering = states.pop().to(decoder.device).float().requires_grad_()
                with torch.enable_grad():
                    leaving = decoder.run(entering, layers=[layer])
                upstream = gradients[index].to(leaving.device)
                # an expert that no token chose has no gradient
                passed, *layer_gradients = torch.autograd.grad(
                    leaving, [entering, *weights], upstream, allow_unused=True
                )
                gain = (gains or {}).get(layer, 1.0)  # linear: its gradient is its transpose
                gain = gain.T if isinstance(gain, Tensor) and gain.ndim == 2 else gain
                gradients[index] = gained(passed, gain).cpu()
                if total is None:
                    total = layer_gradients
                else:
                    total = [a if b is None else b if a is None else a.add_(b) for a, b in zip(total, layer_gradients)]
                del passed, layer_gradients  # or a third set would exist while the next batch's is made
            products = ((w.detach() * g).abs() for w, g in zip(weights, total, strict=True) if g is not None)
            scores[place] = sum(product.sum(dtype=torch.float64).item() for product in products)
            if visit is not None:
                visit(layer, {name: w.detach() for name, w in named.items()}, dict(zip(named, total, strict=True)))
    return scores


def spacing(decoder: Decoder, ids: Tensor) -> int:
    """Return the smallest k such that every k-th layer's input on ``ids`` [samples, tokens] fits into memory.

    Memory is STATE_BYTES, or an offloaded model's memory for states.
    """
    room = decoder.model.streamed.states if decoder.streamed else STATE_BYTES
    state = ids.numel() * decoder.hidden_size * decoder.embed.weight.element_size()
    return min(decoder.num_layers + 1, max(1, -(-state * (decoder.num_layers + 1) // max(room, 1))))


@torch.no_grad()
def fill_states(
    decoder: Decoder,
    states: list[Tensor | None],
    layers: Sequence[int],
    gains: Mapping[int, float | Tensor] | None = None,
) -> None:
    """Compute the last of ``states``, the inputs of ``layers``, from the last known one on."""
    start = max(place for place, state in enumerate(states) if state is not None)
    hidden = states[start].to(decoder.device)
    for place in range(start, len(states) - 1):
        hidden = decoder.run(hidden, layers=[layers[place]])
        if gains and layers[place + 1] in gains:
            hidden = gained(hidden, gains[layers[place + 1]])
        states[place + 1] = hidden.cpu()


def _loss_gradient(decoder: Decoder, state: Tensor, ids: Tensor, samples: int) -> Tensor:
    """Return the gradient of ``sum of these samples' losses / samples`` with respect to ``X[N]``, float32, in host memory."""
    hidden = state.to(decoder.device).float().requires_grad_()
    with _wide(decoder.norm, decoder.lm_head), torch.enable_grad():
        normed = decoder.norm(hidden)
        read = normed.detach().requires_grad_()
        for losses in token_losses(decoder, read, ids):
            losses.sum().backward(inputs=[read])  # before the next part's logits are made
        upstream = read.grad / (samples * (ids.shape[1] - 1))
        return torch.autograd.grad(normed, hidden, upstream)[0].cpu()


@contextmanager
def _wide(*modules: nn.Module) -> Iterator[None]:
    """Convert the modules' parameters to float32, differentiable, while the context is open; restore them afterwards."""
    saved = [(p, p.data, p.requires_grad) for module in modules for p in module.parameters()]
    try:
        for parameter, data, _ in saved:
            parameter.data = data.float()
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, data, required in saved:
            parameter.data = data
            parameter.requires_grad_(required)
