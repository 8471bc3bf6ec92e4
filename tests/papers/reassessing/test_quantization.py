"""GPTQ: refusals, and where the optional packages are installed, a quantized model that is close, smaller and reloads."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from common.models import sizes
from common.utils.errors import UserError
from papers.reassessing import quantization

installed = all(importlib.util.find_spec(name) for name in quantization.PACKAGES)


@pytest.fixture
def present(monkeypatch):
    monkeypatch.setattr(quantization, "require", lambda: None)


def test_missing_packages_are_named_with_the_remedy(monkeypatch, tiny_llama, tiny_tokenizer):
    monkeypatch.setattr(quantization, "PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="needs no_such_package.*make setup-quantization"):
        quantization.quantize(tiny_llama, tiny_tokenizer, ["text"])


def test_a_group_that_does_not_divide_the_matrices_is_refused(present, tiny_llama, tiny_tokenizer):
    with pytest.raises(UserError, match="does not divide"):
        quantization.quantize(tiny_llama, tiny_tokenizer, ["some text"], group_size=48)


def test_memory_counts_floats_at_16_bits_and_integers_as_they_are():
    module = nn.Linear(4, 8)
    module.register_buffer("packed", torch.zeros(10, dtype=torch.int32))
    assert sizes.held_mib(module, floating=2) * 2**20 == (32 + 8) * 2 + 10 * 4


@pytest.mark.skipif(not installed, reason="optional: make setup-quantization")
def test_quantized_model_is_close_smaller_and_reloads(tiny_llama, tiny_tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM

    texts = [f"the layers {number} of a model are removed and the stream is scaled " * 8 for number in range(8)]
    ids = torch.tensor([tiny_tokenizer(texts[0])["input_ids"][:64]])  # GPTQ is fitted to such text
    before = tiny_llama(ids).logits
    quantized = quantization.quantize(tiny_llama, tiny_tokenizer, texts, group_size=32, tokens=64)
    after = quantized(ids).logits
    error = (after - before).norm() / before.norm()
    assert 0 < error < 0.5
    assert torch.equal(tiny_llama(ids).logits, before)
    assert sizes.held_mib(quantized, floating=2) < sizes.held_mib(tiny_llama, floating=2)
    quantized.save_pretrained(tmp_path)
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cpu")(ids).logits, after)


@pytest.mark.skipif(not installed, reason="optional: make setup-quantization")
def test_threads_may_run_a_quantized_model_side_by_side_from_the_first_pass_on(tiny_llama, tiny_tokenizer):
    """As multiple-choice tasks are scored on a CPU: in bfloat16 one thread found what another was laying out."""
    texts = [f"the layers {number} of a model are removed and the stream is scaled " * 8 for number in range(8)]
    quantized = quantization.quantize(tiny_llama.bfloat16(), tiny_tokenizer, texts, group_size=32, tokens=64)
    ids = torch.tensor([tiny_tokenizer(texts[0])["input_ids"][:64]])
    start = Barrier(6)

    @torch.inference_mode()
    def read(_):
        start.wait()
        return quantized(ids).logits

    with ThreadPoolExecutor(6) as pool:
        outputs = list(pool.map(read, range(6)))
    assert all(torch.equal(logits, outputs[0]) for logits in outputs)
