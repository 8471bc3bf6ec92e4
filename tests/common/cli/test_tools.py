"""The papers' tools, on a tiny checkpoint: what is saved reloads plainly and is what was measured; bad input is one line."""

import json
import math
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tools import method_of
from transformers import AutoConfig, AutoModelForCausalLM

from common import calibration
from common.calibration import corpora
from common.cli import sweep
from common.cli.job import Job
from common.cli.options import tool_parser
from common.models import checkpoint, loading
from common.models.decoder import Decoder
from common.models.layers.sublayers import drop_sublayers
from common.utils.errors import NoData
from papers.laco.tool import combined
from papers.reassessing import sample_line_crops, select
from tests.tools import PARAGRAPH

pytestmark = pytest.mark.usefixtures("short")
FINE_TUNE = ["--last", 1, "--epochs", 1, "--batch", 4, "--learning-rate", 1e-3]


@pytest.fixture
def second_text(tmp_path):
    """A text of 300 lines unlike the first one's."""
    path = tmp_path / "other.txt"
    path.write_text("\n".join(f"{n} asked, {n + 1} answered, as often as one likes" for n in range(300)))
    return path


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_without_a_factor_norms_behind_the_sublayers_are_no_hindrance(tool, write_checkpoint, tmp_path):
    command = ["prunecomp", "--remove", 2, "--no-evaluation"]
    olmo2 = write_checkpoint(tmp_path / "olmo2", "olmo2")
    run = tool(*command, model=olmo2)
    assert run.status == 2 and "Leave the weights as they are (--no-compensation)" in run.stderr
    assert tool(*command, "--no-compensation", model=olmo2).status == 0
    assert len(AutoModelForCausalLM.from_pretrained(tmp_path / "out").model.layers) == 4


