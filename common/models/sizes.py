"""Compute quantities that follow from a model's shape: parameters, memory, multiply-adds, trainable parameters.

Models are built from the registry's facts on the meta device, which holds shapes and no numbers. The same code as for
real models removes layers and adds adapters.
"""

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from common.models import loading
from common.models.architectures import experts_option, layer_list
from common.models.surgery import remove_layers
from common.utils.errors import UserError

MIB = 2**20


def skeleton(name: str, removed: int = 0) -> nn.Module:
    """Return the registered model on the meta device, without its last ``removed`` layers (all layers have one shape)."""
    config = loading.model_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if removed:
        count = config.num_hidden_layers
        remove_layers(model, list(range(count - removed, count)))
    return model


def parameters(model: nn.Module, *, trainable: bool = False) -> int:
    """Count parameters, each shared one once; with ``trainable`` only those that require gradients."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def multiply_adds(model: nn.Module, tokens: int) -> int:
    """Count the multiply-adds of a forward pass over ``tokens`` tokens.

    Convention: every weight matrix once per token (head included, embedding look-up not), and two per element of each
    RMSNorm (its square and its gain). Attention's two products without weights are left out, as are activations and
    rotary positions.

    Raises:
        UserError: a model with experts, whose matrices are not all used for every token.
    """
    if experts_option(model.config):
        raise UserError(f"multiply-adds are not counted for {model.config.model_type}: only some experts see a token")
    total = 0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            total += module.weight.numel() * tokens
        elif type(module).__name__.endswith("RMSNorm"):
            total += 2 * module.weight.numel() * tokens
    return total


def blocks(size: int, block: int = 512) -> int:
    """Return the bytes that an allocator of fixed blocks takes for ``size`` bytes (CUDA's in PyTorch: 512 bytes)."""
    return -(-size // block) * block


def held_mib(model: nn.Module, floating: int | None = None) -> float:
    """Return the size of a model's parameters and buffers in MiB.

    ``floating`` are the bytes that a floating-point number counts; None: as it is loaded. Integers count as they are.
    """
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    widths = (floating if floating and t.is_floating_point() else t.element_size() for t in tensors)
    return sum(t.numel() * width for t, width in zip(tensors, widths, strict=True)) / MIB


def memory_mib(model: nn.Module, bits: int = 16) -> float:
    """Return the size of the parameters in MiB: ``bits`` in the decoder layers' linear layers, 16 bits in all others.

    Quantizers leave embedding, head and norms unchanged.
    """
    inside = {id(m.weight) for layer in layer_list(model) for m in layer.modules() if isinstance(m, nn.Linear)}
    total = sum(p.numel() * (bits if id(p) in inside else 16) for p in model.parameters())
    return total / 8 / MIB
