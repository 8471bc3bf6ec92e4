"""Two measures that benchmarks leave out: the distance to the original model, and answers written without options."""

from extensions.league import rows, texts
from extensions.league.tables import perplexities
from reproductions.spec import comparisons
from reproductions.spec.columns import tasks
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

REPAIRS = (rows.NONE, rows.FACTOR, rows.PATCHED, rows.REPLACEME, rows.GHOSTED, rows.REFIT_LONG)
KL, SAME = "kl", "same-top"
READ = {"paper": ("WIKI-2", "league-wikitext2"), "standin": ("Learning", "standin-learning-quarter")}
PICKED, WRITTEN = "retained/picked", "retained/written"  # ids of what is left of right answers


def measured(subject: Subject, limit: int | None = None) -> list[Row]:
    """Return the league's rows after the contiguous block, at its larger numbers of layers, and the refit from both texts."""
    shown = {rows.name(rows.WINDOW, repair) for repair in REPAIRS}
    spec = rows.LeagueSpec(rows.WINDOW, rows.REFIT_LONG, rows.BOTH)
    return rows.larger(
        subject,
        limit,
        shown,
        lambda count: [rows.reading(subject, limit, count, spec, corpus=texts.both(subject.profile))],
    )


def columns(profile: str) -> list[Column]:
    """Return perplexity and divergence on one text, and tasks whose right option is picked and written."""
    label, protocol = READ[profile]
    read = f"kl@{protocol}"
    found = [
        *(column for column in perplexities(profile) if column.id == label),
        Column(KL, read, "kl", compare="exact", label=f"KL on {label} (nats)"),
        Column(SAME, read, "same_top", scale=100, compare="exact", label=f"same likeliest token on {label}"),
    ]
    if profile == "standin":
        picked = [column for column in tasks(profile) if column.id == "ParType"]
        written = [Column("Lines", "docstring_generation@1", "exact_match", scale=100, label="lines written")]
    else:
        picked = [
            *(column for column in tasks(profile) if column.id == "ARC-e"),
            Column("OBQA", "openbookqa", "acc_norm", scale=100),
        ]
        written = [
            Column("ARC-e/written", "arc_easy_written", "exact", scale=100, label="ARC-e, written"),
            Column("ARC-e/contains", "arc_easy_written", "contains", scale=100, label="ARC-e, option in answer"),
            Column("OBQA/written", "openbookqa_written", "exact", scale=100, label="OBQA, written"),
        ]
    of = [tuple(column.id for column in each if column.key != "contains") for each in (picked, written)]
    return [
        *found,
        *picked,
        *written,
        Column(PICKED, derived="retained", of=of[0], label="retained, picked"),
        Column(WRITTEN, derived="retained", of=of[1], label="retained, written"),
    ]


def _nearer(repairs: tuple[str, ...], others: tuple[str, ...]) -> comparisons.Check:
    """Return each repair has a lower divergence from the original model than each of the others."""
    return comparisons.every(
        *(
            comparisons.beats(
                rows.name(rows.WINDOW, repair),
                *(rows.name(rows.WINDOW, other) for other in others),
                column=KL,
                lower=True,
            )
            for repair in repairs
        )
    )


MEASURES = Table(
    target="league-measures",
    paper="league",
    number="league-measures",
    title="Extension: distance to the original model, and answers written without options",
    declared=measured,
    columns=columns,
    claims=(
        Claim(
            "repairs-nearer-than-none",
            "extension: repairs bring the model nearer to the original: a lower KL divergence than without repair",
            _nearer(REPAIRS[1:], REPAIRS[:1]),
        ),
        Claim(
            "refit-nearest",
            "extension: the refit is nearer to the original model than each baseline",
            _nearer((rows.REFIT_LONG,), REPAIRS[1:-1]),
        ),
        Claim(
            "written-lost-before-picked",
            "extension: pruning without repair loses a larger share of written answers than of picked ones",
            comparisons.column_below(WRITTEN, PICKED, rows.name(rows.WINDOW, rows.NONE)),
        ),
        Claim(
            "refit-writes-more",
            "extension: the refit writes more right answers than no repair",
            comparisons.beats(
                rows.name(rows.WINDOW, rows.REFIT_LONG), rows.name(rows.WINDOW, rows.NONE), column=WRITTEN
            ),
        ),
    ),
    note="The league's rows, and its refit from WikiText-2 and HellaSwag items in turn. KL: divergence of next-token "
    "probabilities from the original model's, in nats per token. Written: the question without its options after three "
    "examples of ours; right is an answer that equals the right option but for case, articles and punctuation. Retained: the "
    "mean share of the original model's score; tasks on which that one guesses are left out.",
)
