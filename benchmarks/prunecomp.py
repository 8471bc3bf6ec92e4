"""Prune&Comp: layer executions against the naive loop with identical choices, and how exact fusing the factor is.

    python benchmarks/prunecomp.py [--samples 4] [--tokens 128] [--remove 4] [--repeats 3]

The naive loop does what the official code does: for each removal one pass for the metric and two for the factor (the
layer's input and its output), over the model as it is by then, with the factor fused into its weights each time. The two
take turns, after one round that warms up; times are medians.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from common.console.command_line import parse
from common.forward.losses import next_token_loss
from common.hooks import scale_stream
from common.models import loading
from common.models.architectures import SUPPORTED
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.importance import magnitude, protect, taylor
from common.utils.ratios import Ratio, hand_over, in_turns
from papers.prunecomp import METRICS, fuse_factor, prune_and_compensate

PROTECTED = {"taylor+": protect(16), "mag+": protect(16)}
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
}


@torch.no_grad()
def run_all(decoder: Decoder, ids: torch.Tensor, stop: int | None = None) -> list[torch.Tensor]:
    """X[0] .. X[stop], every layer run."""
    states = [decoder.embed_tokens(ids)]
    for layer in range(decoder.num_layers if stop is None else stop):
        states.append(decoder.run(states[-1], layers=[layer]))
    return states


@torch.no_grad()
def trial_loss(decoder: Decoder, ids: torch.Tensor, without: int) -> float:
    """Return the whole model without one layer."""
    kept = [layer for layer in range(decoder.num_layers) if layer != without]
    return next_token_loss(decoder, decoder.run(decoder.embed_tokens(ids), layers=kept), ids).mean().item()


def scores(decoder: Decoder, metric: str, ids: torch.Tensor) -> list[float]:
    """Return one score per present layer, from scratch."""
    if metric == "bi":
        states = run_all(decoder, ids)
        return [-torch.cosine_similarity(x, y, dim=-1).mean().item() for x, y in zip(states, states[1:])]
    if metric == "ppl":
        return [trial_loss(decoder, ids, layer) for layer in range(decoder.num_layers)]
    return (taylor(decoder, ids, micro_batch=8) if metric == "taylor+" else magnitude(decoder)).tolist()


def naive(model: torch.nn.Module, ids: torch.Tensor, count: int, metric: str) -> tuple[list[int], int]:
    """Metric, factor, removal and scaling, each on the whole present model; removed layers and layer executions."""
    decoder, names, removed = Decoder(model), list(range(model.config.num_hidden_layers)), []
    for _ in range(count):
        found = dict(zip(names, scores(decoder, metric, ids)))
        layer = min((name for name in names if name not in PROTECTED.get(metric, ())), key=found.__getitem__)
        place = names.index(layer)
        x, y = run_all(decoder, ids)[place], run_all(decoder, ids)[place + 1]
        alpha = (y.abs().mean(1) / x.abs().mean(1)).mean().item()
        remove_layers(model, [place])
        if place < len(names) - 1:
            fuse_factor(model, place, alpha)
        removed.append(names.pop(place))
    return removed, decoder.executions


def counts(model: torch.nn.Module, samples: int, tokens: int, remove: int, repeats: int) -> None:
    """Executions, time and choices of both loops, for every metric that is iterated."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (samples, tokens), generator=generator)
    print(f"toy model, {samples} x {tokens} tokens in one batch, {remove} layers removed\n")
    print("| metric | naive executions | with reuse | share | naive s | with reuse s | same choices |")
    print("|---|---|---|---|---|---|---|")
    for metric in METRICS:
        if metric == "cl":
            continue  # one window, at once
        options = {"metric": metric, "batch_size": samples}
        ways = {
            "naive": lambda metric=metric: naive(copy.deepcopy(model), ids, remove, metric),
            "ours": lambda options=options: prune_and_compensate(copy.deepcopy(model), ids, remove, **options),
        }
        times, returned = in_turns(ways, repeats)
        (expected, executions), report = returned["naive"], returned["ours"]
        seconds = (times["naive"], times["ours"])
        share = report["layer_executions"] / executions
        baseline = "metric and factor from scratch after each removal"
        calls = str(report["layer_executions"])
        hand_over(
            Ratio(f"Prune&Comp's loop by {metric}: layer executions", calls, share, baseline, dtype=""),
            Ratio(f"Prune&Comp's loop by {metric}: time", f"{seconds[1]:.1f} s", seconds[1] / seconds[0], baseline),
        )
        same = "yes" if report["removed"] == expected else f"NO: {expected} and {report['removed']}"
        print(
            f"| {metric} | {executions} | {report['layer_executions']} | {share:.2f} | {seconds[0]:.1f} | "
            f"{seconds[1]:.1f} | {same} |"
        )


