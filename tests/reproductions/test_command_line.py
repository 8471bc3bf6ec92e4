"""The command line as a user meets it, and the runner: nothing measured twice, one failure stops nothing."""

import csv
import dataclasses
import errno
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from fake_measure import FakeMeasure
from tools import measure_missing, status_of

from common.records import results
from common.records.results import Store
from common.toy import WEIGHTS
from common.utils.errors import UserError
from common.utils.paths import ROOT
from figures import style
from reproductions.__main__ import main
from reproductions.engine import execute, runner
from reproductions.spec import registry, shape_recipes, subjects
from reproductions.spec.subjects import PAPER, TOY

pytestmark = pytest.mark.usefixtures("few_replicates")
TASK = "docstring_word@1"  # one of the toy model's
QWEN = subjects.of_model("qwen2.5-coder-0.5b-instruct")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("show table1-linearpach", "unknown target 'table1-linearpach'; did you mean 'table1-linearpatch'"),
        ("show table1-linearpatch --profile papr", "unknown profile 'papr'; did you mean 'paper'?"),
        ("show table1-linearpatch --format markdwn", "unknown format 'markdwn'"),
        ("run table1-linearpatch --row ShortGTP", "unknown row 'ShortGTP'; did you mean 'ShortGPT'?"),
        ("run table1-linearpatch --columns Form,Sumary", "unknown column 'Sumary'; did you mean 'Summary'?"),
        ("show table11-linearpatch --columns ,", "--columns names no column"),
        ("show table11-linearpatch --columns StdLob", "unknown column 'StdLob'; did you mean 'StdLib'"),
        ("run table1-linearpatch --profile paper --model llama2-7b", "did you mean 'llama-2-7b'"),
        ("run table1-linearpatch --limit 1", "--limit 1: 1 item leaves no standard error"),
        ("run table1-linearpatch --limit 2 --device qpu", "device 'qpu' cannot be used here; try 'cpu'"),
        ("run table1-linearpatch --limit 2 --dtype floot16", "did you mean 'float16'?"),
        ("show table1-linearpatch table11-linearpatch --row SLIB", "unknown row 'SLIB'; did you mean 'SLEB'?"),
        (
            "run table5-linearpatch --profile standin --model llama-2-13b",
            "unknown model in the toy profile 'llama-2-13b'; known: toy",
        ),
        ("show table1-linearpatch --model ./nothing-there", "cannot load ./nothing-there: no such directory"),
        (
            "show table1-linearpatch --model baichuan2-13b --remove 7",
            "baichuan2-13b cannot be loaded here: its positions are ALiBi's",
        ),
        ("show table1-linearpatch --remove 7", "say which with --model"),
        ("show table1-linearpatch --paper-budget", "of the papers' own models have one size"),
        ("show table1-linearpatch --full-test-sets", "error: --full-test-sets needs a model"),
        ("show table1-linearpatch --whole", "error: --whole has a new name. Use --full-test-sets."),
        ("show table1-linearpatch --full", "error: --full has a new name. Use --paper-budget."),
        ("show table8-linearpatch", "table8-linearpatch is no target: the paper's holds download links"),
        ("run figure2-laco", "figure2-laco is no target: the paper's holds a drawing"),
        ("show table1-linearpatch --model standin --remove 7,x", "--remove '7,x' is no list"),
        ("show table1-linearpatch --model standin --remove 15", "15 of them cannot be removed"),
        ("run table1-linearpatch --model llama-2-7b --row Dense", "6.7 B parameters, and there is no GPU"),
    ],
)
def test_bad_input_is_one_line_that_names_it(command, message, capsys):
    assert status_of(main, command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_list_names_every_target(capsys):
    assert main(["list", "--json"]) == 0
    listed = {entry["target"]: entry["title"] for entry in json.loads(capsys.readouterr().out)}
    assert listed == {name: table.title for name, table in registry.targets().items()}


def test_listing_and_showing_load_no_model_library(tmp_path):
    """A table and a drawn figure of each paper; the slow case of test_labels.py looks at every target."""
    few = {(table.paper, bool(table.draw)): name for name, table in registry.targets().items()}.values()
    code = (
        "import sys; from common.evaluation import significance; significance.REPLICATES = 50;"  # no number is looked at
        "from figures import style; from reproductions.__main__ import main;"
        "style.save = lambda figure, *_: style.plt.close(figure) or []; targets = sys.argv[1:];"
        "main(['list']); main(['show', *targets]);"
        "main(['show', *targets[::3], '--profile', 'paper', '--model', 'smollm2-135m-instruct']);"
        "print([m for m in ('torch', 'transformers', 'datasets', 'lm_eval') if m in sys.modules], file=sys.stderr)"
    )
    environment = os.environ | {"LAYERLAB_RESULTS": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, *few], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stderr.splitlines()[-1] == "[]" and "error" not in done.stderr
    assert all(registry.get(name).title in " ".join(done.stdout.split()) for name in few)


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(subjects, "toy_digest", lambda: "digest")
    return registry.get("table1-linearpatch")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, None)


