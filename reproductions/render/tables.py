"""Render the JSON form of a table for the terminal, Markdown, CSV, LaTeX or HTML. Renders only; every number comes with it.

The form is that of ``show --format json``: target, profile, title, rows of cells (reported, reproduced, stderr, status),
claims, and the subjects (`reproductions.spec.subjects`) whose rows these are. Each subject has a table of its own; the
paper's models come last. `common.console.text_tables` lays out the tables.
"""

import html
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from common.console import text_tables
from common.console.text_tables import Styled, TextTable
from common.models.registry import TOY
from common.utils.errors import plural, unknown
from common.utils.make_names import translated
from common.utils.signs import signed
from reproductions.claims.verdicts import CONTRADICTED, INCONCLUSIVE, SUPPORTED, UNTESTED
from reproductions.render import claim_verdicts
from reproductions.spec.subjects import HEADS

FORMATS = ("terminal", "md", "csv", "latex", "html", "json")
PAPER = "paper"  # the subject that stands for the paper's own models
LARGE = 1e9  # from here on (a model destroyed) digits say nothing
FOLDED = 4  # as many rows without a number become one line
VERDICT_STYLES = {SUPPORTED: "green", CONTRADICTED: "red", INCONCLUSIVE: "yellow"}
Block = tuple[str, str | TextTable]  # title, heading, text, table or claims, and its content


def render(
    table: dict | Sequence[dict],
    form: str = "terminal",
    width: int | None = None,
    *,
    every_row: bool = False,
    reported: bool = True,
    given: str = "",
    typed: Mapping[str, str] = MappingProxyType({}),
    colours: bool = False,
) -> str:
    """Render a table in one of the FORMATS, ending in a line break; several tables give one document.

    JSON: one table is an object, several are a list of them. CSV: one header; of several, the first column is the
    target.

    Args:
        table: The table's JSON form, or a list of them.
        form: One of the FORMATS.
        width: Characters in a line of the terminal; None: no limit.
        every_row: Whether each row without a number has its line, and the terminal and LaTeX each column and claim
            without a result; otherwise FOLDED such rows or more are counted in one line. JSON and CSV have them all.
        reported: Whether the paper's numbers are shown in a table of another model. JSON and CSV have them all.
        given: Options that the command which measures the same must have, as typed.
        typed: What its models are called there, by subject, where that is not the subject's name.
        colours: Whether the terminal's text has escape sequences for its styles.

    Raises:
        UserError: The format is unknown.
    """
    check_format(form)
    tables = [table] if isinstance(table, dict) else list(table)
    if form == "json":
        return json.dumps(table, indent=1, allow_nan=False) + "\n"
    if form == "csv":
        return _csv(tables, with_target=not isinstance(table, dict))
    least = math.inf if every_row else FOLDED
    if not reported:
        tables = list(map(_without_reported, tables))
    every_column = every_row or form not in ("terminal", "latex")
    return "\n".join(
        _rendered(_blocks(content, least, every_column, given, typed), form, width, colours) for content in tables
    )


def _without_reported(table: dict) -> dict:
    """Return the table without the paper's rows, unless it is of the paper's models."""
    if PAPER in [subject["name"] for subject in table["subjects"]]:
        return table
    return table | {"rows": [row for row in table["rows"] if row["subject"] != PAPER], "own_models": None}


