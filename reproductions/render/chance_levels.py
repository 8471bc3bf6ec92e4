"""Compute what is retained of a dense model's scores, and of their part above chance level (extension).

RP (LinearPatch, Prune&Comp) and Per. (LaCo) are shares of the dense model's scores, so what anybody gets by chance counts
as retained. Here, over the tasks on which the dense model is more than two standard errors above chance level, the share that
stays of what it is above chance level:

    sum of (score - guess) / sum of (dense score - guess)

Where chance gives more than is taken for it here (LaCo's C3 has items of fewer than four options), the share is lower
still. The Open LLM Leaderboard has ranked by scores above chance level since its second version (huggingface.co/docs/
leaderboards, Scores Normalization); of these papers' tables it was found nowhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from common.console.text_tables import markdown
from common.evaluation import significance
from common.evaluation.scores import retained_performance
from common.records.results import Store
from common.utils.signs import signed
from reproductions import audit
from reproductions.audit.engine import group
from reproductions.audit.scores import dense_row
from reproductions.claims import derived_columns
from reproductions.reassessing.columns import TASKS
from reproductions.render import show
from reproductions.spec import columns, registry, reported
from reproductions.spec import subjects as settings

Number = float | np.ndarray


@dataclass(frozen=True)
class Source:
    """A table in which a paper prints retained accuracy.

    target: of the same table here. scores, summary: its tables of scores and of retained accuracy, which is in
    ``column``; '' if it prints scores alone, and the mean of their shares is taken. tasks: label -> benchmark here.
    scale: of a score of 100 %. kind: of `common.evaluation.scores.retained_performance`.
    """

    paper: str
    target: str
    scores: str
    summary: str
    column: str
    tasks: Mapping[str, str]
    scale: float = 100.0
    kind: str = "mean-of-ratios"

    @property
    def measure(self) -> str:
        """Return the paper's name for retained accuracy."""
        return self.column or "mean share"


_NINE = {label: benchmark for label, (benchmark, _) in columns.QUESTIONS.items()}
SOURCES = (
    Source("linearpatch", "table1-linearpatch", "1", "1", "RP", _NINE),
    Source("prunecomp", "table2-prunecomp", "2", "2", "RP", _NINE, kind="ratio-of-means"),
    Source("prunecomp", "tableA2-prunecomp", "A2", "A2", "RP", _NINE, kind="ratio-of-means"),
    Source("laco", "table2-laco", "1", "2", "Per.", columns.LACO_TASKS),
    Source("reassessing", "table4-reassessing", "4", "4", "", TASKS, scale=1.0),
    Source("reassessing", "table1-reassessing", "1", "1", "", TASKS, scale=1.0),
)


# A paper's own rows, by method and variant as its CSV files have them.
_OWN: dict[str, Callable[[str, str], bool]] = {
    "linearpatch": lambda method, variant: method == "LinearPatch",
    "prunecomp": lambda method, variant: variant == "+Prune&Comp",
    "laco": lambda method, variant: method == "LaCo",
    "reassessing": lambda method, variant: variant == "+lm_head & last 3",
}
_UNCHECKED = {"CMNLI": 12_241}  # by size of its development set; no printed share is held against it


@dataclass(frozen=True)
class Retained:
    """One row, in percent.

    method: its label. id: its id. own: whether the method is the paper's. retained: as printed, or measured. chance_level:
    retained accuracy of random answers. above: see the module. interval: of a measured one, paired over items.
    """

    model: str
    sparsity: str
    method: str
    retained: float
    chance_level: float
    above: float
    interval: tuple[float, float] | None = None
    id: str = ""
    own: bool = False


def above(scores: Mapping[str, Number], dense: Mapping[str, Number], guess: Mapping[str, float]) -> Number:
    """Return the percentage of the original model's score above chance level that is kept, over the tasks of ``guess``."""
    return 100 * sum(scores[t] - guess[t] for t in guess) / sum(dense[t] - guess[t] for t in guess)


def above_chance(dense: Mapping[str, float], guess: Mapping[str, float], error: Callable) -> dict[str, float]:
    """Return chance by task where the original model is more than two standard errors (``error(task)``) above it."""
    return {task: level for task, level in guess.items() if dense[task] > level + 2 * error(task)}


def printed(source: Source) -> list[Retained]:
    """Return the retained accuracy by the paper's printed numbers, without intervals, because it prints no outcomes."""
    chance = columns.chance(source.tasks.values())
    guess = {label: source.scale * chance[name] for label, name in source.tasks.items()}
    questions = _UNCHECKED | audit.questions(source.paper, source.scores)
    rows = group(reported.numbers(source.paper, source.scores))
    summaries = group(reported.numbers(source.paper, source.summary))
    by_share = source.scores == source.summary  # LaCo's averages stand under no share of what is removed
    retained_rows = []
    for (model, sparsity, method, variant), row in rows.items():
        summary = summaries.get((model, sparsity if by_share else "", method, variant), {}).get(source.column)
        dense = {label: number.value for label, number in dense_row(_starred(rows), model).items()}
        own_scores = {label: number.value for label, number in row.items()}
        lacking = summary is None and source.column or not guess.keys() <= own_scores.keys() & dense.keys()
        if method in reported.DENSE or lacking:
            continue

        def error(task: str, dense=dense) -> float:
            share, count = dense[task] / source.scale, questions.get(task, math.inf)
            return source.scale * math.sqrt(share * (1 - share) / count)

        retained = summary.value if source.column else _retained(source, own_scores, dense, guess)
        value = above(own_scores, dense, above_chance(dense, guess, error))
        name = reported.row_name(method, variant)
        chance_level, own_row = _retained(source, guess, dense, guess), _OWN[source.paper](method, variant)
        retained_rows.append(Retained(model, sparsity, name, retained, chance_level, value, id=name, own=own_row))
    return retained_rows


