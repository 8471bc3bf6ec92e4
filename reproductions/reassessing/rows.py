"""The rows of Reassessing's tables: every printed one with the recipe behind it, and the toy model's own."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from common.models import registry
from common.records.results import Recipe
from reproductions.reassessing.neighbours import PRUNER, SLICEGPT, count, count_of_parameters, neighbours
from reproductions.reassessing.recipes import fields
from reproductions.reassessing.specs import LAST3, LORA, Arm, ArmSpec, of_printed
from reproductions.spec import printed_rows, reported, shape_recipes
from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import llm_pruner, pruner_can, slicegpt
from reproductions.spec.statuses import NOT_REPEATED, NOT_RUN, REPORTED, TOO_FEW
from reproductions.spec.subjects import PAPER as PAPERS_MODELS
from reproductions.spec.subjects import TOY, Subject, recipe

PAPER = "reassessing"
# What a row's own name stands for: the metric and, where the name alone says it, the arm.
ALIASES: dict[str, tuple[str, Arm | None]] = {
    "ShortGPT (BI)": ("BI", LORA),
    "Shortened LLaMA (PPL)": ("PPL", LORA),
    "Shortened LLaMA (Taylor)": ("Taylor", LORA),
    "Our": ("Reverse-order", LAST3),
    "Ours": ("Reverse-order", LAST3),
    "Llama-3.1-6.3B-It-Alpaca": ("Reverse-order", None),
    "Llama-3-6.3B-It-Alpaca": ("Reverse-order", None),
    "Llama-3-6.3B-Alpaca": ("Reverse-order", None),
}
SEVEN = ("Random", "PPL", "Magnitude-l1", "Magnitude-l2", "BI", "Taylor", "Reverse-order")
# What the tables compare most: the paper's metric, and its recipe on the toy model.
REVERSE = "Reverse-order"
OURS = (ArmSpec(REVERSE, LAST3), 4)
BASIC = ((ArmSpec(REVERSE), 4), OURS)
UNTRAINED = "no fine-tuning"  # the variant of a printed row that says so
_OF_MMLU = "MMLU +lm_head & last 3"  # not repeated, see the note of Table B
# Baselines that the paper took from others: whatever their name, no recipe of ours stands for them, but beside them.
ONLY_REPORTED = {"6": ("ShortGPT",), "8": ("ShortGPT",), "G": ("ShortGPT",), "I": ("ShortGPT", "SLEB")}


def printed(table: str, shape: Callable | None = None) -> Callable[[int | None], Iterator[Row]]:
    """Return every printed row of a table on the paper's models, with recipes for implemented methods."""

    def rows(limit: int | None) -> Iterator[Row]:
        by_key = {
            (number.model, number.sparsity, name): number
            for number in reported.numbers(PAPER, table)
            for _, name in reported.row_names(number)
        }
        for row in printed_rows.rows(PAPER, table, shape=shape):
            number = by_key[row.key]
            declared = _with_recipe(row, number, table, limit)
            yield declared
            if declared.status == REPORTED:
                yield from neighbours(row, number, limit)

    return rows


def _with_recipe(row: Row, number: reported.Number, table: str, limit: int | None) -> Row:
    spec = registry.REGISTRY.get(row.model)
    metric, arm = ALIASES.get(number.method, (number.method, None))
    if spec is None and arm is None:
        return dataclasses.replace(row, status=REPORTED)
    if spec is None:
        return dataclasses.replace(row, status=REPORTED, spec=ArmSpec(metric, arm))
    if row.dense:
        return dataclasses.replace(row, recipe=recipe(row.model, PAPERS_MODELS, limit))
    removed = count(row.model, number)
    if metric not in (*SEVEN, "SLEB") or number.method in ONLY_REPORTED.get(table, ()) or removed is None:
        untrained = ArmSpec(metric) if number.variant == UNTRAINED else None
        return dataclasses.replace(row, status=REPORTED, spec=untrained)
    if number.variant == _OF_MMLU:
        return dataclasses.replace(row, status=NOT_REPEATED)
    spec = of_printed(metric, number.variant) if arm is None else ArmSpec(metric, arm)
    row_recipe = recipe(row.model, PAPERS_MODELS, limit, **fields(spec, removed, "paper"))
    return dataclasses.replace(row, recipe=row_recipe, spec=spec)


def paper_row(model: str, group: str, layers: int, spec: ArmSpec | None, removed: int, limit: int | None) -> Row:
    """Return a row, without printed numbers, on one of the paper's models; spec: None for the original model."""
    row_recipe = recipe(model, PAPERS_MODELS, limit, **(fields(spec, removed, "paper") if removed else {}))
    return Row(model, group, f"{removed}/{layers}", recipe=row_recipe, dense=not removed, **_named(spec))


