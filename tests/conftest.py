"""Shared fixtures: one tiny random model per architecture, and the same written out as a hub-format checkpoint.

Built once per session; tests get copies they may change. Weights have a large spread and the norms are jittered, so that a
wrong mask, a wrong position or a forgotten norm changes logits visibly.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
import uuid
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
import transformers
from hub_mirror import mirror  # noqa: F401
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from common.calibration import corpora
from common.cli import forecast, measure, read_back
from common.evaluation import significance
from common.pruning import calibration_text
from common.toy import corpus as standin_corpus
from common.training.finetuning import memory

# No test reads a user's mirror of the hub or results.
for name in ("LAYERLAB_HUB", "LAYERLAB_RESULTS"):
    os.environ.pop(name, None)

HIDDEN, LAYERS, VOCAB = 64, 6, 320
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HIDDEN // 4,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ARCHITECTURES: dict[str, dict] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "qwen3-sliding": {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "gemma2": {"model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 16},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}
# One of each further family: the contract of `tests/common/models/test_families.py`, not every test of every module.
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict] = {
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "smollm3": {"no_rope_layer_interval": 3},
    "granite": {"residual_multiplier": 0.4, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "phi3": {"sliding_window": 8},
    "starcoder2": {"use_bias": True, "sliding_window": 8},
    "olmo2": {},
    "olmo3": {"sliding_window": 8},
    "gemma": {},
    "glm": {},
    "glm4": {},
    "cohere2": {"sliding_window": 8, "logit_scale": 0.5},
    "qwen3_moe": {"num_experts": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], **_MOE},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "deepseek_v3": {
        "first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "kv_lora_rank": 16,
        "q_lora_rank": 24, "qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4, "qk_nope_head_dim": 8,
        "v_head_dim": 16, **_MOE,
    },
    "qwen3_next": {
        "full_attention_interval": 3, "num_experts": 4, "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, **_MOE,
    },
    "qwen3_5_text": {
        "full_attention_interval": 3, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": HIDDEN},
}  # fmt: skip


def pytest_collection():
    """Collect no garbage while tests are imported: a seventh of that time."""
    gc.disable()


def pytest_collection_finish():
    """Collect garbage from here on."""
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_look_through():
    """Hide what lives so far from the garbage collector: a million objects of libraries and tests. Trainer often collects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def denormals():
    """Tools flush tiny numbers to zero, in all of their process; the next test has them again."""
    yield
    torch.set_flush_denormal(False)


@cache
def _tiny_model(name: str):
    settings = {**_SIZES, **(ARCHITECTURES.get(name) or {"model_type": name, **FAMILIES[name]})}
    if settings["model_type"] == "qwen2":
        settings.pop("head_dim")
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@cache
def _tiny_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the layers of a model are removed and the stream is scaled"] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=4096
    )


@pytest.fixture(autouse=True)
def _own_work_folder(tmp_path_factory, monkeypatch):
    """No test finds another's searches, checkpoints, directories of models and texts."""
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path_factory.getbasetemp() / "work" / uuid.uuid4().hex))
    monkeypatch.setattr("common.models.loading._DIRECTORIES", {})
    yield
    if "LAYERLAB_HUB" in os.environ:  # nor another's texts: two mirrors may name theirs alike
        corpora._texts.cache_clear()
        calibration_text._ids.cache_clear()
        if "common.evaluation.harness" in sys.modules:
            sys.modules["common.evaluation.harness"]._remembered.clear()


@pytest.fixture(autouse=True)
def _corpus_is_slow(request, monkeypatch):
    """Reading the toy model's corpus takes a core more than a minute where it is not cached: only what is marked slow may."""
    if request.node.get_closest_marker("slow") is None:
        refuse = "reads the toy model's corpus: mark it slow, or give it documents of its own"
        monkeypatch.setattr(standin_corpus, "documents", lambda: pytest.fail(refuse))