def epsilons() -> list[tuple[str, float]]:
    """Return every supported model type with each epsilon of the registered models.

    None is a Mistral: that of its first release.
    """
    found = {(spec.facts["model_type"], spec.facts["eps"]) for spec in loading.REGISTRY.values() if "eps" in spec.facts}
    return sorted(pair for pair in found | {("mistral", 1e-5)} if pair[0] in SUPPORTED)


def random_model(kind: str, spread: float, epsilon: float) -> torch.nn.Module:
    """Return a small random model of one architecture."""
    options = {"query_pre_attn_scalar": 16} if kind == "gemma2" else {}
    options |= {"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    options |= {"num_attention_heads": 4, "initializer_range": spread, "rms_norm_eps": epsilon}
    config = AutoConfig.for_model(kind, **SIZES, **options)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@torch.no_grad()
def deviation(model: torch.nn.Module, position: int, factor: float, epsilon: bool) -> float:
    """Largest difference of logits between fusing and a hook at the cut, over the largest logit."""
    model = copy.deepcopy(model)
    if not epsilon:
        for module in model.modules():
            for name in {"variance_epsilon", "eps"} & vars(module).keys():
                setattr(module, name, 0.0)
    ids = torch.randint(3, model.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(1))
    with scale_stream(model, position, factor):
        expected = model(ids, use_cache=False).logits
    fuse_factor(model, position, factor)
    return ((model(ids, use_cache=False).logits - expected).abs().max() / expected.abs().max()).item()


def deviations(standin: torch.nn.Module) -> None:
    """Print the error that the norms' epsilon causes, per architecture; without it fusing by a power of two is exact."""
    print("\nlargest logit deviation of fusing from a hook at the cut (float32, cut in the middle)\n")
    print("| model | epsilon | factor 1.2 | factor 0.8 | factor 2, epsilon 0 |")
    print("|---|---|---|---|---|")
    cases = [
        (f"{kind}, random, spread {spread}", random_model(kind, spread, epsilon))
        for kind, epsilon in epsilons()
        for spread in (0.02, 0.2)
    ]
    for label, model in [*cases, ("toy model, trained", standin)]:
        position = model.config.num_hidden_layers // 2
        real = [deviation(model, position, factor, True) for factor in (1.2, 0.8)]
        exact = deviation(model, position, 2.0, False)
        print(f"| {label} | {model.config.rms_norm_eps:.0e} | {real[0]:.1e} | {real[1]:.1e} | {exact:.1e} |")


@dataclass(kw_only=True)
class Options:
    """The command line."""

    samples: int = 4
    tokens: int = 128
    remove: int = 4
    repeats: int = 3


def main() -> None:
    """Print both tables."""
    chosen = parse(Options, description=__doc__)
    torch.set_flush_denormal(True)
    standin, _ = loading.load("standin", dtype="float32")
    counts(standin, chosen.samples, chosen.tokens, chosen.remove, chosen.repeats)
    deviations(standin)


if __name__ == "__main__":
    main()
