"""The league as a target: its columns, and its claims."""

from __future__ import annotations

from itertools import product

from extensions.league import rows
from reproductions.spec import columns as shared
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
    return shared.perplexities(_TEXTS[profile], "PPL AVG")


def with_average(profile: str, task_ids: tuple[str, ...], label: str = "AVG of tasks") -> list[Column]:
    """Return the league's texts, some tasks, and the average of these tasks."""
    scores = {column.id: column for column in tasks(profile)}
    average = Column(AVERAGE, derived="average", of=task_ids, label=label)
    return [*perplexities(profile), *(scores[task] for task in task_ids), average]


def columns(profile: str) -> list[Column]:
    """Return the league's columns: perplexities, accuracies, and each repair's size, text, time and loaders."""
    few_tasks = tasks(profile, few=True)
    labels = tuple(column.id for column in few_tasks)
    return [
        RATIO,
        *perplexities(profile),
        *few_tasks,
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


def _below(selection: str, *repairs: str) -> comparisons.Check:
    """Compare the average perplexity of a repair with that of each of the others, after one selection."""
    return comparisons.beats(*(rows.name(selection, repair) for repair in repairs), column="PPL AVG", lower=True)


def _beats(repair: str, others: tuple[str, ...], column: str, lower: bool = False) -> comparisons.Check:
    """Compare a repair with each of the others, after each selection."""
    rivals = [[rows.name(selection, name) for name in (repair, *others)] for selection in rows.selections(1)]
    return comparisons.each_beats(rivals, column=column, lower=lower)


def _beats_slices(column: str, lower: bool = False) -> comparisons.Check:
    """Compare the refit after its best selection with LLM-Pruner and SliceGPT.

    Best is the lowest perplexity. The tool's own selection, with grafting, is one of them.
    """
    return comparisons.lowest_beats(
        [
            *(rows.name(selection, rows.REFIT) for selection in rows.selections(1)),
            rows.name(rows.LEAST_RESIDUAL_GRAFTED, rows.GRAFT_REFIT),
        ],
        [rows.name(rows.SLICES, repair) for repair in (rows.PRUNER, rows.SLICEGPT)],
        column,
        by="PPL AVG",
        lower=lower,
    )


def _wins_each_draw(rival: str) -> comparisons.Check:
    """Compare the refit with this rival after every draw of each text that the rival reads."""
    selection = rows.PAIRS if rival == rows.COME else rows.BLOCK
    texts = (rows.FIRST, rows.OTHER) if rival in rows.FROM_BOTH else (rows.FIRST,)
    pairs = [
        (rows.name(rows.BLOCK, rows.REFIT, text, seed), rows.name(selection, rival, text, seed))
        for text, seed in product(texts, rows.SEEDS)
    ]
    return comparisons.each_beats(pairs, column="PPL AVG", lower=True)


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
                _beats(rows.REFIT, rows.RIVALS, "PPL AVG", lower=True),
            ),
            Claim(
                "refit-beats-rivals-on-each-text",
                "extension: on each text by itself the refit has a lower perplexity than each baseline",
                comparisons.all_of(*(_beats(rows.REFIT, rows.RIVALS, label, lower=True) for label in _LABELS)),
            ),
            Claim(
                "refit-beats-slices",
                "extension: the refit has a lower perplexity than methods that remove parts of layers",
                _beats_slices("PPL AVG", lower=True),
            ),
            Claim(
                "refit-retains-more-than-rivals",
                "extension: the refit retains more than every baseline",
                _beats(rows.REFIT, rows.RIVALS, "RP"),
            ),
            Claim(
                "refit-retains-more-than-slices",
                "extension: the refit retains more than methods that remove parts of layers",
                _beats_slices("RP"),
            ),
            Claim(
                "refit-retains-more-than-none",
                "extension: the refit retains more than no repair",
                _beats(rows.REFIT, (rows.NONE,), "RP"),
            ),
            Claim(
                "least-left-is-best-choice",
                "extension: with the refit, the least-residual set has the lowest perplexity of all selections, within 1 %",
                comparisons.beats(
                    rows.name(rows.LEAST_RESIDUAL, rows.REFIT),
                    *(
                        rows.name(selection, rows.REFIT)
                        for selection in rows.selections(1)
                        if selection != rows.LEAST_RESIDUAL
                    ),
                    column="PPL AVG",
                    lower=True,
                    within=0.01,
                ),
            ),
            Claim(
                "ghosted-beats-replaceme",
                "extension: Ghosted Layers has a lower perplexity than ReplaceMe, which is fused, after each selection",
                _beats(rows.GHOSTED, (rows.REPLACEME,), "PPL AVG", lower=True),
            ),
            *(
                Claim(
                    f"spared-{short}-beats-{short}",
                    f"extension: {label} has a lower perplexity after the contiguous block if massive tokens stay unchanged",
                    _below(rows.BLOCK, rows.SPARE.format(plain), plain),
                )
                for short, label, plain in (
                    ("patch", "LinearPatch's A", rows.PATCHED),
                    ("matrix", "the least-squares matrix", rows.LEAST_SQUARES),
                )
            ),
            Claim(
                "fits-without-first-lower-perplexity",
                "extension: least-squares repairs, the refit too, have a lower perplexity without first tokens in the fit",
                comparisons.all_of(
                    *(
                        _below(selection, rows.WITHOUT.format(repair), repair)
                        for selection in rows.WITHOUT_AFTER
                        for repair in (*rows.FITTED_WITHOUT, rows.REFIT)
                    )
                ),
            ),
            *(
                Claim(
                    f"refit{suffix}-beats-fits-without-first",
                    f"extension: {label} has a lower perplexity than rivals fitted without first tokens",
                    comparisons.all_of(
                        *(
                            _below(selection, repair, *map(rows.WITHOUT.format, rows.FITTED_WITHOUT))
                            for selection in rows.WITHOUT_AFTER
                        )
                    ),
                )
                for suffix, label, repair in (
                    ("", "the refit", rows.REFIT),
                    ("-without-first", "the refit without first tokens", rows.WITHOUT.format(rows.REFIT)),
                )
            ),
        ),
        note="A row's name is its selection and its repair.\n"
        "Selections: lowest BI, lowest block influence (ShortGPT); contiguous block, by token cosine; UIDL, by the angle of "
        "the last token; LoRP, clusters of similar layers; least-residual, by the residual error of a least-squares repair; "
        "least-loss, by the loss of the first eight sequences without the block. SLEB reads its own lines.\n"
        "Parts of layers: sublayers are attentions and MLPs in one ranking, none repaired, by LLM-Drop, BlockPruner and "
        "FinerCut, the last two on the first four sequences. EntroDrop's are attentions alone, as in its code, which have "
        "fewer parameters. Slices have as many parameters as those "
        "layers, by LLM-Pruner (the first ten sequences; out of all layers but the first four and the last two) and "
        "SliceGPT; the attentions that NBL turns into linear maps have fewer. CoMe-P chooses how "
        "much of each layer stays by the loss of the first eight sequences.\n"
        "Text: selection and repair read the same. Rows marked trained see its sequences once and learn from them. WIKI-2 "
        "and PTB are 48 and 24 sequences of 512 tokens, evenly spread over the test splits.\n"
        "Flips: the share of items that the row or the dense model alone answers right, in percent, averaged over the "
        "tasks. Time / dense: of a pass over sequences of 512 tokens, as a share of the dense model's on the same machine. "
        "Calibration tokens and seconds: the repair's, in the run that measured it. What other rows of that run had "
        "computed is not in them; benchmarks/README.md says what each costs alone. Loaded by: which programs read the "
        "saved checkpoint with all its repairs.",
    ),
    Table(
        target="league-seeds",
        paper="league",
        number="league-seeds",
        title="Extension: repairs from five draws of the calibration text, some from another text, too",
        declared=rows.seeds,
        columns=perplexities,
        claims=tuple(
            Claim(
                f"refit-beats-{rival}-from-each-draw",
                f"extension: from every measured draw the refit has a lower perplexity than {rows.LABELS[rival]}",
                _wins_each_draw(rival),
            )
            for rival in (*rows.FROM_BOTH, *rows.FROM_FIRST)
            if rival not in rows.OURS
        ),
        note="The block is the contiguous one on the league's own budget, so that rows differ in what the repair "
        "reads alone. CoMe merges pairs of layers, which it chooses on the draw. First "
        "text: the league's; other text: PTB's validation split (toy model: its validation docstrings).",
    ),
]
