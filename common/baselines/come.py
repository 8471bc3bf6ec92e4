"""CoMe (Wang et al., NeurIPS 2025, arXiv 2510.15304): two neighbouring layers become one, from the channels of both.

One pair a step, on calibration text, until enough layers are removed. What the paper calls progressive merging by
concatenation, by the formulas of its public code (github.com/WangFei-2019/CoMe at 7bb695a, methods/concat_merge.py, as
its README runs it: ``--skip-method bi --merge-item 2 --wo-repeat``):

    pair         i that minimises the mean of arccos(cos(x_i, x_(i+2))) / pi, x the residual stream of a sample's last token
    share        p_i = BI_i / (BI_i + BI_(i+1)), BI the mean over tokens of 1 - max(0, cos(X_i, X_(i+1)))
    sensitivity  c_k = mean over tokens of |h_k| * sum over rows of |W_rk|, of channel k of o_proj and of down_proj

Of n channels of the MLP int(n p) of the layer with the smaller share stay, and of the other the rest; always those of
highest sensitivity. The same holds for groups of heads (a key head with the query heads that read it), by their mean. Rows of
q, k, v, gate and up and columns of o and down are put behind one another. The gains of the norms are averaged; norms of
queries and keys, and biases of o and down, by share. A merged layer is not merged again. The result is a plain checkpoint.

Deviations. The code repeats its mask of key heads for the query heads, which takes other query heads than the ones that
read them where key heads are fewer; here each goes with its own. That favours CoMe: on SmolLM2 seven merges have a
perplexity of 119, and 1,034 with the code's query heads (8 sequences; tried once, without records). The residual stream
after the last layer is taken before the final norm. Once the last two layers are merged, the code stops with an error,
and here the next pair follows. The code joins 256 lines and cuts them into sequences of 2,048 tokens, so its angles are
those of few last tokens; here the recipe says how many sequences are read. The hierarchical distillation that follows in
the paper is left out: these are its rows without training.

CoMe-P (methods/concat_merge_P.py) selects the pair by the mean angle over all tokens. In place of BI's share it tries
p = 0, 0.05, .. 1 of the pair's first layer, and takes the p of the lowest loss on the calibration text. The public code
stops with an error before the first trial, because it stores a share that is not assigned yet. Here the losses are those
of the first ``tried`` sequences, not of all.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.baselines.llm_pruner import highest
from common.calibration.layer_inputs import ATTENTION, MLP, Watched
from common.console.progress import track
from common.forward.losses import next_token_loss
from common.models import offload
from common.models.decoder import Decoder
from common.models.layers.widths import key_heads
from common.models.removal import check_count
from common.models.surgery import remove_layers
from common.pruning import selection
from common.pruning.pipeline import Context
from common.pruning.recipe import Pruning, register
from common.utils.errors import UserError, UserValueError

SHARES = tuple(0.05 * step for step in range(21))  # of the first layer, which CoMe-P tries


@register("come")
@dataclass(frozen=True)
class CoMe(Pruning):
    """Merge pairs of layers by CoMe, without its distillation; the details get ``merged``, an entry per pair.

    count: number of layers to remove.
    tried: for CoMe-P, the number of first calibration sequences on which shares are tried; None is CoMe.
    """

    count: int
    tried: int | None = None

    def __post_init__(self) -> None:
        if self.tried is not None and self.tried < 1:
            raise UserValueError(f"CoMe-P with {self.tried} sequences to try shares on: use at least one")

    def apply(self, context: Context) -> None:
        """Select pairs of layers and merge them."""
        sequences, started = context.sequences(), time.perf_counter()
        merges: list[dict] = []

        def search(begun: list[dict] | None, keep: Callable[[list[dict]], object]) -> list[dict]:
            merges[:] = come(
                context.model,
                sequences,
                self.count,
                tried=self.tried,
                begun=begun or (),
                after=keep,
                **context.pass_options,
            )
            return merges

        # The merges of fewer layers are the first ones of more; those of an earlier search are repeated without a pass.
        text = context.recipe.calibration
        facts = {"calibration": text, "tried": self.tried} if self.tried else text
        earlier = context.searched("come", facts, search, count=self.count, onward=True)
        merges = merges or come(context.model, sequences, self.count, begun=earlier)
        seconds = round(time.perf_counter() - started, 2)
        context.details["repair"] = {"calibration_tokens": sequences.numel(), "seconds": seconds}
        merged = [
            entry | {name: [len(indices) for indices in entry[name]] for name in ("heads", "channels")}
            for entry in merges
        ]
        context.details |= {"removed": [entry["pair"][1] for entry in merged], "merged": merged}


@dataclass
class Pass:
    """Statistics of every layer from one pass over calibration text.

    Attributes:
        influence: BI of each layer.
        angle: Angular distance across the pair of layers that begins with each layer.
        inputs: Mean |h| over tokens, of the inputs of o_proj and down_proj, by layer.
    """

    influence: Tensor
    angle: Tensor
    inputs: list[dict[str, Tensor]]


@torch.no_grad()
def come(
    model: nn.Module,
    ids: Tensor,
    count: int,
    *,
    tried: int | None = None,
    begun: Sequence[dict] = (),
    after: Callable[[list[dict]], object] = lambda merges: None,
    batch_size: int = 8,
    progress: bool = False,
) -> list[dict]:
    """Merge ``count`` pairs of layers of ``model``, in place; each step passes once over ``ids`` [samples, tokens].

    ``tried`` is the number of first samples on which CoMe-P tries shares; None is CoMe. ``begun`` are merges of an earlier
    run, which are repeated without a pass. ``after`` is called with all merges so far after each new one.

    Returns:
        An entry per merge: {"pair": the layers (original indices; a merged layer has its first one's), "shares", and of
        each layer the "heads" (groups) and "channels" that are kept}.

    Raises:
        UserError: an architecture whose layers are not built as Llama's, or no pair is left.
    """
    offload.refuse(model, "CoMe")
    decoder = Decoder(model)
    if not decoder.spec.like_llama:
        raise UserError(
            f"CoMe cannot merge layers of architecture {decoder.architecture!r}. Its heads and channels are not laid out as "
            "Llama's. Remove whole layers instead"
        )
    check_count(count, decoder.num_layers)
    alive, merges = list(range(decoder.num_layers)), []
    for step in track(range(count), "CoMe", unit="layer", shown=progress, each=True):
        if step < len(begun):
            merges.append(begun[step])
        else:
            excluded = {entry["pair"][0] for entry in merges}
            options = {"tried": tried, "batch_size": batch_size, "progress": progress}
            merges.append(choose(decoder, ids, alive, excluded, **options))
            after(merges)
        first = alive.index(merges[-1]["pair"][0])
        merge(decoder.layers[first], decoder.layers[first + 1], merges[-1])
        remove_layers(model, [first + 1])
        del alive[first + 1]
    return merges


def choose(
    decoder: Decoder,
    ids: Tensor,
    alive: Sequence[int],
    excluded: Collection[int] = (),
    *,
    tried: int | None = None,
    batch_size: int = 8,
    progress: bool = False,
) -> dict:
    """Select the next merge by ``ids`` [samples, tokens]; ``alive`` and ``excluded`` hold original indices of layers.

    ``tried`` is as in `come`.
    """
    places = [i for i in range(len(alive) - 1) if not {*alive[i : i + 2]} & set(excluded)]
    if not places:
        raise UserError(f"No pair of {len(alive)} layers is left to be merged. Remove fewer layers")
    statistics = observe(decoder, ids, last=not tried, batch_size=batch_size)
    first = selection.lowest({i: statistics.angle[i].item() for i in places})

    scores: dict[str, list[Tensor]] = {"heads": [], "channels": []}
    for layer, inputs in zip(decoder.layers[first : first + 2], statistics.inputs[first : first + 2], strict=True):
        by_head = _sensitivity(layer.self_attn.o_proj, inputs[ATTENTION]).view(key_heads(layer), -1).mean(1)
        scores["heads"].append(by_head)
        scores["channels"].append(_sensitivity(layer.mlp.down_proj, inputs[MLP]))

    def merged(shares: list[float]) -> dict:
        kept = {
            name: [highest(c, size).tolist() for c, size in zip(pair, _split(len(pair[0]), shares), strict=True)]
            for name, pair in scores.items()
        }
        return {"pair": list(alive[first : first + 2]), "shares": [round(share, 6) for share in shares]} | kept

    if not tried:
        influence = statistics.influence[first : first + 2]
        return merged((influence / influence.sum()).tolist())
    trials = [merged([share, 1 - share]) for share in SHARES]
    losses = losses_of_merges(decoder, ids[:tried], first, trials, batch_size=batch_size, progress=progress)
    return trials[selection.lowest(dict(enumerate(losses)))]


@torch.no_grad()
def losses_of_merges(
    decoder: Decoder,
    ids: Tensor,
    first: int,
    trials: Sequence[Mapping],
    *,
    batch_size: int = 8,
    progress: bool = False,
) -> list[float]:
    """Compute the mean next-token loss on ``ids`` [samples, tokens], in nats, with each merge of one pair of layers.

    ``first`` is the place of the pair's first layer, ``trials`` are entries of `come`. The model is left as it was.
    """
    layer, second = decoder.layers[first], decoder.layers[first + 1]
    original = {name: value.clone() for name, value in layer.state_dict().items()}
    batches = ids.split(batch_size)
    entering = [decoder.run(decoder.embed_tokens(batch), 0, first) for batch in batches]
    order = [first, *range(first + 2, decoder.num_layers)]
    losses = []
    for trial in track(trials, "trial losses", unit="trial", leave=False, shown=progress):
        try:
            merge(layer, second, trial)
            leaving = (decoder.run(hidden, layers=order) for hidden in entering)
            total = sum(next_token_loss(decoder, *pair).sum().item() for pair in zip(leaving, batches, strict=True))
        finally:
            layer.load_state_dict(original)
        losses.append(total / len(ids))
    return losses


def observe(decoder: Decoder, ids: Tensor, *, last: bool = True, batch_size: int = 8) -> Pass:
    """Collect the statistics of every layer in one pass over ``ids`` [samples, tokens].

    ``last`` takes the angles of each sample's last token, otherwise those of all tokens.
    """
    layers = decoder.num_layers
    statistics = Pass(torch.zeros(layers, dtype=torch.float64), torch.zeros(layers - 1, dtype=torch.float64), [])
    statistics.inputs = [{ATTENTION: 0.0, MLP: 0.0} for _ in range(layers)]
    tokens = slice(-1 if last else 0, None)
    for batch in ids.split(batch_size):
        hidden = decoder.embed_tokens(batch)
        recent = [hidden[:, tokens]]  # before the layer and before the one that precedes it
        for layer in range(layers):
            with Watched(decoder, layer) as watched:
                after = decoder.run(hidden, layer, layer + 1)
            statistics.influence[layer] += (1 - _cosine(hidden, after)).double().sum().item() / ids.numel()
            for name in (ATTENTION, MLP):
                statistics.inputs[layer][name] += watched.inputs[name].abs().double().sum((0, 1)) / ids.numel()
            recent.append(after[:, tokens])
            if layer:
                angles = _cosine(recent.pop(0), after[:, tokens]).arccos()
                statistics.angle[layer - 1] += angles.double().sum().item() / (math.pi * len(ids) * angles.shape[1])
            hidden = after
    return statistics


def merge(first: nn.Module, second: nn.Module, chosen: Mapping) -> None:
    """Write the merge of two layers into ``first``; ``chosen`` is an entry of `come`."""
    size, places = first.self_attn.head_dim, [torch.tensor(indices, dtype=torch.long) for indices in chosen["channels"]]
    queries = size * first.self_attn.num_key_value_groups
    heads = [torch.tensor(indices, dtype=torch.long)[:, None] for indices in chosen["heads"]]
    spread = {
        width: [(indices * width + torch.arange(width)).flatten() for indices in heads] for width in (size, queries)
    }
    rows = {"self_attn.q_proj": spread[queries], "self_attn.k_proj": spread[size], "self_attn.v_proj": spread[size]}
    rows |= {"mlp.gate_proj": places, "mlp.up_proj": places}
    columns = {"self_attn.o_proj": spread[queries], "mlp.down_proj": places}
    for name, value in first.named_parameters():
        linear, _, kind = name.rpartition(".")
        parts = [layer.get_parameter(name) for layer in (first, second)]
        if linear in rows or linear in columns and kind == "weight":
            dim = int(linear in columns)
            kept = zip(parts, (rows | columns)[linear], strict=True)
            merged = torch.cat([p.index_select(dim, at.to(p.device)).to(value.device) for p, at in kept], dim)
        else:
            weights = [0.5, 0.5] if linear.endswith("layernorm") else chosen["shares"]
            merged = sum(weight * p.to(value.device) for weight, p in zip(weights, parts, strict=True))
        value.copy_(merged)


def _split(total: int, shares: list[float]) -> list[int]:
    """Return how many of ``total`` each layer keeps: int(total p) of the smaller share, the rest of the other."""
    most = shares.index(max(shares))
    sizes = [int(total * share) for share in shares]
    sizes[most] = total - sizes[1 - most]
    return sizes


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    """Return max(0, cos) of each token of two streams [batch, tokens, channels], float32 [batch, tokens]."""
    return F.cosine_similarity(first.to(second.device).float(), second.float(), dim=-1).clamp(0, 1)


def _sensitivity(linear: nn.Linear, inputs: Tensor) -> Tensor:
    """Return c [features], float64."""
    return inputs.to(linear.weight.device) * linear.weight.abs().double().sum(0)