def check_format(form: str) -> None:
    """Refuse a name that is none of the FORMATS."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)


def render_changes(
    changed: Sequence[dict], form: str = "terminal", width: int | None = None, colours: bool = False
) -> str:
    """Render rows with a user's changes: with the changes, without, and the difference. The options are those of `render`.

    changed: results of `reproductions.render.show.changed`, one per table and model.
    """
    if form == "json":
        return json.dumps(list(changed), indent=1, allow_nan=False) + "\n"
    if form == "csv":
        rows = [
            content | row | dict(zip(("low", "high"), row["interval"] or ()))
            for content in changed
            for row in content["rows"]
        ]
        names = ["target", "subject", "changes", *_CHANGED, "low", "high"]
        return _frame(names, rows, names)
    blocks = []
    for content in changed:
        unchanged = "Published" if content["origin"] == "published" else "Unchanged"
        models = {row["model"] for row in content["rows"]}  # one model's labels, too: with [L] and with [S]
        several = content["subject"] == PAPER or len(models) > 1
        labels = [*["model"] * several, "sparsity", "method", "column"]
        header = [*["Model"] * several, "n/N", "Method", "Column"]
        header += ["Yours", unchanged, "Difference [95 %]"]
        lines = [[row[key] for key in labels] + _three(row) for row in content["rows"]]
        blocks.append(("text", f"{content['title']}, on {content['label']} with {content['changes']}"))
        blocks.append(("table", TextTable(header, lines, len(labels))))
        if content["published_for"]:
            others = claim_verdicts.listed(content["published_for"])
            blocks.append(
                ("text", f"No model was named. MODEL= (--model) names one; results are published for {others}.")
            )
    return _rendered(blocks, form, width, colours)


_CHANGED = ("model", "sparsity", "method", "column", "yours", "unchanged", "difference")


def _three(row: dict) -> list[str]:
    numbers = ["·" if row[key] is None else _number(row[key]) for key in ("yours", "unchanged")]
    if row["difference"] is None:
        return [*numbers, "·"]
    ends = f" [{', '.join(signed(end, '+.2f') for end in row['interval'])}]" if row["interval"] else ""
    return [*numbers, signed(row["difference"], "+.2f") + ends]


def _number(value: float, digits: int | None = None) -> str:
    if isinstance(value, float) and abs(value) >= LARGE:
        return f"{value:.2e}"
    return f"{value:.{2 if digits is None else digits}f}"


_MARKS = {
    "not-run": "·",
    "none": "",
    "no-data": "no data",
    "no-value": "none",
    "guesses": "guesses",
    "diverged": "diverged",
}


def _measured_cell(cell: dict, with_error: bool) -> str:
    if cell["reproduced"] is None and "text" in cell:
        return cell["text"]
    if cell["reproduced"] is None:
        return _MARKS.get(cell["status_id"], "x")
    error = f"±{_number(cell['stderr'], 1)}" if with_error and cell["stderr"] else ""
    return _number(cell["reproduced"], cell.get("digits")) + error


def _printed_cell(cell: dict) -> str:
    if cell["reported"] is None:
        return cell.get("printed", "")
    return _number(cell["reported"], cell.get("digits")) + ("*" if _doubted(cell) else "")


def _doubted(cell: dict) -> bool:
    """Return whether a printed number carries a doubt about its value (not merely a label that had to be resolved)."""
    return bool(cell.get("audit")) or bool(cell.get("flag")) and not cell["flag"].startswith("label resolved")


def _compared_cell(cell: dict) -> str:
    if cell["reproduced"] is None:
        diverged = "diverged" if cell["status_id"] == "diverged" else ""
        return " | ".join(filter(None, (_printed_cell(cell), cell.get("text"), diverged)))
    digits = cell.get("digits")
    difference = ""
    if cell["reported"] is not None:
        change = cell["reproduced"] - cell["reported"]
        difference = f" ({'-' if change < 0 else '+'}{_number(abs(change), digits)})"
        if cell["status_id"] != "match":
            difference += " differs" + (f": {cell['explanation']}" if cell.get("explanation") else "")
    error = f"±{_number(cell['stderr'], digits)}" if cell["stderr"] else ""
    return f"{_printed_cell(cell)} | {_number(cell['reproduced'], digits)}{error}{difference}".lstrip(" |")


def _parts(table: dict) -> list[tuple[str, list[dict], callable]]:
    """Return (heading, rows, cell text) of each table to print: one per subject, then the paper's own models."""
    parts = []
    for subject in table["subjects"]:
        own_rows = [row for row in table["rows"] if row["subject"] == subject["name"]]
        if subject["name"] == PAPER:
            parts.append((f"Reported | reproduced (difference), {subject['dtype']}", own_rows, _compared_cell))
            continue
        ids = table.get("column_ids", {})
        last = [column for column in table["columns"] if ids.get(column, column) in ("AVG", "RP")]

        def measured(cell: dict, last=last) -> str:
            return _measured_cell(cell, cell["column"] in last)

        name = _phrase(subject)
        facts = [subject["dtype"], subject.get("size"), subject.get("text"), _whose(subject["origin"])]
        heading = f"Measured on {name} ({'; '.join(filter(None, facts))})"
        parts.append((heading, own_rows, measured))
    reported = [row for row in table["rows"] if row["subject"] == PAPER]
    if PAPER not in [subject["name"] for subject in table["subjects"]]:
        reported = [row for row in reported if not _without_number(row)]  # what is only declared is no report
        heading = "Reported by the paper on its own models; none of these was run here"
        if any(cell["reproduced"] is not None for row in reported for cell in row["cells"].values()):
            heading += ". What needs no weights: reported | from the model's shape (difference)"
        parts.append((heading, reported, _compared_cell))
    return [part for part in parts if part[1]]


