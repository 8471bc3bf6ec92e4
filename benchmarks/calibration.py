"""Calibration for LinearPatch (selection and scales) against a bare forward pass: `python benchmarks/calibration.py`.

Layer executions are counted. The naive way runs the model once for the cosines and once for the scales and keeps all hidden
states of both passes, as the official code does per sample. Factors and matrices are what least squares needs, for every
block at once (a given block needs its own alone).
"""

import torch

from common.calibration import collect
from common.hadamard import hadamard_matrix
from common.models import loading
from common.models.decoder import Decoder
from common.utils.ratios import Ratio, hand_over, in_turns

SAMPLES, TOKENS, BATCH = 32, 256, 8
COUNT = 4  # layers that a block has
ONE_PASS = "selection and scales of LinearPatch"


def bare(decoder: Decoder, ids: torch.Tensor) -> None:
    """Run one forward pass through the layers."""
    for batch in ids.split(BATCH):
        decoder.run(decoder.embed_tokens(batch))


def naive(decoder: Decoder, ids: torch.Tensor) -> None:
    """Run one pass for the cosines and one for the rotated magnitudes; keep all states, rotate by a dense product."""
    rotation = hadamard_matrix(decoder.hidden_size).float()
    for statistic in ("cosine", "scales"):
        states = []
        for batch in ids.split(BATCH):
            hidden = [decoder.embed_tokens(batch)]
            for layer in range(decoder.num_layers):
                hidden.append(decoder.run(hidden[-1], layer, layer + 1))
            states.append(torch.stack(hidden))
        states = torch.cat(states, 1)  # [N + 1, samples, tokens, channels]
        if statistic == "cosine":
            torch.cosine_similarity(states[:-COUNT], states[COUNT:], dim=-1).mean((1, 2))
        else:
            (states @ rotation).abs().mean(2)


def main() -> None:
    """Print the ratios."""
    torch.set_flush_denormal(True)
    model, _ = loading.load("standin")
    decoder = Decoder(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (SAMPLES, TOKENS), generator=generator)
    blocks = [(start, start + COUNT) for start in range(decoder.num_layers - COUNT + 1)]

    def counted(way) -> int:
        before = decoder.executions
        with torch.no_grad():
            way()
        return (decoder.executions - before) * BATCH // SAMPLES

    def gather(**sums):
        return lambda: collect(decoder, ids, span=COUNT, batch_size=BATCH, **sums)

    ways = {
        "bare": lambda: bare(decoder, ids),
        ONE_PASS: gather(),
        "the same with least-squares factors for every block": gather(moments=blocks),
        "the same with least-squares matrices for every block": gather(matrices=blocks),
        "two naive passes for the same as one": lambda: naive(decoder, ids),
    }
    seconds, executions = in_turns({name: lambda way=way: counted(way) for name, way in ways.items()})
    bare_seconds = seconds.pop("bare")
    for name, way_seconds in seconds.items():
        measured = f"{way_seconds:.2f} s, {executions[name]} layer executions a batch"
        goal = 1.15 if name == ONE_PASS else None
        hand_over(Ratio(name, measured, way_seconds / bare_seconds, "bare forward pass", most=goal))


if __name__ == "__main__":
    main()
