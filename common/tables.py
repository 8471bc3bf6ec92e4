"""Render the JSON form of a table for the terminal, Markdown, CSV or LaTeX. Renders only; every number comes with it.

The form is that of ``show --format json``: target, profile, title, rows of cells (reported, reproduced, stderr, status),
claims. Rows of the profile that was run come first; with the stand-in, the paper's models stand in a table of their own.
"""

from __future__ import annotations

import csv
import io
import json

from common.errors import unknown

FORMATS = ("terminal", "md", "csv", "latex", "json")
LARGE = 1e9  # from here on (a model destroyed) digits say nothing
MARKS = {True: "yes", False: "no", None: "not measured"}


def render(table: dict, form: str = "terminal") -> str:
    """One of the FORMATS, ending in a line break.

    Raises:
        UserError: an unknown format.
    """
    makers = {"terminal": _terminal, "md": _markdown, "csv": _csv, "latex": _latex, "json": _json}
    if form not in makers:
        raise unknown("format", form, FORMATS)
    return makers[form](table)


def _json(table: dict) -> str:
    return json.dumps(table, indent=1, allow_nan=False) + "\n"


def _number(value: float, digits: int | None = None) -> str:
    if isinstance(value, float) and abs(value) >= LARGE:
        return f"{value:.2e}"
    return f"{value:.{2 if digits is None else digits}f}"


def _measured_cell(cell: dict, with_error: bool) -> str:
    if cell["reproduced"] is None and "text" in cell:
        return cell["text"]
    if cell["reproduced"] is None:
        return _diverged(cell) or {"not run": "·", "none": "", "not implemented": ""}.get(cell["status"], "x")
    error = f"±{_number(cell['stderr'], 1)}" if with_error and cell["stderr"] else ""
    return _number(cell["reproduced"], cell.get("digits")) + error


def _diverged(cell: dict) -> str | None:
    return "diverged" if cell["status"].startswith("diverged") else None


def _printed_cell(cell: dict) -> str:
    if cell["reported"] is None:
        return cell.get("printed", "")
    return _number(cell["reported"], cell.get("digits")) + ("*" if _doubted(cell) else "")


def _doubted(cell: dict) -> bool:
    """Whether a printed number carries a doubt about its value (not merely a label that had to be resolved)."""
    return bool(cell.get("audit")) or bool(cell.get("flag")) and not cell["flag"].startswith("label resolved")


def _compared_cell(cell: dict) -> str:
    if cell["reproduced"] is None:
        return " | ".join(filter(None, (_printed_cell(cell), cell.get("text"), _diverged(cell))))
    digits = cell.get("digits")
    difference = ""
    if cell["reported"] is not None:
        change = cell["reproduced"] - cell["reported"]
        difference = f" ({'-' if change < 0 else '+'}{_number(abs(change), digits)})"
        if cell["status"] != "match":
            difference += " differs" + (f": {cell['explanation']}" if cell.get("explanation") else "")
    error = f"±{_number(cell['stderr'], digits)}" if cell["stderr"] else ""
    return f"{_printed_cell(cell)} | {_number(cell['reproduced'], digits)}{error}{difference}".lstrip(" |")


def _parts(table: dict) -> list[tuple[str, list[dict], callable]]:
    """(heading, rows, cell text) of each table to print."""
    own = [row for row in table["rows"] if row["profile"] == table["profile"]]
    if table["profile"] == "paper":
        return [("Reported | reproduced (difference)", own, _compared_cell)]
    reported = [row for row in table["rows"] if row["profile"] == "paper"]
    last = [column for column in table["columns"] if column in ("AVG", "RP")]

    def measured(cell: dict) -> str:
        return _measured_cell(cell, cell["column"] in last)

    heading = "Reported by the paper on its own models; none of these was run here"
    if any(cell["reproduced"] is not None for row in reported for cell in row["cells"].values()):
        heading += ". What needs no weights: reported | from the model's shape (difference)"
    parts = [
        (f"Measured on the stand-in ({_whose(table['origin'])})", own, measured),
        (heading, reported, _compared_cell),
    ]
    return [part for part in parts if part[1]]


def _whose(origin: str) -> str:
    names = {"no": "no records", "yours": "your own records", "published": "published records"}
    return names.get(origin, "published records, your own where you have them")


def _grid(rows: list[dict], columns: list[str], text) -> list[list[str]]:
    lines = []
    for row in rows:
        cells = [text({**row["cells"][c], "column": c}) if c in row["cells"] else "" for c in columns]
        empty = all(
            c["reproduced"] is None and c["reported"] is None and "text" not in c for c in row["cells"].values()
        )
        note = row["status"] if empty and not row["status"].startswith("failed") else ""
        note = row.get("gate", note)
        lines.append([row["model"], row["sparsity"], row["method"] + (f" ({note})" if note else ""), *cells])
    return lines


def _columns(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row["cells"]))


