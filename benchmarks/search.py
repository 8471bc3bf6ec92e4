"""SLEB's greedy search with prefix reuse against a loop whose trials run the whole model: `python benchmarks/search.py`."""

import torch

from common.forward.losses import next_token_loss
from common.models import loading
from common.models.decoder import Decoder
from common.pruning.selection import sleb
from common.utils.ratios import race

SAMPLES, TOKENS, REMOVE = 8, 128, 4


@torch.no_grad()
def naive(decoder: Decoder, ids: torch.Tensor, count: int) -> list[int]:
    """Run every trial from the embedding."""
    alive, removed = list(range(decoder.num_layers)), []
    for _ in range(count):
        losses = {}
        for candidate in alive[1:-1]:
            hidden = decoder.run(decoder.embed_tokens(ids), layers=[layer for layer in alive if layer != candidate])
            losses[candidate] = next_token_loss(decoder, hidden, ids).mean().item()
        removed.append(min(losses, key=losses.get))
        alive.remove(removed[-1])
    return removed


def main() -> None:
    """Print the ratios."""
    torch.set_flush_denormal(True)
    model, _ = loading.load("standin")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, model.config.vocab_size, (SAMPLES, TOKENS), generator=generator)

    def searched(way) -> tuple[list[int], int]:
        decoder = Decoder(model)
        return way(decoder, ids, REMOVE), decoder.executions

    race("SLEB's search", "every trial runs the whole model", lambda: searched(naive), lambda: searched(sleb))


if __name__ == "__main__":
    main()
