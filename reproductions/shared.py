"""Settings that several papers' tables share: texts, and the methods without training that they compare with."""

from __future__ import annotations

# Why a model of theirs has no row of ours.
REFUSED = "refused: needs remote code, has no safetensors"

# Section 4.1: 128 sequences of 2048 tokens of WikiText-2; crops as in the official code. The stand-in's context is 256.
CALIBRATION = {
    "paper": {"corpus": "wikitext2-train", "sampler": "linearpatch-train", "length": 2048, "count": 128, "seed": 2},
    "standin": {
        "corpus": "standin-calibration",
        "sampler": "linearpatch-train",
        "length": 256,
        "count": 128,
        "seed": 2,
    },
}
# SLEB's own: shuffled lines of the training text.
SLEB_LINES = {
    "paper": {"corpus": "wikitext2-train", "length": 2048, "count": 128, "seed": 0, "shuffle": "datasets"},
    "standin": {"corpus": "standin-calibration", "length": 256, "count": 48, "seed": 0},
}

PATCH = {"method": "linearpatch", "kind": "hadamard", "estimator": "ratio-of-means"}
# Table 5's "+d": scales without rotation.
PLAIN = {"method": "linearpatch", "kind": "diagonal", "estimator": "ratio-of-means"}


def least_squares(kind: str) -> dict:
    """Ours: a patch of this kind, by token-weighted least squares."""
    return {"method": "linearpatch", "kind": kind, "estimator": "least-squares"}


def lowest_bi(count: int, cosine: str = "token") -> dict:
    """[S]: ShortGPT's choice."""
    return {"method": "bi", "count": count, "cosine": cosine}


def window(count: int, cosine: str = "token", exclude_ends: bool = False) -> dict:
    """[L], Eq. 2: the cosine per token, the best of all windows. The official code: per channel, without the ends."""
    return {"method": "window", "count": count, "cosine": cosine, "exclude_ends": exclude_ends}


def without_training(method: str, count: int, profile: str) -> dict | None:
    """A recipe's fields for a training-free method by its printed name; None for one that is not implemented."""
    calibration = CALIBRATION[profile]
    return {
        "SLEB": {"selection": {"method": "sleb", "count": count, "calibration": SLEB_LINES[profile]}},
        "ShortGPT": {"selection": lowest_bi(count), "calibration": calibration},
        "LLM-Streamline(None)": {"selection": window(count), "calibration": calibration},
        "LinearPatch[S]": {"selection": lowest_bi(count), "calibration": calibration, "repair": PATCH},
        "LinearPatch[L]": {"selection": window(count), "calibration": calibration, "repair": PATCH},
    }.get(method)
