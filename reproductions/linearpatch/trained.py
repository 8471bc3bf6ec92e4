"""What is trained, as recipes: distillation of the patch, and LLM-Streamline's network (Tables 2 to 6)."""

from __future__ import annotations

# LLM-Streamline's feed-forward network in the place of the window, before any training.
FFN = {"method": "streamline-ffn"}


def fields(method: str, count: int, profile: str) -> dict | None:
    """A recipe's fields for a trained row of Table 4 by its name; None for one that is not implemented."""
    return None
