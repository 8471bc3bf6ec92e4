"""SLEB's greedy search with prefix reuse against the naive loop: layer executions, wall time, identical choices.

    python benchmarks/search.py [--samples 8] [--tokens 128] [--remove 4] [--repeats 3]

The two take turns, after one round that warms up; times are medians.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.console.command_line import parse
from common.forward.losses import next_token_loss
from common.models import loading
from common.models.decoder import Decoder
from common.pruning.selection import sleb
from common.utils.ratios import Ratio, hand_over, in_turns


@torch.no_grad()
def naive(decoder: Decoder, ids: torch.Tensor, count: int) -> list[int]:
    """Run one pass for the cosines and one for the rotated magnitudes; keep all states, rotate by a dense product."""
    alive, removed = list(range(decoder.num_layers)), []
    for _ in range(count):
        losses = {}
        for candidate in alive[1:-1]:
            kept = [layer for layer in alive if layer != candidate]
            hidden = decoder.run(decoder.embed_tokens(ids), layers=kept)
            losses[candidate] = next_token_loss(decoder, hidden, ids).mean().item()
        removed.append(min(losses, key=losses.get))
        alive.remove(removed[-1])
    return removed


@dataclass(kw_only=True)
class Options:
    """The command line."""

    samples: int = 8
    tokens: int = 128
    remove: int = 4
    repeats: int = 3


def main() -> None:
    """Print counts, ratio and choices."""
    chosen = parse(Options, description=__doc__)
    torch.set_flush_denormal(True)
    model, _ = loading.load("standin")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (chosen.samples, chosen.tokens), generator=generator)

    def searched(way) -> tuple[int, list[int]]:
        decoder = Decoder(model)
        order = way(decoder, ids, chosen.remove)
        return decoder.executions, order

    ways = {"naive": lambda: searched(naive), "prefix reuse": lambda: searched(sleb)}
    times, returned = in_turns(ways, chosen.repeats)
    found = {name: (executions, times[name], order) for name, (executions, order) in returned.items()}
    for name, (executions, seconds, order) in found.items():
        share = executions / found["naive"][0]
        print(f"{name:13} {executions:6} layer executions ({share:.2f} of naive)  {seconds:6.1f} s  removes {order}")
    if found["naive"][2] != found["prefix reuse"][2]:
        raise SystemExit("the searches differ in what they remove")
    ours, theirs = found["prefix reuse"], found["naive"]
    baseline = "every trial runs the whole model"
    hand_over(
        Ratio("SLEB's search: layer executions", f"{ours[0]}", ours[0] / theirs[0], baseline, dtype=""),
        Ratio("SLEB's search: time", f"{ours[1]:.1f} s", ours[1] / theirs[1], baseline),
    )
    layers = model.config.num_hidden_layers
    least = sum((m - 2) + (m - 2) * (m - 1) // 2 for m in range(layers, layers - chosen.remove, -1))
    print(f"stated for prefix reuse: {least}; same choices: {found['naive'][2] == found['prefix reuse'][2]}")


if __name__ == "__main__":
    main()
