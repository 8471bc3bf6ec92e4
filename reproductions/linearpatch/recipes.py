"""The paper's settings as recipes, and the rows of its tables without training."""

from collections.abc import Iterator, Mapping

from common.records.results import Recipe
from reproductions.spec import shape_recipes
from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import llm_pruner, pruner_can, without_training
from reproductions.spec.statuses import NOT_RUN, TOO_FEW
from reproductions.spec.subjects import Subject, recipe

# As printed in the paper: label, layers, numbers of layers removed.
PAPER_MODELS = {
    "llama-2-7b": ("LLaMA-2-7B", 32, (9, 7)),
    "llama-2-13b": ("LLaMA-2-13B", 40, (10, 8)),
    "llama-3-8b": ("LLaMA-3-8B", 32, (7, 5)),
}
BAICHUAN = {"baichuan2-7b": ("Baichuan2-7B", 32, (9, 7))}
# LLaMA-2-7B's. On the toy model 5 and 4 of 16 layers are the closest to the paper's 27 % and 21 % of the parameters.
SHARES = ((9, 32), (7, 32))
TOY_COUNTS = (5, 4)
# LLM-Pruner's flag, which the paper does not give, by model and layers that the other rows of its table remove: fitted to
# the printed Ratio. The paper says that its batch is of C4.
PRUNER_RATIOS = {
    ("llama-2-7b", 9): 0.3465,
    ("llama-2-7b", 7): 0.2698,
    ("llama-2-13b", 10): 0.295,
    ("llama-2-13b", 8): 0.24,
    ("llama-3-8b", 7): 0.28,
    ("llama-3-8b", 5): 0.205,
    ("baichuan2-7b", 9): 0.342,
    ("baichuan2-7b", 7): 0.27,
}
PRUNER_TEXT = "c4-train"

# Section 3.4 and Table 7: the teacher's 100 largest logits per token.
TOP_K = 100


def models_of(subject: Subject, baichuan: bool = False) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """Yield (registry name, group, layers, numbers removed) of a table's models."""
    if not subject.printed:
        yield subject.model, subject.group, subject.layers, subject.counts(*SHARES, toy=TOY_COUNTS)
        return
    for model, (group, layers, counts) in (BAICHUAN if baichuan else PAPER_MODELS).items():
        yield model, group, layers, counts


# A row's repair -> what its shape has in the place of the removed layers.
_INSERTED = {"linearpatch": "linearpatch", "linearpatch-distilled": "linearpatch", "streamline-ffn": "streamline-ffn"}
METHODS = ("LLM-Pruner", "SLEB", "ShortGPT", "LLM-Streamline(None)", "LinearPatch[S]", "LinearPatch[L]")


def training_free(
    subject: Subject, limit: int | None = None, *, baichuan: bool = False, pruner: bool = True
) -> Iterator[Row]:
    """Return the original model's row, then for each sparsity the METHODS in printed order (Tables 1 and 11 to 15).

    LLM-Pruner has rows only where the paper prints them.
    """
    for model, group, layers, counts in models_of(subject, baichuan):
        yield Row(model, group, f"0/{layers}", "Dense", recipe(model, subject, limit), dense=True)
        for count in counts:
            for method in METHODS if pruner else METHODS[1:]:
                fields = _fields(model, method, count, layers, subject)
                configuration = None if fields is None else recipe(model, subject, limit, **fields)
                status = TOO_FEW if fields is None else NOT_RUN
                shape = shape_of(model, method, count) if subject.printed else None
                yield Row(model, group, f"{count}/{layers}", method, configuration, status, shapes=shape)


def _fields(model: str, method: str, count: int, layers: int, subject: Subject) -> dict | None:
    """Return a recipe's fields for a printed name; None where the model has too few layers for LLM-Pruner."""
    if method != "LLM-Pruner":
        return without_training(method, count, subject.profile)
    size = {"ratio": PRUNER_RATIOS[model, count]} if subject.printed else {"layers": count}
    fits = subject.printed or pruner_can(count, layers)
    return llm_pruner(subject.profile, PRUNER_TEXT, **size) if fits else None


def shape_of(model: str, method: str, count: int, fields: Mapping | None = None) -> Recipe | None:
    """Return the shape recipe that a row's Ratio follows from.

    ``fields`` are those of its recipe, if it is not printed.
    """
    if method == "LLM-Pruner":
        return shape_recipes.pruner(model, PRUNER_RATIOS[model, count]) if (model, count) in PRUNER_RATIOS else None
    fields = fields or without_training(method, count, "paper") or {}
    inserted = _INSERTED.get((fields.get("repair") or {}).get("method"))
    return shape_recipes.recipe(model, count, {"method": inserted} if inserted else None)
