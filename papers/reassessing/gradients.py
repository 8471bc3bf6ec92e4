"""Measure gradients through a stack of residual layers, which Eqs. 15 and 16 of Reassessing bound.

A `Stack` is a network as section 4 sees it: states X[0] .. X[N], one layer between two states, and a loss of the last
state. It is a language model (`of_model`) or a small pre-LN or post-LN transformer (`toy`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.forward.losses import next_token_loss
from common.models.decoder import Decoder

# The loss is multiplied by this before, its gradients' norms are divided by it after: float16 has no number for many
# gradients of a mean over hundreds of tokens. A power of two, which changes no digit in any other type.
SCALE = 2.0**10


@dataclass(frozen=True)
class Stack:
    """A network as section 4 sees it: residual layers between the states X[0] .. X[N].

    Attributes:
        layers: The layers' modules, in order.
        step: Function (l, X[l]) -> X[l+1].
        loss: Function X[N] -> scalar loss.
        start: X[0] [batch, tokens, channels].
    """

    layers: Sequence[nn.Module]
    step: Callable[[int, Tensor], Tensor]
    loss: Callable[[Tensor], Tensor]
    start: Tensor


def of_model(decoder: Decoder, ids: Tensor) -> Stack:
    """Return a language model as a stack, on token ids [batch, tokens]; the loss is the mean next-token loss."""

    def step(layer: int, hidden: Tensor) -> Tensor:
        return decoder.run(hidden, layer, layer + 1)

    start = decoder.embed_tokens(ids).detach()
    return Stack(decoder.layers, step, lambda hidden: next_token_loss(decoder, hidden, ids).mean(), start)


class _ToyLayer(nn.Module):
    """One residual path, as Appendix A.1 has it: causal attention of one head, then two matrices with a GELU between.

    Pre-LN: x + F(LN(x)). Post-LN: LN(x + F(x)). Weights are normal with variance 1 / fan-in.
    """

    def __init__(self, width: int, pre: bool, generator: torch.Generator):
        super().__init__()
        self.pre = pre
        self.norm = nn.LayerNorm(width)
        shapes = {"qkv": (3 * width, width), "up": (4 * width, width), "down": (width, 4 * width)}
        for name, (rows, columns) in shapes.items():
            weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64) / columns**0.5
            setattr(self, name, nn.Parameter(weight))
        self.double()

    def path(self, hidden: Tensor) -> Tensor:
        query, key, value = (hidden @ self.qkv.T).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.gelu(mixed @ self.up.T) @ self.down.T

    def forward(self, hidden: Tensor) -> Tensor:
        if self.pre:
            return hidden + self.path(self.norm(hidden))
        return self.norm(hidden + self.path(hidden))


def toy(
    pre: bool, *, layers: int = 16, width: int = 32, tokens: int = 16, vocabulary: int = 64, seed: int = 0
) -> Stack:
    """Return a random transformer of pre-LN or post-LN layers in float64, with random inputs and targets.

    The pre-LN transformer ends in a norm.
    """
    generator = torch.Generator().manual_seed(seed)
    stack = [_ToyLayer(width, pre, generator) for _ in range(layers)]
    head = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64) / width**0.5
    start = torch.randn(1, tokens, width, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)

    def loss(hidden: Tensor) -> Tensor:
        hidden = F.layer_norm(hidden, (width,)) if pre else hidden
        return F.cross_entropy((hidden @ head.T)[0], targets)

    return Stack(stack, lambda layer, hidden: stack[layer](hidden), loss, start)


def states(stack: Stack) -> list[Tensor]:
    """Return the states X[0] .. X[N], each [batch, tokens, channels]."""
    layers = range(len(stack.layers))
    return list(accumulate(layers, lambda hidden, layer: stack.step(layer, hidden), initial=stack.start))


def gradient_norms(stack: Stack) -> dict[str, list[float]]:
    """Compute Euclidean norms of the loss's gradients.

    Each weight's gradient is dropped as soon as its norm is known, so no second copy of the model is held. Afterwards
    every parameter's ``requires_grad`` and gradient are as before.

    Returns:
        `stream`: norms of the gradients by X[0] .. X[N]. `parameters`: norm over all weights of each layer.
    """
    squares = [0.0] * len(stack.layers)
    frozen, handles = [], []

    def watch(layer: int):
        def hook(parameter: Tensor) -> None:
            squares[layer] += float(parameter.grad.double().square().sum())
            parameter.grad = None

        return hook

    for layer, module in enumerate(stack.layers):
        for parameter in module.parameters():
            frozen.append((parameter, parameter.requires_grad, parameter.grad))
            parameter.grad = None
            handles.append(parameter.requires_grad_(True).register_post_accumulate_grad_hook(watch(layer)))
    try:
        with torch.enable_grad():
            start = stack.start.detach().clone().requires_grad_(True)
            path = states(replace(stack, start=start))
            for state in path[1:]:
                state.retain_grad()
            (SCALE * stack.loss(path[-1])).backward()
    finally:
        for handle in handles:
            handle.remove()
        for parameter, required, gradient in frozen:
            parameter.requires_grad_(required)
            parameter.grad = gradient
    stream = [float(torch.linalg.vector_norm(state.grad.double())) / SCALE for state in path]
    return {"stream": stream, "parameters": [square**0.5 / SCALE for square in squares]}


def layer_norms(stack: Stack, *, iterations: int = 30, seed: int = 0) -> list[float]:
    """Estimate ||dX[l+1] / dX[l]||_2 of every layer, the factors of Eq. 16, by power iteration on J^T J.

    The estimates approach the norms from below. One iteration costs a forward-mode and a reverse-mode product. The
    fused attention kernels have no forward mode, nor has the grouped product of experts: call
    `model.set_experts_implementation("eager")` on a mixture of experts first.
    """
    generator = torch.Generator().manual_seed(seed)
    norms = []
    with sdpa_kernel(SDPBackend.MATH):
        path = [state.detach() for state in states(stack)]
        for layer in range(len(stack.layers)):
            step, start = partial(stack.step, layer), path[layer]
            vector = torch.randn(start.shape, generator=generator, dtype=start.dtype).to(start.device)
            _, pull = torch.func.vjp(step, start)
            size = 0.0
            for _ in range(iterations):
                vector = vector / torch.linalg.vector_norm(vector)
                image = torch.func.jvp(step, (start,), (vector,))[1]
                size = float(torch.linalg.vector_norm(image.detach()))
                vector = pull(image)[0]
            norms.append(size)
    return norms


def bound(factors: Sequence[float], last: float) -> list[float]:
    """Compute Eq. 16's bound on the gradients' norms by X[0] .. X[N].

    Args:
        factors: ||dX[l+1] / dX[l]|| of every layer, from `layer_norms`.
        last: ||dL/dX[N]||.

    Returns:
        For l = 0 .. N, ``last`` times the factors of the layers after X[l].
    """
    return list(accumulate(reversed(factors), mul, initial=last))[::-1]


@torch.no_grad()
def stream_rms(stack: Stack) -> list[Tensor]:
    """Compute the root mean square of every token's state at X[0] .. X[N-1], float64 [batch * tokens] each.

    Its inverse is the norm of the Jacobian of the RMSNorm that reads the state (Theorem 4.1), without the norm's gain.
    """
    return [state.double().square().mean(-1).sqrt().flatten() for state in states(stack)[:-1]]
