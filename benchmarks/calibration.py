"""Calibration for LinearPatch (selection and scales) against a bare forward pass and against two naive passes.

    python benchmarks/calibration.py [--samples 32] [--tokens 256] [--repeats 3]

Wall time is the median over interleaved repeats; layer executions are counted, not estimated. The naive way runs the
model once for the cosines and once for the scales and keeps all hidden states of both passes, as the official code does
per sample; here for the whole set, so that memory shows. "+ factors" and "+ matrices" add what least squares needs, for
every window at once (a given window needs its own only).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from common.calibration import collect
from common.console.command_line import parse
from common.hadamard import hadamard_matrix
from common.models import loading
from common.models.decoder import Decoder
from common.utils.ratios import Ratio, hand_over

COUNT = 4


WHAT = {
    "one pass": "selection and scales of LinearPatch",
    "+ factors": "the same with least-squares factors for every window",
    "+ matrices": "the same with least-squares matrices for every window",
    "naive": "two naive passes for the same as one",
}


def bare(decoder: Decoder, ids: torch.Tensor) -> None:
    """Run one forward pass through the layers."""
    for batch in ids.split(8):
        decoder.run(decoder.embed_tokens(batch))


def naive(decoder: Decoder, ids: torch.Tensor) -> None:
    """Run one pass for the cosines and one for the rotated magnitudes; keep all states, rotate by a dense product."""
    rotation = hadamard_matrix(decoder.hidden_size).float()
    for statistic in ("cosine", "scales"):
        states = []
        for batch in ids.split(8):
            hidden = [decoder.embed_tokens(batch)]
            for layer in range(decoder.num_layers):
                hidden.append(decoder.run(hidden[-1], layer, layer + 1))
            states.append(torch.stack(hidden))
        states = torch.cat(states, 1)  # [N + 1, samples, tokens, channels]
        if statistic == "cosine":
            torch.cosine_similarity(states[:-COUNT], states[COUNT:], dim=-1).mean((1, 2))
        else:
            (states @ rotation).abs().mean(2)


def one_pass(decoder: Decoder, ids: torch.Tensor) -> None:
    """Collect everything LinearPatch needs."""
    collect(decoder, ids, span=COUNT, batch_size=8)


def fitted(decoder: Decoder, ids: torch.Tensor) -> None:
    """Collect the same, and least-squares factors for every window."""
    collect(decoder, ids, span=COUNT, moments=every_window(decoder), batch_size=8)


def solved(decoder: Decoder, ids: torch.Tensor) -> None:
    """Collect the same, and the C x C moments of every window."""
    collect(decoder, ids, span=COUNT, matrices=every_window(decoder), batch_size=8)


def every_window(decoder: Decoder) -> list[tuple[int, int]]:
    """Return all windows of COUNT layers."""
    return [(start, start + COUNT) for start in range(decoder.num_layers - COUNT + 1)]


def timed(action, *arguments) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    with torch.no_grad():
        action(*arguments)
    return time.perf_counter() - started


def held_bytes(decoder: Decoder, ids: torch.Tensor) -> int:
    """Return bytes of the accumulators after a pass: they must not depend on the number of samples."""
    found = collect(decoder, ids, span=COUNT, batch_size=8)
    return sum(t.numel() * t.element_size() for t in [*found.magnitudes.values(), *found.ratios.values()])


@dataclass(kw_only=True)
class Options:
    """The command line."""

    samples: int = 32
    tokens: int = 256
    repeats: int = 3


def main() -> None:
    """Print the ratios."""
    chosen = parse(Options, description=__doc__)
    torch.set_flush_denormal(True)
    model, _ = loading.load("standin")
    decoder = Decoder(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (chosen.samples, chosen.tokens), generator=generator)
    ways = {"bare": bare, "one pass": one_pass, "+ factors": fitted, "+ matrices": solved, "naive": naive}
    times = {name: [] for name in ways}
    executions = {}
    for _ in range(chosen.repeats + 1):  # the first round warms up
        for name, way in ways.items():
            before = decoder.executions
            times[name].append(timed(way, decoder, ids))
            executions[name] = decoder.executions - before
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    batches = -(-chosen.samples // 8)
    print(f"{chosen.samples} x {chosen.tokens} tokens, {torch.get_num_threads()} threads")
    for name in ways:
        per_batch = executions[name] / batches
        print(
            f"{name:10} {median[name]:7.2f} s  {median[name] / median['bare']:5.2f} x bare"
            f"  {per_batch:.0f} layer executions a batch (N = {decoder.num_layers})"
        )
        if name != "bare":
            measured = f"{median[name]:.2f} s, {per_batch:.0f} layer executions a batch"
            goals = {"most": 1.15} if name == "one pass" else {}
            hand_over(Ratio(WHAT[name], measured, median[name] / median["bare"], "bare forward pass", **goals))
    few, many = held_bytes(decoder, ids[:8]), held_bytes(decoder, ids)
    print(f"statistics hold {few} bytes after 8 samples, {many} after {chosen.samples}")


if __name__ == "__main__":
    main()
