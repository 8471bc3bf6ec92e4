"""Half-precision products by way of float32 against torch's own: `python benchmarks/half_products.py`.

SmolLM2-135M's body on random weights: a pass with all cores, passes of as many threads beside each other (as questions are
scored), and one layer forward and backward. Nothing is measured where torch's products are faster on this CPU.
"""

import torch
from transformers import AutoModelForCausalLM

from common.forward.parallel_batches import side_by_side
from common.models import half_precision
from common.models.decoder import Decoder
from common.models.loading import model_config
from common.utils.ratios import Ratio, hand_over, in_turns

LAYERS, TOKENS = 6, 512
BASELINE = "torch's own products"


@torch.inference_mode()
def one_pass(decoder: Decoder, hidden: torch.Tensor) -> None:
    """Run all layers."""
    decoder.run(hidden)


def beside(decoder: Decoder, hidden: torch.Tensor) -> None:
    """Run as many passes as threads in parallel."""
    work = torch.inference_mode()(lambda _: decoder.run(hidden))
    with side_by_side(work, range(torch.get_num_threads()), hidden.device) as results:
        list(results)


def training_step(decoder: Decoder, hidden: torch.Tensor) -> None:
    """Run the first layer forward and backward."""
    decoder.run(hidden, 0, 1).float().sum().backward()


PARTS = {"a pass": one_pass, "a pass of each thread": beside, "a layer's training step": training_step}


def main() -> None:
    """Print the ratios."""
    config = model_config("smollm2-135m")
    config.num_hidden_layers = LAYERS
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if half_precision.least_rows(dtype) is None:
            print(f"{name}: torch's products are faster on this CPU; nothing is widened")
            continue
        plain, widened = (Decoder(AutoModelForCausalLM.from_config(config, dtype=dtype)) for _ in range(2))
        half_precision.speed_up(widened.model, dtype, "cpu")
        hidden = plain.embed_tokens(torch.randint(0, config.vocab_size, (1, TOKENS))).detach()
        for part, work in PARTS.items():
            ways = {"own": lambda work=work: work(plain, hidden), "widened": lambda work=work: work(widened, hidden)}  # noqa: B023
            seconds, _ = in_turns(ways, 2)
            passes = torch.get_num_threads() if work is beside else 1
            rate, row = f"{passes * TOKENS / seconds['widened']:.0f} tokens/s", f"{part}, {name} through float32"
            goal = None if half_precision.has_instructions(dtype) else 0.3
            share = seconds["widened"] / seconds["own"]
            hand_over(Ratio(row, rate, share, BASELINE, most=goal, dtype=name))


if __name__ == "__main__":
    main()