@pytest.fixture
def measure_toy(table, store):
    """Measure what the table lacks of the toy model, with a fake; return the number of cells that failed."""
    return lambda fake, **chosen: measure_missing([table], store, TOY, fake, models=["standin"], **chosen)


def test_each_cell_is_measured_once_and_each_model_prepared_once(table, store, measure_toy):
    first, second = FakeMeasure(), FakeMeasure()
    assert measure_missing([table, table], store, TOY, first, models=["standin"]) == 0
    assert len(first.prepared) == len(set(first.prepared)) == 13
    assert len(first.measured) == len(set(first.measured)) == 13 * 10
    assert measure_toy(second) == 0 and second.prepared == []
    assert measure_toy(second, force=True, pattern="sleb") == 0 and len(second.prepared) == 2


def test_what_was_trained_is_measured_before_the_next_model_is_prepared(store):
    """A kill during the next training loses nothing; the others are held together."""
    fake = FakeMeasure(held_together=execute.held_together)
    assert measure_missing([registry.get("table2-reassessing")], store, TOY, fake) == 0
    steps = [("measured" if benchmark else "prepared", bool(recipe.training)) for recipe, benchmark in fake.steps]
    order = [step for step, _ in itertools.groupby(steps)]
    assert order.count(("prepared", False)) < steps.count(("prepared", False))
    assert order.count(("prepared", True)) == steps.count(("prepared", True)) > 1
    for place, step in enumerate(order):
        if step == ("prepared", True):
            assert order[place + 1] == ("measured", True)


def test_only_the_named_columns_are_shown(show_json):
    """By label or id, in either case."""
    command = ["table11-linearpatch", "--model", "toy"]
    whole, narrowed = show_json(*command)["rows"], show_json(*command, "--columns", "stdlib,ppl*")["rows"]
    assert {tuple(row["cells"]) for row in narrowed if row["subject"] == "standin"} == {("StdLib", "PPL AVG")}
    for narrowed_row, row in zip(narrowed, whole, strict=True):
        assert narrowed_row["method"] == row["method"] and narrowed_row["cells"].items() <= row["cells"].items()


@pytest.mark.parametrize("form", ["terminal", "md", "latex", "html"])
@pytest.mark.parametrize(
    ("column", "shown", "hidden"),
    [
        ("StdLib", "Measured on the toy model", "Measured on SmolLM2"),  # a text that the toy model alone reads
        ("Ratio", "Measured on SmolLM2", "(measured)"),  # the original model has none
    ],
)
def test_models_without_the_named_columns_are_not_shown(capsys, form, column, shown, hidden):
    assert main(["show", "table11-linearpatch", "--columns", column, "--format", form]) == 0
    text = capsys.readouterr().out
    assert shown in text and hidden not in text and "not run" not in text


