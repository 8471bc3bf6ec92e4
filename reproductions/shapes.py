"""Recipes over a model's shape, for cells that need no weights. `reproductions.shape_measures` carries them out.

A shape recipe says how many layers go, what is put in their place and what is trained; which layers they are does not
matter, because all layers of these models have one shape.
"""

from __future__ import annotations

from common.results import Recipe

WEIGHTS = "shape only"


def recipe(model: str, removed: int, repair: dict | None = None, training: dict | None = None) -> Recipe:
    """The shape recipe of a row.

    repair: None, or a method: ``linearpatch`` (a C x C matrix) or ``streamline-ffn`` (three C x F matrices), with
    ``top_k`` where its teacher's logits are stored; with ``over`` another method, by whose size and time its own are
    divided. training: None,
    ``{"method": "lora", "rank": r}``, ``{"method": "partial", "last": k}`` (head, final norm and the last k layers) or
    ``{"method": "gptq", "bits": b}`` (matrices inside the layers).
    """
    return Recipe(
        model=model,
        profile="paper",
        weights=WEIGHTS,
        selection={"method": "any", "count": removed} if removed else None,
        repair=repair,
        training=training,
    )
