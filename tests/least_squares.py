"""Least squares over all tokens at once, on Hugging Face's own inputs and outputs: what refits are compared with."""

import torch
from heads import streams


@torch.no_grad()
def recorded(model, ids, *paths) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs and outputs of modules, as rows [tokens, width] in float64."""
    seen = {}
    handles = [
        model.get_submodule(path).register_forward_hook(lambda m, a, out, path=path: seen.update({path: (a[0], out)}))
        for path in paths
    ]
    model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return [tuple(value.flatten(0, 1).double() for value in seen[path]) for path in paths]


def stream(model, ids, boundary) -> torch.Tensor:
    """Return the residual stream that enters a layer, as rows [tokens, channels] in float64."""
    return streams(model, ids)[boundary].flatten(0, 1).double()


def weight(model, path) -> torch.Tensor:
    """Return a module's weight [out, in] in float64."""
    return model.get_submodule(path).weight.detach().double()


def ridge_solution(inputs, targets, ridge, towards=0.0) -> torch.Tensor:
    """Return the M [in, out] of least |inputs M - targets|^2 + r |M - towards|^2; r is `ridge` times the mean eigenvalue."""
    size = inputs.shape[1]
    root = (ridge * inputs.square().sum() / size).sqrt()
    rows = torch.cat([inputs, root * torch.eye(size, dtype=torch.float64)])
    goal = root * towards + inputs.new_zeros(size, targets.shape[1])
    return torch.linalg.lstsq(rows, torch.cat([targets, goal])).solution


def share(error, target) -> float:
    """Return the square of an error as a share of the target's."""
    return (error.double().square().sum() / target.double().square().sum()).item()
