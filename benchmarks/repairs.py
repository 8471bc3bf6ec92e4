"""Measure what each repair in closed form costs, against one bare forward pass: `python benchmarks/repairs.py`.

Random weights: C = 576 is SmolLM2-135M's shape (30 layers, 7 go), C = 4096 LLaMA-2-7B's, of whose 32 layers only 6 are there
(1 goes), so that memory and time suffice; there a repair is dearer beside the pass than at full depth. A repair reads no
further than it has to: Ghosted Layers and ReplaceMe to the end of the pruning interface, so their ratio depends on where that
is.

Seconds are CPU time on one thread, so that other work on the machine matters little. Matrices multiply as in a loaded model
(`common.models.half_precision`). At C = 4096 there are fewer tokens than a matrix has inputs: the refit solves in the tokens.

ratio       of the whole repair as recipes carry it out (passes, sums, solving, surgery) to the dense model's body over the
            same tokens, once; LinearPatch's one pass also chooses the layers
each token  the same of what one token more costs, from runs on all and on a quarter of the tokens: what many tokens come to
fixed       seconds that do not depend on the number of tokens: solving, mostly
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from common.baselines.ghosted import ghost
from common.baselines.replaceme import replace_me
from common.models.decoder import Decoder
from common.models.half_precision import speed_up
from common.utils.ratios import Ratio, hand_over
from extensions.refit import refit
from papers import linearpatch

DTYPE = torch.bfloat16
VOCABULARY = 512  # the head is no part of any pass
GOAL = 1.7  # of least squares
# By channels; calibration near the bare pass.
GOALS = {576: {"LinearPatch": 1.15, "refit, following 3": 1.3}, 4096: {"LinearPatch": 1.15, "refit, following 3": 3}}


@dataclass(frozen=True)
class Shape:
    """A model's, what goes of it, and [samples, tokens] of calibration. layers: that are built. repeats: of each repair."""

    intermediate: int
    heads: tuple[int, int]
    layers: int
    removed: range
    sequences: tuple[int, int]
    repeats: int


SHAPES = {
    576: Shape(1536, (9, 3), 30, range(15, 22), (16, 256), 2),
    4096: Shape(11008, (32, 32), 6, range(2, 3), (16, 128), 1),
}
PART = 4  # one of so many parts of the tokens is run by itself


def build(channels: int) -> nn.Module:
    """Return the layers of one random layer's weights: nothing measured here depends on them."""
    shape = SHAPES[channels]
    config = LlamaConfig(
        hidden_size=channels,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads[0],
        num_key_value_heads=shape.heads[1],
        num_hidden_layers=1,
        vocab_size=VOCABULARY,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval().to(DTYPE).requires_grad_(False)
    config.num_hidden_layers = shape.layers
    model.model.layers.extend(copy.deepcopy(model.model.layers[0]) for _ in range(shape.layers - 1))
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    speed_up(model, DTYPE, "cpu")
    return model


def bare(model: nn.Module, ids: Tensor, removed: range) -> None:
    """Run the model's body once over the tokens."""
    decoder = Decoder(model)
    for batch in ids.split(8):
        decoder.run(decoder.embed_tokens(batch))


REPAIRS: dict[str, Callable[[nn.Module, Tensor, range], object]] = {
    "bare": bare,
    "LinearPatch": lambda model, ids, removed: linearpatch.prune(model, ids, len(removed)),
    "Ghosted Layers": lambda model, ids, removed: ghost(model, ids, removed),
    # without alpha, fewer tokens than channels are refused
    "ReplaceMe": lambda model, ids, removed: replace_me(model, ids, removed, alpha=1e-6),
    "refit, following 0": lambda model, ids, removed: refit(model, ids, removed, following=0),
    "refit, following 3": lambda model, ids, removed: refit(model, ids, removed, following=3),
}


def measure(channels: int) -> dict[str, tuple[float, float]]:
    """Return {repair: seconds on all tokens, on a part of them}, the least of the repeats."""
    shape, model = SHAPES[channels], build(channels)
    ids = torch.randint(VOCABULARY, shape.sequences, generator=torch.Generator().manual_seed(0))
    fastest: dict[tuple[str, bool], float] = {}
    with torch.no_grad():
        bare(model, ids[:1], shape.removed)  # first calls allocate what is kept
        for _ in range(shape.repeats):
            for name, repair in REPAIRS.items():
                for part in (False, True):
                    copied = model if name == "bare" else copy.deepcopy(model)
                    started = time.process_time()
                    repair(copied, ids[: len(ids) // PART] if part else ids, shape.removed)
                    seconds = time.process_time() - started
                    fastest[name, part] = min(seconds, fastest.get((name, part), seconds))
    return {name: (fastest[name, False], fastest[name, True]) for name in REPAIRS}


def show(channels: int, seconds_by_repair: dict[str, tuple[float, float]]) -> None:
    """Hand over a shape's ratios."""
    shape = SHAPES[channels]
    samples, length = shape.sequences
    setting = f"C = {channels}, layers {shape.removed[0]} to {shape.removed[-1]} of {shape.layers}"
    bare_all, bare_part = seconds_by_repair.pop("bare")
    for name, (seconds, few) in seconds_by_repair.items():
        about = {
            "baseline": "bare forward pass over the same tokens",
            "most": GOALS[channels].get(name, GOAL),
            "dtype": "bfloat16",
        }
        slope, fixed = (seconds - few) / (bare_all - bare_part), max((PART * few - seconds) / (PART - 1), 0.0)
        hand_over(
            Ratio(f"{name}, {setting}, {samples * length} tokens", f"{seconds:.2f} s", seconds / bare_all, **about)
        )
        hand_over(Ratio(f"{name}, {setting}, each further token", f"{fixed:.2f} s fixed", slope, **about))


def main() -> None:
    """Print the ratios."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    for channels in SHAPES:
        show(channels, measure(channels))


if __name__ == "__main__":
    main()
