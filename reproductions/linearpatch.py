"""The tables of LinearPatch, declared: rows, recipes, columns, and the claims the paper draws."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from common.results import Recipe
from common.standin import WEIGHTS
from common.standin.tasks import VERSION as STANDIN_VERSION
from reproductions import declare, reported, shapes
from reproductions.registry import Claim, Column, Lookup, Row, Table

# As printed in the paper: label, layers, numbers of layers removed.
PAPER_MODELS = {
    "llama-2-7b": ("LLaMA-2-7B", 32, (9, 7)),
    "llama-2-13b": ("LLaMA-2-13B", 40, (10, 8)),
    "llama-3-8b": ("LLaMA-3-8B", 32, (7, 5)),
}
# 5 and 4 of 16 layers are the closest to the paper's 27 % and 21 % of the parameters.
STANDIN_MODELS = {"standin": ("stand-in", 16, (5, 4))}

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
    "paper": {"corpus": "wikitext2-train", "length": 2048, "count": 128, "seed": 0},
    "standin": {"corpus": "standin-calibration", "length": 256, "count": 48, "seed": 0},
}

# Section 3.4 and Table 7: the teacher's 100 largest logits per token.
TOP_K = 100

RATIO = Column("Ratio", "parameters", "ratio", scale=100, compare="exact", weight_free=True)
PATCH = {"method": "linearpatch", "kind": "hadamard", "estimator": "ratio-of-means"}


@lru_cache(maxsize=1)
def standin_digest() -> str:
    """SHA-256 of the stand-in's weights, first sixteen digits: other weights are another model."""
    return hashlib.sha256((WEIGHTS / "model.safetensors").read_bytes()).hexdigest()[:16]


def _recipe(model: str, profile: str, limit: int | None, **fields) -> Recipe:
    from common import models  # loads torch: listing the targets should not

    weights = standin_digest() if profile == "standin" else models.get(model).revision
    return Recipe(model=model, profile=profile, weights=weights, limit=limit, **fields)


def _shape(model: str, method: str, count: int) -> Recipe | None:
    """The recipe over the model's shape that a row's Ratio follows from."""
    if method == "LLM-Pruner":
        return None  # removes parts of layers, by a flag that the paper does not give
    repair = None
    if method.startswith("LinearPatch"):
        repair = {"method": "linearpatch"}
    elif method.startswith("LLM-Streamline(FFN)"):
        repair = {"method": "streamline-ffn"}
    return shapes.recipe(model, count, repair)


def _printed_shape(model: str, number: reported.Number) -> Recipe | None:
    count = declare.removed_layers(number)
    return _shape(model, number.method, count) if count else None


def _ingredient_shape(model: str, number: reported.Number) -> Recipe | None:
    """Table 6 and 7: the inserted network alone; nothing is removed."""
    if number.method == "LinearPatch":
        return shapes.recipe(model, 0, {"method": "linearpatch", "top_k": TOP_K})
    return shapes.recipe(model, 0, {"method": "streamline-ffn"})


def table1_rows(profile: str, limit: int | None = None) -> list[Row]:
    """Dense, then for each sparsity: LLM-Pruner, SLEB, ShortGPT, LLM-Streamline(None), LinearPatch[S], LinearPatch[L]."""
    rows = []
    calibration = CALIBRATION[profile]
    for model, (label, layers, counts) in (STANDIN_MODELS if profile == "standin" else PAPER_MODELS).items():
        dense = _recipe(model, profile, limit)
        rows.append(Row(model, label, f"0/{layers}", "Dense", dense, dense=True))
        for count in counts:
            lowest_bi = {"method": "bi", "count": count, "cosine": "token"}
            # Eq. 2: the cosine per token, the best of all windows.
            window = {"method": "window", "count": count, "cosine": "token", "exclude_ends": False}
            sleb = {"method": "sleb", "count": count, "calibration": SLEB_LINES[profile]}
            made = {
                "SLEB": {"selection": sleb},
                "ShortGPT": {"selection": lowest_bi, "calibration": calibration},
                "LLM-Streamline(None)": {"selection": window, "calibration": calibration},
                "LinearPatch[S]": {"selection": lowest_bi, "calibration": calibration, "repair": PATCH},
                "LinearPatch[L]": {"selection": window, "calibration": calibration, "repair": PATCH},
            }
            sparsity = f"{count}/{layers}"
            rows.append(Row(model, label, sparsity, "LLM-Pruner", None, "not implemented"))
            for method, fields in made.items():
                shape = _shape(model, method, count) if profile == "paper" else None
                recipe = _recipe(model, profile, limit, **fields)
                rows.append(Row(model, label, sparsity, method, recipe, shapes=shape))
    return rows


