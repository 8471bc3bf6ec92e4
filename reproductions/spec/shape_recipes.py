"""Recipes over a model's shape, for cells that need no weights. `reproductions.measurements.shape_only` carries them out.

A shape recipe says how many layers are removed, what is put in their place and what is trained; which layers they are does
not matter, because all layers of these models have one shape.
"""

from dataclasses import dataclass

from common.pruning.recipe import SHAPE_ONLY, Recipe, Repair, Selection, Training, register


def recipe(model: str, removed: int, repair: dict | None = None, training: dict | None = None) -> Recipe:
    """Return the shape recipe of a row.

    Args:
        model: Registry name.
        removed: Number of removed layers.
        repair: None, or a method: ``linearpatch`` (a C x C matrix) or ``streamline-ffn`` (three C x F matrices), with
            ``top_k`` if its teacher's logits are stored; with ``over`` another method, whose size and time divide its
            own.
        training: None, ``{"method": "lora", "rank": r}``, ``{"method": "partial", "last": k}`` (head, final norm and
            the last k layers) or ``{"method": "gptq", "bits": b}`` (matrices inside the layers).
    """
    return Recipe(
        model=model,
        profile="paper",
        weights=SHAPE_ONLY,
        selection={"method": "any", "count": removed} if removed else None,
        repair=repair,
        training=training,
    )


def pruner(model: str, ratio: float) -> Recipe:
    """Return the shape recipe of a row of LLM-Pruner, which removes parts of layers."""
    selection = {"method": "llm-pruner", "ratio": ratio}
    return Recipe(model=model, profile="paper", weights=SHAPE_ONLY, selection=selection)


class _OfShape:
    family = "shape"


@register("any")
@dataclass(frozen=True)
class AnyLayers(_OfShape, Selection):
    """Remove a number of layers of unspecified position."""

    count: int


@register("llm-pruner")
@dataclass(frozen=True)
class PartsOfLayers(_OfShape, Selection):
    """Remove a share of the heads and channels of all layers but the first four and the last two."""

    ratio: float


@dataclass(frozen=True)
class _Inserted(_OfShape, Repair):
    """top_k: logits per token that its teacher stores. over: a method by whose size and time its own are divided."""

    top_k: int | None = None
    over: str | None = None


@register("linearpatch")
@dataclass(frozen=True)
class InsertedPatch(_Inserted):
    """Insert a C x C matrix."""


@register("streamline-ffn")
@dataclass(frozen=True)
class InsertedNetwork(_Inserted):
    """Insert three C x F matrices."""


@register("lora")
@dataclass(frozen=True)
class Adapters(_OfShape, Training):
    """Train adapters of a rank on LORA_TARGETS."""

    rank: int


@register("partial")
@dataclass(frozen=True)
class LastLayers(_OfShape, Training):
    """Train head, final norm and the last layers."""

    last: int


@register("gptq")
@dataclass(frozen=True)
class Quantized(_OfShape, Training):
    """Quantize every matrix inside the layers to a number of bits."""

    bits: int
