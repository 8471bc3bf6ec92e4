"""Where the tools read a model and put a result: which directory is meant, what is found out before the work."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.calibration import corpora
from common.cli import sweep as sweeping
from common.evaluation import harness
from common.models import checkpoint, loading
from common.models.files import gguf_wheels, hub
from common.utils.errors import NoData, UserError
from tests.tools import PARAGRAPH, main, method_of


@pytest.fixture
def model(write_checkpoint, tmp_path):
    """The folder of a tiny Llama, for each test its own."""
    return write_checkpoint(tmp_path / "tiny")


def test_a_directory_of_a_registered_name_is_the_directory(model, tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, tmp_path / "standin")
    assert tool("linearpatch", "--layers", 3, model="./standin").status == 0
    saved, original = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", model))
    assert torch.equal(saved["model.layers.0.mlp.up_proj.weight"], original["model.layers.0.mlp.up_proj.weight"])
    assert loading.load(tmp_path / "standin")[0].config.hidden_size == 64
    with pytest.raises(UserError, match="no such directory"):
        loading.load(tmp_path / "nothing")


def test_weights_that_are_replaced_under_a_streamed_model_are_not_mixed_in(
    model, write_checkpoint, make_tiny, tmp_path
):
    streamed, _ = checkpoint.load(model, stream=0)
    torch.manual_seed(99)
    other = make_tiny("llama")
    for parameter in other.parameters():
        parameter.data = torch.randn_like(parameter)
    os.replace(write_checkpoint(tmp_path / "other", model=other) / "model.safetensors", model / "model.safetensors")
    with pytest.raises(UserError, match="was changed or replaced meanwhile; run again"):
        streamed(torch.ones(1, 4, dtype=torch.long))


def test_a_streamed_model_names_what_its_config_does_not_know(model, caplog):
    file = model / "model.safetensors"
    save_file(load_file(file) | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, file, {"format": "pt"})
    checkpoint.load(model, stream=0)
    assert "its config knows no model.layers.0.self_attn.q_proj.bias; they are left out" in caplog.text


def test_the_room_that_is_asked_for_holds_embedding_and_head_whole(model, tool, monkeypatch):
    """Of 6 layers 4 go: a third of the layers' bytes stays, all of the others'."""
    stored = load_file(model / "model.safetensors")
    inside = sum(value.nbytes for name, value in stored.items() if ".layers." in name)
    outside = sum(value.nbytes for name, value in stored.items() if ".layers." not in name)
    for room, status in ((0.9, 2), (1.5, 0)):
        free = 8 * 2**20 + room * (outside + inside / 3)
        usage = shutil.disk_usage(model)._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        run = tool("linearpatch", "--layers", "1-4", "--no-evaluation")
        assert run.status == status and ("are free; free space" in run.stderr) == (status == 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_sweep_that_could_not_be_written_is_refused_before_the_work(tool, tmp_path):
    (tmp_path / "ours" / "sweep").mkdir(parents=True)
    (tmp_path / "ours").chmod(0o555)
    try:
        run = tool("linearpatch", "--sweep", "1-2", out=tmp_path / "ours" / "sweep")
    finally:
        (tmp_path / "ours").chmod(0o755)
    assert run.status == 2 and "Permission denied; choose another directory" in run.last_line


def test_where_it_runs_is_no_place_for_the_result(tool, tmp_path, monkeypatch):
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    for out in (".", "..", tmp_path / "here"):
        run = tool("linearpatch", "--remove", 2, out=out)
        assert run.status == 2 and "is where this runs, and a new directory takes its place" in run.last_line
    assert tool("linearpatch", "--remove", 2, out="pruned").status == 0 and os.listdir(".") == ["pruned"]


def test_another_ones_sweep_is_not_replaced(tool, tmp_path, monkeypatch):
    out, written = tmp_path / "out", sweeping._write

    def write(job, report):
        if not out.exists():
            out.mkdir()
            (out / "sweep.json").write_text('{"another": 1}')
        written(job, report)

    monkeypatch.setattr(sweeping, "_write", write)
    assert tool("prunecomp", "--sweep", "1-2").status == 0
    assert json.loads((out / "sweep.json").read_text()) == {"another": 1}
    rows = json.loads((tmp_path / "out-2" / "sweep.json").read_text())["rows"]
    assert [row["removed"] for row in rows] == [1, 2] and not (tmp_path / "out-3").exists()


def test_weights_that_overflow_are_told_where_nothing_is_measured(model, tool):
    file = model / "model.safetensors"
    weights = {name: value.half() for name, value in load_file(file).items()}
    for layer, sign in ((2, 1), (3, -1), (4, -1)):
        weights[f"model.layers.{layer}.mlp.down_proj.weight"][0, 0] = sign * 30_000
    save_file(weights, file, {"format": "pt"})
    run = tool("laco", "--layers", "3,4", "--merge", "paper", "--no-evaluation")
    assert run.status == 3 and "NaN or infinite weights in model.layers.2.mlp.down_proj.weight" in run.last_line


def test_a_file_whose_name_holds_a_plus_is_one_of_a_mix(tool, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "c++.txt"):
        shutil.copy(text, tmp_path / name)
    assert tool("linearpatch", "--remove", 2, text="a.txt+c++.txt").status == 0


def test_json_lines_are_their_column_of_text(tool, tmp_path):
    texts = [f"{number} {PARAGRAPH}".strip() for number in range(120)]
    plain, lines, other = (tmp_path / name for name in ("plain.txt", "lines.jsonl", "other.jsonl"))
    plain.write_text("\n\n".join(texts))
    lines.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    other.write_text("\n".join(json.dumps({"content": text}) for text in texts))
    first, second = (tool("refit", "--remove", 1, text=text, out=tmp_path / text.stem) for text in (plain, lines))
    assert load_file(first.out / "model.safetensors").keys() == load_file(second.out / "model.safetensors").keys()
    scores = [run.report["evaluation"]["after"]["window_nlls"] for run in (first, second)]
    assert scores[0] == scores[1]
    run = tool("refit", "--remove", 1, text=other)
    assert run.status == 2 and "other.jsonl is JSON lines without a column 'text'" in run.last_line


def test_a_directory_that_is_not_there_is_named_before_the_hub(tool, monkeypatch):
    monkeypatch.setattr(hub, "_probe", lambda: "unreachable")
    run = tool("refit", "--remove", 1, model="models/llama")
    assert run.status == 2
    assert "there is no directory models/llama here, and as a hub id: could not fetch" in run.last_line


def test_tasks_without_their_data_are_to_be_left_out(tool, monkeypatch):
    """The remedies are those of tools: `reproductions fetch` has no target for a model of one's own."""

    def absent(_names):
        raise NoData(f"could not fetch dataset baber/piqa: HF_HUB_OFFLINE is set; {hub.REMEDY}")

    monkeypatch.setattr(harness, "check", absent)
    run = tool("refit", "--remove", 1, "--tasks", "piqa")
    assert (
        run.status == 2
        and "could not fetch dataset baber/piqa: HF_HUB_OFFLINE is set. Leave --tasks out" in run.last_line
    )
    assert "LAYERLAB_HUB" in run.last_line and "reproductions" not in run.last_line


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, "Salesforce/wikitext"),
        ({"--text": "c4-train", "--test": "TEXT"}, "allenai/c4"),
        ({"--text": "c4-train", "--no-evaluation": None}, "allenai/c4"),
        ({"--text": "TEXT", "--tasks": "piqa"}, "baber/piqa"),
        ({"--text": "TEXT"}, None),
    ],
)
def test_missing_data_are_said_before_a_packaged_model_is_converted(
    options, missing, text, tmp_path, monkeypatch, capsys
):
    def absent(hub_id, *_, **__):
        raise NoData(f"could not fetch dataset {hub_id}; {hub.REMEDY}")

    def fetch(spec):
        raise UserError("downloading and converting")

    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "open_dataset", absent)
    monkeypatch.setattr(harness, "check", lambda names: absent("baber/piqa"))
    monkeypatch.setattr(gguf_wheels, "fetch", fetch)
    corpora._texts.cache_clear()
    arguments = ["--model", "smollm2-135m-instruct", "--remove", "2", "--out", str(tmp_path / "out")]
    arguments += [str(part).replace("TEXT", str(text)) for pair in options.items() for part in pair if part is not None]
    assert main(method_of("refit"), arguments) == 2
    printed = capsys.readouterr().err
    assert ("downloading and converting" in printed) == (missing is None)
    assert missing is None or f"could not fetch dataset {missing}" in printed


def test_a_result_that_cannot_be_asked_is_saved_and_says_so(tool, monkeypatch):
    scored = []

    def evaluate(*arguments, **options):
        assert options["num_fewshot"] == 0  # as --help and the card say
        scored.append(1)
        if len(scored) > 1:
            raise UserError("the model's output is not finite in float16")
        return {"piqa": {"acc": 0.5, "acc_stderr": 0.1, "n": 4}}

    monkeypatch.setattr(harness, "check", lambda tasks: None)
    monkeypatch.setattr(harness, "evaluate", evaluate)
    run = tool("linearpatch", "--remove", 2, "--tasks", "piqa")
    assert run.status == 0 and len(scored) == 2
    note = "tasks of the original model were not scored: the model's output is not finite"
    assert note in " ".join(run.card.split())
