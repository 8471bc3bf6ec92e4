"""What passes a model's head: how many positions at once, and how many batches of logits are alive meanwhile."""

import weakref

import torch
from torch import nn


@torch.no_grad()
def logits(model: nn.Module, ids: torch.Tensor, **options) -> torch.Tensor:
    """Return a model's logits [samples, tokens, vocabulary] of ids [samples, tokens]."""
    return model(input_ids=ids, use_cache=False, **options).logits


def watch_head(model: nn.Module) -> tuple[list[int], list[int]]:
    """Two lists that grow with every call of the head: its positions, and the logits (this call's too) that still exist."""
    rows: list[int] = []
    alive: list[int] = []
    made: list[weakref.ref] = []

    def hook(module, inputs, logits):
        made.append(weakref.ref(logits))
        rows.append(logits.numel() // logits.shape[-1])
        alive.append(sum(one() is not None for one in made))

    model.lm_head.register_forward_hook(hook)
    return rows, alive
