"""The league as a target: its columns, and its claims."""

from __future__ import annotations

from extensions.league import rows
from reproductions.spec import comparisons
from reproductions.spec.columns import RATIO, tasks
from reproductions.spec.registry import Claim, Column, Table

_TEXTS = {
    "paper": {"WIKI-2": "league-wikitext2", "PTB": "league-ptb"},
    "standin": {
        "StdLib": "standin-standard-library-quarter",
        "Numeric": "standin-numerical-quarter",
        "Learning": "standin-learning-quarter",
    },
}
AVERAGE = "average"  # the id of the column that averages some tasks
_LABELS = tuple(label for texts in _TEXTS.values() for label in texts)


def perplexities(profile: str) -> list[Column]:
    """Return the texts and their average."""
    texts = [
        Column(label, f"perplexity@{protocol}", "perplexity", compare="perplexity")
        for label, protocol in _TEXTS[profile].items()
    ]
    return [*texts, Column("PPL AVG", derived="average", compare="perplexity", of=tuple(_TEXTS[profile]))]


def with_average(profile: str, asked: tuple[str, ...], label: str = "AVG of tasks") -> list[Column]:
    """Return the league's texts, some tasks, and the average of these tasks."""
    scores = {column.id: column for column in tasks(profile)}
    average = Column(AVERAGE, derived="average", of=asked, label=label)
    return [*perplexities(profile), *(scores[task] for task in asked), average]


def columns(profile: str) -> list[Column]:
    """Return the league's columns: perplexities, accuracies, and each repair's size, text, time and loaders."""
    chosen = tasks(profile, few=True)
    labels = tuple(column.id for column in chosen)
    return [
        RATIO,
        *perplexities(profile),
        *chosen,
        Column("AVG", derived="average", of=labels),
        Column("RP", derived="retained", of=labels),
        Column("flips", derived="flips", of=labels, compare="exact"),
        Column("parameters", "parameters", "left", scale=1e-6, compare="exact", label="parameters (M)"),
        Column("patches", "parameters", "patch_millions", compare="exact", label="patch parameters (M)"),
        Column("latency", "latency", "of_dense", compare="exact", label="time / dense"),
        Column("calibration-tokens", "repair", "calibration_tokens", compare="exact", label="calibration tokens"),
        Column("seconds", "repair", "seconds", compare="exact", unit="s"),
        Column("loaded-by", "loadable", "loaded_by", text=True, label="loaded by"),
        Column("removed", "removed", "removed", text=True, label="removed layers"),
    ]


def _refit_beats(others: tuple[str, ...], column: str, lower: bool = False) -> comparisons.Check:
    """After each selection the refit with its default options is better than each of the others."""
    return comparisons.every(
        *(
            comparisons.beats(
                rows.name(selection, rows.REFIT_LONG),
                *(rows.name(selection, repair) for repair in others),
                column=column,
                lower=lower,
            )
            for selection in rows.selections(1)
        )
    )


def _beats_slices(column: str, lower: bool = False) -> comparisons.Check:
    """Compare the refit after its best selection with LLM-Pruner and SliceGPT.

    Best is the lowest perplexity. The tool's own selection, with grafting, is one of them.
    """
    return comparisons.chosen(
        [
            *(rows.name(selection, rows.REFIT_LONG) for selection in rows.selections(1)),
            rows.name(rows.WITH_THEM, rows.CARRIED_REFIT),
        ],
        [rows.name(rows.SLICES, other) for other in (rows.PRUNER, rows.SLICEGPT)],
        column,
        by="PPL AVG",
        lower=lower,
    )


def _wins_each_draw(rival: str) -> comparisons.Check:
    """Return the refit is below this rival after every draw of either text."""
    draws = [(text, seed) for text in (rows.FIRST, rows.OTHER) for seed in rows.SEEDS]
    pairs = [(rows.drawn(rows.REFIT_LONG, *draw), rows.drawn(rival, *draw)) for draw in draws]
    return comparisons.every(*(comparisons.beats(ours, other, column="PPL AVG", lower=True) for ours, other in pairs))


