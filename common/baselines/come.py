"""CoMe (Wang et al., NeurIPS 2025, arXiv 2510.15304): two neighbouring layers become one, from the channels of both.

One pair a step, on calibration text, until enough layers are gone. What the paper calls progressive merging by
concatenation, by the formulas of its public code (github.com/WangFei-2019/CoMe, methods/concat_merge.py, as its README runs
it: ``--skip-method bi --merge-item 2 --wo-repeat``):

    pair         i that minimises the mean of arccos(cos(x_i, x_(i+2))) / pi, x the residual stream of a sample's last token
    share        p_i = BI_i / (BI_i + BI_(i+1)), BI the mean over tokens of 1 - max(0, cos(X_i, X_(i+1)))
    sensitivity  c_k = mean over tokens of |h_k| * sum over rows of |W_rk|, of channel k of o_proj and of down_proj

Of n channels of the MLP int(n p) of the layer with the smaller share stay, and of the other the rest; always those of
highest sensitivity. The same holds for groups of heads (a key head with the query heads that read it), by their mean. Rows of
q, k, v, gate and up and columns of o and down are put behind one another. The gains of the norms are averaged; norms of
queries and keys, and biases of o and down, by share. A merged layer is not merged again. The result is a plain checkpoint.

Deviations. The code repeats its mask of key heads for the query heads, which takes other query heads than the ones that
read them where key heads are fewer; here each goes with its own. The stream after the last layer is taken before the final
norm. The hierarchical distillation that follows in the paper is left out: these are its rows without training.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.calibration.layer_inputs import ATTENTION, MLP, Watched
from common.models import offload
from common.models.decoder import Decoder
from common.models.layer_widths import channels, key_heads
from common.models.surgery import remove_layers
from common.pruning import selection
from common.pruning.pipeline import Context
from common.pruning.recipe import Pruning, register
from common.utils.errors import UserError
from common.utils.progress import track


@register("come")
@dataclass(frozen=True)
class CoMe(Pruning):
    """CoMe, without its distillation; repeat: merge merged layers again. Details: ``merged``, an entry a pair."""

    count: int
    repeat: bool | None = None

    def apply(self, context: Context) -> None:
        options = {"batch_size": context.batch_size, "progress": context.progress}
        windows, started = context.windows(), time.perf_counter()
        merged = come(context.model, windows, self.count, repeat=bool(self.repeat), **options)
        seconds = round(time.perf_counter() - started, 2)
        context.details["repair"] = {"calibration_tokens": windows.numel(), "seconds": seconds}
        context.details |= {"removed": [entry["pair"][1] for entry in merged], "merged": merged}


@dataclass
class Pass:
    """Sums over calibration text of every layer. influence: BI; angle: of the pair that begins with it; inputs: |h|."""

    influence: Tensor
    angle: Tensor
    inputs: list[dict[str, Tensor]]


@torch.no_grad()
def come(
    model: nn.Module, ids: Tensor, count: int, *, repeat: bool = False, batch_size: int = 8, progress: bool = False
) -> list[dict]:
    """Merge ``count`` pairs of layers of ``model``, in place.

    Args:
        ids: calibration tokens [samples, tokens]; one pass over them a step.
        repeat: a layer that was merged may be merged again.

    Returns:
        An entry per step: {"pair": the layers (original numbers; a merged one has its first's), "shares", "heads" and
        "channels" that each keeps}.

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
    selection.check_count(count, decoder.num_layers)
    alive, done, reports = list(range(decoder.num_layers)), set(), []
    for _ in track(range(count), "CoMe", unit="layer", shown=progress, each=True):
        seen = observe(decoder, ids, batch_size=batch_size)
        pairs = [i for i in range(len(alive) - 1) if repeat or done.isdisjoint(alive[i : i + 2])]
        if not pairs:
            raise UserError(
                f"No pair of layers is left after {len(reports)} merges. Remove fewer layers, or set repeat"
            )
        first = selection.lowest({i: seen.angle[i].item() for i in pairs})
        pair = alive[first : first + 2]
        influence = seen.influence[first : first + 2]
        shares = (influence / influence.sum()).tolist()
        layers = decoder.layers[first], decoder.layers[first + 1]
        numbers = merge(layers[0], layers[1], shares, [seen.inputs[first], seen.inputs[first + 1]])
        remove_layers(model, [first + 1])
        alive.remove(pair[1])
        done.add(pair[0])
        reports.append({"pair": pair, "shares": [round(share, 4) for share in shares]} | numbers)
    return reports


def observe(decoder: Decoder, ids: Tensor, *, batch_size: int = 8) -> Pass:
    """Return what one pass over ``ids`` [samples, tokens] shows of every layer."""
    layers = decoder.num_layers
    found = Pass(torch.zeros(layers, dtype=torch.float64), torch.zeros(layers - 1, dtype=torch.float64), [])
    found.inputs = [{ATTENTION: 0.0, MLP: 0.0} for _ in range(layers)]
    for batch in ids.split(batch_size):
        hidden, last = decoder.embed_tokens(batch), []
        for layer in range(layers):
            last.append(hidden[:, -1].float().cpu())
            with Watched(decoder, layer) as seen:
                after = decoder.run(hidden, layer, layer + 1)
            cosine = F.cosine_similarity(hidden.float(), after.to(hidden.device).float(), dim=-1).clamp(0, 1)
            found.influence[layer] += (1 - cosine).double().sum().item() / ids.numel()
            for name in (ATTENTION, MLP):
                found.inputs[layer][name] += seen.inputs[name].abs().double().sum((0, 1)) / ids.numel()
            hidden = after
        last.append(hidden[:, -1].float().cpu())
        for layer in range(layers - 1):
            cosine = F.cosine_similarity(last[layer], last[layer + 2], dim=-1).clamp(0, 1)
            found.angle[layer] += cosine.arccos().double().sum().item() / (math.pi * len(ids))
    return found


def merge(one: nn.Module, two: nn.Module, shares: list[float], inputs: list[dict[str, Tensor]]) -> dict:
    """Write the layer that both become into ``one``; inputs: the mean |h| of each layer's o_proj and down_proj.

    Returns the numbers of heads and channels that each keeps.
    """
    pair, size = (one, two), one.self_attn.head_dim
    groups, inner = key_heads(one), channels(one)
    queries = size * one.self_attn.num_key_value_groups
    heads, places = [], []
    for layer, own, number, count in zip(pair, inputs, _split(groups, shares), _split(inner, shares), strict=True):
        by_head = _sensitivity(layer.self_attn.o_proj, own[ATTENTION]).view(groups, -1).mean(1)
        heads.append(by_head.topk(number).indices.sort().values)
        places.append(_sensitivity(layer.mlp.down_proj, own[MLP]).topk(count).indices.sort().values)
    spread = {
        width: [(h[:, None] * width + torch.arange(width, device=h.device)).flatten() for h in heads]
        for width in (size, queries)
    }
    rows = {"self_attn.q_proj": spread[queries], "self_attn.k_proj": spread[size], "self_attn.v_proj": spread[size]}
    rows |= {"mlp.gate_proj": places, "mlp.up_proj": places}
    columns = {"self_attn.o_proj": spread[queries], "mlp.down_proj": places}
    for name, value in one.named_parameters():
        linear, _, kind = name.rpartition(".")
        parts = [layer.get_parameter(name) for layer in pair]
        if linear in rows:
            merged = torch.cat(
                [p[own.to(p.device)].to(value.device) for p, own in zip(parts, rows[linear], strict=True)]
            )
        elif linear in columns and kind == "weight":
            kept = zip(parts, columns[linear], strict=True)
            merged = torch.cat([p[:, own.to(p.device)].to(value.device) for p, own in kept], 1)
        else:
            weights = [0.5, 0.5] if linear.endswith("layernorm") else shares
            merged = sum(weight * p.to(value.device) for weight, p in zip(weights, parts, strict=True))
        value.copy_(merged)
    return {"heads": [len(own) for own in heads], "channels": [len(own) for own in places]}


def _split(total: int, shares: list[float]) -> list[int]:
    """Return how many of ``total`` each layer keeps: int(total p) of the smaller share, the rest of the other."""
    most = shares.index(max(shares))
    found = [int(total * share) for share in shares]
    found[most] = total - found[1 - most]
    return found


def _sensitivity(linear: nn.Linear, inputs: Tensor) -> Tensor:
    """Return c [features], float64."""
    return inputs.to(linear.weight.device) * linear.weight.abs().double().sum(0)
