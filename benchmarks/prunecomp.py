"""Prune&Comp's loop against the naive loop with identical choices: `python benchmarks/prunecomp.py`.

The naive loop does what the official code does. For each removal it runs one pass for the metric and two for the factor (the
layer's input and its output), over the model as it is by then, with the factor fused into its weights each time.
"""

import copy

import torch

from common.forward.losses import next_token_loss
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.importance import layer_inputs, magnitude, protect, taylor
from common.utils.ratios import race
from papers.prunecomp import METRICS, fuse_factor, prune_and_compensate

SAMPLES, TOKENS, REMOVE = 4, 128, 4
PROTECTED = {"taylor+": protect(16), "mag+": protect(16)}


@torch.no_grad()
def run_all(decoder: Decoder, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return every layer's input, and the last one's output."""
    return list(layer_inputs(decoder, ids, range(decoder.num_layers)))


@torch.no_grad()
def trial_loss(decoder: Decoder, ids: torch.Tensor, without: int) -> float:
    """Return the loss of the model without one layer."""
    remaining = [layer for layer in range(decoder.num_layers) if layer != without]
    return next_token_loss(decoder, decoder.run(decoder.embed_tokens(ids), layers=remaining), ids).mean().item()


def scores(decoder: Decoder, metric: str, ids: torch.Tensor) -> list[float]:
    """Return one score per present layer, from scratch."""
    if metric == "bi":
        states = run_all(decoder, ids)
        return [-torch.cosine_similarity(x, y, dim=-1).mean().item() for x, y in zip(states, states[1:])]
    if metric == "ppl":
        return [trial_loss(decoder, ids, layer) for layer in range(decoder.num_layers)]
    return (taylor(decoder, ids, micro_batch=8) if metric == "taylor+" else magnitude(decoder)).tolist()


def naive(model: torch.nn.Module, ids: torch.Tensor, metric: str) -> tuple[list[int], int]:
    """Return the removed layers and layer executions of the naive way: all steps run on the entire present model.

    The steps are metric, factor, removal and scaling.
    """
    decoder, names, removed = Decoder(model), list(range(model.config.num_hidden_layers)), []
    for _ in range(REMOVE):
        by_layer = dict(zip(names, scores(decoder, metric, ids)))
        layer = min((name for name in names if name not in PROTECTED.get(metric, ())), key=by_layer.__getitem__)
        place = names.index(layer)
        x, y = run_all(decoder, ids)[place], run_all(decoder, ids)[place + 1]
        alpha = (y.abs().mean(1) / x.abs().mean(1)).mean().item()
        remove_layers(model, [place])
        if place < len(names) - 1:
            fuse_factor(model, place, alpha)
        removed.append(names.pop(place))
    return removed, decoder.executions


def ours(model: torch.nn.Module, ids: torch.Tensor, metric: str) -> tuple[list[int], int]:
    """Return the removed layers and layer executions of `prune_and_compensate`."""
    report = prune_and_compensate(model, ids, REMOVE, metric=metric, batch_size=SAMPLES)
    return report["removed"], report["layer_executions"]


def main() -> None:
    """Print the ratios of every metric that is iterated."""
    torch.set_flush_denormal(True)
    model, _ = loading.load("standin", dtype="float32")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (SAMPLES, TOKENS), generator=generator)
    baseline = "metric and factor from scratch after each removal"
    for metric in (name for name in METRICS if name != "cl"):  # cl: one block, at once
        ways = [lambda way=way, metric=metric: way(copy.deepcopy(model), ids, metric) for way in (naive, ours)]
        race(f"Prune&Comp's loop by {metric}", baseline, *ways)


if __name__ == "__main__":
    main()
