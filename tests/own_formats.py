"""Tiny checkpoints of Baichuan and ChatGLM in their own format, with code that must not run."""

import json
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, WIDTH = 5, 32, 4, 48
LINES = [
    "def f(x):\n\treturn x",
    "the layers of  a model are removed in 2023",
    "\u5927\u578b\u8bed\u8a00\u6a21\u578b\u5728\u81ea\u7136\u8bed\u8a00\u5904\u7406\u9886\u57df",
    "    the model is scaled",
]
BAICHUAN = {
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"},
    "model_type": "baichuan",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "model_max_length": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
FIRST = BAICHUAN | {"architectures": ["BaiChuanForCausalLM"]}
CHATGLM = {
    "architectures": ["ChatGLMModel"],
    "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"},
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_residual_connection_post_layernorm": False,
    "ffn_hidden_size": WIDTH,
    "hidden_size": HIDDEN,
    "kv_channels": HIDDEN // HEADS,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": HEADS,
    "num_layers": LAYERS,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 4096,
    "torch_dtype": "float32",
    **{"eos_token_id": 2, "pad_token_id": 0},
}
MODELS = {"baichuan2": BAICHUAN, "baichuan": FIRST, "chatglm2": CHATGLM}
# As the Baichuan 2 report says of its tokenizer: no normalisation, no space before a text, single digits, spaces kept.
PLAIN = {
    "add_dummy_prefix": False,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "user_defined_symbols": ["<reserved_0>", "<reserved_1>", "\u2581\u2581\u2581"],
}


def train(folder: Path, **options) -> Path:
    """A SentencePiece model, of byte pairs if the options do not say otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text").write_text("\n".join(LINES * 20))
    sizes = {"model_type": "bpe", "vocab_size": 330, "byte_fallback": True, "split_digits": True, "minloglevel": 2}
    where = {"input": folder / "text", "model_prefix": folder / "tokenizer", "character_coverage": 0.9999}
    sentencepiece.SentencePieceTrainer.train(**where, **(sizes | options))
    return folder / "tokenizer.model"


def tensors_of(config: dict, vocab: int) -> dict[str, torch.Tensor]:
    """Random weights under the names that the models' own code gives them."""
    layers = config.get("num_hidden_layers") or config["num_layers"]
    if config["model_type"] == "baichuan":
        shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "lm_head.weight": (vocab, HIDDEN)}
        shapes["model.norm.weight"] = (HIDDEN,)
        place, of_layer = (
            "model.layers",
            {
                "self_attn.W_pack.weight": (3 * HIDDEN, HIDDEN),
                "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
                "mlp.gate_proj.weight": (WIDTH, HIDDEN),
                "mlp.up_proj.weight": (WIDTH, HIDDEN),
                "mlp.down_proj.weight": (HIDDEN, WIDTH),
                "self_attn.rotary_emb.inv_freq": (HIDDEN // HEADS // 2,),
            },
        )
    else:
        rows = HIDDEN + 2 * config["multi_query_group_num"] * config["kv_channels"]
        shapes = {"transformer.embedding.word_embeddings.weight": (vocab, HIDDEN)}
        shapes["transformer.rotary_pos_emb.inv_freq"] = (HIDDEN // HEADS // 4,)
        shapes["transformer.encoder.final_layernorm.weight"] = (HIDDEN,)
        shapes["transformer.output_layer.weight"] = (vocab, HIDDEN)
        place, of_layer = (
            "transformer.encoder.layers",
            {
                "self_attention.query_key_value.weight": (rows, HIDDEN),
                "self_attention.query_key_value.bias": (rows,),
                "self_attention.dense.weight": (HIDDEN, HIDDEN),
                "mlp.dense_h_to_4h.weight": (2 * WIDTH, HIDDEN),
                "mlp.dense_4h_to_h.weight": (HIDDEN, WIDTH),
            },
        )
    of_layer |= {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
    shapes |= {f"{place}.{n}.{name}": shape for n in range(layers) for name, shape in of_layer.items()}
    generator = torch.Generator().manual_seed(5)
    tensors = {name: 0.3 * torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    return {name: tensor + 1.0 if "norm" in name else tensor for name, tensor in tensors.items()}


def write(path: Path, name: str, pickled: bool = False, layers: int = LAYERS, **changes) -> dict[str, torch.Tensor]:
    """Write a tiny checkpoint of `MODELS` as it lies on the hub, its config changed (None: left out); return its tensors."""
    file = train(path, **(PLAIN if name != "chatglm2" else {"add_dummy_prefix": True}))
    vocab = sentencepiece.SentencePieceProcessor(model_file=str(file)).get_piece_size() + 9
    if name == "chatglm2":
        family, sizes = "ChatGLM", {"num_layers": layers, "padded_vocab_size": vocab}
    else:
        family, sizes = "Baichuan", {"num_hidden_layers": layers, "vocab_size": vocab}
    tensors = tensors_of(MODELS[name] | sizes, vocab)
    config = MODELS[name] | sizes | changes
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    of_tokenizer = {"tokenizer_class": f"{family}Tokenizer", "add_bos_token": False}
    of_tokenizer |= {"auto_map": {"AutoTokenizer": ["x.X", None]}}
    (path / "tokenizer_config.json").write_text(json.dumps(of_tokenizer))
    for module in ("modeling", "tokenization", "configuration"):
        (path / f"{module}_{family.lower()}.py").write_text("raise SystemExit('code of the repository was run')\n")
    if pickled:
        halves = {f"pytorch_model-0000{n + 1}-of-00002.bin": sorted(tensors)[n::2] for n in range(2)}
        for shard, names in halves.items():
            torch.save({one: tensors[one] for one in names}, path / shard)
        index = {"weight_map": {one: shard for shard, names in halves.items() for one in names}}
        (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        save_file(tensors, path / "model.safetensors")
    return tensors
