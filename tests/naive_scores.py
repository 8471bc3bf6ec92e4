"""Scores of layers by Hugging Face's own forward and one backward pass, for tests to compare with."""

import copy

import torch

from common.models.surgery import remove_layers


@torch.no_grad()
def naive_loss(model, ids) -> float:
    """Return the mean loss of sequences [samples, tokens] of equal length."""
    return model(input_ids=ids, labels=ids, use_cache=False).loss.item()


def without(model, layers):
    """Return a copy of the model that has lost these layers."""
    model = copy.deepcopy(model)
    remove_layers(model, layers)
    return model


def counted(layer, norms=True) -> list[torch.nn.Parameter]:
    """Return a layer's weights that importance counts: no biases, and norms only where asked for."""
    return [p for name, p in layer.named_parameters() if not name.endswith("bias") and (norms or p.ndim > 1)]


def naive_taylor(model, ids, norms=True) -> torch.Tensor:
    """Return the sum of |weight x gradient| of each layer [N], from a whole backward pass."""
    model.zero_grad()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    scores = [
        sum((p * p.grad).abs().sum().item() for p in counted(layer, norms) if p.grad is not None)
        for layer in model.model.layers
    ]
    model.zero_grad()
    return torch.tensor(scores, dtype=torch.float64)
