"""The columns of LaCo's tables: layers left, scores and what is formed from them, hyperparameters."""

from dataclasses import replace

from reproductions.spec import columns, reported
from reproductions.spec.registry import Column

SHARE = Column("ratio %", "parameters", "ratio", scale=100, compare="exact", weight_free=True)
LAYERS = Column("layers", "layers", "layers", compare="exact")


def with_layers(profile: str) -> list[Column]:
    """Return the layers left and the scores (Tables 1 and 10)."""
    return [SHARE, LAYERS, *columns.laco(profile)]


def percentages(profile: str) -> list[Column]:
    """Return the layers left, and each score relative to the original model's (Table 7)."""
    scores = columns.laco(profile)
    hidden = [replace(column, id=f"{column.id} score", label=f"{column.label} score", hidden=True) for column in scores]
    shown = [Column(column.id, derived="retained", of=(f"{column.id} score",), label=column.label) for column in scores]
    return [SHARE, LAYERS, *hidden, *shown]


def averages(profile: str, percent: bool = False, layers: bool = False) -> list[Column]:
    """Return the columns Avg., the mean over all scores, and the categories' means (Tables 3 and 4).

    percent: also Per., the mean over scores of the ratio to Dense* (Table 2). layers: also the share of parameters
    removed.
    """
    shown = [column for column in columns.laco_averages(profile) if percent or column.id != "Per."]
    return [*([SHARE] if layers else []), LAYERS, *columns.laco(profile, hidden=True), *shown]


def settings(table: str):
    """Return the columns of hyperparameters, and of the search's outcome (Tables 5 and 6)."""
    hyperparameters = {name: Column(name, "laco-search", name, compare="exact") for name in ("C", "L", "H", "I", "T")}
    hyperparameters["layers"] = Column("layers", "laco-search", "layers", compare="exact")
    outcomes = [
        Column("merges", "laco-search", "merges", label="merges (extension)"),
        Column("attempts", "laco-search", "attempts", label="attempts (extension)"),
        Column("highest-similarity", "laco-search", "highest", label="highest s (extension)"),
        Column("least-accepted-similarity", "laco-search", "lowest_accepted", label="lowest accepted s (extension)"),
    ]

    def columns_of(profile: str) -> list[Column]:
        labels = reported.columns("laco", table)
        shown = [SHARE if label == SHARE.id else hyperparameters[label] for label in labels]
        rest = [column for label, column in hyperparameters.items() if label not in labels]
        return [*shown, *rest, *outcomes]

    return columns_of


def generations(profile: str) -> list[Column]:
    """Return the columns of generated text (Table 8); the share of distinct bigrams distinguishes a loop from a sentence."""
    protocol, texts = ("laco-xsum", 1) if profile == "paper" else ("standin-1", 3)
    benchmark, numbers = f"generations@{protocol}", range(1, texts + 1)
    return [
        Column("distinct-bigrams", benchmark, "distinct_2", scale=100, label="distinct bigrams"),
        *(Column(f"response-{n}", benchmark, f"text-{n}", text=True, label=f"response {n}") for n in numbers),
    ]