def _whose(origin: str) -> str:
    names = {"no": "no records", "yours": "your own records", "published": "published records"}
    return names.get(origin, "published records, your own where you have them")


def _grid(
    rows: list[dict], columns: list[str], text: Callable[[dict], str], least: float, better: Mapping[str, str]
) -> list[list[str]]:
    """Return the lines of a table.

    Of one model with as many layers removed, `least` rows or more of which there is no number are one line, below the others.
    """
    lines, best = [], _best(rows, better)
    for labels, group in groupby(rows, lambda row: (row["model"], row["sparsity"])):
        labels, rows_and_reasons = labels[_one_model(rows) :], [(row, _without_number(row)) for row in group]
        counts = Counter(reason for _, reason in rows_and_reasons if reason)
        folded = {reason: count for reason, count in counts.items() if count >= least}
        for row, reason in rows_and_reasons:
            if reason in folded:
                continue
            cells = [text({**row["cells"][c], "column": c}) if c in row["cells"] else "" for c in columns]
            cells = [Styled(cell, "bold") if (id(row), c) in best else cell for c, cell in zip(columns, cells)]
            reason = row.get("gate", reason)
            lines.append([*labels, row["method"] + (f" ({reason})" if reason else ""), *cells])
        lines += [[*labels, f"{count} rows ({reason})", *[""] * len(columns)] for reason, count in folded.items()]
    return lines


def _best(rows: list[dict], better: Mapping[str, str]) -> set[tuple[int, str]]:
    """Return the best cells of each model with as many layers removed, by row and column; better: ``higher`` or ``lower``."""
    settings: dict[tuple, dict[int, float]] = {}
    for row in rows:
        for column, cell in row["cells"].items() if not row.get("dense") else ():
            number = cell["reported"] if cell["reproduced"] is None else cell["reproduced"]
            if column in better and number is not None:
                place = row["model"], row["sparsity"], column
                settings.setdefault(place, {})[id(row)] = number if better[column] == "higher" else -number
    several = {place: values for place, values in settings.items() if len(values) > 1}
    return {
        (row, place[-1]) for place, values in several.items() for row in values if values[row] == max(values.values())
    }


def _without_number(row: dict) -> str:
    """Return why a row has no number at all; '': it has one, or what failed is said below the table.

    Why there is no data is said there, too, in full.
    """
    shown = any(c["reproduced"] is not None or c["reported"] is not None or "text" in c for c in row["cells"].values())
    if not shown and row["status_id"] == "no-data":
        return "no data"
    return "" if shown or row["status_id"] in ("failed", "measured") else row["status"]


def _one_model(rows: list[dict]) -> bool:
    """Return whether the heading alone says whose rows these are: one model's, that is not the paper's."""
    return bool(rows) and rows[0]["subject"] != PAPER and len({row["model"] for row in rows}) == 1


