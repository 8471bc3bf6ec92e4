"""The papers' tools, on a tiny checkpoint: what is saved reloads plainly and is what was measured; bad input is one line."""

import json
import math
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tools import method_of
from transformers import AutoConfig, AutoModelForCausalLM

from common import calibration
from common.calibration import corpora
from common.cli import main, sweep
from common.cli.job import Job
from common.cli.options import tool_parser
from common.models import checkpoint
from common.models.decoder import Decoder
from common.models.layers.sublayers import drop_halves
from common.utils.errors import NoData
from papers.reassessing import sample_line_crops, select
from tests.tools import PARAGRAPH, paragraphs


@pytest.fixture(scope="module")
def source(tmp_path_factory, write_checkpoint):
    """A tiny checkpoint and a text file."""
    folder = tmp_path_factory.mktemp("product")
    (folder / "text.txt").write_text(paragraphs())
    rows = [
        {"instruction": f"Count to {n}.", "input": "", "output": " ".join(map(str, range(n)))} for n in range(2, 22)
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return write_checkpoint(folder / "tiny"), folder / "text.txt"


pytestmark = pytest.mark.usefixtures("short")


def own(paper, source):
    """The options without which a paper's tool would need the hub."""
    if paper != "reassessing":
        return []
    data = str(source[1].with_name("data.jsonl"))
    return ["--data", data, "--last", "1", "--epochs", "1", "--batch", "4", "--learning-rate", "1e-3"]


def arguments(source, out, *more, remove=2):
    model, text = source
    fixed = ["--model", str(model), "--remove", str(remove), "--out", str(out), "--text", str(text)]
    return [*fixed, "--samples", "4", "--length", "32", "--windows", "4", *more]


def test_without_a_factor_norms_behind_the_halves_are_no_hindrance(source, write_checkpoint, tmp_path, capsys):
    command = arguments((write_checkpoint(tmp_path / "olmo2", "olmo2"), source[1]), tmp_path / "out", "--no-evaluation")
    assert main(method_of("prunecomp"), command) == 2
    assert "Leave the weights as they are (--no-compensation)" in capsys.readouterr().err
    assert main(method_of("prunecomp"), [*command, "--no-compensation"]) == 0
    assert len(AutoModelForCausalLM.from_pretrained(tmp_path / "out").model.layers) == 4


@pytest.mark.parametrize("paper", ["refit", "reassessing"])  # by windows, by lines
def test_texts_are_mixed_in_equal_parts(paper, source, tmp_path, monkeypatch):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"{n} asked, {n + 1} answered, as often as one likes" for n in range(300)))
    read = {}
    for name in ("windows", "documents"):
        whole = getattr(Job, name)
        kept = whole.func if name == "windows" else whole
        seen = lambda job, *least, kept=kept, name=name: read.setdefault(name, kept(job, *least))  # noqa: E731
        monkeypatch.setattr(Job, name, property(seen) if name == "windows" else seen)
    more = [
        "--text",
        f"{source[1]}+{other}",
        *own(paper, source),
        *(["--metric", "bi"] if paper == "reassessing" else []),
    ]
    assert main(method_of(paper), arguments(source, tmp_path / "pruned", *more)) == 0
    report = json.loads((tmp_path / "pruned" / "pruning.json").read_text())
    assert report["text"]["calibration"] == report["text"]["test"] == f"{source[1].name}+other.txt"
    assert str(tmp_path) not in (tmp_path / "pruned" / "README.md").read_text()

    model, tokenizer = checkpoint.load(tmp_path / "pruned")
    ids = [torch.tensor(tokenizer(path.read_text())["input_ids"]) for path in (source[1], other)]
    tails = [one[int(0.9 * len(one)) :] for one in ids]
    held_out = torch.stack([tails[place % 2][place // 2 * 32 :][:32] for place in range(4)])
    loss = model(held_out, labels=held_out).loss
    assert report["evaluation"]["after"]["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)
    if paper == "refit":
        drawn = [calibration.sample_crops(one, length=32, count=2, seed=2) for one in ids]
        assert torch.equal(read["windows"], torch.stack([drawn[place % 2][place // 2] for place in range(4)]))
    else:
        assert all(piece in path.read_text() for piece, path in zip(read["documents"], [source[1], other] * 2))


def test_remaining_layers_of_linearpatch_are_the_originals_to_the_bit(source, tmp_path):
    out = tmp_path / "pruned"
    assert main(method_of("linearpatch"), arguments(source, out, "--no-evaluation")) == 0
    removed = json.loads((out / "pruning.json").read_text())["facts"]["removed"]
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (source[0], out))
    remaining = [layer for index, layer in enumerate(before.model.layers) if index not in removed]
    for old, new in zip(remaining, after.model.layers, strict=True):
        for old_weight, new_weight in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(old_weight, new_weight)


def test_the_card_names_the_command_that_makes_the_same_model_again(source, tmp_path):
    options = ["--variant", "S", "--patch", "matrix", "--seed", "0", "--no-evaluation"]
    assert main(method_of("linearpatch"), arguments(source, tmp_path / "a", *options)) == 0
    card = (tmp_path / "a" / "README.md").read_text()
    for part in ("--variant S", "--patch matrix", "--seed 0", "--no-evaluation", "Not evaluated."):
        assert part in card


def test_an_existing_checkpoint_is_replaced_where_that_is_asked_for(source, tmp_path, capsys):
    out = tmp_path / "pruned"
    command = arguments(source, out, "--no-evaluation")
    assert main(method_of("linearpatch"), command) == 0
    assert main(method_of("linearpatch"), command) == 2
    assert "--force" in capsys.readouterr().err
    assert main(method_of("linearpatch"), [*command, "--force", "--remove", "3"]) == 0
    assert Decoder(checkpoint.load(out)[0]).num_layers == 3


def test_what_came_to_out_meanwhile_is_not_replaced(source, tmp_path, capsys):
    out, first = tmp_path / "pruned", method_of("linearpatch")

    def slow(job):
        assert main(first, arguments(source, out, "--no-evaluation", remove=3)) == 0
        return first.apply(job)

    assert main(replace(first, apply=slow), arguments(source, out, "--no-evaluation")) == 0
    assert "another run has saved there" in capsys.readouterr().err
    assert Decoder(checkpoint.load(out)[0]).num_layers == 3
    assert Decoder(checkpoint.load(tmp_path / "pruned-2")[0]).num_layers == 4


def test_a_sweep_leaves_what_was_put_beside_its_table(source, tmp_path, capsys, monkeypatch):
    out, written = tmp_path / "sweep", sweep._write

    def write(job, report):
        written(job, report)
        (job.options.out / "my-notes.txt").write_text("of mine")

    monkeypatch.setattr(sweep, "_write", write)
    model, text = source
    command = ["--model", str(model), "--sweep", "1-2", "--out", str(out), "--text", str(text), "--samples", "4"]
    assert main(method_of("linearpatch"), [*command, "--length", "32", "--windows", "4"]) == 0
    assert (out / "my-notes.txt").read_text() == "of mine" and "cannot be used any more" in capsys.readouterr().err
    rows = json.loads((max(tmp_path.glob("sweep-*")) / "sweep.json").read_text())["rows"]
    assert [row["removed"] for row in rows] == [1, 2]


def test_a_tilde_is_the_home_directory_wherever_it_stands(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(source[0], tmp_path / "mine")
    shutil.copy(source[1], tmp_path / "text.txt")
    fixed = ["--model=~/mine", "--text=~/text.txt+~/text.txt", "--remove", "2", "--samples", "4", "--length", "32"]
    assert main(method_of("linearpatch"), [*fixed, "--out", str(tmp_path / "mine"), "--force"]) == 2
    assert "is the model itself" in capsys.readouterr().err
    assert main(method_of("linearpatch"), [*fixed, "--windows", "2", "--out=~/pruned"]) == 0
    assert Decoder(checkpoint.load(tmp_path / "pruned")[0]).num_layers == 4


def test_documents_share_no_token_with_what_is_kept_for_evaluation(source, tmp_path):
    """A text of many tokens a character at first and few in the end: nine tenths of its characters are more of its tokens."""
    dense, thin = ("".join(map(chr, range(0x4E00 + 7 * n, 0x4E3C + 7 * n))) for n in (0, 1)), "plain words " * 40
    paragraphs = [*dense, *dense] + [f"{n}: {thin}" for n in range(60)] + ["\u4e00" * 200] * 6
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(paragraphs), encoding="utf-8")
    options = tool_parser(method_of("linearpatch").options).parse_args(
        ["--model", str(source[0]), "--text", str(text), "--length", "32", "--remove", "2", "--windows", "100000"]
    )
    config, tokenizer = AutoConfig.from_pretrained(source[0]), checkpoint.load_tokenizer(source[0])
    job = Job(method_of("linearpatch"), options, source[0], config, tokenizer, tmp_path / "work")
    ids = tokenizer(text.read_text(encoding="utf-8"))["input_ids"]
    assert torch.equal(job.test_windows.flatten(), torch.tensor(ids[int(0.9 * len(ids)) :][: job.test_windows.numel()]))
    pieces = job.documents(3)
    assert len(tokenizer("\n\n".join(pieces))["input_ids"]) <= int(0.9 * len(ids))
    assert pieces == paragraphs[: len(pieces)]  # and one more would be too many
    assert len(tokenizer("\n\n".join(paragraphs[: len(pieces) + 1]))["input_ids"]) > int(0.9 * len(ids))


@pytest.mark.parametrize(("samples", "times"), [(20, None), (2000, "4 times")])
def test_a_text_that_is_read_many_times_over_is_named(samples, times, source, tmp_path, capsys):
    tokens = len(corpora.encode(checkpoint.load_tokenizer(source[0]), source[1].read_text()))
    assert (samples * 16 / tokens > 3) == bool(times)  # so many windows of 16
    options = arguments(source, tmp_path / "out", "--samples", str(samples), "--length", "16", "--no-evaluation")
    assert main(method_of("linearpatch"), options) == 0
    note = f"has {tokens:,} tokens, of which the calibration sequences read each {times} on average"
    printed = capsys.readouterr()
    assert (note in printed.out) == (note in (tmp_path / "out" / "README.md").read_text()) == bool(times)
    assert (f"warning: {source[1]} {note}" in printed.err.splitlines()[0]) == bool(times)  # before the work begins


def test_fewer_windows_than_texts_are_of_the_first_ones(source, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"{n} asked, {n + 1} answered" for n in range(300)))
    command = arguments(source, tmp_path / "pruned", "--text", f"{source[1]}+{other}", "--samples", "1")
    assert main(method_of("linearpatch"), command) == 0


def test_a_model_with_parts_of_layers_taken_out_is_refused(source, tmp_path, capsys):
    model, tokenizer = checkpoint.load(source[0])
    drop_halves(model, [(2, "mlp")])
    checkpoint.save(model, tokenizer, tmp_path / "halves")
    command = ["--model", str(tmp_path / "halves"), *arguments(source, tmp_path / "pruned")[2:]]
    assert main(method_of("refit"), command) == 2
    assert "parts of layers were taken out" in capsys.readouterr().err


def test_a_model_with_a_patch_is_not_patched_again(source, tmp_path, capsys):
    assert main(method_of("linearpatch"), arguments(source, tmp_path / "once", "--no-evaluation")) == 0
    command = ["--model", str(tmp_path / "once"), *arguments(source, tmp_path / "twice", remove=1)[2:]]
    assert main(method_of("linearpatch"), command) == 2
    assert "all layers at once" in capsys.readouterr().err and not (tmp_path / "twice").exists()


def test_the_terms_of_the_weights_go_with_them_and_what_the_config_does_not_know_is_named(
    source, tmp_path, capsys, caplog
):
    shutil.copytree(source[0], tmp_path / "mine")
    (tmp_path / "mine" / "LICENSE").write_text("no warranty")
    (tmp_path / "mine" / "USE_POLICY.md").write_text("be kind")
    tensors = load_file(tmp_path / "mine" / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(tensors, tmp_path / "mine" / "model.safetensors", metadata={"format": "pt"})
    command = ["--model", str(tmp_path / "mine"), *arguments(source, tmp_path / "pruned", "--no-evaluation")[2:]]
    assert main(method_of("prunecomp"), command) == 0
    assert (tmp_path / "pruned" / "LICENSE").read_text() == "no warranty"
    assert (tmp_path / "pruned" / "USE_POLICY.md").read_text() == "be kind"
    assert "its config knows no model.layers.0.self_attn.q_proj.bias" in caplog.text + capsys.readouterr().err
    assert main(method_of("prunecomp"), [*command, "--force"]) == 0  # they count as ours


def test_without_a_network_a_text_of_ones_own_is_offered(source, tmp_path, capsys, monkeypatch):
    def unreachable(*_, **__):
        raise NoData("could not fetch dataset Salesforce/wikitext")

    monkeypatch.setattr(corpora, "open_dataset", unreachable)
    command = ["--model", str(source[0]), "--remove", "2", "--out", str(tmp_path / "pruned")]
    assert main(method_of("linearpatch"), command) == 2
    assert "--text FILE" in capsys.readouterr().err.strip().splitlines()[-1]
    assert main(method_of("reassessing"), command) == 2
    assert "--data FILE" in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_result_inside_the_models_own_directory_is_refused(source, capsys):
    for name in ("pruned", "a/b"):
        assert main(method_of("linearpatch"), arguments(source, source[0] / name)) == 2
        assert "lies in the model's own directory" in capsys.readouterr().err
    assert not (source[0] / "a").exists()


def test_a_full_disk_is_found_before_the_work(source, tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert main(method_of("linearpatch"), arguments(source, tmp_path / "pruned")) == 2
    assert "are free; free space" in capsys.readouterr().err


@pytest.mark.parametrize("metric, fidelity", [("taylor", "paper"), ("bi", "code"), ("ppl", "paper"), ("ppl", "code")])
def test_reassessing_chooses_by_other_metrics_from_the_text(metric, fidelity, source, tmp_path):
    paragraph = " ".join([PARAGRAPH.strip()] * 8)
    (tmp_path / "long.txt").write_text("\n\n".join(f"{n} {paragraph}" for n in range(30)))
    more = ["--metric", metric, "--fidelity", fidelity, "--finetune", "none", "--no-evaluation"]
    more += ["--text", str(tmp_path / "long.txt")]
    assert main(method_of("reassessing"), arguments(source, tmp_path / "pruned", *more)) == 0
    report = json.loads((tmp_path / "pruned" / "pruning.json").read_text())
    assert f"chosen by {metric}; not fine-tuned" in report["notes"]
    model, tokenizer = checkpoint.load(source[0])
    if metric == "ppl":
        ids = torch.tensor(tokenizer((tmp_path / "long.txt").read_text())["input_ids"])
        held_out = ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)  # the official code chooses on what it measures
        crops = calibration.sample_crops(ids, length=32, count=4, seed=42)
        ids = held_out if fidelity == "code" else crops
    else:
        lines = (tmp_path / "long.txt").read_text()
        lines = lines[: int(0.9 * len(lines))].split("\n\n")
        ids = sample_line_crops(tokenizer, lines, count=4, length=32, seed=42)
    assert report["facts"]["removed"] == select(metric, Decoder(model), 2, ids, fidelity=fidelity)


def test_reassessing_trains_head_norm_and_last_layers_and_nothing_else(source, tmp_path, capsys):
    out = tmp_path / "pruned"
    twice = [*own("reassessing", source), "--epochs", "2", "--no-evaluation"]
    assert main(method_of("reassessing"), arguments(source, out, *twice)) == 0
    report = json.loads((out / "pruning.json").read_text())
    assert report["facts"]["removed"] == [5, 4] and report["facts"]["training"]["steps"] == 10
    before = AutoModelForCausalLM.from_pretrained(source[0]).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    trained = {name for name in after if name.startswith(("lm_head.", "model.norm.", "model.layers.3."))}
    assert changed == trained
    for text in ((out / "README.md").read_text(), capsys.readouterr().out):
        assert "fine-tuned: last 1 layers, head and final norm" in text
    calls = [epoch["layer_executions"] for epoch in report["facts"]["training"]["epochs"]]
    assert calls == [20, 5]  # 5 batches through 4 layers, then through the last alone


def test_reassessing_trains_the_layers_behind_a_cut(source, tmp_path, capsys):
    out = tmp_path / "pruned"
    command = [*own("reassessing", source), "--layers", "1,4", "--train-at", "cut", "--no-evaluation"]
    command = [*arguments(source, out, *command)]
    where = command.index("--remove")
    assert main(method_of("reassessing"), command[:where] + command[where + 2 :]) == 0
    before = AutoModelForCausalLM.from_pretrained(source[0]).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    name = "model.layers.{}.mlp.up_proj.weight".format
    left = enumerate((0, 2, 3, 5))
    assert [at for at, was in left if not torch.equal(after[name(at)], before[name(was)])] == [1]
    assert "fine-tuned: 1 layers from 1 on, head and final norm" in (out / "README.md").read_text()
    capsys.readouterr()
    nothing = arguments(source, tmp_path / "other", *own("reassessing", source), "--train-at", "cut")
    assert main(method_of("reassessing"), nothing) == 2
    assert "cannot fine-tune 1 layers from 4 on: the model has 4 left; train fewer" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name, untie", [("mixtral", False), ("gemma2", False), ("gemma2", True)])
def test_the_recipe_works_on_experts_and_on_tied_heads(name, untie, source, tmp_path, write_checkpoint):
    model = write_checkpoint(tmp_path / "model", name)
    command = arguments((model, source[1]), tmp_path / "pruned", *own("reassessing", source))
    assert main(method_of("reassessing"), [*command, "--untie-head"] if untie else command) == 0
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (model, tmp_path / "pruned"))
    stays = name == "gemma2" and not untie
    assert len(after.model.layers) == 4 and after.config.tie_word_embeddings == stays
    assert torch.equal(before.model.embed_tokens.weight, after.model.embed_tokens.weight)
    assert torch.equal(before.lm_head.weight, after.lm_head.weight) == stays
    assert not torch.equal(before.model.norm.weight, after.model.norm.weight)
    report = json.loads((tmp_path / "pruned" / "pruning.json").read_text())
    ids = checkpoint.load(model)[1](source[1].read_text(), return_tensors="pt")["input_ids"][0]
    held_out = ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)
    loss = after(held_out, labels=held_out).loss.item()
    assert report["evaluation"]["after"]["perplexity"] == pytest.approx(math.exp(loss), rel=1e-3)


def test_qlora_without_bitsandbytes_is_refused_before_the_work(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    data = str(source[1].with_name("data.jsonl"))
    command = arguments(source, tmp_path / "pruned", "--data", data, "--finetune", "qlora")
    assert main(method_of("reassessing"), command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "QLoRA needs bitsandbytes" in lines[-1] and not any("perplexity" in line for line in lines)


def test_laco_combines_as_many_layers_as_the_paper():
    from types import SimpleNamespace

    from papers.laco.tool import combined

    def of(layers, remove, **settings):
        options = SimpleNamespace(**{"combine": None, "interval": 2} | settings)
        return combined(SimpleNamespace(options=options, layers=layers), remove)

    assert [of(32, n) for n in (9, 10, 4, 15, 6, 7)] == [4, 6, 5, 6, 4, 2]
    assert (of(32, None), of(32, 9, combine=3), of(32, None, combine=3)) == (4, 3, 3)
    # Seventeen merges of two layers have no room in 32 at an interval of two; merges of six, the last smaller, take 17.
    assert (of(32, 17, interval=1), of(32, 17)) == (2, 6)
