"""Give the verdict on a claim: by the printed numbers as they are, on measured ones with their uncertainty.

A comparison supports a claim if its entire interval lies where the claim has it. It contradicts the claim if the interval
lies entirely elsewhere, and is inconclusive otherwise. Of two rows on one task McNemar's test has to agree. Numbers without
uncertainty are compared as they are. A claim counts its comparisons. It is supported if enough support it, contradicted if
too few could still support it, and inconclusive otherwise.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from common.evaluation import significance
from reproductions.claims.bootstrap import Resampled
from reproductions.claims.printed_replicates import Printed
from reproductions.spec.comparisons import PERCENT, POINTS, Comparison, Key, fill_labels
from reproductions.spec.registry import Claim, Table
from reproductions.spec.reported import DENSE
from reproductions.spec.subjects import Subject

WORDS = SUPPORTED, CONTRADICTED, INCONCLUSIVE, UNTESTED = "supported", "contradicted", "inconclusive", "not tested"
WORST_FIRST = (CONTRADICTED, INCONCLUSIVE, SUPPORTED)
LARGE = 1e12
MARGIN = 1.0  # points of accuracy within which two rows are equivalent
CHANCE = (1 - significance.LEVEL) / 2  # a difference of 0 seems to contradict (or to support) so often


def claims(
    table: Table,
    lines: list[dict],
    numbers: dict,
    subjects: Sequence[Subject],
    readings: dict[str, Sequence[Resampled]],
) -> dict:
    """Return a table's ``claims``, and ``chance``: how many comparisons of each subject chance would contradict.

    A claim has a verdict on the reported numbers and on every subject's numbers (``by_subject``: by the values
    themselves, ``judged``: see `judged`). ``reproduced``, ``verdict``, ``difference`` and ``interval`` are the first
    subject's. Fields for the reported numbers: ``reported_of``, its comparisons, each by a name that those of the same
    numbers share, whether it holds by the numbers themselves, and whether by its entire interval, if it has one;
    ``reported_counts``, how many hold, and all; ``reported_beyond``, how many hold by their entire interval, and how
    many have one.

    ``readings`` has, per subject, its rows as the table shows them, then, if some rows have answered more items, these
    rows alone.
    """
    results, chance = _in_paper(table, numbers), {}
    for subject in subjects:
        own_lines = [line for line in lines if line["subject"] == subject.name]
        chance[subject.name] = _judge_subject(table, subject, own_lines, readings[subject.name], results)
    return {"claims": results, "chance": chance}


def _in_paper(table: Table, numbers: dict) -> list[dict]:
    """Return what `claims` says of each claim by the printed numbers."""

    def printed(model: str, sparsity: str, method: str, column: str) -> float | None:
        number = numbers.get((model, sparsity, method, column))
        return number.value if number else None

    drawn = Printed(table)
    printed_rows: dict[tuple[str, str, str], list] = {}
    for (*row, column), number in sorted(numbers.items()):
        printed_rows.setdefault(tuple(row), []).append((column, number.text))
    settings = pruned((model, sparsity, method in DENSE) for model, sparsity, method, *_ in numbers)
    verdicts = []
    for claim in table.claims:
        pairs: dict[str, tuple[Comparison, Comparison]] = {}
        for point, replicates in zip(claim.compare(printed, settings), claim.compare(drawn, settings), strict=True):
            pairs.setdefault(_in_print(point, printed_rows), (point, replicates))
        triples = []
        for name, (point, replicates) in pairs.items():
            result = _judge(point, replicates, drawn)
            triples.append([name, point.holds, result["verdict"] if result["interval"] else None])
        by_interval = [verdict for *_, verdict in triples if verdict is not None]
        verdicts.append(
            {
                "id": table.claim_id(claim),
                "text": claim.text,
                "reported": claim.by([point for point, _ in pairs.values()]),
                "reported_counts": [sum(holds for _, holds, _ in triples), len(triples)],
                "reported_of": triples,
                "reported_beyond": [by_interval.count(SUPPORTED), len(by_interval)],
            }
        )
    return verdicts


def _judge_subject(
    table: Table, subject: Subject, lines: list[dict], readings: Sequence[Resampled], results: Sequence[dict]
) -> dict:
    """Add to the claims what `claims` says of them by a subject's numbers; return how many chance would contradict."""
    settings = pruned((line["model_id"], line["sparsity"], line["dense"]) for line in lines)
    records = []
    for claim, result in zip(table.claims, results, strict=True):
        skipped = claim.only_reported and not subject.printed
        compared = [] if skipped else _compared(claim, readings, settings)
        verdict = judged(claim, compared)
        if not verdict["comparisons"]:
            verdict["reason"] = (
                "about the paper's own numbers" if skipped else "the same outcomes" if compared else "no results"
            )
        records.append({record for c, _, replicates in compared for record in replicates.records(_cells(c))})
        plain = claim.by([c for c, *_ in compared])
        result.setdefault("reproduced", plain)
        result.setdefault("by_subject", {})[subject.name] = plain
        result.setdefault("judged", {})[subject.name] = verdict
        for key in ("verdict", "difference", "interval"):
            result.setdefault(key, verdict[key])
    for number, result in enumerate(results):
        shared = [other + 1 for other, ids in enumerate(records) if other != number and ids & records[number]]
        result["judged"][subject.name]["shares_records_with"] = shared
    compared = [c for c in distinct(result["judged"][subject.name] for result in results) if c["interval"]]
    from_zero = sum(c["from_zero"] for c in compared)
    return {"comparisons": from_zero, "by_chance": by_chance(compared), "others": len(compared) - from_zero}