@pytest.mark.parametrize("more", [[], ["--alpha", "0.9"]])
def test_targets_without_the_named_columns_are_left_out_and_named(capsys, more):
    targets = ["table1-linearpatch", "table11-linearpatch"]
    assert main(["show", *targets, "--columns", "StdLib", *more, "--format", "json"]) == 0
    output = capsys.readouterr()
    assert [table["target"] for table in json.loads(output.out)] == targets[1:]
    assert output.err == "table1-linearpatch is left out: it has no column StdLib\n"


def test_beside_a_change_each_model_has_its_own_columns(show_json):
    def columns(*arguments):
        tables = show_json("table11-linearpatch", "--samples", "16", *arguments)
        return {row["column"] for table in tables if table["subject"] == "standin" for row in table["rows"]}

    both = ["--model", "llama-2-7b", "--model", "toy"]
    assert columns(*both) == columns("--model", "toy") > {"StdLib", "Numeric", "Learning"}
    assert columns(*both, "--columns", "StdLib") == {"StdLib"}


@pytest.mark.parametrize(
    ("named", "labels"),
    [
        ("matrix is best, %", {"matrix is best, %"}),
        ("patch-helps, MATRIX is best, %", {"A lowers PPL, % of interfaces", "matrix is best, %"}),
        ("matrix is best, %,matrix lowers*,", {"matrix is best, %", "matrix lowers PPL, %"}),
    ],
)
@pytest.mark.parametrize("command", ["show", "run"])
def test_a_label_with_a_comma_is_one_column(capsys, command, named, labels):
    assert main([command, "figure4-linearpatch", "--model", "toy", "--columns", named, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {label for row in rows for label in row["cells"]} == labels


def test_only_the_named_columns_are_measured(store):
    """Of every row, by labels in either case."""
    table = registry.get("table1-linearpatch")
    work = runner.missing([table], store, QWEN, columns=("copa", "wiki*"))
    assert len(work) == len(table.rows(QWEN))
    assert {tuple(entry.benchmarks) for entry in work} == {("copa", "perplexity@linearpatch-wikitext2@49152-tokens")}


@pytest.mark.parametrize("column", ["avg", "RP"])
def test_of_a_derived_column_its_parts_are_measured(store, column):
    """LinearPatch's AVG is over nine tasks, not its ratio nor texts."""
    nine = ["arc_challenge", "arc_easy", "boolq", "copa", "hellaswag", "piqa", "race_v2", "winogrande", "wsc273"]
    for entry in runner.missing([registry.get("table1-linearpatch")], store, QWEN, columns=(column,)):
        assert sorted(benchmark.partition("@")[0] for benchmark in entry.benchmarks) == nine


def test_a_column_of_another_model_asks_for_the_model(capsys):
    assert main(["run", "table1-linearpatch", "--columns", "ARC-c"]) == 2
    assert "no --model (make: MODEL=) is given, so columns are the toy model's: unk" in capsys.readouterr().err
    assert main(["run", "table1-linearpatch", "--columns", "ARC-c", "--model", "toy"]) == 2
    assert "MODEL=" not in capsys.readouterr().err


def test_a_column_that_one_of_two_models_has_is_measured_there(capsys):
    both = ["--model", "toy", "--model", "smollm2-135m-instruct"]
    command = ["run", "table1-linearpatch", *both, "--list-work", "--force", "--columns"]
    assert main([*command, "StdLib"]) == 2  # of another table
    capsys.readouterr()
    assert main([*command, "Form"]) == 0
    assert {line.partition("--model ")[2].split()[0] for line in capsys.readouterr().out.splitlines()} == {"toy"}


def test_one_command_shows_the_papers_own_models_and_others(capsys):
    models = ["--model", "llama-2-7b", "--model", "smollm2-135m-instruct"]
    assert main(["show", "table1-linearpatch", *models, "--row", "SLEB", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["subject"] for row in shown["rows"] if not row["dense"]} == {"paper", "smollm2-135m-instruct"}
    assert {row["model"] for row in shown["rows"] if row["subject"] == "paper"} == {"LLaMA-2-7B"}


@pytest.mark.parametrize(
    ("target", "pattern"),
    [("tableN-reassessing", "Taylor?1:1:15*"), ("league-measures", "*from?both?texts")],
)
def test_a_row_is_shown_of_every_model_that_has_it(capsys, target, pattern):
    assert main(["show", target, "--row", pattern, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    with_rows = {row["subject"] for row in shown["rows"] if not row["dense"]}
    assert with_rows == {subject["name"] for subject in shown["subjects"]} and "smollm2-135m-instruct" in with_rows


def test_a_target_that_is_named_twice_is_shown_once(capsys):
    shown = []
    for times in (1, 2):
        assert main(["show", *["table1-linearpatch"] * times, "--model", "toy", "--row", "SLEB", "--format", "md"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_the_command_under_a_table_names_a_directory_as_it_was_typed(capsys, tmp_path):
    folder = tmp_path / "my model"
    shutil.copytree(WEIGHTS, folder)
    asked = ["table1-linearpatch", "--model", str(folder), "--remove", "3", "--row", "SLEB"]
    assert main(["show", *asked]) == 0
    (command,) = re.findall(r"`python -m reproductions (.*?)`", " ".join(capsys.readouterr().out.split()))
    assert shlex.split(command)[shlex.split(command).index("--model") + 1] == str(folder)


def test_the_command_under_a_table_measures_the_same_part(capsys):
    part = ["table1-linearpatch", "--model", "toy", "--row", "Linear*", "--limit", "7", "--columns", "Form,Word"]
    assert main(["show", *part]) == 0
    text = " ".join(capsys.readouterr().out.split())  # wrapped at the terminal's width
    (command,) = re.findall(r"`python -m reproductions (.*?)`", text)
    work = []
    for words in (shlex.split(command), ["run", *part]):
        assert main([*words, "--list-work"]) == 0
        work.append(capsys.readouterr().out)
    assert work[0] == work[1] != ""


@pytest.mark.parametrize(
    ("seconds", "device", "sizes"),
    [(1, "cpu", [4]), (1, "cuda", [4]), (250, "cpu", [3, 1]), (250, "cuda", [1, 1, 1, 1]), (40, "cuda", [2, 2])],
)
def test_what_takes_long_to_prepare_is_held_together_with_few(store, monkeypatch, seconds, device, sizes):
    """Of one row at four numbers of layers: the next model is prepared unless the first has waited for long."""
    fake = FakeMeasure(held_together=execute.held_together)
    monkeypatch.setattr(runner.time, "monotonic", lambda: seconds * len(fake.prepared))
    subject = subjects.of_model("smollm2-135m-instruct")
    chosen = {"pattern": "contiguous block, no repair", "device": device}
    measure_missing([registry.get("league")], store, subject, fake, **chosen)
    groups = itertools.groupby(benchmark is None for _, benchmark in fake.steps)
    assert [len(list(steps)) for prepared, steps in groups if prepared] == sizes


def test_the_layers_of_a_row_that_has_records_are_handed_on_unless_it_is_measured_anew(measure_toy):
    details, recorded = {"removed": [7, 3]}, []
    for failing, force in ((["copa_like", TASK], False), ([], False), ([], True)):
        fake = FakeMeasure(failing, details=details)
        measure_toy(fake, pattern="sleb", force=force)
        recorded += fake.recorded
    assert recorded == [None, None, details, details, None, None]


def test_a_row_is_of_one_model_another_choice_is_refused_unless_it_is_measured_anew(measure_toy, store):
    def run(removed, failing=(), **options):
        return measure_toy(FakeMeasure(failing, details={"removed": removed}), pattern="sleb", **options)

    failed = run([7, 3], [TASK])
    assert failed > 0 and run([7, 5]) == failed
    reasons = [json.loads(path.read_text()).get("reason") for path in store.user.rglob(f"{TASK}.json")]
    assert reasons and all("removed [5, 7], is not that of this row's records, [3, 7]" in reason for reason in reasons)
    assert run([3, 7]) == 0  # in another order
    assert run([7, 5], force=True) == 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.float32(0.5), "TypeError: Object of type float32 is not JSON serializable"),
        (torch.tensor(0.5), "TypeError: Object of type Tensor is not JSON serializable"),
        ("0.5", "Unreadable: values: 'acc' is not a number"),
    ],
    ids=["numpy", "tensor", "text"],
)
def test_a_value_that_a_record_cannot_hold_fails_its_cell_alone(value, reason, table, store, measure_toy):
    class Odd(FakeMeasure):
        def benchmark(self, prepared, name):
            outcome = super().benchmark(prepared, name)
            return ({"acc": value}, {}, {}) if name == TASK else outcome

    odd = Odd()
    assert measure_toy(odd, pattern="Dense") == 1
    recipe = table.rows(TOY, None)[0].recipe
    records = {name: store.get(recipe, name) for _, name in odd.measured}
    failed = records.pop(TASK)
    assert (failed.status, failed.reason) == ("failed", reason)
    assert {record.status for record in records.values()} == {"ok"} and len(records) > 4


def test_one_reason_for_many_cells_is_said_once(table, store, measure_toy, caplog):
    class Unreachable(FakeMeasure):
        def prepare(self, recipe, **options):
            raise UserError("could not fetch it: no network")

    assert measure_toy(Unreachable()) == 130
    assert caplog.text.count("no network") == 1
    assert store.get(table.rows(TOY, None)[0].recipe, "parameters").reason == "could not fetch it: no network"


def test_one_model_is_held_at_a_time(measure_toy):
    """The memory of a model is free again before the next one is loaded."""

    class Model:
        pass

    class Heavy(FakeMeasure):
        def prepare(self, recipe, **options):
            assert not self.prepared or self.last() is None
            context = super().prepare(recipe, **options)
            context.model = Model()
            self.last = weakref.ref(context.model)
            return context

    heavy = Heavy()
    assert measure_toy(heavy) == 0 and len(heavy.prepared) == 13


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory; use a larger device"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                      "tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)"), "out of memory; use a larger"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), "out of memory; use"),
        (MemoryError(), "out of memory; use a larger device, --dtype bfloat16 or --device auto"),
        (OSError(errno.ENOSPC, "No space left on device", "/w/store"), "no space left on the disk (/w/store); free some"),
        (UserError("no such thing; use another"), "no such thing; use another"),
        (ZeroDivisionError("division by zero\nmore"), "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_with_its_remedy(error, reason):
    described = runner.describe(error)
    assert described.startswith(reason) and "\n" not in described


@pytest.fixture
def measured_by(monkeypatch, tmp_path, table):
    """The command line with a fake in place of models; records in a folder of their own."""

    def use(fake):
        monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "mine"))
        for name in ("prepare", "benchmark"):
            monkeypatch.setattr(execute, name, getattr(fake, name))
        return lambda: len(list((tmp_path / "mine").rglob("*.json")))

    return use


DENSE = ["run", "table1-linearpatch", "--limit", "2", "--row", "Dense"]


def test_ctrl_c_keeps_what_is_finished_and_the_next_run_continues_from_there(measured_by, capsys):
    records = measured_by(interrupted := FakeMeasure(interrupted_after=3))
    command = ["run", "table1-linearpatch", "--limit", "2", "--no-show"]
    assert main(command) == 130
    output = capsys.readouterr()
    *begun, last = output.err.splitlines()
    assert last == "interrupted; finished measurements are kept, run the same command to continue" and not output.out
    assert " to measure: about " in begun[0] and all(line.startswith("measuring: ") for line in begun[1:])
    assert records() == 3
    measured_by(rest := FakeMeasure())
    assert main(command) == 0 and records() == 130
    assert not set(interrupted.measured) & set(rest.measured) and len(rest.measured) == 127


def test_a_disk_that_fills_up_stops_the_run_and_keeps_what_is_finished(measured_by, capsys, monkeypatch):
    records = measured_by(FakeMeasure())
    real, calls = results.os.fsync, []

    def fills_up(file):
        calls.append(file)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(results.os, "fsync", fills_up)
    assert main(["run", "table1-linearpatch", "--limit", "2"]) == 2
    *begun, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: cannot write the record ")
    assert " to measure: about " in begun[0] and all(line.startswith("measuring: ") for line in begun[1:])
    assert "No space left on device; free space there or name another folder in LAYERLAB_RESULTS" in error
    assert records() == 3


def test_a_value_that_cannot_be_measured_anew_is_said_to_be_kept(measured_by, capsys):
    measured_by(FakeMeasure())
    assert main([*DENSE, "--no-show"]) == 0
    measured_by(FakeMeasure([TASK]))
    assert main([*DENSE, "--no-show", "--force"]) == 1
    output = capsys.readouterr().err
    assert "1 cell failed; values of before are kept, and only --force tries those again" in output
    measured_by(fake := FakeMeasure())
    assert main([*DENSE, "--no-show"]) == 0 and not fake.measured  # the next run does not


def test_a_recipe_that_no_table_has_is_refused_and_one_that_is_measured_is_not(measured_by, capsys):
    measured_by(fake := FakeMeasure())
    assert main([*DENSE, "--no-show"]) == 0
    recipe_hash = fake.prepared[0]
    assert main([*DENSE, "--no-show", "--recipe", recipe_hash]) == 0
    assert "nothing to measure" in capsys.readouterr().err
    for unknown in ("0123456789abcdef", f"{recipe_hash}:nonsense"):
        assert main([*DENSE, "--no-show", "--recipe", unknown]) == 2
        assert capsys.readouterr().err.startswith("error: unknown ")


def test_measuring_anew_is_cut_off_as_the_help_says(measured_by, capsys):
    """With --force it begins anew, without the old records stay."""
    command = [*DENSE, "--no-show"]
    for fake, more, status in (
        (FakeMeasure(), [], 0),
        (FakeMeasure(interrupted_after=3), ["--force"], 130),
        (without := FakeMeasure(), [], 0),
        (forced := FakeMeasure(), ["--force"], 0),
    ):
        measured_by(fake)
        assert main([*command, *more]) == status
    assert (len(without.measured), len(forced.measured)) == (0, 10)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "if interrupted, give --force again to start over" in " ".join(capsys.readouterr().out.split())


def test_a_run_ends_with_its_table_and_says_what_failed(measured_by, capsys):
    records = measured_by(FakeMeasure([TASK]))
    assert main([*DENSE, "--format", "json"]) == 1 and records() == 10  # a failed cell hides no other
    output = capsys.readouterr()
    assert "1 cell failed; the reasons are recorded and the next run tries again" in output.err
    cells = json.loads(output.out)["rows"][0]["cells"]
    assert cells["Continue"]["reproduced"] == 50
    assert cells["Word"]["status"].startswith("failed: out of memory; use")
    measured_by(again := FakeMeasure())
    assert main([*DENSE, "--no-show"]) == 0 and not capsys.readouterr().out
    assert [benchmark for _, benchmark in again.measured] == [TASK]
    assert main(DENSE) == 0  # nothing is left to measure
    output = capsys.readouterr()
    assert output.out.startswith("LinearPatch, Table 1") and "nothing to measure" in output.err


def test_pictures_that_cannot_be_written_hide_no_table(capsys, monkeypatch, tmp_path):
    """As in a checkout that may only be read."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(style, "DRAWN", tmp_path / "file" / "rendered")
    assert main(["show", "figure4-laco", "figure2-prunecomp"]) == 0
    output = capsys.readouterr()
    assert "LaCo, Figure 4" in output.out and "Prune&Comp, Figure 2" in output.out
    assert output.err.startswith("no pictures: cannot write the picture to ") and output.err.count("\n") == 1


def test_several_targets_may_be_narrowed_to_rows_that_only_some_have(store, capsys):
    both = [registry.get("table1-linearpatch"), registry.get("table5-linearpatch")]
    work = runner.missing(both, store, PAPER, models=["llama-2-13b"])
    alone = runner.missing(both[:1], store, PAPER, models=["llama-2-13b"])
    assert [entry.recipe.hash for entry in work] == [entry.recipe.hash for entry in alone]
    shown_for = ["--profile", "paper", "--model", "llama-2-13b"]
    assert main(["show", "table5-linearpatch", "table1-linearpatch", *shown_for]) == 0
    shown = capsys.readouterr().out
    assert "Table 1:" in shown and "Table 5:" not in shown


def test_a_paper_model_by_its_hub_id_is_that_model(store, capsys):
    shown = []
    for name in ("llama-2-13b", "meta-llama/Llama-2-13b-hf"):
        assert main(["show", "table1-linearpatch", "--profile", "paper", "--model", name]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "LLaMA-2-13B" in shown[0]


def test_what_only_a_shape_has_is_never_asked_of_weights(store):
    """Table 3's trainable parameters, Table 7's memory, Table D's multiply-adds."""
    for number, benchmark in (("3", "trainable"), ("7", "memory"), ("D", "macs")):
        work = runner.missing([registry.get(f"table{number}-reassessing")], store, PAPER)
        assert {entry.recipe.weights for entry in work if benchmark in entry.benchmarks} == {shape_recipes.SHAPE_ONLY}
        assert any(entry.recipe.weights != shape_recipes.SHAPE_ONLY for entry in work)


def test_a_quick_look_never_passes_for_the_whole_measurement(table, store, measure_toy):
    measure_toy(FakeMeasure(), limit=20)
    whole = table.rows(TOY, None)[0].recipe
    assert store.get(whole, "parameters") is None
    assert store.get(dataclasses.replace(whole, limit=20), "parameters").recipe["limit"] == 20


def test_show_holds_the_stable_form(show_json, monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path))
    table = show_json("table1-linearpatch")
    assert set(table) >= {"target", "profile", "title", "rows", "claims"}
    for row in table["rows"]:
        assert set(row) >= {"model", "sparsity", "method", "cells"}
        for cell in row["cells"].values():
            assert set(cell) >= {"reported", "reproduced", "stderr", "status"}
            if row["subject"] != "paper":
                assert cell["reported"] is None
            else:  # of the paper's models only what needs no weights
                assert cell["reproduced"] is None or cell is row["cells"]["Ratio"]
    assert all(set(c) >= {"text", "reported", "reproduced"} for c in table["claims"])


def test_several_targets_are_one_list_and_one_table(show_json, capsys):
    both = ["table1-linearpatch", "table9-linearpatch"]
    shown = show_json(*both)
    assert [table["target"] for table in shown] == both
    assert main(["show", *both, "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    cells = [(line["target"], line["row_id"]) for line in lines if line["column"] != "claim"]
    assert cells == [(table["target"], row["id"]) for table in shown for row in table["rows"] for _ in row["cells"]]


def test_show_fits_the_terminal(capsys, monkeypatch):
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["show", "table1-laco"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert width // 2 < max(map(len, lines)) <= width


def test_a_folder_that_cannot_hold_records_is_refused_before_measuring(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "file"))
    assert main(["run", "table1-linearpatch", "--limit", "2"]) == 2
    assert "cannot write records to" in capsys.readouterr().err