@pytest.fixture(autouse=True)
def _room_for_any_model(monkeypatch):
    """Tiny models stand under the names of large ones: what the machine could hold of those is not looked at."""
    monkeypatch.setattr(memory, "capacity", lambda device: float("inf"))


@pytest.fixture(autouse=True)
def _read_back_here(monkeypatch):
    """Saved checkpoints are read back in this process: another one would load torch for each. test_read_back starts some."""
    monkeypatch.setattr(read_back, "in_fresh_process", read_back.of_checkpoint)


@pytest.fixture(autouse=True)
def _little_is_timed(monkeypatch):
    """A tool's times are of a few tokens, and of small matrices."""
    for name, value in (("GENERATED", 2), ("BATCHES", (1, 2)), ("TIMED_PROMPT", 8)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(forecast, "EDGE", 64)


@pytest.fixture
def few_replicates(monkeypatch):
    """Verdicts come from 50 replicates, for tests in which no verdict counts; others do not meet these."""
    monkeypatch.setattr(significance, "REPLICATES", 50)
    monkeypatch.setattr(significance, "draws", lru_cache(significance.draws.__wrapped__))
    monkeypatch.setattr(significance, "_resampled", {})


@pytest.fixture(scope="session", autouse=True)
def quiet_and_single_threaded():
    """One thread, so that results and timings do not depend on the machine; no transformers chatter."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request) -> str:
    """The name of each tiny model in turn."""
    return request.param


@pytest.fixture(scope="session")
def make_tiny() -> Callable:
    """`make_tiny(name)` -> a fresh copy of the tiny model of that architecture (see `ARCHITECTURES`), in eval mode."""
    return lambda name="llama": copy.deepcopy(_tiny_model(name))


@pytest.fixture
def tiny(architecture, make_tiny):
    """A fresh tiny model, once per architecture."""
    return make_tiny(architecture)


@pytest.fixture
def tiny_llama(make_tiny):
    """A fresh tiny Llama model."""
    return make_tiny("llama")


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with at most as many tokens as the tiny models; it adds no special tokens by itself."""
    return _tiny_tokenizer()


@pytest.fixture(scope="session")
def write_checkpoint(make_tiny, tiny_tokenizer) -> Callable[..., Path]:
    """`write_checkpoint(path, name="llama", model=None)`: a tiny model and tokenizer as they would lie on the hub."""

    def write(path, name: str = "llama", model=None) -> Path:
        path = Path(path)
        (model if model is not None else make_tiny(name)).save_pretrained(path)
        tiny_tokenizer.save_pretrained(path)
        return path

    return write


@pytest.fixture
def ids() -> torch.Tensor:
    """Two random token sequences [2, 24], longer than every sliding window of the tiny models."""
    return torch.randint(3, VOCAB, (2, 24), generator=torch.Generator().manual_seed(7))


class Shift(nn.Module):
    """A patch that is easy to recognise, in float32: x * gain + shift."""

    kind = "test.shift"

    def __init__(self, shift: float, width: int = HIDDEN):
        super().__init__()
        self.options = {"width": width}
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.shift = nn.Parameter(torch.full((width,), shift))

    def forward(self, hidden):
        return hidden.float() * self.gain + self.shift


@pytest.fixture
def crops() -> torch.Tensor:
    """Five random calibration sequences [5, 18]."""
    return torch.randint(3, VOCAB, (5, 18), generator=torch.Generator().manual_seed(6))


@pytest.fixture(scope="session")
def make_patch() -> Callable[[float], nn.Module]:
    """`make_patch(shift)` -> a small trainable patch of kind 'test.shift' with options {"width": 64}."""
    return Shift


@pytest.fixture(scope="session")
def greedy() -> Callable:
    """`greedy(model, ids, use_cache)` -> `ids` continued by eight greedy tokens."""

    def generate(model, ids, use_cache):
        model.generation_config.eos_token_id = None  # random models stop at random
        return model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=use_cache, pad_token_id=0)

    return generate
