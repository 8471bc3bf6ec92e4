"""The blocks that the paper prints (Table 9), to use instead of computed ones and to compare with them."""

from functools import cache
from pathlib import Path

from common.utils import csv_rows
from common.utils.errors import UserError, unknown

TABLE = Path(__file__).parent / "reported" / "table9.csv"
# What the paper calls a model -> the registry's name.
MODELS = {
    "LLaMA-2-7B": "llama-2-7b",
    "LLaMA-2-13B": "llama-2-13b",
    "LLaMA-3-8B": "llama-3-8b",
    "Baichuan2-7B": "baichuan2-7b",
}


@cache
def published_blocks() -> dict[tuple[str, int, str], tuple[int, int]]:
    """Return Table 9's blocks: (registry name, layers removed, variant ``L`` or ``S``) -> [start, end)."""
    ends: dict[tuple[str, int, str], dict[str, int]] = {}
    for line in csv_rows.read(TABLE):
        if line["column"] in ("start", "end"):
            for variant in line["variant"].split("/"):
                key = (MODELS[line["model"]], int(line["sparsity"].partition("/")[0]), variant)
                ends.setdefault(key, {})[line["column"]] = int(line["value"])
    return {key: (block["start"], block["end"]) for key, block in ends.items()}


def published_block(model: str, count: int, variant: str = "L") -> tuple[int, int]:
    """Return the block [start, end) that Table 9 prints for a model.

    Args:
        model: Registry name.
        count: Number of removed layers.
        variant: ``L``, the contiguous block of highest cosine similarity, or ``S``, the layers of lowest block
            influence.

    Raises:
        UserError: Table 9 has no such model or number of layers; the message names those that it has.
    """
    blocks = published_blocks()
    if (model, count, variant) not in blocks:
        if model not in MODELS.values():
            raise unknown("model of Table 9", model, MODELS.values())
        known = ", ".join(f"{n} [{v}]" for name, n, v in blocks if name == model)
        raise UserError(f"Table 9 has no block of {count} layers [{variant}] of {model}; it has {known}")
    return blocks[model, count, variant]


def compare_block(removed: list[int], model: str, variant: str = "L") -> dict | None:
    """Compare computed layers with Table 9's block: both, whether they are equal, and how many layers they share.

    None for a model or a number of layers that Table 9 does not have.
    """
    block = published_blocks().get((model, len(removed), variant))
    if block is None:
        return None
    shared = len(set(removed) & set(range(*block)))
    return {"computed": sorted(removed), "published": list(block), "same": shared == len(removed), "shared": shared}
