"""Settings that several papers' tables share: texts, and the methods without training that they compare with."""

from reproductions.spec.subjects import Subject

# Section 4.2: 128 sequences of 2048 tokens of WikiText-2; crops as in the official code. The toy model's context is 256.
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
SLEB_LINES["small"] = SLEB_LINES["paper"]

# LLM-Pruner's official code: one batch of ten crops of 64 tokens of single lines, drawn by Python's `random`.
PRUNER_LINES = {
    "paper": {"corpus": "bookcorpus", "sampler": "line-crops", "length": 64, "count": 10, "seed": 42},
    "standin": {"corpus": "standin-calibration", "sampler": "line-crops", "length": 64, "count": 10, "seed": 42},
}
# LaCo, section 3.4: ten sentences of English Wikipedia. The toy model's are sentences of its own training text.
SENTENCES = {"paper": "wikipedia-en", "standin": "standin-calibration"}
# LinearPatch, section 4.2, for every method that is distilled; the toy model sees about a twentieth of the samples at twenty
# times the rate, other models a tenth at ten times the rate, of an eighth of their length.
DISTILLING = {
    "paper": {"samples": 5000, "learning_rate": 1e-4},
    "small": {"samples": 500, "length": 256, "learning_rate": 1e-3},
    "standin": {"samples": 240, "learning_rate": 2e-3},
}
SPARED = 6  # layers that it leaves alone

PATCH = {"method": "linearpatch", "kind": "hadamard", "estimator": "ratio-of-means"}
# Table 5's "+d": scales without rotation.
PLAIN = {"method": "linearpatch", "kind": "diagonal", "estimator": "ratio-of-means"}


def least_squares(kind: str) -> dict:
    """Return the repair by a patch of this kind from token-weighted least squares (extension)."""
    return {"method": "linearpatch", "kind": kind, "estimator": "least-squares"}


def lowest_bi(count: int, cosine: str = "token") -> dict:
    """Return the selection [S], the lowest block influence (ShortGPT)."""
    return {"method": "bi", "count": count, "cosine": cosine}


def contiguous_block(count: int, cosine: str = "token", exclude_ends: bool = False) -> dict:
    """Return the selection [L], the block of highest cosine per token (Eq. 2).

    The official code takes the cosine per channel, without the ends.
    """
    return {"method": "window", "count": count, "cosine": cosine, "exclude_ends": exclude_ends}


def without_training(method: str, count: int, profile: str) -> dict | None:
    """Return the fields of a recipe for a training-free method by its printed name; None if it is not implemented."""
    calibration = CALIBRATION[profile]
    return {
        "SLEB": {"selection": {"method": "sleb", "count": count, "calibration": SLEB_LINES[profile]}},
        "ShortGPT": {"selection": lowest_bi(count), "calibration": calibration},
        "LLM-Streamline(None)": {"selection": contiguous_block(count), "calibration": calibration},
        "LinearPatch[S]": {"selection": lowest_bi(count), "calibration": calibration, "repair": PATCH},
        "LinearPatch[L]": {"selection": contiguous_block(count), "calibration": calibration, "repair": PATCH},
    }.get(method)


def llm_pruner(profile: str, corpus: str | None = None, **size) -> dict:
    """Return LLM-Pruner's selection and calibration.

    size: ``ratio`` or ``layers`` of its step. corpus: calibration text for the papers' models, if it is not the
    default.
    """
    lines = PRUNER_LINES[profile]
    if corpus is not None and profile == "paper":
        lines = lines | {"corpus": corpus}
    return {"selection": {"method": "llm-pruner", **size}, "calibration": lines}


def pruner_can(count: int, layers: int) -> bool:
    """Return whether the layers that LLM-Pruner may prune have more parameters than ``count`` layers."""
    return count < layers - SPARED


def slicegpt(profile: str, **size) -> dict:
    """Return SliceGPT's selection and calibration. size: ``ratio`` or ``layers`` of its step."""
    return {"selection": {"method": "slicegpt", **size}, "calibration": CALIBRATION[profile]}


def streamline_layer(count: int, subject: Subject) -> dict:
    """Return LLM-Streamline's trained layer, which replaces count + 1 layers.

    So as many layers are removed as in other rows.
    """
    repair = {"method": "streamline-layer", "target": "output"} | DISTILLING[subject.size]
    return {"selection": contiguous_block(count + 1), "calibration": CALIBRATION[subject.profile], "repair": repair}


def sentences(profile: str, count: int = 10) -> dict:
    """Return the sentences on which LaCo measures similarity."""
    return {"corpus": SENTENCES[profile], "sentences": count, "seed": 0}


def collapse(merge: str, C: int, H: int, T: float | None = None, layers: int | None = None) -> dict:
    """Return LaCo's selection with a threshold T, or with the highest one that leaves `layers` layers.

    H: the model's number of layers.
    """
    end = {"T": T} if layers is None else {"layers": layers}
    settings = {"method": "laco", "C": C, "L": 1, "H": H, "I": 2, "cosine": "flat-sentence"}
    return settings | {"merge": merge} | end


def merged_at_once(count: int) -> int:
    """Return LaCo's C for ``count`` removed layers: the first of 4, 5, 6, 3 and 2 whose merges remove exactly these."""
    return next(C for C in (4, 5, 6, 3, 2) if count % (C - 1) == 0)
