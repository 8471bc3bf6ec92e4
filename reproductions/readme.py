"""Write the tables of README.md from the published records: ``python -m reproductions.readme`` (``make readme``)."""

from __future__ import annotations

import re

from common import tables
from common.results import PUBLISHED, ROOT, Store
from reproductions import registry, show


def overview(store: Store) -> str:
    """The table of tables: for each target, how many cells are reported, measured on the stand-in, on the paper's models."""
    lines = ["| Target | Title | Reported | Measured on the stand-in | On the paper's models | Not run |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, table in registry.targets().items():
        standin = show.build(table, store, "standin")["rows"]
        own = [c for row in standin if row["profile"] == "standin" for c in row["cells"].values()]
        paper = [c for row in show.build(table, store, "paper")["rows"] for c in row["cells"].values()]
        reported = len(set(map(id, registry.reported_numbers(table.paper, table.number).values())))
        on_paper = sum(c["reproduced"] is not None for c in paper)
        waiting = sum(c["reproduced"] is None and c["status"] != "none" for c in paper)
        measured = sum(c["reproduced"] is not None for c in own)
        lines.append(f"| `{name}` | {table.title} | {reported} | {measured} | {on_paper} | {waiting} |")
    return "\n".join(lines)


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