TABLES = [
    Table(
        target="league",
        paper="league",
        number="league",
        title="Extension: repairs without training after every measured selection, on one base",
        declared=rows.league,
        draw="figures.league:draw",
        columns=columns,
        claims=(
            Claim(
                "refit-beats-rivals",
                "extension: the refit has a lower perplexity than each baseline",
                _refit_beats(rows.RIVALS, "PPL AVG", lower=True),
            ),
            Claim(
                "refit-beats-rivals-on-each-text",
                "extension: on each text by itself the refit has a lower perplexity than each baseline",
                comparisons.every(*(_refit_beats(rows.RIVALS, label, lower=True) for label in _LABELS)),
            ),
            Claim(
                "refit-beats-slices",
                "extension: the refit has a lower perplexity than methods that remove parts of layers",
                _beats_slices("PPL AVG", lower=True),
            ),
            Claim(
                "refit-retains-more-than-rivals",
                "extension: the refit retains more than every baseline",
                _refit_beats(rows.RIVALS, "RP"),
            ),
            Claim(
                "refit-retains-more-than-slices",
                "extension: the refit retains more than methods that remove parts of layers",
                _beats_slices("RP"),
            ),
            Claim(
                "refit-retains-more-than-none",
                "extension: the refit retains more than no repair",
                _refit_beats((rows.NONE,), "RP"),
            ),
            Claim(
                "least-left-is-best-choice",
                "extension: with the refit, the least-residual set has the lowest perplexity of all selections, within 1 %",
                comparisons.beats(
                    rows.name(rows.LEAST_LEFT, rows.REFIT_LONG),
                    *(rows.name(other, rows.REFIT_LONG) for other in rows.selections(1) if other != rows.LEAST_LEFT),
                    column="PPL AVG",
                    lower=True,
                    within=0.01,
                ),
            ),
            Claim(
                "ghosted-beats-replaceme",
                "extension: Ghosted Layers has a lower perplexity than ReplaceMe, which is fused, after each selection",
                comparisons.every(
                    *(
                        comparisons.beats(
                            rows.name(selection, rows.GHOSTED),
                            rows.name(selection, rows.REPLACEME),
                            column="PPL AVG",
                            lower=True,
                        )
                        for selection in rows.selections(1)
                    )
                ),
            ),
            *(
                Claim(
                    f"spared-{spared_id}-beats-{spared_id}",
                    f"extension: {what} has a lower perplexity after the contiguous block if massive tokens stay unchanged",
                    comparisons.beats(
                        rows.name(rows.WINDOW, spared), rows.name(rows.WINDOW, plain), column="PPL AVG", lower=True
                    ),
                )
                for spared_id, what, spared, plain in zip(
                    ("patch", "matrix"),
                    ("LinearPatch's A", "the least-squares matrix"),
                    rows.SPARED,
                    (rows.PATCHED, rows.WEIGHTED),
                    strict=True,
                )
            ),
        ),
        note="A row's name is its selection and its repair. Lowest BI: lowest block influence (ShortGPT); contiguous block: "
        "by token cosine; UIDL: by the angle of the last token; LoRP: clusters of similar layers; least-residual: by the "
        "residual error of a least-squares repair; least-loss: by the loss of the first eight sequences without the block. "
        "Sublayers: attentions and MLPs in one ranking, none repaired, "
        "by LLM-Drop, EntroDrop, BlockPruner and FinerCut, the last two on the first four sequences. SLEB reads its own "
        "lines. Slices of layers: as many parameters as those layers have, by LLM-Pruner (the first ten sequences; out of "
        "all layers but the first four and the last two) and SliceGPT; the attentions that NBL turns into linear maps "
        "have fewer. Time / dense: of a pass over sequences of 512 tokens, as a share of the dense model's on the same "
        "machine. Calibration tokens and seconds are the repair's, seconds those of the run that measured it: what other "
        "rows of that run had already computed is not in them (what each costs alone: benchmarks/README.md); a choice "
        "reads the same text. Rows marked trained see the same sequences once and learn from them. Loaded by: which "
        "programs read the saved checkpoint with all its repairs. Flips: the share of items that the row or the dense model "
        "alone answers right, in percent, averaged over the tasks. WIKI-2 and PTB are "
        "48 and 24 sequences of 512 tokens, evenly spread over the test splits.",
    ),
    Table(
        target="league-seeds",
        paper="league",
        number="league-seeds",
        title="Extension: the league's leaders from two calibration texts and five draws of each",
        declared=rows.seeds,
        columns=perplexities,
        claims=tuple(
            Claim(
                f"refit-beats-{rival}-from-each-draw",
                f"extension: from every draw the refit has a lower perplexity than {rows.LABELS[rival]}",
                _wins_each_draw(rival),
            )
            for rival in rows.LEADERS
            if rival not in rows.OURS
        ),
        note="The block is the contiguous one on the league's own budget, so that rows differ in what the repair "
        "reads alone. First "
        "text: the league's; other text: PTB's validation split (toy model: its validation docstrings).",
    ),
]
