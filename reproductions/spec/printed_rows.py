"""Rows declared from their reported side: every printed one, with what is known about how to get it."""

from collections.abc import Callable, Mapping

from common.records.results import Recipe
from reproductions.spec import reported
from reproductions.spec.registry import TITLES, Row, Table
from reproductions.spec.statuses import NOT_RUN, Status

# What a paper calls a model -> the registry's name.
MODELS = {
    "LLaMA-2-7B": "llama-2-7b",
    "LLaMA-2-13B": "llama-2-13b",
    "LLaMA-3-8B": "llama-3-8b",
    "LLaMA-3.1-8B": "llama-3.1-8b",
    "LLaMA-3.1-8B-It": "llama-3.1-8b-instruct",
    "LLaMA-3-70B": "llama-3-70b",
    "Baichuan2-7B": "baichuan2-7b",
    "Baichuan2-13B": "baichuan2-13b",
    "Qwen1.5-7B": "qwen1.5-7b",
    "Qwen3-8B": "qwen3-8b",
    "Vicuna-7B-v1.5": "vicuna-7b-v1.5",
    "Gemma2-2B-It": "gemma-2-2b-it",
    "TinyLLaMA-1.1B": "tinyllama-1.1b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "CodeQwen1.5-7B-Chat": "codeqwen1.5-7b-chat",
    "ChatGLM2-6B": "chatglm2-6b",
    "Gemma2-7B": "gemma-7b",  # whose parameters these are; there is no Gemma 2 of that size
}

# (registry name, one of the row's printed numbers) -> the recipe over the model's shape, or None.
Shape = Callable[[str, reported.Number], Recipe | None]


def removed_layers(number: reported.Number) -> int | None:
    """Return n of a sparsity printed as ``n/N``, else None."""
    removed, slash, layers = number.sparsity.partition("/")
    return int(removed) if slash and removed.isdigit() and layers.isdigit() else None


def rows(
    paper: str, table: str, *, shape: Shape | None = None, statuses: Mapping[str, Status] | None = None
) -> list[Row]:
    """Return every printed row of a table, in printed order, without recipes for weights.

    ``statuses`` gives the reason why a method is missing, if it is known.
    """
    rows_by_key: dict[tuple, Row] = {}
    for number in reported.numbers(paper, table):
        for variant, name in reported.row_names(number):
            key = (number.model, number.sparsity, name)
            if key in rows_by_key:
                continue
            model = MODELS.get(number.model, number.model)
            rows_by_key[key] = Row(
                model=model,
                group=number.model,
                sparsity=number.sparsity,
                method=name,
                recipe=None,
                status=(statuses or {}).get(number.method, NOT_RUN),
                dense=number.method == "Dense",
                printed=(number.method, variant),
                shapes=shape(model, number) if shape and number.model in MODELS else None,
            )
    return list(rows_by_key.values())


def declare(
    paper: str, number: str, title: str, declared: Callable, columns: Callable, claims=(), note: str = "", **more
) -> Table:
    """Return a paper's table, or a figure for a number like ``figure3``; ``more``: other fields of `Table`."""
    figure = number.startswith("figure")
    return Table(
        target=f"{number if figure else f'table{number}'}-{paper}",
        paper=paper,
        number=number,
        title=f"{TITLES[paper]}, {title if figure else f'Table {number}: {title}'}",
        declared=declared,
        columns=columns,
        claims=claims,
        note=note,
        **more,
    )
