"""Half-precision products by way of float32 against torch's own, in one run: `python benchmarks/half_products.py`.

SmolLM2-135M's body on random weights: a pass with all cores, passes of as many threads beside each other (as questions are
scored), and one layer forward and backward. Says so and measures nothing where torch's products are faster on this CPU.
"""

from __future__ import annotations

import time

import torch
from transformers import AutoModelForCausalLM

from common.console.command_line import Parser
from common.forward.parallel_batches import side_by_side
from common.models import half_precision
from common.models.decoder import Decoder
from common.models.loading import model_config
from common.utils.ratios import Ratio, hand_over

LAYERS, TOKENS = 6, 512
BASELINE = "torch's own products"


@torch.inference_mode()
def forward_seconds(decoder: Decoder) -> float:
    """Return the better of two passes through all layers."""
    hidden = decoder.embed_tokens(torch.randint(0, decoder.config.vocab_size, (1, TOKENS)))
    return min(_seconds(lambda: decoder.run(hidden)) for _ in range(2))


def beside_seconds(decoder: Decoder) -> float:
    """Return a pass's share of the better of two times that as many passes as threads took beside each other."""
    hidden = decoder.embed_tokens(torch.randint(0, decoder.config.vocab_size, (1, TOKENS))).detach()
    passes = range(torch.get_num_threads())

    def work() -> None:
        with side_by_side(torch.inference_mode()(lambda _: decoder.run(hidden)), passes, hidden.device) as results:
            list(results)

    return min(_seconds(work) for _ in range(2)) / len(passes)


def training_seconds(decoder: Decoder) -> float:
    """Return the better of two forward and backward passes through the first layer."""
    hidden = decoder.embed_tokens(torch.randint(0, decoder.config.vocab_size, (1, TOKENS))).detach()
    return min(_seconds(lambda: decoder.run(hidden, 0, 1).float().sum().backward()) for _ in range(2))


def _seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Print what each part takes both ways."""
    Parser(description=__doc__).parse_args()
    config = model_config("smollm2-135m")
    config.num_hidden_layers = LAYERS
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if half_precision.least_rows(dtype) is None:
            print(f"{name}: torch's products are faster on this CPU; nothing is widened")
            continue
        decoder = Decoder(AutoModelForCausalLM.from_config(config, dtype=dtype))
        parts = {
            "a pass": forward_seconds,
            "a pass of each thread": beside_seconds,
            "a layer's training step": training_seconds,
        }
        own = {what: measured(decoder) for what, measured in parts.items()}
        half_precision.speed_up(decoder.model, dtype, "cpu")
        for what, measured in parts.items():
            widened = measured(decoder)
            print(f"{name}, {what}: {own[what]:.2f} s by {BASELINE}, {widened:.2f} s through float32")
            rate, row = f"{TOKENS / widened:.0f} tokens/s", f"{what}, {name} through float32"
            most = None if half_precision.has_instructions(dtype) else 0.3
            hand_over(Ratio(row, rate, widened / own[what], BASELINE, most=most, dtype=name))


if __name__ == "__main__":
    main()
