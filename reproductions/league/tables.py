"""The league as a target: its columns, and the claims that it is to bear out or not."""

from __future__ import annotations

from reproductions import checks
from reproductions.columns import RATIO, tasks
from reproductions.league import rows
from reproductions.registry import Claim, Column, Table

_TEXTS = {
    "paper": {"WIKI-2": "linearpatch-wikitext2", "PTB": "linearpatch-ptb"},
    "standin": {
        "StdLib": "standin-standard-library-quarter",
        "Numeric": "standin-numerical-quarter",
        "Learning": "standin-learning-quarter",
    },
}


def columns(profile: str) -> list[Column]:
    """Perplexities, the tasks' accuracies, and what a user asks of a repair: size, text, time, and what can load it."""
    texts = [
        Column(label, f"perplexity@{protocol}", "perplexity", compare="perplexity")
        for label, protocol in _TEXTS[profile].items()
    ]
    chosen = tasks(profile, few=True)
    labels = tuple(column.label for column in chosen)
    return [
        RATIO,
        *texts,
        Column("PPL AVG", derived="average", compare="perplexity", of=tuple(column.label for column in texts)),
        *chosen,
        Column("AVG", derived="average", of=labels),
        Column("RP", derived="retained", of=labels),
        Column("parameters (M)", "parameters", "left", scale=1e-6, compare="exact"),
        Column("of patches (M)", "parameters", "patch_millions", compare="exact"),
        Column("calibration tokens", "repair", "calibration_tokens", compare="exact"),
        Column("seconds", "repair", "seconds", compare="exact"),
        Column("loaded by", "loadable", "loaded_by", text=True),
        Column("removed layers", "removed", "removed", text=True),
    ]


def _best(ours: tuple[str, ...], column: str, lower: bool) -> checks.Check:
    """After each selection the best of ours is better than the best of the rivals."""
    return checks.every(
        *(
            checks.best_of(
                [rows.name(selection, repair) for repair in ours],
                [rows.name(selection, repair) for repair in rows.RIVALS],
                column,
                lower,
            )
            for selection in rows.selections(1)
        )
    )


TABLES = [
    Table(
        target="league",
        paper="league",
        number="league",
        title="Ours: every repair without training after every choice of layers, on one base",
        declared=rows.league,
        columns=columns,
        claims=(
            Claim("ours: the refit has a lower perplexity than every rival", _best(rows.OURS, "PPL AVG", lower=True)),
            Claim("ours: the refit retains more than every rival", _best(rows.OURS, "RP", lower=False)),
            Claim(
                "ours: Ghosted Layers has a lower perplexity than ReplaceMe, which is fused, after each choice",
                checks.every(
                    *(
                        checks.beats(
                            rows.name(selection, rows.GHOSTED),
                            rows.name(selection, rows.REPLACEME),
                            column="PPL AVG",
                            lower=True,
                        )
                        for selection in rows.selections(1)
                    )
                ),
            ),
        ),
        note="A row's name is its choice of layers and its repair. [S]: lowest block influence (ShortGPT); [L]: the window "
        "by token cosine; UIDL: by the angle of the last token; LoRP: clusters of alike layers; of least left: ours, by what "
        "a repair in closed form cannot make good. Calibration tokens and seconds are the repair's; a choice reads the same "
        "text. Rows marked trained see the same windows once and learn from them. Loaded by: which programs read the saved "
        "checkpoint with all its repairs.",
    )
]
