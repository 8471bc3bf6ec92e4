"""LaCo's averages, percentages and categories against the tables that hold the scores they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reproductions import reported
from reproductions.audit.derived import LACO, LACO_ALL
from reproductions.audit.findings import SLIP, UNRESOLVED, Finding, agrees, cells_of, group, mean_slack, place, shown

# Table of averages -> table of scores.
SOURCES = {"2": "1", "3": "9", "4": "10"}


def _key(row: tuple, with_sparsity: bool) -> tuple:
    model, sparsity, method, variant = row
    return (model, sparsity if with_sparsity else "", method, variant)


def findings() -> Iterator[Finding]:
    """Averages, categories and percentages of Tables 2, 3, 4 and 7 that the scores contradict, and a label of Table 5."""
    yield from _averages()
    yield from _labels()


def _labels() -> Iterator[Finding]:
    """Table 5: rows printed under a name that the table has already used."""
    models = list(dict.fromkeys(n.model for n in reported.numbers("laco", "1")))
    rows = group(reported.numbers("laco", "5"))
    for position, (key, row) in enumerate(rows.items(), 1):
        first = next(iter(row.values()))
        printed = re.search(r"printed as a second (\S+);", first.flag)
        if printed:
            yield Finding(
                "laco",
                "label",
                f"Table 5, row {position}",
                printed[1],
                key[0],
                f"{printed[1]} has a row already; of Table 1's models ({', '.join(models)}) only {key[0]} would be without "
                f"one, and it has {row['H'].text} layers too",
                SLIP,
                f"T = {row['T'].text} is {key[0]}'s threshold.",
                cells_of(row.values()),
            )


def _averages() -> Iterator[Finding]:
    if not {*SOURCES, *SOURCES.values(), "7"} <= set(reported.tables("laco")):
        return
    for table, source in SOURCES.items():
        scores = {_key(k, table == "4"): row for k, row in group(reported.numbers("laco", source)).items()}
        for key, row in group(reported.numbers("laco", table)).items():
            cells = scores.get(_key(key, table == "4"), {})
            dense = next((r for k, r in scores.items() if k[0] == key[0] and k[2] == "Dense*"), {})
            for column, names in {"Avg.": LACO_ALL, "Per.": LACO_ALL, **LACO}.items():
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
                yield Finding(
                    "laco",
                    "averages against scores",
                    place(printed),
                    printed.text,
                    shown(value, printed),
                    f"mean of Table {source}'s {', '.join(n.text for n in inputs)} = {shown(value, printed, 1)}",
                    SLIP,
                    "Cite the recomputed value, or the scores.",
                    cells_of([printed]),
                    headline=f"{key[0]} at {key[1]}: Table 4's average is {shown(value, printed)}, not {printed.text}; "
                    "pruning less is not worse than pruning more."
                    if column == "Avg." and abs(value - printed.value) > 1
                    else "",
                )
    scores = group(reported.numbers("laco", "1"))
    for key, row in group(reported.numbers("laco", "7")).items():
        base = next(r for k, r in scores.items() if k[0] == key[0] and k[2] == "Dense*")
        cells = next((r for k, r in scores.items() if (k[0], k[2], k[3]) == (key[0], key[2], key[3])), {})
        for name in LACO_ALL:
            if name in row and name in cells:
                value = 100 * cells[name].value / base[name].value
                slack = 100 * 0.005 * (1 + value / 100) / base[name].value
                if not agrees(row[name], value, slack):
                    yield Finding(
                        "laco",
                        "averages against scores",
                        place(row[name]),
                        row[name].text,
                        shown(value, row[name]),
                        f"100 * {cells[name].text} / {base[name].text} (Table 1)",
                        UNRESOLVED,
                        cells=cells_of([row[name]]),
                    )
