"""Reassessing's settings as recipes: how layers are chosen, what trains them afterwards, on either profile."""

from __future__ import annotations

from common.results import Recipe
from reproductions.linearpatch.recipes import standin_digest

METRICS = ("Random", "PPL", "Magnitude-l1", "Magnitude-l2", "BI", "Taylor", "Reverse-order")
# Appendix D: ten random BookCorpus lines, cropped to 128 tokens, for Taylor and BI; WikiText-2 for PPL.
SAMPLES, LENGTH, SEED = 10, 128, 42
CODE_RATE, OUR_RATE = 1e-5, 1e-4  # Section 3.3; what earlier work trains LoRA with
SLEB_LINES = {
    "paper": {"corpus": "wikitext2-train", "length": 2048, "count": 128, "seed": 0},
    "standin": {"corpus": "standin-calibration", "length": 256, "count": 48, "seed": 0},
}


def recipe(model: str, profile: str, limit: int | None = None, **fields) -> Recipe:
    """A recipe with the weights that the profile's model has."""
    from common import models  # loads torch: listing the targets should not

    weights = standin_digest() if profile == "standin" else models.get(model).revision
    return Recipe(model=model, profile=profile, weights=weights, limit=limit, **fields)


def selection(metric: str, count: int, profile: str, samples: int = SAMPLES, seed: int = SEED) -> dict:
    """The layers a metric removes; ``SLEB`` is not among the paper's seven."""
    if metric == "SLEB":
        return {"method": "sleb", "count": count, "calibration": SLEB_LINES[profile]}
    chosen = {"method": metric.lower(), "count": count}
    return chosen


def training(arm: str | None, profile: str, *, rate: float = CODE_RATE, share: float = 1.0, data: str = "") -> dict | None:
    """The fine-tuning of a printed arm: ``LoRA``, ``QLoRA``, ``lm_head``, ``lm_head & last k``, ``full fine-tuning``."""
    return None