def pruned(keys: Iterable[tuple[str, str, bool]]) -> list[tuple[str, str]]:
    """Return (model, sparsity) of pruned models, or of the original ones in a table without others."""
    keys = list(keys)
    settings = dict.fromkeys((model, sparsity) for model, sparsity, dense in keys if not dense)
    return list(settings or dict.fromkeys((model, sparsity) for model, sparsity, _ in keys))


Compared = tuple[Comparison, Comparison, Resampled]  # by the numbers as they are, by replicates, and what gave them


def _compared(claim: Claim, readings: Sequence[Resampled], settings: list[tuple[str, str]]) -> list[Compared]:
    """Return a claim's comparisons, each over more items than the table shows where both rows have them."""
    by_key: dict[tuple, Compared] = {}
    for number, replicates in enumerate(readings):
        points = claim.compare(replicates.shown, settings)
        resamples = {_key(c): c for c in claim.compare(replicates, settings)} if points else {}
        for point in points:
            key = _key(point)
            # a choice by replicates' means may be another one where two are as low
            resample = resamples.get(key, point)
            cells = _cells(point)
            if claim.exclude_chance_tasks and not replicates.at_chance_level.isdisjoint(column for *_, column in cells):
                continue
            if number and (key not in by_key or not _on_more_items(replicates, point)):
                continue
            if not number or replicates.columns(cells) == readings[0].columns(cells):
                by_key[key] = (point, resample, replicates)
    return list(by_key.values())


def _on_more_items(replicates: Resampled, point: Comparison) -> bool:
    """Return whether a comparison uses more items than the table shows; of two columns both do, else items would differ."""
    across = [part.cells for part in point.parts or (point,) if len({column for *_, column in part.cells}) > 1]
    same = all(len(replicates.read_whole(cells)) == len(replicates.columns(cells)) for cells in across)
    return bool(replicates.read_whole(_cells(point))) and same


def _key(point: Comparison) -> tuple:
    return frozenset(part.cells for part in point.parts or (point,)), point.low, point.high