def qa_columns(profile: str) -> list[Column]:
    """Ratio, the nine tasks, AVG and RP."""
    from common.evaluation import suites  # as above

    suite = suites.get("standin-qa" if profile == "standin" else "linearpatch-qa")
    # A stand-in task is ours and may change: its version is part of the benchmark's name.
    version = f"@{STANDIN_VERSION}" if profile == "standin" else ""
    return [
        RATIO,
        *(Column(task.label, task.task + version, task.metric, scale=100) for task in suite.columns),
        Column("AVG", derived="average"),
        Column("RP", derived="retained"),
    ]


def beats(method: str, *others: str, column: str = "RP"):
    """A check: in every setting, ``method`` is above each of ``others`` that has a number."""

    def check(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
        verdicts = []
        for setting in settings:
            ours = cell(*setting, method, column)
            theirs = [value for other in others if (value := cell(*setting, other, column)) is not None]
            if ours is not None and theirs:
                verdicts.append(ours > max(theirs))
        return all(verdicts) if verdicts else None

    return check


def _four_percent(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
    ours, best = (cell("LLaMA-3-8B", "5/32", m, "RP") for m in ("LinearPatch[L]", "LLM-Streamline(None)"))
    return None if ours is None or best is None else ours - best >= 3.95


def _declared(number: str, title: str, weight_free=(RATIO,), shape=_printed_shape, note: str = "") -> Table:
    statuses = {"LLM-Pruner": "not implemented"}
    return declare.table(
        "linearpatch", number, title, weight_free=weight_free, shape=shape, statuses=statuses, note=note
    )


_RATIO_NOTE = "Ratio counts removed parameters less those of what is put in their place."
_REMOVED_NOTE = "Windows are half-open: [start, end)."
_STORED = [
    Column("stored input per token", "storage", "input", compare="exact", weight_free=True),
    Column("stored target per token", "storage", "target", compare="exact", weight_free=True),
    Column("target with indices (ours)", "storage", "target_with_indices", compare="exact", weight_free=True),
]
_STORED_NOTE = (
    "Numbers per training token. Top-K logits need their K indices too: 2 x 4096 numbers against 1 + 2 x 100 is the "
    "factor of 40 in Appendix A; without the indices it would be 81."
)

TABLES = [
    Table(
        target="table1-linearpatch",
        paper="linearpatch",
        number="1",
        title="LinearPatch, Table 1: question answering, training-free methods",
        rows=table1_rows,
        columns=qa_columns,
        claims=(
            Claim(
                "LinearPatch[S] retains more than ShortGPT, the same layers unpatched",
                beats("LinearPatch[S]", "ShortGPT"),
            ),
            Claim(
                "LinearPatch[L] retains more than LLM-Streamline(None), the same window unpatched",
                beats("LinearPatch[L]", "LLM-Streamline(None)"),
            ),
            Claim(
                "LinearPatch[L] retains more than SLEB and LLM-Pruner", beats("LinearPatch[L]", "SLEB", "LLM-Pruner")
            ),
            Claim(
                "LinearPatch[S] retains more than SLEB and LLM-Pruner", beats("LinearPatch[S]", "SLEB", "LLM-Pruner")
            ),
            Claim(
                "LLaMA-3-8B, 5/32: ahead of the best earlier method by 4 % (abstract; RP is 94.15 against 90.84)",
                _four_percent,
                only_reported=True,
            ),
        ),
        note="Ratio counts removed parameters less the patch. RP is the mean over tasks of the ratio to the dense model.",
    ),
    _declared("2", "question answering against LLM-Streamline with training", note=_RATIO_NOTE),
    _declared("3", "perplexity against LLM-Streamline with training", note=_RATIO_NOTE),
    _declared("4", "what is trained, towards what, by which loss", note=_RATIO_NOTE),
    _declared("5", "the ingredients of LinearPatch", ()),
    _declared(
        "6",
        "size and time of what is inserted",
        [Column("Parameters (M)", "parameters", "patch_millions", compare="exact", weight_free=True)],
        _ingredient_shape,
        "Seconds depend on the GPU; they were not measured here.",
    ),
    _declared("7", "offline storage for distillation", _STORED, _ingredient_shape, _STORED_NOTE),
    _declared("9", "pruning settings", note=_REMOVED_NOTE),
    _declared("10", "number of calibration samples", ()),
    _declared("11", "perplexity, training-free methods", note=_RATIO_NOTE),
    _declared("12", "MMLU, training-free methods", note=_RATIO_NOTE),
    _declared("13", "perplexity of Baichuan2-7B", note=_RATIO_NOTE),
    _declared("14", "question answering with Baichuan2-7B", note=_RATIO_NOTE),
    _declared("15", "MMLU with Baichuan2-7B", note=_RATIO_NOTE),
]
