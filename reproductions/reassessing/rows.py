"""The rows of Reassessing's tables: every printed one with the recipe behind it, and the stand-in's own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

from common.models import registry
from common.records.results import Recipe
from reproductions.reassessing.neighbours import PRUNER, SLICEGPT, count, count_of_parameters, neighbours
from reproductions.reassessing.recipes import fields
from reproductions.spec import printed_rows, reported, shape_recipes
from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import REFUSED, TOO_FEW, llm_pruner, pruner_can, slicegpt
from reproductions.spec.subjects import PAPER as PAPERS_MODELS
from reproductions.spec.subjects import STANDIN, Subject, recipe

PAPER = "reassessing"
REPORTED = "as reported only"
UNSUPPORTED = "its architecture is not supported"
# What a row's own name stands for: the metric and, where the name alone says it, the arm.
ALIASES = {
    "ShortGPT (BI)": ("BI", "LoRA"),
    "Shortened LLaMA (PPL)": ("PPL", "LoRA"),
    "Shortened LLaMA (Taylor)": ("Taylor", "LoRA"),
    "Our": ("Reverse-order", "lm_head & last 3"),
    "Ours": ("Reverse-order", "lm_head & last 3"),
    "Llama-3.1-6.3B-It-Alpaca": ("Reverse-order", None),
    "Llama-3-6.3B-It-Alpaca": ("Reverse-order", None),
    "Llama-3-6.3B-Alpaca": ("Reverse-order", None),
}
METRICS = ("Random", "PPL", "Magnitude-l1", "Magnitude-l2", "BI", "Taylor", "Reverse-order", "SLEB")
SEVEN = tuple(metric for metric in METRICS if metric != "SLEB")
# How the tables spell what is compared most: the paper's metric, its ways to fine-tune, and its recipe on the stand-in.
REVERSE, NONE = "Reverse-order", "no fine-tuning (ours)"
LORA, QLORA, HEAD = "+LoRA", "+QLoRA", "+lm_head"
LAST1, LAST2, LAST3, LAST10 = (f"{HEAD} & last {k}" for k in (1, 2, 3, 10))
AT_CUT = f"{HEAD} & 3 at the cut (ours)"
OURS = (REVERSE, 4, LAST3)
BASIC = ((REVERSE, 4, NONE), OURS)
# Baselines that the paper took from others: whatever their name, no recipe of ours stands for them, but beside them.
ONLY_REPORTED = {"6": ("ShortGPT",), "8": ("ShortGPT",), "G": ("ShortGPT",), "I": ("ShortGPT", "SLEB")}


def printed(table: str, shape: Callable | None = None) -> Callable[[int | None], list[Row]]:
    """Every printed row of a table on the paper's models, with recipes for those that this repository implements."""

    def rows(limit: int | None) -> list[Row]:
        by_key = {
            (number.model, number.sparsity, name): number
            for number in reported.numbers(PAPER, table)
            for _, name in reported.row_names(number)
        }
        found = []
        for row in printed_rows.rows(PAPER, table, shape=shape):
            number = by_key[row.label, row.sparsity, row.method]
            found.append(_with_recipe(row, number, table, limit))
            if found[-1].status == REPORTED:
                found += neighbours(row, number, limit)
        return found

    return rows


def _with_recipe(row: Row, number: reported.Number, table: str, limit: int | None) -> Row:
    spec = registry.REGISTRY.get(row.model)
    if spec is None:
        return dataclasses.replace(row, status=REPORTED)
    if spec.trust_remote_code or spec.shape_only:  # its shape still counts parameters
        return dataclasses.replace(row, status=REFUSED if spec.trust_remote_code else UNSUPPORTED)
    if row.dense:
        return dataclasses.replace(row, recipe=recipe(row.model, PAPERS_MODELS, limit))
    metric, arm = ALIASES.get(number.method, (number.method, None))
    removed = count(row.model, number)
    if metric not in METRICS or number.method in ONLY_REPORTED.get(table, ()) or removed is None:
        return dataclasses.replace(row, status=REPORTED)
    if number.variant.startswith("MMLU"):
        return dataclasses.replace(row, status="not repeated, see the note")
    variant = number.variant if arm is None else f"+{arm}"
    found = fields(metric, removed, variant, "paper")
    return dataclasses.replace(row, recipe=recipe(row.model, PAPERS_MODELS, limit, **found))


def paper_row(model: str, label: str, layers: int, metric: str, removed: int, variant: str, limit: int | None) -> Row:
    """A row on one of the paper's models that it prints no numbers for."""
    made = recipe(model, PAPERS_MODELS, limit, **(fields(metric, removed, variant, "paper") if removed else {}))
    return Row(model, label, f"{removed}/{layers}", reported.row_name(metric, variant), made, dense=not removed)


