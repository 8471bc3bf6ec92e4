"""Checkpoints that transformers has under another architecture's name: converted once, into the user's cache.

Baichuan and ChatGLM come with Python files, which are never run here. They compute the same as another architecture of
transformers, with weights of other names:

    Baichuan and Baichuan 2, 7B    Llama. W_pack is q, k and v on top of one another. Version 2 divides each row of the head
                                   by its length before use (NormHead), here once: in float32, rounded to the stored type.
    ChatGLM 2 and ChatGLM 3, 6B    GLM. query_key_value is q, k and v, with biases; neighbouring channels of the first half of
                                   each head rotate; the rest is Llama's.

No other value changes. The 13B models of Baichuan have ALiBi positions. In transformers these exist in Bloom, Falcon
and MPT alone, beside LayerNorm and an MLP without a gate, so the 13B models are refused.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from common.models.files import pickled_weights, safetensors_reader, sentencepiece_models
from common.models.registry import ALIBI
from common.utils import cache
from common.utils.errors import UserError, first_of

_PACKED, _HEAD = ".W_pack.", "lm_head.weight"
_COPIED = ("generation_config.json", "tokenizer.model")


@dataclass(frozen=True)
class Format:
    """A family of checkpoints under another architecture's name.

    Attributes:
        config: Function from the checkpoint's config to transformers'.
        tokenizer: Function from a folder and the vocabulary's size to a tokenizer.
        names: Pairs of parts of tensor names, in the checkpoint and in transformers, replaced in order; W_pack becomes
            q, k and v.
    """

    config: Callable[[Mapping], dict]
    tokenizer: Callable[[Path, int], transformers.PreTrainedTokenizerFast]
    names: tuple[tuple[str, str], ...] = ()


def _baichuan_config(original: Mapping) -> dict:
    if "max_position_embeddings" not in original or original["hidden_size"] == 5120:
        raise ValueError(ALIBI)
    _check(original, tie_word_embeddings=False)
    if original["architectures"] not in (["BaichuanForCausalLM"], ["BaiChuanForCausalLM"]):
        raise ValueError(f"its architectures are {original['architectures']}, and only Baichuan's own are known")
    same = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
        *("max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id"),
    )
    heads = {"num_key_value_heads": original["num_attention_heads"]}
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **{name: original[name] for name in same},
        **heads,
    }


def _chatglm_config(original: Mapping) -> dict:
    if "padded_vocab_size" not in original:
        raise ValueError("it is the first ChatGLM, another architecture. Use ChatGLM 2 or 3")
    _check({"multi_query_attention": False, **original}, multi_query_attention=True, rmsnorm=True, post_layer_norm=True)
    _check(original, add_bias_linear=False, apply_residual_connection_post_layernorm=False, tie_word_embeddings=False)
    _check(original, rope_ratio=1)
    return {
        "model_type": "glm",
        "architectures": ["GlmForCausalLM"],
        "vocab_size": original["padded_vocab_size"],
        "hidden_size": original["hidden_size"],
        "intermediate_size": original["ffn_hidden_size"],
        "num_hidden_layers": original["num_layers"],
        "num_attention_heads": original["num_attention_heads"],
        "num_key_value_heads": original["multi_query_group_num"],
        "head_dim": original["kv_channels"],
        "attention_bias": bool(original.get("add_qkv_bias")),
        "max_position_embeddings": original["seq_length"],
        "rms_norm_eps": original["layernorm_epsilon"],
        "partial_rotary_factor": 0.5,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": original.get("eos_token_id", 2),
        "pad_token_id": original.get("pad_token_id", 0),
    }


def _check(original: Mapping, **switches) -> None:
    """Refuse a config in which a switch stands otherwise."""
    for name, value in switches.items():
        if (actual := original.get(name, value)) != value:
            raise ValueError(f"{name} is {actual} in its config.json, and only {value} can be converted")


def _baichuan_tokenizer(path: Path, length: int) -> transformers.PreTrainedTokenizerFast:
    file = path / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return sentencepiece_models.read(
        path / "tokenizer.model",
        begin=["<s>"] if settings.get("add_bos_token", True) else [],
        model_max_length=length,
        **{"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"},
    )


def _chatglm_tokenizer(path: Path, length: int) -> transformers.PreTrainedTokenizerFast:
    return sentencepiece_models.read(
        path / "tokenizer.model",
        beside=["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"],
        begin=["[gMASK]", "sop"],
        model_max_length=length,
        padding_side="left",
        **{"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<unk>"},
    )


FORMATS: dict[str, Format] = {
    "baichuan": Format(_baichuan_config, _baichuan_tokenizer),
    "chatglm": Format(
        _chatglm_config,
        _chatglm_tokenizer,
        (
            ("transformer.embedding.word_embeddings.", "model.embed_tokens."),
            ("transformer.encoder.layers.", "model.layers."),
            ("transformer.encoder.final_layernorm.", "model.norm."),
            ("transformer.output_layer.", "lm_head."),
            ("self_attention.dense.", "self_attn.o_proj."),
            ("self_attention.query_key_value.", "self_attn.W_pack."),
            ("mlp.dense_h_to_4h.", "mlp.gate_up_proj."),
            ("mlp.dense_4h_to_h.", "mlp.down_proj."),
        ),
    ),
}


def config(original: Mapping, path: Path) -> dict | None:
    """Return the config.json for transformers' architecture from the original one; None for a model that is not renamed.

    Raises:
        UserError: the model computes something that no architecture of transformers does.
    """
    if original.get("model_type") not in FORMATS:
        return None
    try:
        if original.get("quantization_config"):
            raise ValueError("the model is quantised. Use the weights that it was made from")
        translated = FORMATS[original["model_type"]].config(original)
    except KeyError as error:
        raise UserError(f"cannot load {path}: its config.json has no {error}. Restore the published file") from error
    except ValueError as error:
        raise UserError(f"cannot load {path}: {error}") from error
    rest = {"rope_theta": 10_000.0, "tie_word_embeddings": False, "torch_dtype": original.get("torch_dtype", "float32")}
    return translated | rest


def convert(path: Path, hub_id: str) -> Path:
    """Return the directory that transformers reads: a conversion in the user's cache, or `path` if none is needed.

    For pickled weights, the caller has already asked the user. ``hub_id`` may be a name that stands for a directory.

    Raises:
        UserError: the model cannot be converted, its files are damaged, or there is too little disk space.
    """
    try:
        original = json.loads((path / "config.json").read_text(encoding="utf-8"))
        target_config = config(original, path)
    except (OSError, ValueError, AttributeError):  # told where configs are read
        return path
    if target_config is None:
        return path
    family = FORMATS[original["model_type"]]
    pickled, target = pickled_weights.only(path), pickled_weights.folder(path, hub_id)
    if not pickled and not target.is_dir() and not safetensors_reader.entries(path):  # which refuses damaged files
        return path
    normalised = original.get("architectures") == ["BaichuanForCausalLM"]

    def make(_work: Path, result: Path) -> None:
        print(
            f"{hub_id}: converting it to {target_config['architectures'][0]}, once, into {result.parent}",
            file=sys.stderr,
        )
        for name in _COPIED:
            if (path / name).is_file():
                shutil.copyfile(path / name, result / name)
        family.tokenizer(path, target_config["max_position_embeddings"]).save_pretrained(result)
        (result / "config.json").write_text(json.dumps(target_config, indent=2) + "\n", encoding="utf-8")
        load = pickled_weights.read if pickled else load_file
        shards = pickled_weights.shards(path) if pickled else safetensors_reader.loaded(path)
        renamed = {}
        for shard in shards:
            renamed |= _renamed(load(path / shard), family, target_config, normalised, path)
        huggingface_hub.save_torch_state_dict(renamed, result, metadata={"format": "pt"})
        _check_complete(result, path)

    return cache.once(target, make, hub_id)


def _renamed(
    tensors: Mapping[str, Tensor], family: Format, target_config: Mapping, normalised: bool, path: Path
) -> dict[str, Tensor]:
    """Return a file's tensors under the names that transformers gives them."""
    head = target_config.get("head_dim") or target_config["hidden_size"] // target_config["num_attention_heads"]
    sizes = [head * target_config[f"num_{which}_heads"] for which in ("attention", "key_value", "key_value")]
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in family.names:
            name = name.replace(old, new)
        if name.endswith("inv_freq"):  # computed
            continue
        if _PACKED in name:
            if len(tensor) != sum(sizes):
                raise UserError(
                    f"cannot convert {path}: {name} has {len(tensor)} rows, and its config.json asks for {sum(sizes)}"
                )
            for letter, part in zip("qkv", tensor.split(sizes), strict=True):
                renamed[name.replace(_PACKED, f".{letter}_proj.")] = part.clone()
        elif name == _HEAD and normalised:
            renamed[name] = torch.nn.functional.normalize(tensor.float(), dim=-1).to(tensor.dtype)
        else:
            renamed[name] = tensor
    return renamed


def _check_complete(result: Path, path: Path) -> None:
    """Refuse a conversion that has not the tensors that its config asks for."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(result))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stored = {name: entry.shape for name, entry in safetensors_reader.entries(result).items()}
    if differing := sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name)):
        raise UserError(
            f"cannot convert {path}: of what its config.json asks for, {first_of(differing, 3)} are missing, misshapen or "
            "unknown. Download it again"
        )