def unknown_cell(cell: dict | None) -> bool:
    """Return whether a cell has no number, no text, and no reason except that it was not measured."""
    if cell is None:
        return True
    if cell["reproduced"] is not None or cell["reported"] is not None or cell.get("text") or "printed" in cell:
        return False
    return "text" in cell or cell["status_id"] in ("not-run", "none")


def _columns(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row["cells"]))


def _statuses(table: dict) -> list[str]:
    """Return one line per failed or diverged cell, and one per reason for missing data: none is hidden."""
    lines = []
    lacking: dict[str, dict[str, None]] = {}
    for row in table["rows"]:
        for name, cell in row["cells"].items():
            if cell["status_id"] == "no-data":
                lacking.setdefault(cell["status"], {})[name] = None
    lines += [f"{', '.join(names)}: {status}" for status, names in lacking.items()]
    for row in table["rows"]:
        failed: dict[str, list[str]] = {}
        for name, cell in row["cells"].items():
            if cell["status_id"] in ("failed", "diverged") and "reason" in cell:
                failed.setdefault(cell["status"], []).append(name)
        for status, names in failed.items():
            lines.append(f"{row['model']} {row['sparsity']} {row['method']}, {', '.join(names)}: {status}")
    return [line.replace("fetch TARGET", f"fetch {table['target']}") for line in lines]


def _claims(table: dict, shown: Collection[int]) -> list[list[str]]:
    """Return the claims with these numbers, with their verdict in the paper's numbers and on each subject."""
    names = [subject["name"] for subject in table["subjects"]]
    several = len(table["claims"]) > 1
    return [
        [f"{number}. {c['text']}" if several else c["text"], claim_verdicts.in_print_of_table(c)]
        + [claim_verdicts.in_table(c, name) for name in names]
        for number, c in enumerate(table["claims"], 1)
        if number in shown
    ]


def _untested(claim: dict) -> bool:
    """Return whether a claim has neither printed numbers nor results."""
    return claim["reported"] is None and all(judged["verdict"] == UNTESTED for judged in claim["judged"].values())


def _claims_header(table: dict) -> list[str]:
    names = [subject["name"] for subject in table["subjects"]]
    here = ["here" if name == PAPER else f"on {HEADS.get(name, name)}" for name in names]
    return ["Claim", "printed numbers", *here]


def _phrase(subject: dict) -> str:
    """Return what a subject's model is called within a sentence."""
    return "the toy model" if subject["profile"] == "standin" else subject["label"]


def _header(table: dict, rows: list[dict], columns: list[str]) -> list[str]:
    """Return column labels; an average that leaves tasks out says over how many it is."""
    over = {}
    for subject in table["subjects"]:
        if rows and rows[0]["subject"] == subject["name"]:
            over = subject["over"]
    first = ["n/N", "Method"] if _one_model(rows) else ["Model", "n/N", "Method"]
    return [*first, *(f"{c} of {over[c]}" if c in over else c for c in columns)]


def headline(table: dict) -> list[str]:
    """State how many cells were measured on the paper's models; [] if it has none."""
    own = table.get("own_models")
    if not own or not own["cells"]:
        return []
    return [f"Measured on the paper's own models: {own['measured']} of {own['cells']} cells."]


def _of_row(given: str, method: str) -> str:
    """Return the options of a command with ``method`` in place of its pattern of rows, if it has one."""
    words = shlex.split(given)
    if "--row" in words:
        words[words.index("--row") + 1] = method
    return shlex.join(words)


