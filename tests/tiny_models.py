"""Tiny random models, one for each architecture, and their tokenizer.

Weights have a large spread, norms and biases are jittered, so that a wrong mask, a wrong position or a forgotten norm
changes logits visibly.
"""

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

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
_SHARED = {"first_k_dense_replace": 2, "n_routed_experts": 4, "n_shared_experts": 1, **_MOE}
_LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
FAMILIES: dict[str, dict] = {
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "smollm3": {"no_rope_layer_interval": 3},
    "granite": {"residual_multiplier": 0.4, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "phi3": {"sliding_window": 8},
    "starcoder2": {"use_bias": True, "sliding_window": 8},
    "olmo2": {},
    "olmo3": {"sliding_window": 8},
    "exaone4": {"sliding_window": 8, "sliding_window_pattern": 3},
    "apertus": {},
    "gemma": {},
    "glm": {},
    "glm4": {},
    "cohere2": {"sliding_window": 8, "logit_scale": 0.5},
    "qwen3_moe": {"num_experts": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], **_MOE},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "deepseek_v2": {"routed_scaling_factor": 2.0, **_LATENT, **_SHARED},
    "deepseek_v3": {"n_group": 1, "topk_group": 1, **_LATENT, **_SHARED},
    "glm4_moe": {"use_qk_norm": True, **_SHARED},
    "dots1": {"sliding_window": 8, "max_window_layers": 3, **_SHARED},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 2.0},
    "granitemoe": {
        "num_local_experts": 4, "residual_multiplier": 0.4, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
        "attention_multiplier": 0.2,
    },
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": [1, 2, 3, 1, 2, 3]},
    "ernie4_5_moe": {
        "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 2, "moe_layer_end_index": 4,
        "moe_intermediate_size": 32,
    },
    "qwen2_moe": {
        "num_experts": 4, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2, "mlp_only_layers": [3],
        "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4, **_MOE,
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


@cache
def tiny_model(name: str):
    """Return the tiny model of an architecture, in eval mode: all tests share it, so copy what you change."""
    settings = {**_SIZES, **(ARCHITECTURES.get(name) or {"model_type": name, **FAMILIES[name]})}
    if settings["model_type"] == "qwen2":
        settings.pop("head_dim")
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with at most `VOCAB` tokens."""
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
