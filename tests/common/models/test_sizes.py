"""Counts that need no weights, against hooks on running models and against the papers' printed numbers."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from common.models import sizes
from common.utils.errors import UserError
from reproductions.measurements import shape_only
from reproductions.spec import shape_recipes as recipes
from tests.tiny_models import tiny_model


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "vocab_size": 50}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


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
    assert sizes.multiply_adds(tiny, 7) == sum(counted)


def test_memory_is_the_bytes_of_the_tensors(tiny):
    half = tiny.half()
    size = sum(p.element_size() * p.numel() for p in half.parameters())
    assert sizes.memory_mib(half, 16) == pytest.approx(size / 2**20)
    inside = sum(m.weight.numel() for m in half.model.layers.modules() if isinstance(m, nn.Linear))
    quantized = sizes.memory_mib(half, 4)
    assert quantized == pytest.approx((size - 1.5 * inside) / 2**20)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "deepseek_v2", "glm4_moe", "hunyuan_v1_moe", "ernie4_5_moe"])
def test_a_model_with_experts_is_refused(name):
    with pytest.raises(UserError, match=f"multiply-adds are not counted for {name}"):
        sizes.multiply_adds(tiny_model(name), 64)


@pytest.mark.parametrize(
    ("removed", "training", "benchmark", "key", "printed"),
    [
        # Reassessing, Tables 3, D and 7: Llama-3.1-8B-Instruct without its last 8 layers.
        (8, {"method": "lora", "rank": 8}, "trainable", "parameters", 15.73e6),
        (8, {"method": "partial", "last": 0}, "trainable", "parameters", 525.34e6),
        (8, {"method": "partial", "last": 3}, "trainable", "parameters", 1179.68e6),
        (8, None, "macs", "multiply_adds", 368.65e9),
    ],
)
def test_printed_numbers_of_the_pruned_llama(removed, training, benchmark, key, printed):
    prepared = shape_only.prepare(recipes.recipe("llama-3.1-8b-instruct", removed, None, training))
    values, _, _ = shape_only.benchmark(prepared, benchmark)
    assert values[key] == pytest.approx(printed, rel=4e-4)


def test_memory_of_table_7_to_the_printed_digit_and_the_least_of_four_bits():
    """Reassessing: 11988.40 MB at 16 bits with the rotary tables; at 4 bits more than three times the printed 1326.93."""
    pruned = shape_only.prepare(recipes.recipe("llama-3.1-8b-instruct", 8))
    assert f"{shape_only.benchmark(pruned, 'memory')[0]['allocated_mib']:.2f}" == "11988.40"
    quantized = shape_only.prepare(recipes.recipe("llama-3.1-8b-instruct", 8, None, {"method": "gptq", "bits": 4}))
    matrices, rest = 24 * (218_112_000 - 2 * 4096), 2 * 128256 * 4096 + 49 * 4096
    size = shape_only.benchmark(quantized, "memory")[0]["weights_mib"]
    assert size == (matrices / 2 + 2 * rest) / 2**20 > 3 * 1326.93


def test_blocks_of_an_allocator():
    assert [sizes.blocks(size) for size in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]


@pytest.mark.parametrize(("name", "billions"), [("gemma-7b", 8.54), ("chatglm2-6b", 6.24)])
def test_models_that_tables_print_a_size_of_have_it(name, billions):
    """Reassessing, Table P."""
    assert round(sizes.parameters(sizes.skeleton(name)) / 1e9, 2) == billions


def test_the_quotient_of_two_inserted_networks():
    """LinearPatch, Table 6: 3 F / C parameters and multiply-adds; the time is the machine's."""
    quotient = recipes.recipe("llama-2-7b", 0, {"method": "streamline-ffn", "over": "linearpatch"})
    prepared = shape_only.prepare(quotient)
    assert shape_only.benchmark(prepared, "parameters")[0]["patch_millions"] == pytest.approx(3 * 11008 / 4096)
    prepared.model.config.hidden_size, prepared.model.config.intermediate_size = 64, 128
    values = shape_only.benchmark(prepared, "inserted")[0]
    assert values["seconds"] > 0 and values["tokens"] == 256
    with pytest.raises(UserError, match="unknown repair"):
        shape_only.benchmark(shape_only.prepare(recipes.recipe("tinyllama-1.1b", 0, {"method": "pach"})), "inserted")