def _notes(table: dict, given: str, typed: Mapping[str, str], marked: Collection[str]) -> list[str]:
    """Return the notes below a table; marked: subjects with a cell that shows the sign of no result."""
    lines = (table.get("note") or "").splitlines()
    for subject in table["subjects"]:
        lines += averaged(subject) + left_out_at_chance(subject)
    for subject in table["subjects"]:
        own_rows = [row for row in table["rows"] if row["subject"] == subject["name"] != PAPER]
        lacking = [row for row in own_rows if any(cell["status_id"] == "not-run" for cell in row["cells"].values())]
        if lacking:
            narrowed = _of_row(given, lacking[0]["method"]) if all(row.get("dense") for row in lacking) else given
            name = TOY if subject["profile"] == "standin" else typed.get(subject["name"], subject["name"])
            model = f"--model {shlex.quote(name)}" if given or name != TOY else ""
            command = f"`{' '.join(filter(None, ('python -m reproductions run', table['target'], model, narrowed)))}`"
            sign = _MARKS["not-run"] if subject["name"] in marked else "Left out above"
            lines.append(f"{sign}: no result on {_phrase(subject)}. {command} measures it where its data can be had.")
    printed = [cell for row in table["rows"] if row["subject"] == PAPER for cell in row["cells"].values()]
    if any(cell["reproduced"] is not None for cell in printed):
        lines += [table["tolerance"]] if table.get("tolerance") else []
        counts = {mark: sum(cell["status_id"] == mark for cell in printed) for mark in ("match", "differs")}
        if any(counts.values()):
            shapes = sum(counts.values()) - (table.get("own_models") or {}).get("measured", 0)
            if shapes == sum(counts.values()):
                lines.append(
                    "Nothing of this is a reproduced score: parameter counts and ratios, computed from the shapes of the "
                    f"paper's models. {counts['match']} match the printed numbers, {counts['differs']} differ."
                )
            else:
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


def averaged(subject: dict) -> list[str]:
    """Return the tasks that averages are over if some are left out; [] if none is."""
    labels_by_tasks: dict[tuple, list[str]] = {}
    for label, tasks in subject["over_tasks"].items():
        labels_by_tasks.setdefault(tuple(tasks), []).append(label)
    parts = [
        f"{claim_verdicts.listed(labels)} over {claim_verdicts.listed(tasks)}"
        for tasks, labels in labels_by_tasks.items()
    ]
    where = HEADS.get(subject["name"], subject["label"] or "the paper's models")
    return [f"Averages on {where}: {'; '.join(parts)}."] if parts else []


def left_out_at_chance(subject: dict) -> list[str]:
    """Return why columns of retained accuracy, or averages, leave tasks out; [] if none does."""
    if not (tasks_by_column := subject.get("guessed")):
        return []
    (tasks,) = {tuple(tasks) for tasks in tasks_by_column.values()}
    columns, verb = claim_verdicts.listed(list(tasks_by_column)), "leave" if len(tasks_by_column) > 1 else "leaves"
    return [
        f"{columns} {verb} {claim_verdicts.listed(tasks)} out: there {_phrase(subject)} is not two standard errors above "
        "chance level before pruning."
    ]


def _blocks(table: dict, least: float, every_column: bool, given: str, typed: Mapping[str, str]) -> Iterator[Block]:
    """Yield what a table's document has, in order; every_column: those without a result, too."""
    yield "title", table["title"]
    yield from (("text", line) for line in headline(table))
    folded, marked, parts = False, set(), _parts(table)
    if not parts:
        yield "text", "There is no row to show."
    for heading, rows, text in parts:
        columns = _columns(rows)
        shown = [c for c in columns if every_column or not all(unknown_cell(row["cells"].get(c)) for row in rows)]
        columns, empty = shown or columns, [column for column in columns if shown and column not in shown]
        lines = _grid(rows, columns, text, least, table.get("better", {}))
        folded |= len(lines) < len(rows)
        marked |= {rows[0]["subject"] for line in lines if _MARKS["not-run"] in line}
        yield "heading", heading
        yield "table", TextTable(_header(table, rows, columns), lines, 3 - _one_model(rows))
        if empty:
            yield "hint", f"Columns without a result are left out: {', '.join(empty)}. --every-row shows them."
    yield from (("text", note) for note in _notes(table, given, typed, marked))
    if folded:
        yield (
            "hint",
            "Rows without a number are counted in one line. --every-row lists them; csv and json hold them, too.",
        )
    if table["claims"]:
        tested = any(not _untested(claim) for claim in table["claims"])
        with_untested = every_column or not (tested or "--row" in given)
        shown = [number for number, claim in enumerate(table["claims"], 1) if with_untested or not _untested(claim)]
        if shown:
            yield "claims", TextTable(_claims_header(table), _claims(table, shown), 1, numbers=False)
        if left_out := len(table["claims"]) - len(shown):
            yield "hint", f"Not shown: {plural(left_out, 'claim')} without a number. --every-row shows all."
        yield from (("text", note) for note in claim_verdicts.notes(table, shown))
    yield from (("text", line) for line in _statuses(table))


