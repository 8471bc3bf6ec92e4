"""Write what the published records say into README, docs and papers: ``python -m reproductions.documents.readme``."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.console.command_line import answering, parse
from common.console.text_tables import markdown
from common.records import record_json
from common.records.results import Store
from common.utils.paths import ROOT
from extensions.documents import standings
from reproductions.documents import findings
from reproductions.render import chance_levels, show, tables
from reproductions.render.evidence import Loaded
from reproductions.spec import registry, reported, subjects
from reproductions.spec.subjects import PAPER, TOY, Subject

DOCUMENTS = (
    "README.md",
    "docs/findings.md",
    "docs/tables.md",
    "docs/league.md",
    "docs/chance-level.md",
)
FILES = tuple(ROOT / name for name in DOCUMENTS)


def counts(table: registry.Table, store: Store) -> dict[str, int]:
    """Count one target's numbers: printed by the paper; measured on pretrained models, the toy model, the paper's models."""
    free = {column.label for column in table.columns_for(PAPER) if column.weight_free}
    paper = [
        cell
        for row in _rows(table, store, PAPER)
        if not row["shape"]
        for label, cell in row["cells"].items()
        if label not in free
    ]
    return {
        "reported": len(reported.numbers(table.paper, table.number)),
        "pretrained": sum(_count_measured(table, store, subjects.of_model(name)) for name in subjects.PUBLISHED_MODELS),
        "toy model": _count_measured(table, store, TOY),
        "paper": sum(map(_has_content, paper)),
    }


def _rows(table: registry.Table, store: Store, subject: Subject) -> list[dict]:
    rows = show.build(table, store, subject, claims=False)["rows"]
    return [row for row in rows if row["subject"] == subject.name]


def _count_measured(table: registry.Table, store: Store, subject: Subject) -> int:
    """Return how many cells of a model have a record behind them.

    Dense rows, which tables share, count where nothing else is.
    """
    rows = _rows(table, store, subject)
    rows = [row for row in rows if not row["dense"]] or rows
    return sum(_has_content(cell) for row in rows for cell in row["cells"].values())


def _has_content(cell: dict) -> bool:
    return cell["reproduced"] is not None or "text" in cell


def by_paper(store: Store) -> dict[str, dict[str, dict]]:
    """Return the counts of each target, by paper and target."""
    return {
        paper: {name: counts(table, store) for name, table in registry.targets().items() if table.paper == paper}
        for paper in registry.PAPERS
    }


_TOTALS = {
    "reported": "In print",
    "pretrained": "Pretrained models",
    "toy model": "Toy model",
    "paper": "The paper's models",
}


def overview(counted: dict[str, dict[str, dict]]) -> str:
    """Return a table with a line per paper: its targets, how many numbers are in print and measured here."""
    lines = []
    for paper, counts_by_target in counted.items():
        totals = [f"{sum(counts[key] for counts in counts_by_target.values()):,}" for key in _TOTALS]
        lines.append([registry.TITLES[paper], targets(paper, counts_by_target), *totals])
    heads = ["Paper", "Targets", *_TOTALS.values()]
    return markdown(heads, lines, "ll" + "r" * (len(heads) - 2))


def targets(paper: str, names: Iterable[str]) -> str:
    """Return the names of a paper's targets: ranges of its tables and figures, then the others in full."""
    numbers: dict[str, list[list[str]]] = {"table": [], "figure": []}
    other_names = []
    for name in names:
        if not (match := re.fullmatch(rf"(table|figure)(\w+)-{paper}", name)):
            other_names.append(f"`{name}`")
        elif (runs := numbers[match[1]]) and _next(runs[-1][-1]) == match[2]:
            runs[-1].append(match[2])
        else:
            runs.append([match[2]])
    ranges = [
        f"`{word}` " + ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)
        for word, runs in numbers.items()
    ]
    return "; ".join([*ranges, *other_names])


def _next(number: str) -> str:
    """Return the number of the next table: of 9 10, of A1 A2, of 1a 1b."""
    return str(int(number) + 1) if number.isdecimal() else number[:-1] + chr(ord(number[-1]) + 1)


def parts(names: Iterable[str]) -> dict[str, str]:
    """Return the generated parts of documents by name: counts, findings, tables, and those of the league."""
    store, contents = Loaded(), {}
    names = set(names)
    if names & {"papers", "chance", "findings"}:
        contents |= findings.parts(store)
    if "chance-level" in names:
        contents["chance-level"] = chance_levels.summary()
    if "tables" in names:
        contents["tables"] = overview(by_paper(store))
    if "standings" in names:
        pretrained = [subjects.of_model(name) for name in subjects.PUBLISHED_MODELS]
        contents |= standings.parts(store, pretrained)
    for name, table in registry.targets().items():
        if name in names - {"league"}:
            content = show.build(table, store, show.published(table, store))
            # Here stands what is ours; the paper's numbers are one `make` away.
            content["rows"] = [row for row in content["rows"] if row["subject"] != PAPER.name]
            content["subjects"] = [subject | {"origin": "published"} for subject in content["subjects"]]
            contents[name] = tables.render(content, "md").strip()
    return contents


def marked(text: str) -> list[str]:
    """Return the names of a text's marked parts."""
    return re.findall(r"<!-- end (\S+) -->", text)


def part(text: str, name: str) -> str:
    """Return the content of a text's marked part."""
    return re.search(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- end {re.escape(name)} -->", text, re.S)[1]


def render(text: str, contents: Mapping[str, str]) -> str:
    """Return a text with every marked part replaced."""
    for name in marked(text):
        pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)"
        text = re.sub(pattern, lambda m, part=contents[name]: f"{m[1]}{part}\n{m[2]}", text, flags=re.S)
    return text


@dataclass(kw_only=True)
class ReadmeCommand:
    """Write what the published records say into README and docs."""


@answering
def main(arguments: list[str] | None = None) -> int:
    """Rewrite the files in place; return the exit status."""
    parse(ReadmeCommand, arguments, prog="python -m reproductions.documents.readme")
    contents = parts(name for path in FILES for name in marked(path.read_text()))
    for path in FILES:  # read anew: somebody may have edited them meanwhile
        path.write_text(render(path.read_text(), contents))
    (ROOT / "docs" / "results-schema.json").write_text(record_json.json_schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())
