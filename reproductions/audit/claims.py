"""Sentences of the papers, held against the tables they sum up (Reassessing's are in a module of their own)."""

from __future__ import annotations

from collections.abc import Iterator

from common import model_registry
from reproductions import declare, reported
from reproductions.audit import claims_linearpatch, claims_prunecomp
from reproductions.audit.findings import SLIP, Finding, claim, group


def findings() -> Iterator[Finding]:
    """Claims whose numbers the tables do not give."""
    yield from claims_linearpatch.findings()
    yield from claims_prunecomp.findings()
    yield from _laco()


def _laco() -> Iterator[Finding]:
    """LaCo is said to be ahead in four categories, to keep 80 % at 25-30 %, and about 70 % near one half."""
    tables = {t: group(reported.numbers("laco", t)) for t in ("1", "2", "4")}
    lost, used = [], []
    for model in dict.fromkeys(key[0] for key in tables["2"]):
        rows = {k[2]: row for k, row in tables["2"].items() if k[0] == model and not k[2].startswith("Dense")}
        for category in ("Lang.", "Know.", "Exam.", "Unde."):
            best = max(rows, key=lambda k, c=category, r=rows: r[k][c].value)
            if best != "LaCo":
                lost.append(f"{model} {category} {best} {rows[best][category].text} > {rows['LaCo'][category].text}")
                used.append(rows["LaCo"][category])
    if lost:
        yield claim(
            "laco", "Section 3.5 against Table 2", "ahead in Language, Knowledge, Examination and Understanding",
            f"{len(lost)} of 16 cells are a baseline's", "; ".join(lost), SLIP, "", used,
        )  # fmt: skip
    yield from _laco_eighty(tables)
    for key, row in tables["4"].items():
        dense = next(r for k, r in tables["4"].items() if k[0] == key[0] and k[2] == "Dense*")
        kept = 100 * row["Avg."].value / dense["Avg."].value
        removed = float(key[1].rstrip("%"))
        if removed >= 45 and abs(kept - 70) > 5:
            words = f"{row['Avg.'].text} / {dense['Avg.'].text} = {kept:.1f} %"
            printed = "about 70 % at close to 50 %"
            yield claim(
                "laco", f"Section 4.3, {key[0]} {key[1]}", printed, f"{kept:.1f} %", words, SLIP, "", [row["Avg."]]
            )


def _laco_eighty(tables: dict[str, dict]) -> Iterator[Finding]:
    """The abstract's 80 % at pruning ratios of 25-30 %."""
    shares, kept = {}, {}
    for key, row in tables["1"].items():
        if key[2] == "LaCo":
            facts = model_registry.get(declare.MODELS[key[0]]).facts
            shares[key[0]] = 100 * (facts["layers"] - row["layers"].value) * facts["layer_params"] / facts["params"]
            kept[key[0]] = tables["2"][key[0], "", "LaCo", ""]["Per."]
    both = [model for model in shares if 25 <= shares[model] <= 30 and kept[model].value > 80]
    if len(both) < len(shares):
        yield claim(
            "laco",
            "Abstract",
            "over 80 % at pruning ratios of 25-30 %",
            f"{len(both)} of {len(shares)} models",
            "; ".join(f"{m}: {shares[m]:.1f} % removed, {kept[m].text} % kept" for m in shares),
            SLIP,
            "Say which model: the others lose less than 25 % of their parameters, or keep less than 80 % of the score.",
            list(kept.values()),
            headline=f"'Over 80 % at pruning ratios of 25-30 %' holds for {len(both)} of {len(shares)} models "
            f"({', '.join(both)}); the others lose {min(shares.values()):.1f} to "
            f"{max(v for m, v in shares.items() if m not in both):.1f} % of their parameters.",
        )
