"""The same configuration printed twice with different numbers, and different configurations printed with the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from reproductions import reported
from reproductions.audit.findings import PAPER_NAMES, UNRESOLVED, Finding, cells_of, group, place
from reproductions.reported import Number, row_name

# Rows of one configuration under several names: (paper, table, method, variant) -> (method, variant).
ALIASES = {
    ("linearpatch", "5", "Vanilla", ""): ("LLM-Streamline(None)", ""),
    ("linearpatch", "5", "+A", ""): ("LinearPatch", "S/L"),
    ("linearpatch", "5", "+FT", ""): ("LinearPatch", "L +FT, logits, KL"),
    ("linearpatch", "10", "LinearPatch", "128 samples"): ("LinearPatch", "S/L"),
    ("linearpatch", "summary1", "LLM-Streamline", ""): ("LLM-Streamline(None)", ""),
    ("linearpatch", "summary1", "LinearPatch", ""): ("LinearPatch", "L"),
    ("linearpatch", "summary1", "LinearPatch", "+Distillation"): ("LinearPatch", "L +FT"),
    ("linearpatch", "summary2", "Channel scaling only", ""): ("+d", ""),
    ("linearpatch", "summary2", "LinearPatch (both fused)", ""): ("LinearPatch", "S/L"),
    ("linearpatch", "summary2", "LinearPatch", "+Distillation"): ("LinearPatch", "L +FT, logits, KL"),
    ("linearpatch", "summary2", "No patch (direct pruning)", ""): ("LLM-Streamline(None)", ""),
    ("prunecomp", "4", "CosSim(BI)", "+MagComp +IterPrune"): ("CosSim(BI)", "+Prune&Comp"),
    ("prunecomp", "A5", "CosSim(BI)", "+MagComp +IterPrune"): ("CosSim(BI)", "+Prune&Comp"),
}
# Reassessing names its own model, and rows measured with its own code, differently in Tables 4 and P.
METHODS = {
    "Llama-3.1-6.3B-It-Alpaca": ("Reverse-order", "+lm_head & last 3"),
    "Llama-3-6.3B-It-Alpaca": ("Reverse-order", "+lm_head & last 3"),
    "Llama-3-6.3B-Alpaca": ("Reverse-order", "+lm_head & last 3"),
    "ShortGPT (BI)": ("BI", "+LoRA"),
    "Shortened LLaMA (PPL)": ("PPL", "+LoRA"),
    "Shortened LLaMA (Taylor)": ("Taylor", "+LoRA"),
}
# What its other tables call the standard setting: all of Alpaca-cleaned, one shot, ten calibration samples.
STANDARD = ("one-shot ", "Alpaca-cleaned ", "1.0 ", "10 samples ")
# The same selection under two papers' names.
ACROSS = {"CosSim(BI)": "ShortGPT", "CosSim(CL)": "LLM-Streamline(None)", "Dense": "Dense"}
PPL_TABLES = {("linearpatch", "3"), ("prunecomp", "1"), ("prunecomp", "A1"), ("prunecomp", "4")}
SETTINGS = ("Ratio", "ratio %", "PR %", "layers", "GPU memory GB", "training time s", "# Parameters B", "TTokens T")
LAYERS = {"reassessing": "O"}  # the table that lists removed layers by calibration samples
SHARES = {("laco", "7")}  # per cent of the dense model, not scores


def _tables(paper: str) -> list[str]:
    return [table for table in reported.tables(paper) if "text" not in table]


def _named(number: Number) -> list[tuple]:
    """(model, sparsity, method, variant, column) under names that all tables of a paper share."""
    method, variant, sparsity = number.method, number.variant, number.sparsity
    method, variant = ALIASES.get((number.paper, number.table, method, variant), (method, variant))
    if number.paper == "reassessing":
        method, variant = (
            METHODS.get(method, (method, variant)) if variant in ("", "+lm_head & last 3") else (method, variant)
        )
        for words in STANDARD:
            variant = variant.removeprefix(words)
        sparsity = {"25%": "8/32", "0%": "0/32"}.get(sparsity, sparsity)
    column = "PPL AVG" if number.column == "AVG" and (number.paper, number.table) in PPL_TABLES else number.column
    return [(number.model, sparsity, method, v, column) for v in variant.split("/")]


def _is_score(column: str) -> bool:
    return column not in SETTINGS and not column.startswith("removed ") and column not in ("C", "L", "H", "I", "T")


def findings() -> Iterator[Finding]:
    """Disagreements between tables of one paper, between papers, and rows that repeat."""
    for paper in PAPER_NAMES:
        copies = list(_repeated_rows(paper))
        # A row that is another one's copy disagrees with its namesakes because of that: said once.
        copied = {cell[1:5] for finding in copies for cell in finding.cells}
        yield from _between_tables(paper, copied)
        yield from copies
        if paper == "prunecomp":
            yield from _between_papers(copied)


def _between_tables(paper: str, copied: set) -> Iterator[Finding]:
    seen: dict[tuple, Number] = {}
    pairs: dict[tuple, list[tuple[Number, Number]]] = {}
    for table in _tables(paper):
        for number in reported.numbers(paper, table):
            if (paper, table) in SHARES and number.column != "layers":
                continue
            for key in _named(number):
                first = seen.setdefault(key, number)
                if first.table == table or first.text == number.text or _cell(number)[1:5] in copied:
                    continue
                pair = pairs.setdefault((first.table, table, *_named(first)[0][:2], first.row), [])
                if (first, number) not in pair:
                    pair.append((first, number))
    alike: dict[tuple, list] = {}
    for cells in pairs.values():
        if any(_differ(a, b) for a, b in cells):
            alike.setdefault(tuple((a.text, b.text, b.column) for a, b in cells), []).append(cells)
    for same in alike.values():  # one disagreement, however many tables repeat it
        one, other = same[0][0]
        tables = [one.table, *dict.fromkeys(cells[0][1].table for cells in same)]
        names = dict.fromkeys(row_name(n.method, n.variant) for n in (one, other))
        where = f"Table {' and '.join(map(_table, tables))}, {one.model} {one.sparsity}, {' or '.join(names)}"
        yield _disagreement(paper, where, same[0], [n for cells in same for pair in cells for n in pair])


def _table(name: str) -> str:
    return name.replace("summary", "the summary's table ")


def _cell(number: Number) -> tuple:
    return cells_of([number])[0]


def _differ(a: Number, b: Number) -> bool:
    if "." not in a.text + b.text:
        return a.value != b.value  # counts are not rounded
    return abs(a.value - b.value) > (a.half_unit + b.half_unit) * (1 + 1e-6)


def _disagreement(paper: str, where: str, pairs: list[tuple[Number, Number]], marked: list[Number] = ()) -> Finding:
    # Once a row disagrees, last digits belong to the story too; a shorter print of the same number does not.
    pairs = [(a, b) for a, b in pairs if _differ(a, b) or len(a.text) == len(b.text)]
    return Finding(
        paper,
        "printed twice, differently",
        where,
        "; ".join(f"{a.column} {a.text}" for a, _ in pairs),
        "; ".join(f"{b.column} {b.text}" for _, b in pairs),
        "; ".join(f"{b.column} {b.value - a.value:+.4g}" for a, b in pairs),
        UNRESOLVED,
        "Name the table when citing; differences of this size bound how well the numbers repeat.",
        cells_of(marked or [n for pair in pairs for n in pair]),
    )


def _between_papers(copied: set) -> Iterator[Finding]:
    """Rows that Prune&Comp shares with LinearPatch: the same models, selections and protocols."""
    seen = {}
    for table in ("1", "11", "12"):
        for number in reported.numbers("linearpatch", table):
            for key in _named(number):
                seen.setdefault(key, number)
    pairs: dict[tuple, list] = {}
    for table in _tables("prunecomp"):
        for number in reported.numbers("prunecomp", table):
            if number.variant or number.method not in ACROSS or number.column == "RP" or _cell(number)[1:5] in copied:
                continue  # RP is defined differently
            for model, sparsity, method, _, column in _named(number):
                other = seen.get((model, sparsity, ACROSS[method], "", column))
                if other is not None and _differ(other, number):
                    pairs.setdefault((other.table, table, number.row), []).append((other, number))
    for (one, *_), cells in pairs.items():
        where = f"LinearPatch's Table {one} and {place(cells[0][1], 'same row')}"
        yield _disagreement("prunecomp", where, cells)


def _same(a: Number, b: Number) -> bool:
    """Equal as printed, or as far as the shorter print goes."""
    return a.text == b.text or len(a.text) != len(b.text) and not _differ(a, b)


def _layers(paper: str, key: tuple) -> set[float]:
    """The layers that a row removes, where the paper lists them."""
    rows = group(reported.numbers(paper, LAYERS[paper]))
    return {n.value for c, n in rows.get(key, {}).items() if c.startswith("removed ")}


def _alike(one: dict[str, Number], other: dict[str, Number], same_table: bool) -> int:
    """How many scores two rows share, 0 unless all do (across tables: all but one, which may be misprinted)."""
    both = [c for c in one if c in other]
    equal = [c for c in both if _same(one[c], other[c])]
    enough = len(both) >= 3 if same_table else len(both) >= 5
    return len(equal) if enough and len(equal) >= len(both) - (not same_table) else 0


def _repeated_rows(paper: str) -> Iterator[Finding]:
    """Rows that agree in every score though their model, sparsity or training differs, gathered into one finding each."""
    rows = []
    for table in _tables(paper):
        if (paper, table) in SHARES:
            continue
        for key, row in group(reported.numbers(paper, table)).items():
            scores = {c: n for c, n in row.items() if _is_score(c)}
            if scores and not (paper == "laco" and table in ("5", "6")):
                rows.append((table, key, scores))
    clusters: list[list[int]] = []
    placed: set[int] = set()
    for i, first in enumerate(rows):
        if i in placed:
            continue
        twins = [j for j in range(i + 1, len(rows)) if j not in placed and _copied(paper, first, rows[j])]
        if twins:
            clusters.append([i, *twins])
            placed |= {i, *twins}
    for cluster in clusters:
        yield _copy([rows[i] for i in cluster])


def _copied(paper: str, one: tuple, other: tuple) -> bool:
    (table, key, scores), (table2, key2, scores2) = one, other
    if not _alike(scores, scores2, table == table2):
        return False
    name, name2 = ({k[:4] for k in _named(next(iter(s.values())))} for s in (scores, scores2))
    if name & name2:
        return False  # the same row in two tables
    a, b = next(iter(name)), next(iter(name2))
    if a[:2] == b[:2] and (a[2] != b[2] or table != table2):
        return False  # two methods may well choose the same layers
    if key[:3] == key2[:3] and LAYERS.get(paper) and _layers(paper, key) == _layers(paper, key2) != set():
        return False  # more calibration samples that choose the same layers
    return paper != "laco"  # whose tables name one row by several shares


def _copy(rows: list[tuple]) -> Finding:
    tables = list(dict.fromkeys(table for table, _, _ in rows))
    names = _names([(table if len(tables) > 1 else "", key) for table, key, _ in rows])
    first = rows[0][2]
    shared = [c for c in first if all(c in s for _, _, s in rows)]
    unlike = [c for c in shared if not all(_same(first[c], s[c]) for _, _, s in rows)]
    numbers = [n for _, _, s in rows[bool(len(tables) > 1) :] for n in s.values()]
    words = f"{len(shared) - len(unlike)} of {len(shared)} scores agree to the last digit"
    if unlike:
        words += "; " + ", ".join(
            f"{c} is {' and '.join(dict.fromkeys(s[c].text for _, _, s in rows))}" for c in unlike
        )
    return Finding(
        rows[0][2][shared[0]].paper,
        "row printed twice",
        (f"Table {tables[0]}, " if len(tables) == 1 else "") + "; ".join(names),
        "; ".join(f"{c} {first[c].text}" for c in shared[:4]) + ("; ..." if len(shared) > 4 else ""),
        f"{'two' if len(rows) == 2 else len(rows)} different rows",
        words,
        UNRESOLVED,
        "Equal to the last digit although the calibration differs: an effect of nothing, or a copied row."
        if all("sample" in k[3] for _, k, _ in rows)
        else "One row was probably copied over another; as long as that stands, neither can be cited alone.",
        cells_of(numbers),
        headline=f"{', '.join(names[1:])} has, digit for digit, the numbers of {names[0]}." if len(tables) > 1 else "",
    )


def _names(rows: list[tuple[str, tuple]]) -> list[str]:
    """Rows in words, those of one method gathered: ``Table O LLaMA-3.1-8B-It 8/32 Taylor[1 sample; 5 samples]``."""
    found: dict[tuple, list[str]] = {}
    for table, (model, sparsity, method, variant) in rows:
        found.setdefault((f"Table {table}" if table else "", model, sparsity, method), []).append(variant)
    return [
        " ".join(filter(None, key[:3]))
        + " "
        + (row_name(key[3], variants[0]) if len(variants) == 1 else f"{key[3]}[{'; '.join(variants)}]")
        for key, variants in found.items()
    ]
