"""The columns of Reassessing's tables, by profile: the paper's benchmarks, or the toy model's own."""

import dataclasses
from collections.abc import Callable

from common.toy.tasks import VERSION as TOY_VERSION
from reproductions.spec import reported
from reproductions.spec.columns import perplexity
from reproductions.spec.registry import Column

# Section 3.2: eight tasks, zero-shot, plain accuracy (the record holds the normalised one too): the printed PIQA of
# Llama-3-8B, .7965, is not length-normalised, nor is HellaSwag, .6014. MMLU and CMMLU are lm-eval's groups, their subjects
# weighted by size (`harness.GROUPS`).
TASKS = {
    "PIQA": "piqa",
    "HellaSwag": "hellaswag",
    "OpenbookQA": "openbookqa",
    "ARC-e": "arc_easy",
    "ARC-c": "arc_challenge",
    "MMLU": "mmlu",
    "CMMLU": "cmmlu",
    "WinoGrande": "winogrande",
}
# Tasks whose choices are letters or one sentence twice: lm-eval does not normalise them.
PLAIN_ONLY = ("MMLU", "WinoGrande")
# Of the toy model's nine tasks the four that every many-armed table here uses, plain accuracy as well.
TOY_TASKS = {
    "Continue": "docstring_continuation",
    "ParName": "docstring_parameter_name",
    "ParType": "docstring_parameter_type",
    "Section": "docstring_section",
}
AVERAGE = "Avg."
TOY_TEXT = "perplexity"
TOY_PERPLEXITY = perplexity(TOY_TEXT, "standin-learning-thin", label="PPL (extension)")
PERPLEXITIES = [
    perplexity(f"PPL on {name}", f"reassessing-{corpus}")
    for name, corpus in (("WikiText2", "wikitext2"), ("PTB", "ptb"))
]
TRAINABLE = Column(
    "trainable parameters M", "trainable", "parameters", scale=1e-6, compare="exact", weight_free=True, shape_only=True
)
PARAMETERS = {"benchmark": "parameters", "key": "left", "scale": 1e-9, "compare": "exact", "weight_free": True}
MACS = Column("MACs G", "macs", "multiply_adds", scale=1e-9, compare="exact", weight_free=True, shape_only=True)
PRUNING_RATES = [
    Column("PR %", "parameters", "ratio", scale=100, compare="exact", weight_free=True),
    Column(
        "share-of-layers",
        "parameters",
        "layer_fraction",
        scale=100,
        compare="exact",
        weight_free=True,
        label="% of layers (extension)",
        only="printed",
    ),
]
ALLOCATED = Column("memory MB", "memory", "allocated_mib", compare="exact", weight_free=True, shape_only=True)
HELD = Column("memory-held", "held-memory", "held_mib", compare="exact", label="memory MiB (extension)")
COST = [
    Column("GPU memory GB", "training-cost", "peak_gib", compare="exact"),
    Column("training time s", "training-cost", "seconds", compare="exact", unit="s"),
]
EXECUTIONS = Column("layer-executions", "training-cost", "layer_executions", compare="exact", label="layer executions")
COST_TOY = [
    Column("trainable", "training-cost", "trainable", compare="exact"),
    Column("peak-memory", "training-cost", "peak_gib", compare="exact", label="peak memory of the process GiB"),
    Column("training time s", "training-cost", "seconds", compare="exact", unit="s"),
    EXECUTIONS,
]
# Of the instructions that training leaves out: it tells trainings apart that questions cannot. One training, so no interval.
HELD_OUT = Column(
    "held-out-loss", "held-out-loss", "loss", compare="exact", only="one model", label="held-out loss (extension)"
)
GENERATION = Column("rouge-l", "docstring_generation@1", "rouge_l", scale=100, label="ROUGE-L of summaries (toy model)")
REMOVED = Column("removed", "removed", "removed", text=True, label="removed, in order (extension)")


def toy() -> list[Column]:
    """Return the toy model's columns: four tasks, their average, and one perplexity.

    Perplexity distinguishes arms that the tasks cannot.
    """
    tasks = [Column(label, f"{task}@{TOY_VERSION}", "acc", scale=100) for label, task in TOY_TASKS.items()]
    return [*tasks, Column(AVERAGE, derived="average", of=tuple(TOY_TASKS)), TOY_PERPLEXITY]