def _named(spec: ArmSpec | None) -> dict:
    """Return what a row is called by its specification."""
    if spec is None:
        return {"method": "Dense"}
    return {"method": spec.method, "name": spec.label, "extension": spec.extension, "spec": spec}


def printed_with(table: str, arms: Iterable[Arm]) -> Callable[[int | None], list[Row]]:
    """Return every printed row, and after those of each model the reverse-order ``arms`` that the paper did not try."""
    specs = [ArmSpec(REVERSE, arm) for arm in arms]

    def rows(limit: int | None) -> list[Row]:
        by_model: dict[str, list[Row]] = {}
        for row in printed(table)(limit):
            by_model.setdefault(row.group, []).append(row)
        for group, rows_of_model in by_model.items():
            removed, layers = map(int, rows_of_model[0].sparsity.split("/"))
            rows_of_model += [paper_row(rows_of_model[0].model, group, layers, spec, removed, limit) for spec in specs]
        return [row for rows_of_model in by_model.values() for row in rows_of_model]

    return rows


def one_model(specs: Iterable[tuple[ArmSpec, int]], *, dense: bool = True) -> Callable[[Subject, int | None], Iterator]:
    """Return a function from (subject, limit) to the rows on one model.

    ``specs`` has pairs of a specification and the number of layers that the toy model, with 16, loses. Any other model
    loses the same share, and so do schedules.
    """
    specs = list(specs)

    def rows(subject: Subject, limit: int | None) -> Iterator[Row]:
        if dense:
            yield _row(subject, None, 0, limit)
        for spec, of_toy in specs:
            for removed in subject.counts((of_toy, TOY.layers), toy=of_toy):
                yield _row(subject, spec.scaled(removed, of_toy), removed, limit)

    return rows


def _row(subject: Subject, spec: ArmSpec | None, removed: int, limit: int | None) -> Row:
    if spec is None:
        steps = {}
    elif spec.metric == PRUNER:
        steps = llm_pruner(subject.profile, layers=removed) if pruner_can(removed, subject.layers) else None
    elif spec.metric == SLICEGPT:
        steps = slicegpt(subject.profile, layers=removed)
    else:
        steps = fields(spec, removed, subject.size)
    return Row(
        model=subject.model,
        group=subject.group,
        sparsity=f"{removed}/{subject.layers}",
        recipe=None if steps is None else recipe(subject.model, subject, limit, **steps),
        status=TOO_FEW if steps is None else NOT_RUN,
        dense=not removed,
        **_named(spec),
    )


def _removed(number: reported.Number) -> int:
    if printed_rows.removed_layers(number) is not None:
        return printed_rows.removed_layers(number)
    return 8 if number.sparsity == "25%" else 0


def pruned_shape(model: str, number: reported.Number) -> Recipe:
    """Return the shape recipe of the pruned model."""
    return shape_recipes.recipe(model, _removed(number))


def quantized_shape(model: str, number: reported.Number) -> Recipe:
    """Return the shape recipe of Table 7: the pruned model at 16 bits, or with its layers' matrices at 4."""
    training = {"method": "gptq", "bits": 4} if number.variant and of_printed("", number.variant).quantized else None
    return shape_recipes.recipe(model, _removed(number), None, training)


def trained_shape(model: str, number: reported.Number) -> Recipe:
    """Return the shape recipe of a fine-tuned row.

    LoRA and QLoRA train the same adapters; the partial arm trains head, final norm and the last k layers.
    """
    arm = of_printed("", number.variant).arm
    if arm is not None and arm.kind in ("lora", "qlora"):
        training = {"method": "lora", "rank": 8}
    else:
        training = {"method": "partial", "last": arm.last if arm else 0}
    return shape_recipes.recipe(model, _removed(number), None, training)


def rate_shape(model: str, number: reported.Number) -> Recipe | None:
    """Return the shape recipe of a row of Table 6; only entire layers are removed.

    The rate of other papers' methods is a share of the parameters, and of this paper's a share of the layers.
    """
    facts = registry.get(model).facts
    if number.method in ("ShortGPT", "LaCo"):
        return shape_recipes.recipe(model, count_of_parameters(model, number))
    share = float(number.sparsity.rstrip("%")) / 100
    return shape_recipes.recipe(model, round(share * facts["layers"])) if number.method in ("Our", "Ours") else None
