"""The benchmarks' runner, on stub scripts: ratios reach the page, a failure has a row, and ONLY keeps the other rows."""

import importlib.util
import json
import sys

import pytest

from common.utils.errors import UserError
from common.utils.paths import ROOT
from common.utils.ratios import Ratio


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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
    cells_by_name, name = {}, ""
    for line in (folder / "README.md").read_text().split("\n\n")[2 + 2 * number].splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| Benchmark")):
            first, *cells = (cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|"))
            name = first or name  # an empty cell repeats the cell above
            cells_by_name.setdefault(name, []).append(cells)
    return cells_by_name


def test_ratios_end_on_the_page_and_a_failure_is_a_row(folder):
    assert runner.run(ENTRIES, (), folder, MACHINE) == ["broken"]
    shown_rows = rows(folder)
    calls = ["calls", "0.25", "a naive loop", "–"]
    assert shown_rows["one"] == [["passes", "2", "a bare pass", "≤ 1.5: missed"], calls]
    assert shown_rows["two"][0][1:] == ["1", "a bare pass", "≤ 1.5: met"]
    assert [cells[0] for cells in shown_rows["broken"]] == ["failed: error: the text ends / too early"]
    assert shown_rows["large"][0][0].startswith("not run")
    text = (folder / "README.md").read_text()
    assert "| A | a slow one | 2 | float32 190 |\n" in text
    assert conditions(folder)["two"][0] == "What does the second cost?: `python benchmarks/two.py --tokens 8`"


def shown(folder, ratios):
    """Rows of the page for one script that hands over {name: (ratio, most)}."""
    lines = ["from common.utils.ratios import Ratio, hand_over"]
    lines += [
        f'hand_over(Ratio({name!r}, "", {ratio}, "a pass", most={most}))' for name, (ratio, most) in ratios.items()
    ]
    (folder / "one.py").write_text("\n".join(lines))
    runner.run(ENTRIES, ("one",), folder, MACHINE)
    return rows(folder)["one"]


def test_many_rows_of_a_kind_are_one_with_their_median_and_missed_goals_are_apart(folder):
    name = "reassessing, Table {}, Reverse-order +lm_head & last {}: training time s"
    rows = {"31": 3, "32": 1, "E3": 9, "E4": 2, "E5": 0.5, "E6": 2.5}
    ratios = {name.format(*row): (ratio, 3) for row, ratio in rows.items()}
    assert shown(folder, ratios) == [
        ["reassessing, Table …: training time s (5)", "2 (0.5 to 3)", "a pass", "≤ 3: met"],
        ["reassessing, Table E, Reverse-order +lm_head & last 3: training time s", "9", "", "≤ 3: missed"],
    ]


def test_a_few_rows_of_a_kind_are_one_with_all_names_and_ratios(folder):
    metrics = {"bi": 2, "ppl": 1, "mag+": 3}
    loop = {f"Prune&Comp's loop by {metric}: time": (ratio, None) for metric, ratio in metrics.items()}
    tools = {f"{tool}, llama-2-7b's shape, 3 GB allowed: memory": (2, 4) for tool in ("linearpatch", "refit")}
    assert shown(folder, loop | tools) == [
        ["Prune&Comp's loop by bi, ppl and mag+: time", "2, 1, 3", "a pass", "–"],
        ["linearpatch and refit, llama-2-7b's shape, 3 GB allowed: memory", "2, 2", "", "≤ 4: met"],
    ]


def test_a_total_and_its_slope_are_one_row_but_channels_and_quantities_stay_apart(folder):
    names = [
        "refit, following 3, C = 576, layers 15 to 21 of 30, 4096 tokens",
        "refit, following 3, C = 576, layers 15 to 21 of 30, each further token",
        "refit, following 3, C = 4096, layers 2 to 2 of 6, 4096 tokens",
        "refit, following 0, C = 4096, layers 2 to 2 of 6, 4096 tokens",
        "paper profile, 8 workers (simulated): time to the last record",
        "paper profile, 64 workers (simulated): time to the last record",
    ]
    ratios = {name: (number, 9) for number, name in enumerate(names, 1)}
    one, *others = [cells[:2] for cells in shown(folder, ratios)]
    assert one == [f"{names[0]} and each further token", "1, 2"]
    assert others == [[name, str(ratio)] for name, (ratio, _) in list(ratios.items())[2:]]


def test_only_some_are_run_and_the_other_rows_stay_with_their_date(folder):
    runner.run(ENTRIES, (), folder, MACHINE)
    path = folder / "results" / "two.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"date": "2001-02-03"}))
    (folder / "one.py").write_text(GOOD.format(value=8))
    (folder / "two.py").write_text(BAD)
    assert runner.run(ENTRIES, ("one",), folder, MACHINE | {"cores": 64}) == []
    shown_rows, run = rows(folder), conditions(folder)
    assert shown_rows["one"][0][1] == "4" and run["one"][1].startswith("A") and run["one"][3] != "2001-02-03"
    assert shown_rows["two"][0][1] == "1" and run["two"][1].startswith("B") and run["two"][3] == "2001-02-03"
    assert shown_rows["broken"][0][0].startswith("failed")


def test_a_failure_takes_the_place_of_older_ratios_and_named_ones_run_though_they_are_not_usual(folder):
    runner.run(ENTRIES, ("two",), folder, MACHINE)
    (folder / "two.py").write_text("pass")
    assert runner.run(ENTRIES, ("two", "large"), folder, MACHINE) == ["two", "large"]
    shown_rows = rows(folder)
    assert shown_rows["two"][0][0] == "failed: it handed no ratios over" and "nobody asked" in shown_rows["large"][0][0]
    assert shown_rows["one"][0][0].startswith("not run")


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
