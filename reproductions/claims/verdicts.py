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
from reproductions.spec.comparisons import PERCENT, POINTS, Comparison, Key, told
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
    found, chance = _in_paper(table, numbers), {}
    for subject in subjects:
        own = [line for line in lines if line["subject"] == subject.name]
        chance[subject.name] = _measured(table, subject, own, readings[subject.name], found)
    return {"claims": found, "chance": chance}


def _in_paper(table: Table, numbers: dict) -> list[dict]:
    """Return what `claims` says of each claim by the printed numbers."""

    def printed(model: str, sparsity: str, method: str, column: str) -> float | None:
        number = numbers.get((model, sparsity, method, column))
        return number.value if number else None

    drawn, rows = Printed(table), _rows(numbers)
    settings = pruned((model, sparsity, method in DENSE) for model, sparsity, method, *_ in numbers)
    found = []
    for claim in table.claims:
        pairs: dict[str, tuple[Comparison, Comparison]] = {}
        for one, replicates in zip(claim.compare(printed, settings), claim.compare(drawn, settings), strict=True):
            pairs.setdefault(_in_print(one, rows), (one, replicates))
        said = [[name, one.holds, _by_interval(_one(one, again, drawn))] for name, (one, again) in pairs.items()]
        held, sure = sum(one[1] for one in said), sum(one[2] == SUPPORTED for one in said)
        verdict = {"id": table.claim_id(claim), "text": claim.text}
        verdict |= {"reported": claim.by([one for one, _ in pairs.values()])}
        verdict |= {"reported_counts": [held, len(said)], "reported_of": said}
        found.append(verdict | {"reported_beyond": [sure, sum(one[2] is not None for one in said)]})
    return found