def _in_print(point: Comparison, printed_rows: dict) -> str:
    """Return a name that comparisons of the same printed rows share: one that a paper prints for two methods is one."""
    sides = sorted((*cell[:2], cell[3], printed_rows.get(cell[:3], [])) for cell in _cells(point))
    return _digest(sides if len(sides) > 1 else point.what, point.difference, point.low, point.high)


def _cells(point: Comparison) -> list[Key]:
    """Return all that a comparison is of."""
    return [cell for part in point.parts or (point,) for cell in part.cells]


def judged(claim: Claim, compared: Sequence[Compared]) -> dict:
    """Return a claim's verdict on measured numbers.

    Comparisons of equal outcomes on every item are left out, and repeated ones.

    Returns:
        ``counts``: comparisons by verdict. ``difference``, ``slack`` (its distance from where the verdict by plain
        comparison changes), ``interval``, ``unit`` and ``paired``: of the comparison least in the claim's favour among
        those of the worst verdict. ``comparisons``: all of them. Each has ``whole``, columns that use all items where
        the table shows a part; ``against``, the number of others it is compared with; and ``limit``, the end of the
        claim's range, if it is not zero.
    """
    comparisons = [_judge(*c) | {"whole": c[2].read_whole(_cells(c[0]))} for c in compared]
    comparisons = _distinct([c for c in comparisons if not _nothing_compared(c)], _outcome)
    verdicts = [c["verdict"] for c in comparisons]
    counts = {name: verdicts.count(name) for name in (SUPPORTED, CONTRADICTED, INCONCLUSIVE)}
    if not comparisons:
        verdict = UNTESTED
    elif claim.suffices(counts[SUPPORTED], len(comparisons)):
        verdict = SUPPORTED
    elif claim.suffices(counts[SUPPORTED] + counts[INCONCLUSIVE], len(comparisons)):
        verdict = INCONCLUSIVE
    else:
        verdict = CONTRADICTED
    worst = min(comparisons, key=_worst_first, default={})
    fields = {
        key: worst.get(key) for key in ("difference", "slack", "interval", "unit", "paired", "what", "whole", "limit")
    }
    return {"verdict": verdict, "counts": counts, **fields, "comparisons": comparisons}


def _distinct(items: Iterable, key: Callable) -> list:
    """Return the first of each that are alike by the key."""
    first: dict = {}
    for item in items:
        first.setdefault(key(item), item)
    return list(first.values())


def _outcome(comparison: dict) -> tuple:
    """Return a key that comparisons of the same outcomes share, such as two selections of the same layers."""
    if not comparison["paired"]:
        return (id(comparison),)
    return comparison["about"], comparison["difference"], *comparison["interval"]


def _digest(*facts) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _nothing_compared(comparison: dict) -> bool:
    """Return whether both sides gave the same on every item, so that nothing was compared."""
    return comparison["verdict"] == INCONCLUSIVE and comparison["interval"] == [0, 0]


def together(verdicts: Iterable[dict]) -> dict | None:
    """Join several claims' verdicts on one subject: the worst; among equals the one least in the claim's favour.

    ``holding`` and ``compared`` count the comparisons of all, those of the same outcomes once; None if nothing was
    compared.
    """
    verdicts = [verdict for verdict in verdicts if verdict["comparisons"]]
    if not verdicts:
        return None
    worst = min(verdicts, key=_worst_first)
    compared = distinct(verdicts)
    return worst | {"holding": sum(c["verdict"] == SUPPORTED for c in compared), "compared": len(compared)}


def distinct(verdicts: Iterable[dict]) -> list[dict]:
    """Return the comparisons of several claims' verdicts on one subject, those of the same outcomes once."""
    comparisons = [c for verdict in verdicts for c in verdict["comparisons"]]
    return _distinct(sorted(comparisons, key=lambda c: -c["against"]), _outcome)


def by_chance(compared: Iterable[dict]) -> float:
    """Return an upper bound on the mean number of contradicted comparisons if all differences were zero.

    A comparison with several others may be contradicted by each of them. Claims of a difference above zero are left
    out: a difference of zero contradicts them for certain.
    """
    return CHANCE * sum(c["against"] for c in compared if c["from_zero"])


