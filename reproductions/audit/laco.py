"""LaCo: what its tables are; its averages, categories and shares against scores and shapes; its sentences."""

import re
from collections.abc import Iterator

from common.models import registry
from reproductions.audit.engine import (
    SLIP,
    Finding,
    Paper,
    about,
    agrees,
    group,
    mean_slack,
    shown,
)
from reproductions.audit.tables import compare_share, removed_share
from reproductions.spec import printed_rows, reported
from reproductions.spec.columns import LACO_CATEGORIES

CATEGORIES = LACO_CATEGORIES["paper"]
ALL = tuple(column for columns in CATEGORIES.values() for column in columns)
QUESTIONS = {"CHID": 202, "WSC_P": 104, "WSC_G": 104, "CSQA": 1221, "BoolQ": 3270, "PIQA": 1838}
QUESTIONS |= {"RaceH": 3498, "RaceM": 1436, "C3": 1825}
# Table of averages -> table of scores.
SOURCES = {"2": "1", "3": "9", "4": "10"}
PAPER = Paper(
    "laco",
    questions=((("1", "9", "10"), QUESTIONS),),
    foreign=("*", "†", "‡", "Dense"),  # its own dense row is taken over as well
    summaries={("4",): ("Avg.", False)},
    shares=("7",),
    copies=False,  # its tables name one row by several shares
)


def findings() -> Iterator[Finding]:
    """Yield sentences, averages, labels and shares that scores and shapes contradict."""
    yield from _categories()
    yield from _eighty()
    yield from _seventy()
    yield from _averages()
    yield from _labels()
    yield from _shares()


def _categories() -> Iterator[Finding]:
    """Yield the claim that LaCo is ahead in four categories."""
    table = group(reported.numbers("laco", "2"))
    lost, used = [], []
    for model in dict.fromkeys(key[0] for key in table):
        rows = {k[2]: row for k, row in table.items() if k[0] == model and not k[2].startswith("Dense")}
        for category in ("Lang.", "Know.", "Exam.", "Unde."):
            best = max(rows, key=lambda k, c=category, r=rows: r[k][c].value)
            if best != "LaCo":
                lost.append(f"{model} {category} {best} {rows[best][category].text} > {rows['LaCo'][category].text}")
                used.append(rows["LaCo"][category])
    if lost:
        yield PAPER.claim(
            "Section 3.5 against Table 2", "ahead in Language, Knowledge, Examination and Understanding",
            f"{len(lost)} of 16 cells are a baseline's", "; ".join(lost), SLIP, "", used,
        )  # fmt: skip


def _eighty() -> Iterator[Finding]:
    """Yield the abstract's 80 % at pruning ratios of 25-30 %."""
    shares, retained = {}, {}
    averages = group(reported.numbers("laco", "2"))
    for key, row in group(reported.numbers("laco", "1")).items():
        if key[2] == "LaCo":
            facts = registry.get(printed_rows.MODELS[key[0]]).facts
            shares[key[0]] = 100 * (facts["layers"] - row["layers"].value) * facts["layer_params"] / facts["params"]
            retained[key[0]] = averages[key[0], "", "LaCo", ""]["Per."]
    holding = [model for model in shares if 25 <= shares[model] <= 30 and retained[model].value > 80]
    if len(holding) < len(shares):
        yield PAPER.claim(
            "Abstract",
            "over 80 % at pruning ratios of 25-30 %",
            f"{len(holding)} of {len(shares)} models",
            "; ".join(f"{m}: {shares[m]:.1f} % removed, {retained[m].text} % kept" for m in shares),
            SLIP,
            "Say which model: the others lose less than 25 % of their parameters, or keep less than 80 % of the score.",
            list(retained.values()),
            headline=f"'Over 80 % at pruning ratios of 25-30 %' holds for {len(holding)} of {len(shares)} models "
            f"({', '.join(holding)}); the others lose {min(shares.values()):.1f} to "
            f"{max(v for m, v in shares.items() if m not in holding):.1f} % of their parameters.",
        )


