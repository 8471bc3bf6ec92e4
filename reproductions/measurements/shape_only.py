"""Compute cells that need no weights, from shape recipes on the meta device (no hub, no data, seconds).

Apart from the recipes themselves, which tables declare and which are listed and shown without torch.
"""

import time
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import nn

from common.baselines import llm_pruner
from common.baselines.streamline import FeedForward
from common.models import sizes
from common.pruning.recipe import Recipe
from common.utils.errors import unknown

# Reassessing, Section 3.3 and its official code: rank 8 on every matrix of a layer.
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CPU_TOKENS = 256
MACS_TOKENS = 64  # Reassessing, "Statistics": a sentence of 64 tokens


@dataclass
class Shape:
    """A model without weights, as a shape recipe describes it."""

    model: nn.Module
    recipe: Recipe
    details: dict = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)


@lru_cache(maxsize=1)
def _dense_parameters(name: str) -> int:
    return sizes.parameters(sizes.skeleton(name))


def prepare(recipe: Recipe) -> Shape:
    """Build the recipe's model on the meta device."""
    selection = recipe.selection or {}
    model = sizes.skeleton(recipe.model, selection.get("count", 0))
    if selection.get("method") == "llm-pruner":
        llm_pruner.narrow(model, selection["ratio"])
    return Shape(model, recipe, {"layers": model.config.num_hidden_layers}, {"model": {"name": recipe.model}})


def _added(shape: Shape, field: str = "method") -> int:
    """Return the number of parameters that stand in for the removed layers."""
    repair = (shape.recipe.repair or {}).get(field)
    width, inner = shape.model.config.hidden_size, shape.model.config.intermediate_size
    added = {None: 0, "linearpatch": width * width, "streamline-ffn": 3 * width * inner}
    if repair not in added:
        raise unknown("repair", repair, filter(None, added))
    return added[repair]


def _parameters(shape: Shape) -> dict:
    dense, left = _dense_parameters(shape.recipe.model), sizes.parameters(shape.model)
    added, unit = _added(shape), _added(shape, "over") or 1e6
    layers = shape.model.config.num_hidden_layers
    removed = (shape.recipe.selection or {}).get("count", 0)
    return {
        "dense": dense,
        "left": left,
        "patch": added,
        "patch_millions": added / unit,  # of the other method's size, where the recipe names one
        "ratio": (dense - left - added) / dense,
        # What a paper prints when it divides layers by layers: embedding and head are forgotten.
        "layer_fraction": removed / (layers + removed),
        "layers": layers,
    }


@torch.no_grad()
def _inserted(shape: Shape) -> dict:
    """Return the seconds that what is inserted takes for 256 tokens on this CPU, float32, random weights.

    The least of five calls.

    With ``over`` the quotient of the two methods' seconds, whose calls take turns.
    """
    config, repair = shape.model.config, shape.recipe.repair
    width = config.hidden_size
    x = torch.randn(CPU_TOKENS, width, generator=torch.Generator().manual_seed(0))
    builders = {
        "linearpatch": lambda: torch.full((width, width), 1 / width).__rmatmul__,
        "streamline-ffn": lambda: FeedForward.like(config),
    }
    names = [repair[field] for field in ("method", "over") if field in repair]
    if missing := [name for name in names if name not in builders]:
        raise unknown("repair", missing[0], builders)
    works = [builders[name]() for name in names]
    seconds_of: list[list[float]] = [[] for _ in works]
    for _ in range(6):
        for work, seconds in zip(works, seconds_of, strict=True):
            started = time.perf_counter()
            work(x)
            seconds.append(time.perf_counter() - started)
    least = [min(seconds[1:]) for seconds in seconds_of]  # the first warms up
    value = least[0] / least[1] if len(least) > 1 else least[0]
    return {"seconds": value, "tokens": CPU_TOKENS, "threads": torch.get_num_threads()}


def _memory(shape: Shape) -> dict:
    """Return the MiB of the weights, and as an allocator that hands out blocks counts them with the rotary frequencies.

    Up to version 4.47, transformers kept a table of ``head_dim / 2`` rotary frequencies in every layer besides the model's.
    """
    quantized = (shape.recipe.training or {}).get("method") == "gptq"
    # Linear layers inside the decoder layers at 4 bits, without scales or zero points: no 4-bit model is smaller.
    weights = sizes.memory_mib(shape.model, shape.recipe.training["bits"] if quantized else 16)
    tables = 1 + shape.model.config.num_hidden_layers
    table = sizes.blocks(4 * shape.model.config.head_dim // 2)
    return {"weights_mib": weights, "allocated_mib": weights + tables * table / sizes.MIB}


def _macs(shape: Shape) -> dict:
    return {"tokens": MACS_TOKENS, "multiply_adds": sizes.multiply_adds(shape.model, MACS_TOKENS)}


def _storage(shape: Shape) -> dict:
    """Return the numbers stored per training token for offline distillation: the student's input and its target.

    LLM-Streamline stores hidden states on both sides of the pruning interface; LinearPatch a token id and the teacher's top-K
    logits, which are of no use without their K indices.
    """
    repair = shape.recipe.repair
    if "top_k" in repair:
        return {"input": 1, "target": repair["top_k"], "target_with_indices": 2 * repair["top_k"]}
    width = shape.model.config.hidden_size
    return {"input": width, "target": width, "target_with_indices": width}


def _trainable(shape: Shape) -> dict:
    model, training = shape.model, shape.recipe.training
    if training["method"] == "lora":
        import peft  # slow to load, and needed for these rows only

        config = peft.LoraConfig(r=training["rank"], target_modules=list(LORA_TARGETS))
        model = peft.get_peft_model(model, config)
        return {"parameters": sizes.parameters(model, trainable=True)}
    if training["method"] != "partial":
        raise unknown("training", training["method"], ["lora", "partial"])
    model.requires_grad_(False)
    last = training["last"]
    trained = [model.lm_head, model.model.norm, *(model.model.layers[-last:] if last else [])]
    for module in trained:
        module.requires_grad_(True)
    return {"parameters": sizes.parameters(model, trainable=True)}


BENCHMARKS = {
    "parameters": _parameters,
    "memory": _memory,
    "macs": _macs,
    "storage": _storage,
    "trainable": _trainable,
    "inserted": _inserted,
}


def benchmark(shape: Shape, name: str) -> tuple[dict, dict, dict]:
    """Compute one shape benchmark: its values, and no errors or details."""
    if name not in BENCHMARKS:
        raise unknown("shape benchmark", name, BENCHMARKS)
    return BENCHMARKS[name](shape), {}, {}