@pytest.mark.parametrize("paper", ["refit", "reassessing"])  # by windows, by lines
def test_texts_are_mixed_in_equal_parts(paper, tool, text, second_text, data, tmp_path, monkeypatch):
    sequences, documents, read = Job.sequences.func, Job.documents, {}
    monkeypatch.setattr(Job, "sequences", property(lambda job: read.setdefault("sequences", sequences(job))))
    monkeypatch.setattr(Job, "documents", lambda job, *least: read.setdefault("documents", documents(job, *least)))
    more = [] if paper == "refit" else ["--data", data, *FINE_TUNE, "--metric", "bi"]
    run = tool(paper, "--remove", 2, *more, text=f"{text}+{second_text}")
    assert run.status == 0
    assert run.report["text"]["calibration"] == run.report["text"]["test"] == "text.txt+other.txt"
    assert str(tmp_path) not in run.card

    model, tokenizer = checkpoint.load(run.out)
    ids = [torch.tensor(tokenizer(path.read_text())["input_ids"]) for path in (text, second_text)]
    tails = [one[int(0.9 * len(one)) :] for one in ids]
    held_out = torch.stack([tails[place % 2][place // 2 * 32 :][:32] for place in range(4)])
    loss = model(held_out, labels=held_out).loss
    assert run.report["evaluation"]["after"]["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)
    if paper == "refit":
        drawn = [calibration.sample_crops(one, length=32, count=2, seed=2) for one in ids]
        assert torch.equal(read["sequences"], torch.stack([drawn[place % 2][place // 2] for place in range(4)]))
    else:
        assert all(piece in path.read_text() for piece, path in zip(read["documents"], [text, second_text] * 2))


def test_the_card_names_the_command_that_makes_the_same_model_again(tool):
    options = ["--variant", "S", "--patch", "matrix", "--seed", "0", "--no-evaluation"]
    card = tool("linearpatch", "--remove", 2, *options).card
    for part in ("--variant S", "--patch matrix", "--seed 0", "--no-evaluation", "Not evaluated."):
        assert part in card


def test_an_existing_checkpoint_is_replaced_where_that_is_asked_for(tool):
    command = ["linearpatch", "--remove", 2, "--no-evaluation"]
    assert tool(*command).status == 0
    again = tool(*command)
    assert again.status == 2 and "--force" in again.stderr
    run = tool(*command, "--force", "--remove", 3)
    assert run.status == 0 and Decoder(run.model).num_layers == 3


def test_what_came_to_out_meanwhile_is_not_replaced(tool, tmp_path):
    method = method_of("linearpatch")

    def slow(job):
        assert tool(method, "--remove", 3, "--no-evaluation").status == 0
        return method.apply(job)

    run = tool(replace(method, apply=slow), "--remove", 2, "--no-evaluation")
    assert run.status == 0 and "another run has saved there" in run.stderr
    assert Decoder(run.model).num_layers == 3
    assert Decoder(checkpoint.load(tmp_path / "out-2")[0]).num_layers == 4


def test_a_sweep_leaves_what_was_put_beside_its_table(tool, tmp_path, monkeypatch):
    out, write = tmp_path / "sweep", sweep._write

    def write_and_add_notes(job, report):
        write(job, report)
        (job.options.out / "my-notes.txt").write_text("of mine")

    monkeypatch.setattr(sweep, "_write", write_and_add_notes)
    run = tool("linearpatch", "--sweep", "1-2", out=out)
    assert run.status == 0 and "cannot be used any more" in run.stderr
    assert (out / "my-notes.txt").read_text() == "of mine"
    run.out = max(tmp_path.glob("sweep-*"))
    assert [row["removed"] for row in run.rows] == [1, 2]


def test_a_tilde_is_the_home_directory_wherever_it_stands(tool, model, text, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(model, tmp_path / "mine")
    shutil.copy(text, tmp_path / "text.txt")
    command = ["linearpatch", "--model=~/mine", "--text=~/text.txt+~/text.txt", "--remove", 2]
    run = tool(*command, "--force", out=tmp_path / "mine")
    assert run.status == 2 and "is the model itself" in run.stderr
    assert tool(*command, "--out=~/pruned").status == 0
    assert Decoder(checkpoint.load(tmp_path / "pruned")[0]).num_layers == 4


def test_documents_share_no_token_with_what_is_kept_for_evaluation(model, tmp_path):
    """A text of many tokens a character at first and few in the end: nine tenths of its characters are more of its tokens."""
    dense, thin = ("".join(map(chr, range(0x4E00 + 7 * n, 0x4E3C + 7 * n))) for n in (0, 1)), "plain words " * 40
    paragraphs = [*dense, *dense] + [f"{n}: {thin}" for n in range(60)] + ["\u4e00" * 200] * 6
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(paragraphs), encoding="utf-8")
    options = tool_parser(method_of("linearpatch").options).parse_args(
        ["--model", str(model), "--text", str(text), "--length", "32", "--remove", "2", "--test-samples", "100000"]
    )
    config, tokenizer = AutoConfig.from_pretrained(model), checkpoint.load_tokenizer(model)
    job = Job(method_of("linearpatch"), options, model, config, tokenizer, tmp_path / "work")
    ids = tokenizer(text.read_text(encoding="utf-8"))["input_ids"]
    assert torch.equal(
        job.test_sequences.flatten(), torch.tensor(ids[int(0.9 * len(ids)) :][: job.test_sequences.numel()])
    )
    pieces = job.documents(3)
    assert len(tokenizer("\n\n".join(pieces))["input_ids"]) <= int(0.9 * len(ids))
    assert pieces == paragraphs[: len(pieces)]  # and one more would be too many
    assert len(tokenizer("\n\n".join(paragraphs[: len(pieces) + 1]))["input_ids"]) > int(0.9 * len(ids))


@pytest.mark.parametrize(("samples", "times"), [(20, None), (2000, "4 times")])
def test_a_text_that_is_read_many_times_over_is_named(samples, times, tool, model, text):
    tokens = len(corpora.encode(checkpoint.load_tokenizer(model), text.read_text()))
    assert (samples * 16 / tokens > 3) == bool(times)  # so many windows of 16
    run = tool("linearpatch", "--remove", 2, "--samples", samples, "--length", 16, "--no-evaluation")
    note = f"has {tokens:,} tokens, of which the calibration sequences read each {times} on average"
    assert run.status == 0 and (note in run.stdout) == (note in run.card) == bool(times)
    assert (f"warning: {text} {note}" in run.stderr.splitlines()[0]) == bool(times)  # before the work begins


def test_fewer_sequences_than_texts_are_of_the_first_ones(tool, text, second_text):
    assert tool("linearpatch", "--remove", 2, "--samples", 1, text=f"{text}+{second_text}").status == 0


def test_a_model_with_parts_of_layers_taken_out_is_refused(tool, model, tmp_path):
    halves, tokenizer = checkpoint.load(model)
    drop_sublayers(halves, [(2, "mlp")])
    run = tool("refit", "--remove", 2, model=checkpoint.save(halves, tokenizer, tmp_path / "halves"))
    assert run.status == 2 and "parts of layers were taken out" in run.stderr


def test_a_model_with_a_patch_is_not_patched_again(tool, tmp_path):
    once = tool("linearpatch", "--remove", 2, "--no-evaluation", out=tmp_path / "once")
    twice = tool("linearpatch", "--remove", 1, model=once.out)
    assert once.status == 0 and twice.status == 2 and "all layers at once" in twice.stderr and not twice.out.exists()


def test_the_terms_of_the_weights_go_with_them_and_what_the_config_does_not_know_is_named(
    tool, model, tmp_path, caplog
):
    terms = {"LICENSE": "no warranty", "USE_POLICY.md": "be kind"}
    mine = shutil.copytree(model, tmp_path / "mine")
    for name, content in terms.items():
        (mine / name).write_text(content)
    unknown = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    file = mine / "model.safetensors"
    save_file(load_file(file) | unknown, file, metadata={"format": "pt"})
    command = ["prunecomp", "--remove", 2, "--no-evaluation"]
    run = tool(*command, model=mine)
    assert run.status == 0 and {name: (run.out / name).read_text() for name in terms} == terms
    assert "its config knows no model.layers.0.self_attn.q_proj.bias" in caplog.text + run.stderr
    assert tool(*command, "--force", model=mine).status == 0  # they count as ours


@pytest.mark.parametrize("paper, option", [("linearpatch", "--text FILE"), ("reassessing", "--data FILE")])
def test_without_a_network_a_text_of_ones_own_is_offered(paper, option, tool, monkeypatch):
    def unreachable(*_, **__):
        raise NoData("could not fetch dataset Salesforce/wikitext")

    monkeypatch.setattr(corpora, "open_dataset", unreachable)
    more = ["--finetune", "partial"] if paper == "reassessing" else []
    run = tool(paper, "--remove", 2, *more, text=method_of(paper).text)
    assert run.status == 2 and option in run.last_line


@pytest.mark.parametrize("metric, fidelity", [("taylor", "paper"), ("bi", "code"), ("ppl", "paper"), ("ppl", "code")])
def test_reassessing_chooses_by_other_metrics_from_the_text(metric, fidelity, tool, model, tmp_path):
    paragraph, text = " ".join([PARAGRAPH.strip()] * 8), tmp_path / "long.txt"
    text.write_text("\n\n".join(f"{n} {paragraph}" for n in range(30)))
    run = tool("reassessing", "--remove", 2, "--metric", metric, "--fidelity", fidelity, "--no-evaluation", text=text)
    assert run.status == 0 and f"chosen by {metric}; not fine-tuned" in run.report["notes"]
    original, tokenizer = checkpoint.load(model)
    if metric == "ppl":
        ids = torch.tensor(tokenizer(text.read_text())["input_ids"])
        held_out = ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)  # the official code chooses on what it measures
        crops = calibration.sample_crops(ids, length=32, count=4, seed=42)
        ids = held_out if fidelity == "code" else crops
    else:
        lines = text.read_text()
        lines = lines[: int(0.9 * len(lines))].split("\n\n")
        ids = sample_line_crops(tokenizer, lines, count=4, length=32, seed=42)
    assert run.report["facts"]["removed"] == select(metric, Decoder(original), 2, ids, fidelity=fidelity)


def test_reassessing_trains_head_norm_and_last_layers_and_nothing_else(tool, model, data):
    options = ["--data", data, *FINE_TUNE, "--epochs", 2, "--no-evaluation"]
    run = tool("reassessing", "--remove", 2, *options)
    training = run.report["facts"]["training"]
    assert run.status == 0 and run.report["facts"]["removed"] == [5, 4] and training["steps"] == 10
    before, after = weights(model), weights(run.out)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {name for name in after if name.startswith(("lm_head.", "model.norm.", "model.layers.3."))}
    for text in (run.card, run.stdout):
        assert "fine-tuned: last 1 layers, head and final norm" in text
    calls = [epoch["layer_executions"] for epoch in training["epochs"]]
    assert calls == [20, 5]  # 5 batches through 4 layers, then through the last alone


def test_a_width_without_a_hadamard_matrix_is_refused_before_weights_are_read(
    tool, tmp_path, write_checkpoint, monkeypatch
):
    """92 is the smallest multiple of four that no construction here reaches."""
    facts = {"hidden_size": 92, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320}
    config = AutoConfig.for_model("llama", num_hidden_layers=6, intermediate_size=96, **facts)
    model = write_checkpoint(tmp_path / "model", model=AutoModelForCausalLM.from_config(config))
    run = tool("linearpatch", "--remove", 2, "--patch", "diagonal", "--no-evaluation", model=model)
    assert run.status == 0
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("the weights are read"))
    run = tool("linearpatch", "--remove", 2, model=model, out=tmp_path / "other")
    assert run.status == 2 and "Hadamard matrix of order 92" in run.last_line and "--patch diagonal" in run.last_line


def test_laco_refuses_layers_of_several_shapes_before_weights_are_read(tool, tmp_path, write_checkpoint, monkeypatch):
    """Of six layers the first two have no experts."""
    model = write_checkpoint(tmp_path / "model", "glm4_moe")
    assert tool("laco", "--layers", "3-4", "--no-evaluation", model=model).status == 0
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("the weights are read"))
    for which in (["--remove", 2], ["--layers", 2]):
        run = tool("laco", *which, model=model, out=tmp_path / "other")
        assert run.status == 2 and "cannot merge layers of different shapes" in run.last_line


def test_layers_that_peft_cannot_adapt_are_refused_before_weights_are_read(
    tool, data, write_checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("the weights are read"))
    model = write_checkpoint(tmp_path / "model", "deepseek_v3")
    run = tool("reassessing", "--remove", 2, "--data", data, "--finetune", "lora", model=model)
    assert run.status == 2 and "peft cannot adapt this model" in run.last_line
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_examples_that_are_cut_or_left_out_are_counted(tool, tmp_path, caplog):
    """256 tokens are read of an example; the tokenizer has a token for most letters."""
    data = tmp_path / "mixed.jsonl"

    def write(*kinds):
        data.write_text(
            "\n".join(json.dumps({"instruction": ask, "input": "", "output": answer}) for ask, answer in kinds)
        )

    too_long, cut, short = ("count " * 400, "1"), ("Count.", "1 2 " * 200), ("Count.", "1 2 3")
    options = ["--remove", 2, "--data", data, *FINE_TUNE, "--no-evaluation"]
    write(*[too_long] * 4, *[cut] * 6, *[short] * 8)  # the one that is held out is a short one
    run = tool("reassessing", *options)
    assert run.status == 0 and "13 examples of mixed.jsonl (6 of them end at 256 tokens" in run.card
    assert "4 of 17 examples have no response within 256 tokens" in caplog.text
    write(*[short] * 14, *[too_long] * 4)  # here it is one that is too long
    run = tool("reassessing", *options, out=tmp_path / "other")
    assert run.status == 2 and "mixed.jsonl, the examples held out for validation (1): no example" in run.last_line


def test_reassessing_trains_the_layers_behind_the_interface(tool, model, data):
    options = ["--data", data, *FINE_TUNE, "--train-at-interface", "--no-evaluation"]
    run = tool("reassessing", "--layers", "1,4", *options)
    assert run.status == 0
    before, after, name = weights(model), weights(run.out), "model.layers.{}.mlp.up_proj.weight".format
    remaining = enumerate((0, 2, 3, 5))
    assert [at for at, was in remaining if not torch.equal(after[name(at)], before[name(was)])] == [1]
    assert "fine-tuned: 1 layers from 1 on, head and final norm" in run.card


@pytest.mark.parametrize("name, untie", [("mixtral", False), ("gemma2", False), ("gemma2", True)])
def test_the_recipe_works_on_experts_and_on_tied_heads(name, untie, tool, text, data, tmp_path, write_checkpoint):
    model = write_checkpoint(tmp_path / "model", name)
    options = ["--data", data, *FINE_TUNE, *(["--untie-head"] if untie else [])]
    run = tool("reassessing", "--remove", 2, *options, model=model)
    assert run.status == 0
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (model, run.out))
    stays = name == "gemma2" and not untie
    assert len(after.model.layers) == 4 and after.config.tie_word_embeddings == stays
    assert torch.equal(before.model.embed_tokens.weight, after.model.embed_tokens.weight)
    assert torch.equal(before.lm_head.weight, after.lm_head.weight) == stays
    assert not torch.equal(before.model.norm.weight, after.model.norm.weight)
    ids = checkpoint.load_tokenizer(model)(text.read_text(), return_tensors="pt")["input_ids"][0]
    held_out = ids[int(0.9 * len(ids)) :][: 4 * 32].view(4, 32)
    loss = after(held_out, labels=held_out).loss.item()
    assert run.report["evaluation"]["after"]["perplexity"] == pytest.approx(math.exp(loss), rel=1e-3)


def test_qlora_without_bitsandbytes_is_refused_before_the_work(tool, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    run = tool("reassessing", "--remove", 2, "--data", data, "--finetune", "qlora")
    assert run.status == 2 and "QLoRA needs bitsandbytes" in run.last_line and "perplexity" not in run.stderr


@pytest.mark.parametrize(
    "settings, remove, layers",
    [
        *[({}, remove, layers) for remove, layers in ((9, 4), (10, 6), (4, 5), (15, 6), (6, 4), (7, 2), (None, 4))],
        *[({"combine": 3}, remove, 3) for remove in (9, None)],
        # Seventeen merges of two layers have no room in 32 at an interval of two; merges of six, the last smaller, take 17.
        ({"interval": 1}, 17, 2),
        ({}, 17, 6),
    ],
)
def test_laco_combines_as_many_layers_as_the_paper(settings, remove, layers):
    options = SimpleNamespace(**{"combine": None, "interval": 2} | settings)
    assert combined(SimpleNamespace(options=options, layers=32), remove) == layers