def accuracies(table: str, metric: str = "acc"):
    """Return the columns of a table of accuracies: those it prints, in its order, or the toy model's."""

    def columns(profile: str) -> list[Column]:
        if profile == "standin":
            return toy()
        return [task_column(label, metric) or _average(table) for label in reported.columns("reassessing", table)]

    return columns


def with_loss(table: str):
    """Return `accuracies`, and for a model that is not the paper's the final training loss."""
    return lambda profile: [*accuracies(table)(profile), HELD_OUT]


def task_column(label: str, metric: str = "acc") -> Column | None:
    """Return a paper task's column, by plain accuracy if lm-eval has no other; None for a label that is no task."""
    metric = "acc" if label in PLAIN_ONLY else metric
    return Column(label, TASKS[label], metric) if label in TASKS else None


def _average(table: str) -> Column:
    labels = tuple(label for label in reported.columns("reassessing", table) if label in TASKS)
    return Column(AVERAGE, derived="average", of=labels)


def with_more(table: str, toy_more=(), paper_more: dict[str, Column] | None = None):
    """Return the columns of accuracies and other values.

    On the paper's side they are found by printed label and come in printed order, extensions last.
    """
    more = paper_more or {}

    def columns(profile: str) -> list[Column]:
        if profile == "standin":
            return [*toy(), *toy_more]
        labels = reported.columns("reassessing", table)
        printed = [
            more.get(label) or task_column(label, "acc") or (_average(table) if label == AVERAGE else Column(label))
            for label in labels
        ]
        return [*printed, *(column for label, column in more.items() if label not in labels)]

    return columns


def cost(profile: str) -> list[Column]:
    """Return the columns of Table 3, the cost of fine-tuning."""
    trained = Column(
        "trained", "training-cost", "trainable", scale=1e-6, compare="exact", label="trained parameters M (extension)"
    )
    return COST_TOY if profile == "standin" else [TRAINABLE, *COST, trained, EXECUTIONS]


def calibration(table: str) -> Callable[[str], list[Column]]:
    """Return the columns of Tables J and O: the selected layers and their effect.

    On the toy model they are the perplexity, and all layers in one cell.
    """

    def columns(profile: str) -> list[Column]:
        if profile == "standin":
            return [TOY_PERPLEXITY, REMOVED]
        labels = reported.columns("reassessing", table)
        removed = [Column(f"removed {n}", "removed-each", str(n), compare="exact") for n in range(1, 9)]
        average = Column(AVERAGE, derived="average", of=tuple(TASKS))
        by_id = {column.id: column for column in (*removed, *PERPLEXITIES, *map(task_column, TASKS), average)}
        # the average needs its tasks where the table prints them not
        hidden = [dataclasses.replace(by_id[label], hidden=True) for label in TASKS if label not in labels]
        return [*hidden, *(by_id[label] for label in labels)]

    return columns


def single(label: str, benchmark: str, key: str) -> Callable[[str], list[Column]]:
    """Return a table of one score in percent: the paper's benchmark, or the toy model's generation."""
    paper = [Column(label, benchmark, key, scale=100)]
    return lambda profile: [GENERATION] if profile == "standin" else paper


def statistics(profile: str) -> list[Column]:
    """Return the columns of Table D, the cost of the pruned model."""
    memory = Column("memory MiB", "statistics", "memory_mib", compare="exact")
    if profile == "paper":
        return [Column("parameters B", **PARAMETERS), MACS, memory, Column("latency s", unit="s")]
    return [
        Column("parameters", "statistics", "parameters", scale=1e-6, compare="exact", label="parameters M"),
        Column("macs", "statistics", "multiply_adds", scale=1e-6, compare="exact", label="MACs M (64 tokens)"),
        memory,
        Column(
            "cpu-seconds",
            "statistics",
            "latency_seconds",
            compare="exact",
            unit="s",
            label="CPU seconds (32 sequences)",
        ),
    ]
