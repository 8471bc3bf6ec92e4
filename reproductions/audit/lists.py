"""Lists of removed layers: as many as the sparsity says, none twice, and one set of layers means one model."""

from __future__ import annotations

from collections.abc import Iterator

from reproductions import declare, reported
from reproductions.audit.findings import SLIP, UNRESOLVED, Finding, cells_of, group, place
from reproductions.reported import Number, row_name

# (paper, table with lists) -> tables with scores of the same rows.
SOURCES = {
    ("prunecomp", "A3"): ("1", "2", "3", "A1", "A2", "A5"),
    ("prunecomp", "A4"): ("1", "2", "3", "A1", "A2", "A5"),
    ("reassessing", "O"): ("O",),
}


def removed(row: dict[str, Number]) -> list[Number]:
    """The layers of a row, in the order of removal."""
    return [number for column, number in row.items() if column.startswith("removed ")]


def findings() -> Iterator[Finding]:
    """Lists of the wrong length, with a layer twice, or of one set whose scores differ."""
    for (paper, table), scores in SOURCES.items():
        rows = {key: removed(row) for key, row in group(reported.numbers(paper, table)).items()}
        for layers in rows.values():
            yield from _one(layers)
        # What is added to a model (compensation, training) changes it; bare pruning is the same wherever it comes from.
        yield from _same_set(paper, table, {k: v for k, v in rows.items() if paper != "prunecomp" or not k[3]}, scores)
    yield from _windows()


def _windows() -> Iterator[Finding]:
    """LinearPatch's windows (Table 9) against the layers that Prune&Comp lists for the same selection."""
    same = {"LinearPatch[S]": "CosSim(BI)", "LinearPatch[L]": "CosSim(CL)"}
    lists = {
        key: removed(row) for table in ("A3", "A4") for key, row in group(reported.numbers("prunecomp", table)).items()
    }
    windows = reported.cells("linearpatch", "9")
    for (model, sparsity, name, column), start in windows.items():
        layers = lists.get((model, sparsity, same[name], ""), [])
        if column != "start" or not layers:
            continue
        end = windows[model, sparsity, name, "end"]
        wanted = set(range(int(start.value), int(end.value)))
        listed = [int(n.value) for n in layers][: len(wanted)]
        if set(listed) != wanted:
            yield Finding(
                "prunecomp",
                "one set of layers, two scores",
                f"Table {layers[0].table} and LinearPatch's Table 9, {model} {sparsity}, {same[name]}",
                f"layers {min(listed)} to {max(listed)}",
                f"layers {min(wanted)} to {max(wanted)} ({name})",
                f"the selection is the same, {', '.join(map(str, sorted(wanted ^ set(listed))))} are in one set only",
                UNRESOLVED,
                "Where the two papers print the same scores, one of the two lists is not the model that was measured.",
                cells_of([*layers, start, end]),
            )


def _one(layers: list[Number]) -> Iterator[Finding]:
    if not layers:
        return
    first = layers[0]
    wanted = declare.removed_layers(first)
    listed = [int(n.value) for n in layers]
    words = f"{', '.join(n.text for n in layers)}: {len(listed)} layers, {len(set(listed))} different"
    twice = sorted({n for n in listed if listed.count(n) > 1})
    if twice:
        yield _list(layers, f"layer {', '.join(map(str, twice))} twice", f"{wanted} different layers", words)
    elif wanted is not None and len(listed) != wanted:
        start = sorted(listed[:wanted])
        if start == list(range(start[0], start[0] + wanted)):
            words += f"; the first {wanted} are layers {start[0]} to {start[-1]}"
        yield _list(layers, f"{len(listed)} layers", f"{wanted} layers", words)


def _list(layers: list[Number], printed: str, computed: str, words: str) -> Finding:
    meaning = "The list does not say which layers were removed: take it with care, or from the code."
    where = place(layers[0], "removed layers")
    return Finding(layers[0].paper, "list of layers", where, printed, computed, words, SLIP, meaning, cells_of(layers))


def _same_set(paper: str, table: str, rows: dict, scores: tuple[str, ...]) -> Iterator[Finding]:
    """Rows that remove the same layers of the same model and score differently."""
    seen: dict[tuple, tuple] = {}
    for key, layers in rows.items():
        wanted = declare.removed_layers(layers[0]) if layers else None
        if not wanted or len({n.value for n in layers}) != wanted:
            continue
        first = seen.setdefault((key[0], frozenset(n.value for n in layers)), key)
        if first == key:
            continue
        pairs = []
        for source in scores:
            if source not in reported.tables(paper):
                continue
            table_rows = group(reported.numbers(paper, source))
            one, other = table_rows.get(first, {}), table_rows.get(key, {})
            both = [c for c in one if c in other and not c.startswith("removed")]
            pairs += [(one[c], other[c]) for c in both if one[c].text != other[c].text]
        if not pairs:
            continue
        layers_text = ", ".join(str(int(v)) for v in sorted(n.value for n in layers))
        yield Finding(
            paper,
            "one set of layers, two scores",
            f"Table {table} and {', '.join(dict.fromkeys(a.table for a, _ in pairs))}, {key[0]} {key[1]}, "
            f"{row_name(*first[2:])} and {row_name(*key[2:])}",
            "; ".join(f"{a.column} {a.text} and {b.text}" for a, b in pairs),
            "equal",
            f"both remove layers {layers_text}, in another order, and nothing else is done to the model",
            UNRESOLVED,
            "The same pruned model: the difference is a misprint, or what repeating the measurement costs.",
            cells_of([n for pair in pairs for n in pair]),
        )
