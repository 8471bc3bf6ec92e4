"""Counts that need no weights, against hooks on running models and against the papers' printed numbers."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from common import shapes
from common.errors import UserError
from reproductions import shapes as recipes


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    return LlamaForCausalLM(config).eval()


def test_multiply_adds_are_what_hooks_count_in_a_forward_pass(tiny):
    counted = []

    def matrix(module, inputs, output):
        counted.append(inputs[0].numel() // inputs[0].shape[-1] * module.in_features * module.out_features)

    def norm(module, inputs, output):
        counted.append(2 * output.numel())

    for module in tiny.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(matrix)
        elif type(module).__name__ == "LlamaRMSNorm":
            module.register_forward_hook(norm)
    with torch.no_grad():
        tiny(torch.zeros(1, 7, dtype=torch.long))
    assert shapes.multiply_adds(tiny, 7) == sum(counted)


def test_memory_is_the_bytes_of_the_tensors(tiny):
    half = tiny.half()
    held = sum(p.element_size() * p.numel() for p in half.parameters())
    assert shapes.memory_mib(half, 16) == pytest.approx(held / 2**20)
    inside = sum(m.weight.numel() for m in half.model.layers.modules() if isinstance(m, nn.Linear))
    quantized = shapes.memory_mib(half, 4, quantized=(nn.Linear,))
    assert quantized == pytest.approx((held - 1.5 * inside) / 2**20)


def test_a_model_with_experts_is_refused():
    with pytest.raises(UserError, match="multiply-adds are not counted for mixtral"):
        shapes.multiply_adds(shapes.skeleton("mixtral-8x7b", 30), 64)


@pytest.mark.parametrize(
    ("removed", "training", "benchmark", "key", "printed"),
    [
        # Reassessing, Tables 3, D and 7: Llama-3.1-8B-Instruct without its last 8 layers.
        (8, {"method": "lora", "rank": 8}, "trainable", "parameters", 15.73e6),
        (8, {"method": "partial", "last": 0}, "trainable", "parameters", 525.34e6),
        (8, {"method": "partial", "last": 3}, "trainable", "parameters", 1179.68e6),
        (8, None, "macs", "multiply_adds", 368.65e9),
        (8, None, "memory", "fp16_mib", 11988.40),
    ],
)
def test_printed_numbers_of_the_pruned_llama(removed, training, benchmark, key, printed):
    prepared = recipes.prepare(recipes.recipe("llama-3.1-8b-instruct", removed, None, training))
    values, _, _ = recipes.benchmark(prepared, benchmark)
    assert values[key] == pytest.approx(printed, rel=4e-4)
