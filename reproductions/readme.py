"""Write the tables of README.md from the published records: ``python -m reproductions.readme`` (``make readme``)."""

from __future__ import annotations

import re

from common import tables
from common.results import PUBLISHED, ROOT, Store
from reproductions import registry, reported, show


def overview(store: Store) -> str:
    """The table of tables: how many cells are reported, weight-free, measured on the stand-in and on the paper's models.

    Weight-free cells are given as matching / differing, and those of ours that the paper has no number for.
    """
    lines = ["| Target | Title | Reported | Weight-free | On the stand-in | On the paper's models | Not run |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, table in registry.targets().items():
        standin = show.build(table, store, "standin")["rows"]
        own = [c for row in standin if row["profile"] == "standin" for c in row["cells"].values()]
        rows = show.build(table, store, "paper")["rows"]
        free = {column.label for column in table.columns("paper") if column.weight_free}
        paper = [(label in free, cell) for row in rows for label, cell in row["cells"].items()]
        shaped = [cell["status"] for weight_free, cell in paper if weight_free and cell["reproduced"] is not None]
        weighed = sum(cell["reproduced"] is not None for weight_free, cell in paper if not weight_free)
        waiting = sum(cell["reproduced"] is None and cell["status"] != "none" for _, cell in paper)
        counts = (
            len(reported.numbers(table.paper, table.number)),
            _weight_free(shaped),
            sum(c["reproduced"] is not None for c in own),
            weighed,
            waiting,
        )
        lines.append(f"| `{name}` | {table.title} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def _weight_free(statuses: list[str]) -> str:
    """Matching / differing cells, and those that stand beside no printed number."""
    ours = statuses.count("measured")
    compared = f"{statuses.count('match')} / {statuses.count('differs')}" if len(statuses) > ours else ""
    return " + ".join(filter(None, (compared, f"{ours} ours" if ours else "")))


def render(text: str) -> str:
    """README text with every marked part replaced by what the published records say."""
    store = Store(PUBLISHED, None)
    parts = {"tables": overview(store)}
    for name, table in registry.targets().items():
        content = show.build(table, store, "standin")
        # The README shows what is ours; the paper's numbers are one `make` away.
        content["rows"] = [row for row in content["rows"] if row["profile"] == "standin"]
        parts[name] = tables.render(content | {"origin": "published"}, "md").strip()
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
