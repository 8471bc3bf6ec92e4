"""Calibrate a repair on questions like those that pruning makes unanswerable: MMLU's, whose answer is a letter."""

from collections.abc import Iterator

from common.pruning.recipe import MIXED
from extensions.league import distilled, rows
from extensions.league.tables import perplexities
from extensions.league.texts import BOTH, PLAIN, both
from reproductions.spec import comparisons
from reproductions.spec.columns import laco
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

CORPORA = {rows.QUESTIONS: "mmlu-dev", rows.ARC: "arc-lettered-after-500", rows.ARC_ANSWERS: "arc-after-500"}
MMLU = "MMLU"
_BOTH = rows.LeagueSpec(rows.BLOCK, rows.REFIT, rows.BOTH)
_STEPS = {repair: rows.REPAIRS[repair] for repair in (rows.REFIT, rows.GHOSTED)}
_STEPS |= {rows.DISTILLED_REFIT: distilled.REPAIRS[rows.DISTILLED_REFIT]}
_READING = {rows.LeagueSpec(rows.BLOCK, repair, rows.QUESTIONS): step for repair, step in _STEPS.items()}
_READING |= {rows.LeagueSpec(rows.BLOCK, rows.REFIT, text): _STEPS[rows.REFIT] for text in (rows.ARC, rows.ARC_ANSWERS)}
NONE, GHOSTED = (rows.name(rows.BLOCK, repair) for repair in (rows.NONE, rows.GHOSTED))
REFIT_QUESTIONS, GHOSTED_QUESTIONS, DISTILLED_QUESTIONS, REFIT_ARC, REFIT_ARC_ANSWERS = (
    spec.method for spec in _READING
)


def questions(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return no repair, repairs from plain text, the refit from both texts, and repairs from questions.

    All after the contiguous block, at the league's larger numbers of layers. The refit from MMLU's examples also has a short
    distillation on them. Two other refits read ARC's questions, in MMLU's form and with the right option alone. The toy
    model has plain text alone.
    """
    return rows.larger(subject, limit, (NONE, PLAIN, GHOSTED), lambda count: _others(subject, limit, count))


def _others(subject: Subject, limit: int | None, count: int) -> Iterator[Row]:
    yield rows.reading(subject, limit, count, _BOTH, corpus=both(subject.profile))
    for spec, step in _READING.items():
        mixed = MIXED.join((rows.BUDGET[subject.profile]["corpus"], CORPORA[spec.text]))
        yield rows.reading(subject, limit, count, spec, step=step, corpus=mixed)


def columns(profile: str) -> list[Column]:
    """Return the league's texts and MMLU without examples; of the toy model its own examination."""
    if profile == "standin":
        return [*perplexities(profile), *(column for column in laco(profile) if column.id == "Exam")]
    return [*perplexities(profile), Column(MMLU, "mmlu", "acc", scale=100)]


QUESTIONS = Table(
    target="league-questions",
    paper="league",
    number="league-questions",
    title="Extension: MMLU after calibration on questions of its form",
    declared=questions,
    columns=columns,
    claims=(
        Claim(
            "questions-beat-cut",
            "extension: calibrated on plain text and MMLU's examples, the refit is more accurate on MMLU than no repair",
            comparisons.beats(REFIT_QUESTIONS, NONE, column=MMLU),
        ),
        Claim(
            "questions-beat-plain-text",
            "extension: the refit is more accurate on MMLU if its text has questions of that form",
            comparisons.beats(REFIT_QUESTIONS, PLAIN, BOTH, column=MMLU),
        ),
        Claim(
            "arc-beats-cut",
            "extension: calibrated on plain text and ARC's questions in MMLU's form, the refit is more accurate on MMLU than "
            "no repair",
            comparisons.beats(REFIT_ARC, NONE, column=MMLU),
        ),
        Claim(
            "form-beats-right-options",
            "extension: from ARC's questions in MMLU's form the refit is more accurate on MMLU than from the same questions "
            "with their right options alone",
            comparisons.beats(REFIT_ARC, REFIT_ARC_ANSWERS, column=MMLU),
        ),
        Claim(
            "refit-beats-ghosted-from-questions",
            "extension: calibrated on MMLU's examples, too, the refit is more accurate on MMLU than Ghosted Layers",
            comparisons.beats(REFIT_QUESTIONS, GHOSTED_QUESTIONS, column=MMLU),
        ),
        Claim(
            "distilled-questions-beat-refit",
            "extension: with 100 steps of distillation on the same text the refit is more accurate on MMLU than alone",
            comparisons.beats(DISTILLED_QUESTIONS, REFIT_QUESTIONS, column=MMLU),
        ),
        Claim(
            "questions-keep-perplexity",
            "extension: from plain text and MMLU's examples the refit's perplexity is as low as from plain text, within 5 %",
            comparisons.beats(REFIT_QUESTIONS, PLAIN, column="PPL AVG", lower=True, within=0.05),
        ),
    ),
    note="The league's rows, and repairs from as many sequences, of WikiText-2 and of questions in turn. MMLU's are its "
    "development split, five answered questions of each subject; none of them is asked. ARC's are test questions of both "
    "levels, after the first 500, in MMLU's form or followed by the right option alone; no column here asks ARC. MMLU's "
    "questions are asked without examples, in the form of the calibration. "
    "Qwen2.5-Coder-0.5B, unpruned, is near chance level on MMLU.",
)