def _measured(
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
        records.append({found for one, _, replicates in compared for found in replicates.records(_cells(one))})
        plain = claim.by([one for one, *_ in compared])
        result.setdefault("reproduced", plain)
        result.setdefault("by_subject", {})[subject.name] = plain
        result.setdefault("judged", {})[subject.name] = verdict
        for key in ("verdict", "difference", "interval"):
            result.setdefault(key, verdict[key])
    for number, result in enumerate(results):
        shared = [other + 1 for other, own in enumerate(records) if other != number and own & records[number]]
        result["judged"][subject.name]["shares_records_with"] = shared
    known = [one for one in distinct(result["judged"][subject.name] for result in results) if one["interval"]]
    counted = sum(one["from_zero"] for one in known)
    return {"comparisons": counted, "by_chance": by_chance(known), "others": len(known) - counted}


def _by_interval(found: dict) -> str | None:
    """Return a comparison's verdict by its interval; None where it has none."""
    return found["verdict"] if found["interval"] else None


def pruned(keys: Iterable[tuple[str, str, bool]]) -> list[tuple[str, str]]:
    """Return (model, sparsity) of pruned models, or of the original ones in a table without others."""
    keys = list(keys)
    found = dict.fromkeys((model, sparsity) for model, sparsity, dense in keys if not dense)
    return list(found or dict.fromkeys((model, sparsity) for model, sparsity, _ in keys))


Compared = tuple[Comparison, Comparison, Resampled]  # by the numbers as they are, by replicates, and what gave them


def _compared(claim: Claim, readings: Sequence[Resampled], settings: list[tuple[str, str]]) -> list[Compared]:
    """Return a claim's comparisons, each over more items than the table shows where both rows have them."""
    found: dict[tuple, Compared] = {}
    for number, replicates in enumerate(readings):
        points = claim.compare(replicates.shown, settings)
        again = {_key(one): one for one in claim.compare(replicates, settings)} if points else {}
        for point in points:
            key = _key(point)
            resample = again.get(key, point)  # a choice by replicates' means may be another one where two are as low
            cells = _cells(point)
            if claim.known and not replicates.guessed.isdisjoint(column for *_, column in cells):
                continue
            if number and (key not in found or not replicates.read_whole(cells)):
                continue
            if not number or replicates.columns(cells) == readings[0].columns(cells):
                found[key] = (point, resample, replicates)
    return list(found.values())


def _key(point: Comparison) -> tuple:
    return frozenset(part.cells for part in point.each or (point,)), point.low, point.high


def _rows(numbers: dict) -> dict[tuple[str, str, str], list]:
    """Return (model, sparsity, method) -> all that is printed of it, as text."""
    found: dict[tuple[str, str, str], list] = {}
    for (*row, column), number in sorted(numbers.items()):
        found.setdefault(tuple(row), []).append((column, number.text))
    return found


def _in_print(point: Comparison, printed_rows: dict) -> str:
    """Return a name that comparisons of the same printed rows share: one that a paper prints for two methods is one."""
    sides = sorted((*cell[:2], cell[3], printed_rows.get(cell[:3], [])) for cell in _cells(point))
    return _named(sides if len(sides) > 1 else point.what, point.difference, point.low, point.high)


def _cells(point: Comparison) -> list[Key]:
    """Return all that a comparison is of."""
    return [cell for part in point.each or (point,) for cell in part.cells]


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
    found = [_one(*one) | {"whole": one[2].read_whole(_cells(one[0]))} for one in compared]
    found = _distinct([one for one in found if not _same(one)], _outcome)
    counts = {name: sum(one["verdict"] == name for one in found) for name in (SUPPORTED, CONTRADICTED, INCONCLUSIVE)}
    if not found:
        verdict = UNTESTED
    elif claim.suffices(counts[SUPPORTED], len(found)):
        verdict = SUPPORTED
    else:
        verdict = INCONCLUSIVE if claim.suffices(counts[SUPPORTED] + counts[INCONCLUSIVE], len(found)) else CONTRADICTED
    least = min(found, key=_worst_first, default={})
    shown = {
        key: least.get(key) for key in ("difference", "slack", "interval", "unit", "paired", "what", "whole", "limit")
    }
    return {"verdict": verdict, "counts": counts, **shown, "comparisons": found}


def _distinct(found: Iterable, key: Callable) -> list:
    """Return the first of each that are alike by the key."""
    first: dict = {}
    for one in found:
        first.setdefault(key(one), one)
    return list(first.values())


def _outcome(found: dict) -> tuple:
    """Alike for comparisons of the same outcomes: of two choices of layers, say, that took the same ones."""
    return (found["about"], found["difference"], *found["interval"]) if found["paired"] else (id(found),)


def _about(point: Comparison) -> str:
    """Return a name that comparisons of the same kind share: in the same settings and columns, with the same bounds."""
    of = sorted({(*cell[:2], cell[3]) for cell in point.cells})
    return _named(of, point.unit, point.low, point.high, point.inside)


def _named(*facts) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _same(found: dict) -> bool:
    """Return whether both sides gave the same on every item, so that nothing was compared."""
    return found["verdict"] == INCONCLUSIVE and found["interval"] == [0, 0]


def together(found: Iterable[dict]) -> dict | None:
    """Join several claims' verdicts on one subject: the worst; among equals the one least in the claim's favour.

    ``holding`` and ``compared`` count the comparisons of all, those of the same outcomes once; None if nothing was
    compared.
    """
    found = [verdict for verdict in found if verdict["comparisons"]]
    if not found:
        return None
    worst = min(found, key=_worst_first)
    compared = distinct(found)
    return worst | {"holding": sum(one["verdict"] == SUPPORTED for one in compared), "compared": len(compared)}


def distinct(found: Iterable[dict]) -> list[dict]:
    """Return the comparisons of several claims' verdicts on one subject, those of the same outcomes once."""
    return _distinct(
        sorted((one for verdict in found for one in verdict["comparisons"]), key=lambda one: -one["against"]), _outcome
    )


def by_chance(compared: Iterable[dict]) -> float:
    """Return an upper bound on the mean number of contradicted comparisons if all differences were zero.

    A comparison with several others may be contradicted by each of them. Claims of a difference above zero are left
    out: a difference of zero contradicts them for certain.
    """
    return CHANCE * sum(one["against"] for one in compared if one["from_zero"])


def _worst_first(found: dict) -> tuple[int, float]:
    """Sort verdicts: contradicted ones first, of equals those least in the claim's favour."""
    return WORST_FIRST.index(found["verdict"]), found["slack"]


def _one(point: Comparison, resample: Comparison, replicates: Resampled) -> dict:
    """Return the verdict on one comparison: by the numbers as they are, or by their replicates where they vary.

    Of one number against several, each is judged by itself and all have to hold (an intersection-union test, which needs no
    correction): the best of several replicates would be above the best of what they are replicates of.
    """
    if point.each:
        # By cell: where two are best, the replicates' mean may name the other.
        again = {one.cells[1]: one for one in resample.each}
        found = [_one(one, again[one.cells[1]], replicates) for one in point.each]
        found = [one for one in found if not _same(one)] or found
        return min(found, key=_worst_first) | {"against": len(found)}
    difference = float(point.difference) if np.isfinite(point.difference) else None
    found = {
        "what": told(point.what, replicates.labels),
        "difference": difference,
        "unit": point.unit,
        "interval": None,
        "paired": None,
    }
    found |= {"against": 1, "about": _about(point), "from_zero": (point.low <= 0 <= point.high) == point.inside}
    found["limit"] = _limit(point)
    found["slack"] = float(np.clip(np.nan_to_num(point.slack, nan=-LARGE), -LARGE, LARGE))  # JSON has no infinity
    if not np.ndim(resample.difference) or not np.isfinite(resample.difference).all():
        return found | {"verdict": SUPPORTED if point.holds else CONTRADICTED}
    found["interval"] = list(significance.interval(resample.difference))
    found["paired"] = replicates.paired(point.cells)
    if point.unit == POINTS:
        found["equivalent"] = significance.equivalent(resample.difference, MARGIN)
    verdict = {True: SUPPORTED, False: CONTRADICTED, None: INCONCLUSIVE}[point.verdict(*found["interval"])]
    if 0 in (point.low, point.high) and (p := _mcnemar(point, replicates)) is not None:
        found["p"] = p
        verdict = INCONCLUSIVE if p > 1 - significance.LEVEL else verdict
    if found["interval"] == [0, 0] and len(point.cells) > 1 and point.holds and math.inf in (-point.low, point.high):
        verdict = INCONCLUSIVE  # two rows of the same outcomes, whatever share a claim allows
    return found | {"verdict": verdict}


def _limit(point: Comparison) -> str:
    """Return what a claim allows or asks of a difference, in its unit, where that is another number than zero."""
    ends = [end for end in (point.low, point.high) if math.isfinite(end)]
    if point.unit not in (POINTS, PERCENT) or not point.inside or not any(ends):
        return ""
    return (f"{ends[0]:g}" if len(ends) == 1 else f"{ends[0]:g} to {ends[1]:g}").replace("-", "−")


def _mcnemar(point: Comparison, replicates: Resampled) -> float | None:
    """P of two rows on one task; None where a comparison is of anything else."""
    sources = [replicates.sources(key) for key in point.cells]
    if len(sources) != 2 or any(len(found) != 1 for found in sources):
        return None
    (one, column), (two, other) = sources[0][0], sources[1][0]
    outcomes = [replicates.outcomes(row.recipe, column) for row in (one, two)]
    if column != other or any(found is None or found.dtype != bool for found in outcomes):
        return None
    return significance.mcnemar(*outcomes) if len(outcomes[0]) == len(outcomes[1]) else None
