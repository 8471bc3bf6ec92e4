"""The paper's settings as recipes, and the rows of its tables without training."""

from __future__ import annotations

from collections.abc import Iterator

from common.results import Recipe
from reproductions import shapes
from reproductions.registry import Row
from reproductions.settings import Subject, recipe

# As printed in the paper: label, layers, numbers of layers removed.
PAPER_MODELS = {
    "llama-2-7b": ("LLaMA-2-7B", 32, (9, 7)),
    "llama-2-13b": ("LLaMA-2-13B", 40, (10, 8)),
    "llama-3-8b": ("LLaMA-3-8B", 32, (7, 5)),
}
BAICHUAN = {"baichuan2-7b": ("Baichuan2-7B", 32, (9, 7))}
REFUSED = "refused: needs remote code, has no safetensors"
# LLaMA-2-7B's. On the stand-in 5 and 4 of 16 layers are the closest to the paper's 27 % and 21 % of the parameters.
SHARES = ((9, 32), (7, 32))
STANDIN_COUNTS = (5, 4)

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

# Section 3.4 and Table 7: the teacher's 100 largest logits per token.
TOP_K = 100

PATCH = {"method": "linearpatch", "kind": "hadamard", "estimator": "ratio-of-means"}
# Table 5's "+d": scales without rotation.
PLAIN = {"method": "linearpatch", "kind": "diagonal", "estimator": "ratio-of-means"}


def least_squares(kind: str) -> dict:
    """Ours: a patch of this kind, by token-weighted least squares."""
    return {"method": "linearpatch", "kind": kind, "estimator": "least-squares"}


def settings(subject: Subject, baichuan: bool = False) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """(registry name, label, layers, numbers removed) of a table's models."""
    if not subject.printed:
        yield subject.model, subject.label, subject.layers, subject.counts(*SHARES, standin=STANDIN_COUNTS)
        return
    for model, (label, layers, counts) in (BAICHUAN if baichuan else PAPER_MODELS).items():
        yield model, label, layers, counts


def lowest_bi(count: int, cosine: str = "token") -> dict:
    """[S]: ShortGPT's choice."""
    return {"method": "bi", "count": count, "cosine": cosine}


def window(count: int, cosine: str = "token", exclude_ends: bool = False) -> dict:
    """[L], Eq. 2: the cosine per token, the best of all windows. The official code: per channel, without the ends."""
    return {"method": "window", "count": count, "cosine": cosine, "exclude_ends": exclude_ends}


def made(method: str, count: int, profile: str) -> dict | None:
    """A recipe's fields for a training-free method by its printed name; None for one that is not implemented."""
    calibration = CALIBRATION[profile]
    return {
        "SLEB": {"selection": {"method": "sleb", "count": count, "calibration": SLEB_LINES[profile]}},
        "ShortGPT": {"selection": lowest_bi(count), "calibration": calibration},
        "LLM-Streamline(None)": {"selection": window(count), "calibration": calibration},
        "LinearPatch[S]": {"selection": lowest_bi(count), "calibration": calibration, "repair": PATCH},
        "LinearPatch[L]": {"selection": window(count), "calibration": calibration, "repair": PATCH},
    }.get(method)


METHODS = ("LLM-Pruner", "SLEB", "ShortGPT", "LLM-Streamline(None)", "LinearPatch[S]", "LinearPatch[L]")


def training_free(
    subject: Subject, limit: int | None = None, *, baichuan: bool = False, pruner: bool = True
) -> list[Row]:
    """Dense, then for each sparsity the METHODS in printed order (Tables 1 and 11 to 15; LLM-Pruner only where printed).

    Baichuan2's rows have no recipe: its weights cannot be loaded without running its repository's code.
    """
    rows = []
    for model, label, layers, counts in settings(subject, baichuan):
        refused = baichuan and subject.printed
        dense = None if refused else recipe(model, subject, limit)
        rows.append(Row(model, label, f"0/{layers}", "Dense", dense, REFUSED if refused else "not run", dense=True))
        for count in counts:
            for method in METHODS if pruner else METHODS[1:]:
                fields = made(method, count, subject.profile)
                wanted = None if refused or fields is None else recipe(model, subject, limit, **fields)
                status = "not implemented" if fields is None else REFUSED if refused else "not run"
                shape = shape_of(model, method, count) if subject.printed else None
                rows.append(Row(model, label, f"{count}/{layers}", method, wanted, status, shapes=shape))
    return rows


def shape_of(model: str, method: str, count: int) -> Recipe | None:
    """The recipe over the model's shape that a row's Ratio follows from."""
    if method == "LLM-Pruner":
        return None  # removes parts of layers, by a flag that the paper does not give
    repair = None
    if method.startswith("LinearPatch"):
        repair = {"method": "linearpatch"}
    elif method.startswith("LLM-Streamline(FFN)"):
        repair = {"method": "streamline-ffn"}
    return shapes.recipe(model, count, repair)
