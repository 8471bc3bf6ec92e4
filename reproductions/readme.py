"""Write the tables of README.md from the published records: ``python -m reproductions.readme`` (``make readme``)."""

from __future__ import annotations

import csv
import re

from common import tables
from common.results import PUBLISHED, ROOT, Store
from reproductions import declare, registry, reported, show
from reproductions.settings import PAPER

HEADER = (
    "Target",
    "Title",
    "Reported",
    "Weight-free",
    "On the stand-in",
    "On the paper's models",
    "Not run",
    "Minutes",
)


def counts(table: registry.Table, store: Store) -> dict:
    """Cells of one target: reported; weight-free by status; measured on the stand-in and on the paper's models; not run."""
    standin = show.build(table, store, "standin")["rows"]
    own = [c for row in standin if row["profile"] == "standin" for c in row["cells"].values()]
    rows = show.build(table, store, "paper")["rows"]
    free = {column.label for column in table.columns_for(PAPER) if column.weight_free}
    paper = [(row["shape"] or label in free, cell) for row in rows for label, cell in row["cells"].items()]
    shaped = [cell["status"] for weight_free, cell in paper if weight_free and cell["reproduced"] is not None]
    return {
        "reported": len(reported.numbers(table.paper, table.number)),
        "weight-free": {status: shaped.count(status) for status in ("match", "differs", "measured")},
        "stand-in": sum(_has_content(cell) for cell in own),
        "paper": sum(not weight_free and _has_content(cell) for weight_free, cell in paper),
        "not run": sum(not _has_content(cell) and cell["status"] != "none" for _, cell in paper),
    }


def _has_content(cell: dict) -> bool:
    return cell["reproduced"] is not None or "text" in cell


def minutes() -> dict[str, float]:
    """Target -> minutes that ``make TARGET`` took, by timings.csv: each after those before it, in a clone without records.

    What an earlier target has measured, a later one only reads. A paper's name stands for ``make PAPER``, all but the grid.
    """
    with (ROOT / "reproductions" / "timings.csv").open() as lines:
        return {row["target"]: int(row["seconds"]) / 60 for row in csv.DictReader(lines)}


def overview(store: Store) -> str:
    """The table of tables by paper: how many cells are reported, weight-free, measured here and there, and not run.

    Weight-free cells are given as matching / differing, and those of ours that the paper has no number for. Minutes: see
    `minutes`.
    """
    blocks, timed = [], minutes()
    for paper in registry.PAPERS:
        found = {name: counts(table, store) for name, table in registry.targets().items() if table.paper == paper}
        total = {key: sum(c[key] for c in found.values()) for key in ("reported", "stand-in", "paper", "not run")}
        title = declare.title_of(paper)
        own = sum(timed.get(name, 0.0) for name in found if name.endswith(f"-{paper}"))
        took = timed.get(paper, own) + sum(timed.get(name, 0.0) for name in found if not name.endswith(f"-{paper}"))
        blocks.append(
            f"<details><summary><b>{title}</b>: {len(found)} targets, {total['reported']} reported numbers, "
            f"{total['stand-in']} cells measured on the stand-in ({took:.0f} minutes), "
            f"{total['paper']} on the paper's models"
            "</summary>\n"
        )
        blocks += ["| " + " | ".join(HEADER) + " |", "| --- | --- |" + " ---: |" * (len(HEADER) - 2)]
        for name, c in found.items():
            heading = registry.get(name).title.removeprefix(f"{title}, ")
            cells = (c["reported"], _weight_free(c["weight-free"]), c["stand-in"], c["paper"], c["not run"])
            cells += (f"{timed[name]:.1f}" if name in timed else "",)
            blocks.append(f"| `{name}` | {heading} | " + " | ".join(map(str, cells)) + " |")
        blocks.append("\n</details>\n")
    return "\n".join(blocks).strip()


def _weight_free(statuses: dict[str, int]) -> str:
    """Matching / differing cells, and those that stand beside no printed number."""
    compared = f"{statuses['match']} / {statuses['differs']}" if statuses["match"] or statuses["differs"] else ""
    return " + ".join(filter(None, (compared, f"{statuses['measured']} ours" if statuses["measured"] else "")))


def render(text: str) -> str:
    """README text with every marked part replaced by what the published records say."""
    store = Store(PUBLISHED, None)
    parts = {"tables": overview(store)}
    for name, table in registry.targets().items():
        if f"<!-- {name} -->" not in text:
            continue
        content = show.build(table, store, show.published(table, store))
        # The README shows what is ours; the paper's numbers are one `make` away.
        content["rows"] = [row for row in content["rows"] if row["subject"] != PAPER.name]
        content["subjects"] = [subject | {"origin": "published"} for subject in content["subjects"]]
        parts[name] = tables.render(content, "md").strip()
    for name, part in parts.items():
        pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)"
        text = re.sub(pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.S)
    return text


def main() -> None:
    """Rewrite README.md in place."""
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))


if __name__ == "__main__":
    main()