def _worst_first(verdict: dict) -> tuple[int, float]:
    """Sort verdicts: contradicted ones first, of equals those least in the claim's favour."""
    return WORST_FIRST.index(verdict["verdict"]), verdict["slack"]


def _judge(point: Comparison, resample: Comparison, replicates: Resampled) -> dict:
    """Return the verdict on one comparison: by the numbers as they are, or by their replicates where they vary.

    Of one number against several, each is judged by itself and all have to hold (an intersection-union test, which needs no
    correction): the best of several replicates would be above the best of what they are replicates of.
    """
    if point.parts:
        # By cell: where two are best, the replicates' mean may name the other.
        resamples = {c.cells[1]: c for c in resample.parts}
        judged = [_judge(c, resamples[c.cells[1]], replicates) for c in point.parts]
        judged = [c for c in judged if not _nothing_compared(c)] or judged
        return min(judged, key=_worst_first) | {"against": len(judged)}
    settings_and_columns = sorted({(*cell[:2], cell[3]) for cell in point.cells})
    judged = {
        "what": fill_labels(point.what, replicates.labels),
        "difference": float(point.difference) if np.isfinite(point.difference) else None,
        "unit": point.unit,
        "interval": None,
        "paired": None,
        "against": 1,
        # a name that comparisons of the same kind share
        "about": _digest(settings_and_columns, point.unit, point.low, point.high, point.inside),
        "from_zero": (point.low <= 0 <= point.high) == point.inside,
        "limit": _limit(point),
        "slack": float(np.clip(np.nan_to_num(point.slack, nan=-LARGE), -LARGE, LARGE)),  # JSON has no infinity
    }
    if not np.ndim(resample.difference) or not np.isfinite(resample.difference).all():
        return judged | {"verdict": SUPPORTED if point.holds else CONTRADICTED}
    judged["interval"] = list(significance.interval(resample.difference))
    judged["paired"] = replicates.paired(point.cells)
    if point.unit == POINTS:
        judged["equivalent"] = significance.equivalent(resample.difference, MARGIN)
    verdict = {True: SUPPORTED, False: CONTRADICTED, None: INCONCLUSIVE}[point.verdict(*judged["interval"])]
    if 0 in (point.low, point.high) and (p := _mcnemar(point, replicates)) is not None:
        judged["p"] = p
        verdict = INCONCLUSIVE if p > 1 - significance.LEVEL else verdict
    if judged["interval"] == [0, 0] and len(point.cells) > 1 and point.holds and math.inf in (-point.low, point.high):
        verdict = INCONCLUSIVE  # two rows of the same outcomes, whatever share a claim allows
    return judged | {"verdict": verdict}


def _limit(point: Comparison) -> str:
    """Return what a claim allows or asks of a difference, in its unit, where that is another number than zero."""
    ends = [end for end in (point.low, point.high) if math.isfinite(end)]
    if point.unit not in (POINTS, PERCENT) or not point.inside or not any(ends):
        return ""
    return (f"{ends[0]:g}" if len(ends) == 1 else f"{ends[0]:g} to {ends[1]:g}").replace("-", "−")


def _mcnemar(point: Comparison, replicates: Resampled) -> float | None:
    """Return McNemar's p of two rows on one task; None for any other comparison."""
    sources = [replicates.sources(key) for key in point.cells]
    if len(sources) != 2 or any(len(pairs) != 1 for pairs in sources):
        return None
    (row, column), (other_row, other_column) = sources[0][0], sources[1][0]
    outcomes = [replicates.outcomes(row.recipe, column) for row in (row, other_row)]
    if column != other_column or any(values is None or values.dtype != bool for values in outcomes):
        return None
    return significance.mcnemar(*outcomes) if len(outcomes[0]) == len(outcomes[1]) else None
