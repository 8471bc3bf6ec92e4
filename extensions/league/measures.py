"""Two measures that benchmarks leave out: the distance to the original model, and answers written without options."""

from collections.abc import Iterator

from extensions.league import rows, texts
from extensions.league.answers import TEXTS
from extensions.league.tables import perplexities
from reproductions.spec import comparisons
from reproductions.spec.columns import tasks
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

NONE, REFIT = (rows.name(rows.BLOCK, repair) for repair in (rows.NONE, rows.REFIT))
_RIVALS = (rows.FACTOR, rows.PATCHED, rows.REPLACEME, rows.GHOSTED, rows.SHIFT, rows.OVERREP)
REPAIRED = tuple(rows.name(rows.BLOCK, repair) for repair in _RIVALS)
BASELINES = (*REPAIRED, rows.name(rows.PAIRS, rows.COME))
KL, SAME = "kl", "same-top"
PICKED, WRITTEN = "retained/picked", "retained/written"  # ids: the share of the original model's right answers


def measured(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the league's rows after the contiguous block, at its larger numbers of layers.

    Also CoMe, which merges other layers, and the refit from both texts.
    """
    shown = {NONE, *BASELINES, REFIT}
    spec, both = rows.LeagueSpec(rows.BLOCK, rows.REFIT, rows.BOTH), texts.both(subject.profile)
    return rows.larger(subject, limit, shown, lambda count: [rows.reading(subject, limit, count, spec, corpus=both)])


def columns(profile: str) -> list[Column]:
    """Return perplexity and divergence on one text, and tasks whose right option is picked and written."""
    label, protocol = TEXTS[profile]
    divergence, scores = f"kl@{protocol}", {column.id: column for column in tasks(profile)}
    near = [
        *(column for column in perplexities(profile) if column.id == label),
        Column(KL, divergence, "kl", compare="exact", label=f"KL on {label} (nats)"),
        Column(SAME, divergence, "same_top", scale=100, compare="exact", label=f"same likeliest token on {label}"),
    ]
    if profile == "standin":  # whose written answers are to other questions
        written = Column("Lines", "docstring_generation@1", "exact_match", scale=100, label="lines written")
        return [*near, scores["ParType"], written]
    return [
        *near,
        scores["ARC-e"],
        Column("ARC-e/written", "arc_easy_written", "exact", scale=100, label="ARC-e, written"),
        Column("ARC-e/within", "arc_easy_written", "contains", scale=100, label="ARC-e, right option in the answer"),
        Column("OBQA", "openbookqa", "acc_norm", scale=100),
        Column("OBQA/written", "openbookqa_written", "exact", scale=100, label="OBQA, written"),
        Column(PICKED, derived="retained", of=("ARC-e",), label="ARC-e, retained, picked"),
        Column(WRITTEN, derived="retained", of=("ARC-e/written",), label="ARC-e, retained, written"),
    ]


def _nearer(nearer: tuple[str, ...], others: tuple[str, ...]) -> comparisons.Check:
    """Compare each row's divergence from the original model with that of each of the others."""
    return comparisons.each_beats(([row, *others] for row in nearer), column=KL, lower=True)


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
            _nearer((*REPAIRED, REFIT), (NONE,)),
        ),
        Claim(
            "refit-nearest",
            "extension: the refit is nearer to the original model than each baseline",
            _nearer((REFIT,), BASELINES),
        ),
        Claim(
            "written-lost-before-picked",
            "extension: without repair, more of ARC-Easy's right answers are lost if written than if picked",
            comparisons.column_below(WRITTEN, PICKED, NONE),
        ),
        Claim(
            "refit-writes-more",
            "extension: the refit writes more of ARC-Easy's answers rightly than no repair",
            comparisons.beats(REFIT, NONE, column=WRITTEN),
        ),
    ),
    note="The league's rows and, but for the toy model, its refit from WikiText-2 and HellaSwag items. KL: divergence "
    "of next-token probabilities from the original model's, in nats per token. Written: the question without its options "
    "after three examples of ours; right is an answer that equals the right option but for case, articles and punctuation. "
    "Retained: the share of the original model's right answers, in percent.",
)
