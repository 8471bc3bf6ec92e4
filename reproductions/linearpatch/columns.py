"""The columns of LinearPatch's tables, by profile: the paper's benchmarks, or the toy model's own."""

from reproductions.spec import columns as shared
from reproductions.spec.columns import RATIO, tasks
from reproductions.spec.registry import Column

# Column of the paper -> protocol of `common.evaluation.windowed_perplexity`.
PROTOCOLS = {
    "paper": {"WIKI-2": "linearpatch-wikitext2", "C4": "linearpatch-c4", "PTB": "linearpatch-ptb"},
    "standin": {"StdLib": "standin-standard-library", "Numeric": "standin-numerical", "Learning": "standin-learning"},
}


def question_answering(profile: str) -> list[Column]:
    """Return Ratio, the nine tasks, AVG and RP (Tables 1, 2 and 14), for one real model WikiText-2 as well."""
    columns = [RATIO, *tasks(profile), *_summary(tasks(profile), "AVG", "RP")]
    if profile == "paper":
        protocol = PROTOCOLS[profile]["WIKI-2"]
        columns.append(shared.perplexity("wiki-2", protocol, only="one model", label="WIKI-2 (extension)"))
    return columns


def perplexities(profile: str, average: str, part: str = "quarter", label: str = "") -> list[Column]:
    """Return the perplexity columns of three texts, and of their mean, with its id and label.

    part: of the toy model's texts: ``quarter``, or ``thin`` (an eighth, where rows are trained); one per table.
    """
    suffix = f"-{part}" if profile == "standin" else ""
    return shared.perplexities({text: name + suffix for text, name in PROTOCOLS[profile].items()}, average, label)


def text(profile: str, average: str = "PPL AVG", part: str = "quarter") -> list[Column]:
    """Return Ratio and perplexities (Tables 3, 11 and 13)."""
    return [RATIO, *perplexities(profile, average, part)]


def both_averages(profile: str) -> list[Column]:
    """Return Ratio, perplexities, and only the averages of the nine tasks (Table 4)."""
    hidden = tasks(profile, few=True, hidden=True)
    return [RATIO, *perplexities(profile, "PPL AVG", "thin"), *hidden, *_summary(hidden, "QA AVG", "QA RP")]


def everything(profile: str) -> list[Column]:
    """Return perplexities and the nine tasks (Table 5)."""
    chosen = tasks(profile, few=True)
    return [*perplexities(profile, "PPL AVG"), *chosen, *_summary(chosen, "AVG", "RP")]


def _summary(columns: list[Column], average: str, retained: str) -> list[Column]:
    labels = tuple(column.id for column in columns)
    return [Column(average, derived="average", of=labels), Column(retained, derived="retained", of=labels)]


def settings(profile: str) -> list[Column]:
    """Return the columns of the removed layers (Table 9)."""
    return [
        RATIO,
        Column("start", "window", "start", compare="exact"),
        Column("end", "window", "end", compare="exact"),
        Column("cuts", "window", "cuts", compare="exact", label="interfaces (extension)"),
        Column("removed", "removed", "removed", text=True, label="removed, in order (extension)"),
    ]


STORED = [
    Column("stored input per token", "storage", "input", compare="exact", weight_free=True, shape_only=True),
    Column("stored target per token", "storage", "target", compare="exact", weight_free=True, shape_only=True),
    Column(
        "target-with-indices",
        "storage",
        "target_with_indices",
        compare="exact",
        weight_free=True,
        shape_only=True,
        label="target with indices (extension)",
    ),
]
INSERTED = [
    Column("Parameters (M)", "parameters", "patch_millions", compare="exact", weight_free=True),
    Column("Time cost (s)", "inserted", "seconds", compare="exact", unit="s"),
]