def _statuses(table: dict) -> list[str]:
    """One line per cell that failed or whose training diverged, so that no reason is hidden behind a mark."""
    lines = []
    for row in table["rows"]:
        told = ("failed", "diverged:")
        failed = {name: c["status"] for name, c in row["cells"].items() if c["status"].startswith(told)}
        for status in dict.fromkeys(failed.values()):
            names = ", ".join(name for name, value in failed.items() if value == status)
            lines.append(f"{row['model']} {row['sparsity']} {row['method']}, {names}: {status}")
    return lines


def _claims(table: dict) -> list[list[str]]:
    return [[c["text"], MARKS[c["reported"]], c.get("note") or MARKS[c["reproduced"]]] for c in table["claims"]]


def _aligned(header: list[str], lines: list[list[str]], left: int) -> str:
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    pad = [str.ljust if i < left else str.rjust for i in range(len(header))]
    rule = "  ".join("-" * w for w in widths)
    text = [
        "  ".join(p(cell, w) for p, cell, w in zip(pad, line, widths, strict=True)).rstrip()
        for line in [header, *lines]
    ]
    return "\n".join([text[0], rule, *text[1:]])


def _notes(table: dict) -> list[str]:
    lines = [table["note"]] if table.get("note") else []
    marks = {c["status"] for row in table["rows"] if row["profile"] == table["profile"] for c in row["cells"].values()}
    if "not run" in marks and table["profile"] == "standin":
        lines.append("·: not run.")
    printed = [cell for row in table["rows"] if row["profile"] == "paper" for cell in row["cells"].values()]
    if any(cell["reproduced"] is not None for cell in printed):
        lines += [table["tolerance"]] if table.get("tolerance") else []
        counts = {mark: sum(cell["status"] == mark for cell in printed) for mark in ("match", "differs")}
        if any(counts.values()):
            lines.append(f"Compared with the paper: {counts['match']} cells match, {counts['differs']} differ.")
        if any(cell.get("explanation") == "cut off" for cell in printed):
            lines.append("cut off: the paper prints the first digits of the number, not its rounding.")
    if any("gate" in row for row in table["rows"]):
        lines.append(table["gate"])
    entries = dict.fromkeys(entry for cell in printed for entry in cell.get("audit", ()))
    if entries:
        lines.append("*: see papers/AUDIT.md: " + ", ".join(entries) + ".")
    elif any(map(_doubted, printed)):
        lines.append("*: flagged in papers/<paper>/reported.")
    return lines


def _terminal(table: dict) -> str:
    blocks = [table["title"]]
    for heading, rows, text in _parts(table):
        columns = _columns(rows)
        blocks.append(f"{heading}\n\n" + _aligned(["Model", "n/N", "Method", *columns], _grid(rows, columns, text), 3))
    blocks += _notes(table)
    if table["claims"]:
        header = ["The paper's claims", "in its numbers", f"here ({table['profile']})"]
        blocks.append(_aligned(header, _claims(table), 3))
    return "\n\n".join(blocks + _statuses(table)) + "\n"


def _pipes(header: list[str], lines: list[list[str]], left: int) -> str:
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in [header, rule, *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def _markdown(table: dict) -> str:
    blocks = [f"**{table['title']}**"]
    for heading, rows, text in _parts(table):
        columns = _columns(rows)
        blocks += [f"{heading}:", _pipes(["Model", "n/N", "Method", *columns], _grid(rows, columns, text), 3)]
    blocks += _notes(table)
    if table["claims"]:
        header = ["The paper's claims", "in its numbers", f"here ({table['profile']})"]
        blocks.append(_pipes(header, _claims(table), 3))
    return "\n\n".join(blocks + _statuses(table)) + "\n"


def _csv(table: dict) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "sparsity", "method", "column", "reported", "reproduced", "stderr", "status"])
    for row in table["rows"]:
        for column, cell in row["cells"].items():
            values = [cell["reported"], cell.get("text", cell["reproduced"]), cell["stderr"], cell["status"]]
            writer.writerow([row["model"], row["sparsity"], row["method"], column, *values])
    return out.getvalue()


def _latex(table: dict) -> str:
    def safe(text: str) -> str:
        for character in "\\&%$#_{}":
            text = text.replace(character, "\\" + character if character != "\\" else r"\textbackslash ")
        return text.replace("±", r"$\pm$").replace("·", r"$\cdot$")

    blocks = []
    for heading, rows, text in _parts(table):
        columns = _columns(rows)
        lines = [["Model", "$n/N$", "Method", *map(safe, columns)]]
        lines += [[safe(cell) for cell in line] for line in _grid(rows, columns, text)]
        body = [" & ".join(line) + r" \\" for line in lines]
        body.insert(1, r"\midrule")
        blocks.append(
            "\n".join(
                [rf"% {table['title']}. {heading}", rf"\begin{{tabular}}{{lll{'r' * len(columns)}}}", r"\toprule"]
                + [*body, r"\bottomrule", r"\end{tabular}"]
            )
        )
    return "\n\n".join(blocks) + "\n"