def _starred(rows: Mapping[tuple, dict]) -> dict[tuple, dict]:
    """Keep of two printed dense rows (LaCo) the starred one, which the paper measured and compares with."""
    own_rows = {key: row for key, row in rows.items() if key[2] == "Dense*"}
    return own_rows or dict(rows)


def _scored(
    source: Source, store: Store, subject: settings.Subject
) -> tuple[list[dict], dict | None, dict[str, float]]:
    """Return a table's rows with scores, the dense one, and chance by the tasks that all of them have answered."""
    table = registry.get(source.target)
    entries = show.entries(table, store, subject, table.rows(subject))
    guess = derived_columns.chance_scores(table.columns_for(subject))
    entries = [entry for entry in entries if entry["scores"].keys() & guess.keys()]
    dense = next((entry for entry in entries if entry["dense"]), None)
    if dense is None:
        return [], None, {}
    guess = {task: by for task, by in guess.items() if all(task in entry["scores"] for entry in entries)}
    errors = {task: float(np.std(dense["replicates"](task))) for task in guess}
    return entries, dense, above_chance(dense["scores"], guess, errors.__getitem__)


def measured(source: Source, store: Store, subject: settings.Subject) -> list[Retained]:
    """Return the retained accuracy of a measured model's rows, over the tasks for which all rows with scores have results."""
    entries, dense, guess = _scored(source, store, subject)
    if not guess:
        return []
    dense_replicates = {task: dense["replicates"](task) for task in guess}
    chance_level = _retained(source, guess, dense["scores"], guess)
    rows = []
    for entry in entries:
        if not entry["dense"]:
            replicates = {task: entry["replicates"](task) for task in guess}
            value = above(entry["scores"], dense["scores"], guess)
            interval = significance.interval(above(replicates, dense_replicates, guess))
            retained = _retained(source, entry["scores"], dense["scores"], guess)
            model = subject.label.partition(",")[0]
            names = model, entry["sparsity"], entry["name"]
            rows.append(Retained(*names, retained, chance_level, value, interval, entry["method"]))
    return rows


def _retained(
    source: Source, scores: Mapping[str, float], dense: Mapping[str, float], tasks: Mapping[str, float]
) -> float:
    """Return what is retained by the paper's measure, of some of the tasks."""
    own_scores, dense_scores = ({task: row[task] for task in tasks} for row in (scores, dense))
    return retained_performance(own_scores, dense_scores, source.kind)


def turned(rows: Sequence[Retained]) -> tuple[int, int]:
    """Count the pairs of rows of one model and sparsity whose order changes above chance level, and all pairs."""
    # LaCo's rows of one model have a share each.
    settings_of = {row: (row.model, row.sparsity if "/" in row.sparsity else "") for row in rows}
    pairs = [(a, b) for a, b in combinations(rows, 2) if settings_of[a] == settings_of[b] and a.retained != b.retained]
    return sum((a.retained > b.retained) != (a.above > b.above) for a, b in pairs), len(pairs)


def drawn(store: Store, folder: Path | None = None) -> list[Path]:
    """Draw every printed row, and the measured ones of LaCo on the published models; return the files."""
    from figures import chance_levels, style

    shown = {f"{registry.TITLES[source.paper]}, printed": of_paper(source.paper) for source in _first()}
    laco = next(source for source in SOURCES if source.paper == "laco")
    rows = measured(laco, store, settings.of_model(settings.PUBLISHED_MODELS[0]))
    shown |= {f"LaCo's Table 2, {rows[0].model} (95 %)": rows} if rows else {}
    printed_in = [registry.get(source.target).title.partition(":")[0] for source in SOURCES if printed(source)]
    sizes = [f"{rows[0].model}, {rows[0].sparsity} layers removed"] if rows else []
    return style.save(chance_levels.draw(shown, "; ".join([*printed_in, *sizes])), "chance-level", folder)


def shown(row: Retained) -> str:
    """Format the percentage kept above chance level, with its interval if there is one."""
    ends = "" if row.interval is None else f" [{', '.join(signed(end, '.1f') for end in row.interval)}]"
    return signed(row.above, ".1f") + ends


def summary() -> str:
    """Write the table of docs/chance-level.md: retained by chance, and each paper's rows that retain most and least."""
    lines, turns = [], []
    for source in _first():
        title, rows = registry.TITLES[source.paper], of_paper(source.paper)
        turns.append("{} of {} ({})".format(*turned(rows), title))
        ends = [end(rows, key=lambda row: row.retained) for end in (max, min)]
        cells = [f"{row.retained:.1f} → {shown(row)} ({row.model}, {row.method}, {row.sparsity})" for row in ends]
        by_chance = sorted({f"{row.chance_level:.1f}" for row in rows}, key=float)
        lines.append([f"{title} ({source.measure})", " to ".join(by_chance[:: max(len(by_chance) - 1, 1)]), *cells])
    head = [
        "Paper",
        "retained at chance level, %",
        "best row: retained → retained above chance level, %",
        "worst row: the same, %",
    ]
    order = f"Pairs of rows (one model, one size) whose order changes if only that part counts: {', '.join(turns)}."
    return f"{markdown(head, lines, 'lr')}\n\n{order}"


def _first() -> list[Source]:
    """Return one source of each paper, whose measure is the others', too."""
    return list({source.paper: source for source in reversed(SOURCES)}.values())[::-1]


def of_paper(paper: str) -> list[Retained]:
    """Return every row of a paper's tables in `SOURCES`."""
    return [row for source in SOURCES if source.paper == paper for row in printed(source)]