def _seventy() -> Iterator[Finding]:
    """Yield the claim that LaCo keeps about 70 % near one half."""
    table = group(reported.numbers("laco", "4"))
    for key, row in table.items():
        dense = next(r for k, r in table.items() if k[0] == key[0] and k[2] == "Dense*")
        retained = 100 * row["Avg."].value / dense["Avg."].value
        removed = float(key[1].rstrip("%"))
        if removed >= 45 and abs(retained - 70) > 5:
            words = f"{row['Avg.'].text} / {dense['Avg.'].text} = {retained:.1f} %"
            printed = "about 70 % at close to 50 %"
            yield PAPER.claim(
                f"Section 4.3, {key[0]} {key[1]}", printed, f"{retained:.1f} %", words, SLIP, "", [row["Avg."]]
            )


def _key(row: tuple, with_sparsity: bool) -> tuple:
    model, sparsity, method, variant = row
    return (model, sparsity if with_sparsity else "", method, variant)


def _averages() -> Iterator[Finding]:
    """Check averages, categories and percentages of Tables 2, 3 and 4."""
    for table, source in SOURCES.items():
        scores = {_key(k, table == "4"): row for k, row in group(reported.numbers("laco", source)).items()}
        for key, row in group(reported.numbers("laco", table)).items():
            cells = scores.get(_key(key, table == "4"), {})
            dense = next((r for k, r in scores.items() if k[0] == key[0] and k[2] == "Dense*"), {})
            for column, names in {"Avg.": ALL, "Per.": ALL, **CATEGORIES}.items():
                if column not in row or any(name not in cells for name in names):
                    continue
                inputs = [cells[name] for name in names]
                if column == "Per.":
                    value = 100 * sum(cells[n].value / dense[n].value for n in names) / len(names)
                    slack = 100 * sum((n.half_unit + 0.005) / dense[n.column].value for n in inputs) / len(names)
                else:
                    value, slack = sum(n.value for n in inputs) / len(inputs), mean_slack(inputs)
                if agrees(row[column], value, slack):
                    continue
                printed = row[column]
                yield about(
                    [printed],
                    "averages against scores",
                    printed.text,
                    shown(value, printed),
                    f"mean of Table {source}'s {', '.join(n.text for n in inputs)} = {shown(value, printed, 1)}",
                    SLIP,
                    "Cite the recomputed value, or the scores.",
                    headline=f"{key[0]} at {key[1]}: Table 4's average is {shown(value, printed)}, not {printed.text}; "
                    "pruning less is not worse than pruning more."
                    if column == "Avg." and abs(value - printed.value) > 1
                    else "",
                )


def _labels() -> Iterator[Finding]:
    """Yield rows of Table 5 printed under a name that the table has already used."""
    models = list(dict.fromkeys(n.model for n in reported.numbers("laco", "1")))
    rows = group(reported.numbers("laco", "5"))
    for position, (key, row) in enumerate(rows.items(), 1):
        first = next(iter(row.values()))
        printed = re.search(r"printed as a second (\S+);", first.flag)
        if printed:
            yield about(
                list(row.values()),
                "label",
                printed[1],
                key[0],
                f"{printed[1]} has a row already; of Table 1's models ({', '.join(models)}) only {key[0]} would be without "
                f"one, and it has {row['H'].text} layers too",
                SLIP,
                f"T = {row['T'].text} is {key[0]}'s threshold.",
                where=f"Table 5, row {position}",
            )


def _shares() -> Iterator[Finding]:
    """Compare printed shares with the layers printed beside them."""
    for table in ("1", "4", "6", "7", "10"):
        for (model, sparsity, method, _), row in group(reported.numbers("laco", table)).items():
            if not method.startswith("LaCo") and table != "6" or sparsity in ("", "0%") or "layers" not in row:
                continue
            name = printed_rows.MODELS[model]
            removed = registry.get(name).facts["layers"] - int(row["layers"].value)
            yield from compare_share(row["ratio %"], row["layers"], *removed_share(name, removed, method))
