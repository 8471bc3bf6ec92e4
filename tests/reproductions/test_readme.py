"""The README's table of tables says what the published records and the reported numbers say."""

import re

from common.results import PUBLISHED, Store
from reproductions import readme, registry, reported, show


def test_counts_are_those_of_the_shown_table():
    table = registry.get("table1-linearpatch")
    store = Store(PUBLISHED, None)
    found = readme.counts(table, store)
    assert found["reported"] == len(reported.numbers("linearpatch", "1"))
    standin = [r for r in show.build(table, store, "standin")["rows"] if r["profile"] == "standin"]
    assert found["stand-in"] == sum(c["reproduced"] is not None for r in standin for c in r["cells"].values()) > 100
    paper = show.build(table, store, "paper")["rows"]
    cells = [cell for row in paper for cell in row["cells"].values()]
    shaped = sum(found["weight-free"].values())
    # every cell of the paper's side is weight-free, measured, waiting, or empty in the paper too
    assert shaped + found["paper"] + found["not run"] + sum(c["status"] == "none" for c in cells) == len(cells)
    assert found["weight-free"]["match"] == sum(row["cells"]["Ratio"]["status"] == "match" for row in paper) > 0


def test_every_target_has_its_line_and_the_summaries_add_up():
    text = readme.overview(Store(PUBLISHED, None))
    lines = dict(re.findall(r"^\| `([^`]+)` \| .*? \| (\d+) \|", text, re.M))
    assert lines.keys() == registry.targets().keys()
    for paper, total in zip(registry.PAPERS, re.findall(r"targets, (\d+) reported", text), strict=True):
        own = [int(lines[name]) for name, table in registry.targets().items() if table.paper == paper]
        assert sum(own) == int(total) > 0


def test_every_target_was_timed_and_no_other():
    timed = readme.minutes()
    assert timed.keys() - set(registry.PAPERS) == registry.targets().keys()
    assert all(0 < value < 60 for value in timed.values())
