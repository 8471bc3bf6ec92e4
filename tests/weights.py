"""Compare the weights of models bit for bit."""

import torch


def weights(model) -> dict[str, torch.Tensor]:
    """Return a copy of a model's weights, by name."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed_weights(model, before: dict[str, torch.Tensor]) -> set[str]:
    """Return the names of the weights that differ from those of `before`, which has the same names."""
    after = model.state_dict()
    assert after.keys() == before.keys()
    return {name for name, value in after.items() if not torch.equal(value, before[name])}