def _rendered(blocks: Iterable[Block], form: str, width: int | None, colours: bool) -> str:
    """Return a document in a format for people."""
    if form == "terminal":
        return text_tables.laid_out([_coloured(kind, content) for kind, content in blocks], width, colours)
    write = {"md": _markdown, "html": _html, "latex": _latex}[form]
    return "\n\n".join(filter(None, (write(kind, content) for kind, content in blocks if kind != "hint"))) + "\n"


def _coloured(kind: str, content: str | TextTable) -> str | TextTable:
    """Return a block with the terminal's styles: titles bold, verdicts in the colours of traffic lights."""
    if kind == "claims":

        def verdict_of(cell: str) -> str:
            style = next((style for word, style in VERDICT_STYLES.items() if cell.startswith(word)), "")
            return Styled(cell, style)

        return replace(content, lines=[[line[0], *map(verdict_of, line[1:])] for line in content.lines])
    if isinstance(content, TextTable):
        return content
    return Styled(content, "bold") if kind == "title" else translated(content)


def _markdown(kind: str, content: str | TextTable) -> str:
    if isinstance(content, TextTable):
        return content.markdown()
    return {"title": f"**{content}**", "heading": f"{content}:"}.get(kind, content)


def _html(kind: str, content: str | TextTable) -> str:
    if isinstance(content, TextTable):
        return content.html()
    tag = {"title": "h2", "heading": "h3"}.get(kind, "p")
    return f"<{tag}>{html.escape(content, quote=False)}</{tag}>"


def _latex(kind: str, content: str | TextTable) -> str:
    """Return a block for LaTeX: numbers as tables, sentences as comments; claims are for readers of the project."""
    if isinstance(content, TextTable):
        return "" if kind == "claims" else content.latex()
    return "% " + content.replace("\n", " ") + r"; needs \usepackage{booktabs}" * (kind == "title")


def _csv(tables: Sequence[dict], with_target: bool) -> str:
    rows = []
    for table in tables:
        for row in table["rows"]:
            for column, cell in row["cells"].items():
                values = [cell["reported"], cell.get("text", cell["reproduced"]), cell["stderr"], cell["status"]]
                rows.append(
                    [
                        table["target"],
                        row["model"],
                        row["sparsity"],
                        row["method"],
                        column,
                        *values,
                        None,
                        None,
                        row.get("id"),
                    ]
                )
        for claim in table["claims"]:
            for name, judged in claim.get("judged", {}).items():
                values = [claim_verdicts.BY_REPLY[claim["reported"]], judged["difference"], None, judged["verdict"]]
                ends = judged["interval"] or (None, None)
                rows.append([table["target"], name, "", claim["text"], "claim", *values, *ends, None])
    header = ["target", "model", "sparsity", "method", "column", "reported", "reproduced", "stderr", "status"]
    header += ["low", "high", "row_id"]
    return _frame(header, rows, header[not with_target :])


def _frame(names: Sequence[str], rows: Sequence, columns: Sequence[str]) -> str:
    """Return the rows as CSV, with some of their fields as columns."""
    import pandas

    return pandas.DataFrame(rows, columns=names, dtype=object).to_csv(index=False, columns=columns, lineterminator="\n")
