"""A tiny Llama or Qwen2 as a GGUF file, by the gguf package's own writer."""

import json

import gguf
import numpy as np
from gguf.quants import quantize

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    name, _, what = name.rpartition(".")
    if name.startswith("model.layers."):
        _, _, layer, part = name.split(".", 3)
        return f"blk.{layer}.{PARTS[part]}.{what}"
    return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[name] + f".{what}"


def interleaved(weight, heads):
    """llama.cpp's order of a query's or key's rows: within a head, the two halves of each rotated pair side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, model, tokenizer, kind=gguf.GGMLQuantizationType.Q4_1):
    """`model` in `kind`, norms and biases in float32, with its tokenizer, as llama.cpp's converter lays it out."""
    config = model.config
    qwen = config.model_type == "qwen2"
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_name("Tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if not qwen:
        writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if qwen else "smollm")
    writer.add_token_list(tokens)
    kinds = [
        gguf.TokenType.CONTROL if token in tokenizer.all_special_tokens else gguf.TokenType.NORMAL for token in tokens
    ]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    heads = {} if qwen else {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name, weight = gguf_name(name), weight.float().numpy()
        head = heads.get(name.split(".")[-2])
        weight = interleaved(weight, head) if head else weight
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
