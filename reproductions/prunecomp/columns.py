"""The columns of Prune&Comp's tables, by profile: the paper's benchmarks, or the toy model's own."""

from collections.abc import Callable

from reproductions.spec import reported
from reproductions.spec.columns import RATIO, perplexities, tasks
from reproductions.spec.registry import Column

# Label -> protocol of `common.evaluation.windowed_perplexity`.
PROTOCOLS = {
    "paper": {"WIKI-2": "linearpatch-wikitext2", "C4": "linearpatch-c4", "PTB": "linearpatch-ptb"},
    "standin": {
        "StdLib": "standin-standard-library-thin",
        "Numeric": "standin-numerical-thin",
        "Learning": "standin-learning-thin",
    },
}


def perplexity_columns(profile: str) -> list[Column]:
    """Return three texts and their plain average."""
    return perplexities(PROTOCOLS[profile], "AVG")


def qa_columns(profile: str) -> list[Column]:
    """Return Ratio, the nine tasks, their average, and RP, which is the ratio of averages in this paper."""
    return [RATIO, *tasks(profile), Column("AVG", derived="average"), Column("RP", derived="retained-average")]


def order_columns(number: str) -> Callable:
    """Return the list in one cell; for the paper's models also each position against the printed one."""

    def columns(profile: str) -> list[Column]:
        text = Column("removed", "removed", "removed", text=True, label="removed layers")
        if profile == "standin":
            return [text]
        places = range(1, 1 + max(int(label.split()[1]) for label in reported.columns("prunecomp", number)))
        benchmark = f"removed-order@{number}"
        against = {"compare": "exact", "only": "printed"}
        agree = Column("places-that-agree", benchmark, "agree", **against, label="places that agree (extension)")
        return [text, agree, *(Column(f"removed {i}", benchmark, str(i), **against) for i in places)]

    return columns
