"""What a patch costs in a forward pass, against one decoder layer and LLM-Streamline's network of the same model.

    python benchmarks/patch_cost.py [--tokens 256] [--repeats 3] [--threads 1] [--json]

Random weights in the shapes of the toy model (C = 192), C = 256, and LLaMA-2-7B (C = 4096), same input, same run, float32, no
cache; milliseconds are the least of interleaved repeats. `fast transform` applies H diag(d) H^T as two fast transforms and a
product instead of the one dense A of section 3.3. LinearPatch's Table 6 compares patch and network on a GPU: 0.000576 s
against 0.094927 s, a factor of 165 (its text says about 190); by multiply-adds it is 3 F / C = 8.06.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from common.baselines.streamline import FeedForward
from common.console.command_line import parse
from common.hadamard import hadamard_transform
from common.models.decoder import Decoder
from common.utils.ratios import Ratio, hand_over
from papers.linearpatch import LinearPatch

# channels -> (intermediate, heads)
SHAPES = {192: (512, 3), 256: (688, 4), 4096: (11008, 32)}


def ways(channels: int, x: torch.Tensor) -> dict:
    """Return what is timed, and its number of parameters."""
    intermediate, heads = SHAPES[channels]
    config = LlamaConfig(
        hidden_size=channels,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_hidden_layers=1,
        vocab_size=8,
        pad_token_id=None,
    )
    decoder = Decoder(LlamaForCausalLM(config).eval())
    network, scales = FeedForward.like(config), torch.linspace(0.9, 1.6, channels)
    patch, diagonal = LinearPatch(scales), LinearPatch(scales, "diagonal")
    size = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    return {
        "decoder layer": (lambda: decoder.run(x), size(decoder.layers[0])),
        "network (FFN)": (lambda: network(x), size(network)),
        "patch A": (lambda: patch(x), size(patch)),
        "fast transform": (lambda: hadamard_transform(hadamard_transform(x) * scales, transpose=True), channels),
        "diagonal +d": (lambda: diagonal(x), size(diagonal)),
    }


@torch.no_grad()
def measure(channels: int, tokens: int, repeats: int) -> list[dict]:
    """Return one row per way: least milliseconds, and the ratio to the decoder layer."""
    x = torch.randn(1, tokens, channels, generator=torch.Generator().manual_seed(0))
    made = ways(channels, x)
    timed = {name: [] for name in made}
    for repeat in range(repeats + 1):
        for name, (work, _) in made.items():
            started = time.perf_counter()
            work()
            if repeat:  # the first warms up
                timed[name].append(time.perf_counter() - started)
    least = {name: 1e3 * min(values) for name, values in timed.items()}
    return [
        {
            "C": channels,
            "tokens": tokens,
            "what": name,
            "parameters": made[name][1],
            "ms": round(least[name], 3),
            "of_a_layer": round(least[name] / least["decoder layer"], 4),
            "of_the_network": round(least[name] / least["network (FFN)"], 4),
        }
        for name in made
    ]


@dataclass(kw_only=True)
class Options:
    """The command line."""

    tokens: int = 256
    repeats: int = 3
    threads: int = 1
    json: bool = False


def main() -> None:
    """Print the rows."""
    chosen = parse(Options, description=__doc__)
    torch.set_num_threads(chosen.threads)
    rows = [row for channels in SHAPES for row in measure(channels, chosen.tokens, chosen.repeats)]
    for row in rows:
        if row["what"] == "patch A":
            layer = Ratio(f"a patch A, C = {row['C']}", f"{row['ms']:.2f} ms", row["of_a_layer"], "a decoder layer")
            network = Ratio(layer.what, layer.measured, row["of_the_network"], "LLM-Streamline's network")
            hand_over(layer, network)
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'C':>5} {'':15} {'parameters':>11} {'ms':>9} {'of a layer':>11} {'of the FFN':>11}")
    for row in rows:
        print(
            f"{row['C']:>5} {row['what']:15} {row['parameters']:>11,} {row['ms']:>9.2f} {row['of_a_layer']:>10.1%} "
            f"{row['of_the_network']:>10.1%}"
        )


if __name__ == "__main__":
    main()