def printed_with(table: str, arms: Iterable[str]) -> Callable[[int | None], list[Row]]:
    """Every printed row, and after those of each model the reverse-order ``arms`` that the paper did not try."""
    wanted = list(arms)

    def rows(limit: int | None) -> list[Row]:
        by_model: dict[str, list[Row]] = {}
        for row in printed(table)(limit):
            by_model.setdefault(row.label, []).append(row)
        for label, found in by_model.items():
            removed, layers = map(int, found[0].sparsity.split("/"))
            found += [paper_row(found[0].model, label, layers, REVERSE, removed, arm, limit) for arm in wanted]
        return [row for found in by_model.values() for row in found]

    return rows


def one_model(settings: Iterable[tuple[str, int, str]], *, dense: bool = True) -> Callable[[Subject, int | None], list]:
    """Rows on one model from (metric, layers that the stand-in loses of its 16, variant), spelled as in the paper's tables.

    Any other model loses the same share, so do schedules.
    """
    wanted = list(settings)

    def rows(subject: Subject, limit: int | None) -> list[Row]:
        found = [_row(subject, "Dense", 0, "", limit)] if dense else []
        for metric, of_standin, variant in wanted:
            for removed in subject.counts((of_standin, STANDIN.layers), standin=of_standin):
                found.append(_row(subject, metric, removed, _scaled(variant, of_standin, removed), limit))
        return found

    return rows


def _scaled(variant: str, of_standin: int, removed: int) -> str:
    """A variant whose schedule ``1:b:c``, if it has one, ends with so many layers: ``1:2:4`` is ``1:4:8`` where 8 go."""

    def schedule(found: re.Match) -> str:
        step = int(found[1])
        return f"1:{step if step == 1 else max(1, round(step * removed / of_standin))}:{removed}"

    return re.sub(r"1:(\d+):\d+", schedule, variant)


def _row(subject: Subject, metric: str, removed: int, variant: str, limit: int | None) -> Row:
    if metric == PRUNER:
        wanted = llm_pruner(subject.profile, layers=removed) if pruner_can(removed, subject.layers) else None
    elif metric == SLICEGPT:
        wanted = slicegpt(subject.profile, layers=removed)
    else:
        wanted = fields(metric, removed, variant, subject.size) if removed else {}
    return Row(
        model=subject.model,
        label=subject.label,
        sparsity=f"{removed}/{subject.layers}",
        method=reported.row_name(metric, variant),
        recipe=None if wanted is None else recipe(subject.model, subject, limit, **wanted),
        status=TOO_FEW if wanted is None else "not run",
        dense=not removed,
    )


def by_subject(on_paper: Callable, on_one: Callable) -> Callable[[Subject, int | None], list[Row]]:
    """A table's rows: (subject, limit) -> rows."""
    return lambda subject, limit: on_paper(limit) if subject.printed else on_one(subject, limit)


def _removed(number: reported.Number) -> int:
    if printed_rows.removed_layers(number) is not None:
        return printed_rows.removed_layers(number)
    return 8 if number.sparsity == "25%" else 0


def pruned_shape(model: str, number: reported.Number) -> Recipe:
    """The pruned model's shape alone."""
    return shape_recipes.recipe(model, _removed(number))


def quantized_shape(model: str, number: reported.Number) -> Recipe:
    """Table 7: the pruned model at 16 bits, and with its layers' matrices at 4."""
    training = {"method": "gptq", "bits": 4} if "GPTQ" in number.variant else None
    return shape_recipes.recipe(model, _removed(number), None, training)


def trained_shape(model: str, number: reported.Number) -> Recipe:
    """LoRA and QLoRA train the same adapters; the partial arm trains head, final norm and the last k layers."""
    if "LoRA" in number.variant:
        training = {"method": "lora", "rank": 8}
    else:
        training = {"method": "partial", "last": int(number.variant.partition("last ")[2] or 0)}
    return shape_recipes.recipe(model, _removed(number), None, training)


def rate_shape(model: str, number: reported.Number) -> Recipe | None:
    """Table 6: whole layers only; theirs is a share of the parameters, the paper's own a share of the layers."""
    facts = registry.get(model).facts
    if number.method in ("ShortGPT", "LaCo"):
        return shape_recipes.recipe(model, count_of_parameters(model, number))
    share = float(number.sparsity.rstrip("%")) / 100
    return shape_recipes.recipe(model, round(share * facts["layers"])) if number.method.startswith("Our") else None
