"""The benchmarks' runner, on stub scripts: ratios reach the page, a failure has a row, and ONLY keeps the other rows."""

import importlib.util
import json
import sys

import pytest

from common.records.results import ROOT
from common.utils.errors import UserError
from common.utils.ratios import Ratio


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


runner = script("run")

GOOD = """
from common.utils.ratios import Ratio, hand_over
hand_over(Ratio("passes", "{value} s", {value} / 2, "a bare pass", most=1.5))
hand_over(Ratio("calls", "7", 0.25, "a naive loop", dtype=""))
"""
BAD = "import sys; print('some warning', file=sys.stderr); sys.exit('error: the text ends | too early')"
MACHINE = {"cpu": "a slow one", "cores": 2, "torch": "2", "gflops": {"float32": 190}}
ENTRIES = (
    runner.Entry("one"),
    runner.Entry("broken"),
    runner.Entry("two", "What does the second cost?", ("--tokens", "8")),
    runner.Entry("large", usual=False),
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one.py").write_text(GOOD.format(value=4))
    (tmp_path / "two.py").write_text(GOOD.format(value=2) + "import sys; assert sys.argv[1:] == ['--tokens', '8']")
    (tmp_path / "broken.py").write_text(BAD)
    (tmp_path / "large.py").write_text("raise SystemExit('nobody asked for this')")
    return tmp_path


def rows(folder):
    """{first cell: the other cells of its rows} of the page's table of results."""
    return table(folder, 1)


def conditions(folder):
    """{benchmark: question and command, conditions, seconds, date}."""
    return {name: cells for name, [cells] in table(folder, 0).items()}


def table(folder, number):
    found, name = {}, ""
    for line in (folder / "README.md").read_text().split("\n\n")[2 + 2 * number].splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| Benchmark")):
            first, *cells = (cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|"))
            name = first or name  # an empty cell repeats the cell above
            found.setdefault(name, []).append(cells)
    return found


def test_ratios_end_on_the_page_and_a_failure_is_a_row(folder):
    assert runner.run(ENTRIES, (), folder, MACHINE) == ["broken"]
    found = rows(folder)
    assert found["one"] == [
        ["passes", "2", "a bare pass", "≤ 1.5: missed"],
        ["calls", "0.25", "a naive loop", "–"],
    ]
    assert found["two"][0][1:] == ["1", "a bare pass", "≤ 1.5: met"]
    assert [cells[0] for cells in found["broken"]] == ["failed: error: the text ends / too early"]
    assert found["large"][0][0].startswith("not run")
    text = (folder / "README.md").read_text()
    assert "| A | a slow one | 2 | float32 190 |\n" in text
    assert conditions(folder)["two"][0] == "What does the second cost?"


def test_many_rows_of_a_kind_are_one_with_their_median_and_the_goals_met(folder):
    loop = "for name, ratio in zip('abcdefg', (3, 1, 9, 2, 8, 4, 5)):\n    "
    row = 'hand_over(Ratio(f"task {name}: time", "", ratio, f"a pass: {name}", most=3))\n'
    (folder / "one.py").write_text("from common.utils.ratios import Ratio, hand_over\n" + loop + row)
    runner.run(ENTRIES, ("one",), folder, MACHINE)
    line = ["task …: time (7)", "4 (1 to 9)", "a pass", "≤ 3: 3 of 7 met"]
    assert rows(folder)["one"] == [line]


def test_rows_of_a_kind_with_other_goals_stay_apart(folder):
    row = 'hand_over(Ratio("width {0}, 4 tokens", "", {1}, "a pass", most={2}))\n'
    text = "".join(row.format(*one) for one in ((8, 1.2, 1), (16, 1.2, 1), (32, 3, 3)))
    (folder / "one.py").write_text("from common.utils.ratios import Ratio, hand_over\n" + text)
    runner.run(ENTRIES, ("one",), folder, MACHINE)
    assert rows(folder)["one"] == [
        ["width … 4 tokens (2)", "1.2", "a pass", "≤ 1: missed"],
        ["width 32, 4 tokens", "3", "", "≤ 3: met"],
    ]


def test_a_total_and_a_slope_are_two_rows_and_a_baseline_is_written_once(folder):
    rates = (("slow, 4 tokens", 3), ("slow, each further token", 1), ("shared: memory", 2), ("stored: memory", 4))
    rows_of = "".join(f'hand_over(Ratio("{name}", "", {ratio}, "a pass"))\n' for name, ratio in rates)
    (folder / "one.py").write_text("from common.utils.ratios import Ratio, hand_over\n" + rows_of)
    runner.run(ENTRIES, ("one",), folder, MACHINE)
    assert rows(folder)["one"] == [
        ["slow, 4 tokens", "3", "a pass", "–"],
        ["slow, each further token", "1", "", "–"],
        ["…: memory (2)", "2 and 4", "", "–"],
    ]


def test_only_some_are_run_and_the_other_rows_stay_with_their_date(folder):
    runner.run(ENTRIES, (), folder, MACHINE)
    path = folder / "results" / "two.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"date": "2001-02-03"}))
    (folder / "one.py").write_text(GOOD.format(value=8))
    (folder / "two.py").write_text(BAD)
    assert runner.run(ENTRIES, ("one",), folder, MACHINE | {"cores": 64}) == []
    found, run = rows(folder), conditions(folder)
    assert found["one"][0][1] == "4" and run["one"][1].startswith("A") and run["one"][3] != "2001-02-03"
    assert found["two"][0][1] == "1" and run["two"][1].startswith("B") and run["two"][3] == "2001-02-03"
    assert found["broken"][0][0].startswith("failed")


def test_a_failure_takes_the_place_of_older_ratios_and_named_ones_run_though_they_are_not_usual(folder):
    runner.run(ENTRIES, ("two",), folder, MACHINE)
    (folder / "two.py").write_text("pass")
    assert runner.run(ENTRIES, ("two", "large"), folder, MACHINE) == ["two", "large"]
    found = rows(folder)
    assert found["two"][0][0] == "failed: it handed no ratios over" and "nobody asked" in found["large"][0][0]
    assert found["one"][0][0].startswith("not run")


def test_an_unknown_name_is_refused_before_anything_runs(folder):
    with pytest.raises(UserError, match="unknown benchmark 'tow'; did you mean 'two'"):
        runner.run(ENTRIES, ("one", "tow"), folder, MACHINE)
    assert not (folder / "README.md").exists()


def test_every_script_is_an_entry_and_every_entry_has_a_script():
    scripts = {entry.command(ROOT / "benchmarks")[0] for entry in runner.ENTRIES}
    assert scripts == {str(path) for path in (ROOT / "benchmarks").glob("*.py") if path.name != "run.py"}


@pytest.mark.parametrize(
    ("bounds", "met"),
    [({}, None), ({"most": 2}, True), ({"most": 1.9}, False), ({"least": 2}, True), ({"least": 2.1, "most": 3}, False)],
)
def test_whether_a_goal_is_met(bounds, met):
    assert Ratio("", "", 2.0, "", **bounds).met is met
