"""The GPU script: every part runs on tiny shapes without a GPU, and refuses to measure the real ones there."""

import importlib.util
import sys

import pytest
import torch

from common.training.finetuning.methods import attach
from common.utils.paths import ROOT
from reproductions.spec import reported

spec = importlib.util.spec_from_file_location("gpu_shapes", ROOT / "benchmarks" / "gpu_shapes.py")
gpu_shapes = sys.modules["gpu_shapes"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_shapes)


def test_it_refuses_without_cuda(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_shapes.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no CUDA device") and "--tiny" in captured.err


def test_every_cell_it_would_measure_is_one_that_a_table_prints(monkeypatch, capsys):
    """On tiny shapes: names meet the reported numbers, and only our own columns have none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    measure, cells = gpu_shapes.measure, []
    monkeypatch.setattr(gpu_shapes, "measure", lambda *asked: cells.extend(measure(*asked)) or cells)
    assert gpu_shapes.main(["--tiny"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(cells) + 1
    for cell in cells:
        assert (cell["printed"] is None) == ("(extension)" in cell["column"]), cell
    timed = [c for c in cells if c["column"] in ("Time cost (s)", "training time s")]
    times = [c["measured"] for c in timed if "QLoRA" not in c["method"]]  # which needs bitsandbytes
    assert len(times) == 2 + 4 and all(seconds > 0 for seconds in times)
    # A CPU has no such thing
    assert all(c["measured"] is None for c in cells if "GB" in c["column"] or "MiB" in c["column"])


def test_its_rows_are_those_of_both_tables():
    names = set(gpu_shapes.arms(tiny=False))
    for table in ("3", "E"):
        assert {reported.row_name(n.method, n.variant) for n in reported.numbers("reassessing", table)} <= names


@pytest.mark.parametrize("last", [0, 2])
def test_partial_rows_train_what_the_table_counts(last):
    """Head, final norm and the last layers of the tiny shape."""
    model = gpu_shapes.pruned("cpu", tiny=True)
    settings = gpu_shapes.arms(tiny=True)["Reverse-order +lm_head" + (f" & last {last}" if last else "")]
    trained = sum(p.numel() for p in attach(model, settings).parameters.values())
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    assert trained == 32 * 64 + 32 + last * layer


def test_peaks_of_memory_begin_when_the_layers_are_removed(monkeypatch):
    """The whole model of Table D's shape holds 7.5 GB more than what is measured."""
    order = []
    remove, forget = gpu_shapes.remove_layers, gpu_shapes._forget
    monkeypatch.setattr(gpu_shapes, "remove_layers", lambda *a: (remove(*a), order.append("removed")))
    monkeypatch.setattr(gpu_shapes, "_forget", lambda device: (forget(device), order.append("forgotten")))
    gpu_shapes.latency("cpu", tiny=True)
    assert order == ["removed", "forgotten"]


def test_times_are_held_against_loras_of_the_same_run():
    """The paper's own arithmetic: Table 3's 7931.36 s of head and last three layers are 0.76 of LoRA's 10440.3 s."""
    last = "Reverse-order +lm_head & last 3"
    key = (gpu_shapes.LABEL, gpu_shapes.SPARSITY)
    cells = [
        gpu_shapes.row("reassessing", "3", (*key, gpu_shapes.LORA), "training time s", 400.0),
        gpu_shapes.row("reassessing", "3", (*key, last), "training time s", 100.0),
        gpu_shapes.row("reassessing", "3", (*key, "Reverse-order +QLoRA"), "training time s", None, "no bitsandbytes"),
    ]
    (share,) = gpu_shapes.against_lora(cells)
    assert share["measured"] == 0.25 and share["note"] == "LoRA, in this run: 0.76 as printed"
    assert not list(gpu_shapes.against_lora(cells[1:]))


def test_what_it_hands_over_is_against_the_print_or_says_what_it_is_against():
    baseline = "the patch: 8.06 by multiply-adds"
    cells = [
        gpu_shapes.row("linearpatch", "6", ("LLaMA-2-7B", "", "LinearPatch"), "Time cost (s)", 0.001152),
        gpu_shapes.row("linearpatch", "6", ("", "", "FFN / patch"), gpu_shapes.RATIO, 8.5, baseline),
        gpu_shapes.row("reassessing", "D", ("", "", ""), "seconds per 64 tokens (extension)", 0.02),
    ]
    ratios = list(gpu_shapes.ratios(cells))
    assert [(one.ratio, one.baseline) for one in ratios] == [
        (pytest.approx(0.001152 / 0.000576), "as printed, on another GPU"),
        (8.5, baseline),
    ]
