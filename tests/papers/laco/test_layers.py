"""LaCo's layer similarity and post-training, against plain loops and Hugging Face's own hidden states."""

import copy
import math
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from weights import changed_weights, weights

from common.calibration import corpora
from common.models import checkpoint
from common.training.finetuning import trainer
from common.utils.errors import UserError
from papers.laco import merge_layers, posttrain, training
from papers.laco.layers import (
    adjacent_cosines,
    adjacent_distances,
    merged_norms,
    merged_outputs,
    orthogonal_cosines,
    shuffled,
    uncorrelated_outputs,
)
from reproductions.spec import subjects

SENTENCES = ["the layers of a model", "are removed and the stream is scaled"]


@torch.no_grad()
def test_distances_of_adjacent_matrices(tiny):
    layers = tiny.model.layers
    for number, layer in enumerate(layers):  # of sizes of their own
        for parameter in layer.parameters():
            parameter.mul_(1 + number)
    distances = adjacent_distances(tiny)
    for layer in range(5):
        one, two = layers[layer].self_attn.q_proj.weight, layers[layer + 1].self_attn.q_proj.weight
        expected = math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(one, two)))
        assert distances["q_proj"]["distance"][layer] == pytest.approx(expected, rel=1e-5)
    # Random layers are what the yardstick describes.
    for sides in distances.values():
        assert sides["distance"] == pytest.approx(sides["uncorrelated"], rel=0.1)
        assert len(sides["distance"]) == 5


@pytest.mark.parametrize("followers", [1, 3, 5])
def test_the_norm_of_equation_1_on_independent_and_on_equal_layers(make_tiny, followers):
    model = make_tiny()
    norms = merged_norms(model, followers)
    assert norms["ratio"] == pytest.approx([math.sqrt(followers + (followers - 1) ** 2)] * (6 - followers), rel=0.05)
    assert norms["uncorrelated"] == pytest.approx(norms["ratio"][0], rel=0.05)
    for layer in model.model.layers[1:]:
        layer.load_state_dict(model.model.layers[0].state_dict())
    assert merged_norms(model, followers)["ratio"] == pytest.approx([1.0] * (6 - followers), rel=1e-5)


def hidden_states(model, tokenizer):
    """[sentence][boundary] -> [tokens, channels]; the last boundary has been through the final norm."""
    every = [torch.tensor([tokenizer(sentence)["input_ids"]]) for sentence in SENTENCES]
    return [[h[0] for h in model(ids, output_hidden_states=True).hidden_states] for ids in every]


def outputs(every, layer):
    return [sentence[layer + 1] for sentence in every]


def token_cosine(a, b):
    cosines = [float(torch.cosine_similarity(x, y, dim=0)) for s, t in zip(a, b) for x, y in zip(s, t)]
    return sum(cosines) / len(cosines)


@torch.no_grad()
def test_outputs_of_adjacent_and_of_merged_layers_are_those_of_full_forwards(tiny, tiny_tokenizer):
    def states(model):
        return hidden_states(model, tiny_tokenizer)

    original = states(tiny)
    cosines = adjacent_cosines(tiny, tiny_tokenizer, SENTENCES)
    expected = [token_cosine(outputs(original, layer), outputs(original, layer + 1)) for layer in range(4)]
    assert cosines[:4] == pytest.approx(expected, abs=1e-5) and len(cosines) == 5

    cosines = merged_outputs(tiny, tiny_tokenizer, SENTENCES, followers=2)
    assert all(len(values) == 4 for values in cosines.values())
    target = outputs(original, 3)
    for name, merge in (("Eq. 1", "paper"), ("the code's merge", "code")):
        model = copy.deepcopy(tiny)
        merge_layers(model, 1, 2, merge)
        assert cosines[name][1] == pytest.approx(token_cosine(outputs(states(model), 1), target), abs=1e-5)
    assert cosines["no layer"][1] == pytest.approx(token_cosine(outputs(original, 0), target), abs=1e-5)
    assert cosines["first layer alone"][1] == pytest.approx(token_cosine(outputs(original, 1), target), abs=1e-5)


@torch.no_grad()
def test_a_contribution_at_a_right_angle_gives_the_cosine_of_its_length(tiny_llama, tiny_tokenizer):
    states = hidden_states(tiny_llama, tiny_tokenizer)
    expected = []
    for layer in range(4):
        sums = []
        for one, two in zip(outputs(states, layer), outputs(states, layer + 1)):
            added = two - one
            apart = added - (added * one).sum(-1, keepdim=True) / one.square().sum(-1, keepdim=True) * one
            sums.append(one + apart * added.norm(dim=-1, keepdim=True) / apart.norm(dim=-1, keepdim=True))
        expected.append(token_cosine(outputs(states, layer), sums))
    cosines = orthogonal_cosines(tiny_llama, tiny_tokenizer, SENTENCES)
    assert cosines[:4] == pytest.approx(expected, abs=1e-5) and len(cosines) == 5


@torch.no_grad()
def test_shuffled_layers_keep_their_singular_values_and_lose_what_they_share(tiny):
    layer = tiny.model.layers[1]
    before = copy.deepcopy(layer)
    copied = shuffled(layer, torch.Generator().manual_seed(0))
    for (name, old), new in zip(layer.named_parameters(), copied.parameters()):
        assert torch.equal(old, before.get_parameter(name))
        if old.ndim < 2:
            assert torch.equal(old, new)
            continue
        torch.testing.assert_close(torch.linalg.svdvals(new), torch.linalg.svdvals(old), rtol=1e-4, atol=1e-5)
        assert abs(float(torch.cosine_similarity(old.flatten(), new.flatten(), dim=0))) < 0.2


@torch.no_grad()
def test_uncorrelated_outputs_are_those_of_a_model_with_shuffled_followers(tiny, tiny_tokenizer):
    before = weights(tiny)
    similarities = uncorrelated_outputs(tiny, tiny_tokenizer, SENTENCES, followers=2)
    assert len(similarities) == 4 and not changed_weights(tiny, before)
    model, generator = copy.deepcopy(tiny), torch.Generator().manual_seed(0)
    for layer in (1, 2):
        model.model.layers[layer] = shuffled(tiny.model.layers[layer], generator)
    merge_layers(model, 0, 2)
    target = outputs(hidden_states(tiny, tiny_tokenizer), 2)
    merged = outputs(hidden_states(model, tiny_tokenizer), 0)
    assert similarities[0] == pytest.approx(token_cosine(merged, target), abs=1e-5)


def test_text_blocks_hold_the_documents_after_end_tokens(tiny_tokenizer):
    documents = ["the layers", "of a model", "are removed"]
    shuffled, end = list(documents), tiny_tokenizer.eos_token_id
    random.Random(3).shuffle(shuffled)
    stream = [i for d in shuffled for i in (end, *tiny_tokenizer(d)["input_ids"])]
    cut = partial(training.text_blocks, tiny_tokenizer, documents, seed=3)
    rows = cut(length=4, tokens=len(stream))
    assert [list(row["input_ids"]) for row in rows] == [stream[i : i + 4] for i in range(0, len(stream) - 3, 4)]
    assert all((row["input_ids"] == row["labels"]).all() for row in rows)
    assert len(cut(length=4, tokens=8)) == 2
    with pytest.raises(UserError, match="less than one block of 500"):
        cut(length=500, tokens=500)
    with pytest.raises(UserError, match="a block of 1 tokens has none to predict"):
        cut(length=1, tokens=8)
    endless = copy.deepcopy(tiny_tokenizer)
    endless.eos_token = None
    assert not any(
        end in row["input_ids"] for row in training.text_blocks(endless, documents, length=4, tokens=8, seed=3)
    )


def test_four_gpus_take_the_32_sequences_of_appendix_b():
    config = load_config_from_file(str(Path(training.__file__).parent / "configs" / "zero2.yaml"))
    assert config.deepspeed_config["zero_stage"] == 2 and config.deepspeed_config["gradient_clipping"] == 1.0
    cpu = torch.device("cpu")
    arguments = trainer.arguments(training.settings(), "out", cpu, processes=config.num_processes)
    step = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * config.num_processes
    assert step == training.SEQUENCES_PER_STEP == 32
    assert arguments.gradient_accumulation_steps == config.deepspeed_config["gradient_accumulation_steps"]
    assert (arguments.learning_rate, arguments.adam_beta1, arguments.adam_beta2) == (2e-4, 0.9, 0.95)
    assert (arguments.weight_decay, arguments.max_grad_norm, arguments.lr_scheduler_type) == (0.1, 1.0, "cosine")
    with pytest.raises(UserError, match="32 rows a step do not split into micro-batches of 8 on 3 processes"):
        trainer.arguments(training.settings(), "out", cpu, processes=3)


def test_posttraining_learns_and_continues(write_checkpoint, tmp_path, monkeypatch):
    text = ["the layers of a model are removed and the stream is scaled"] * 60
    monkeypatch.setattr(corpora, "texts", lambda name: text)
    source = write_checkpoint(tmp_path / "dense")
    common = ["--checkpoint", str(source), "--corpus", "wikitext2-train", "--length", "16", "--batch", "4"]
    common += ["--micro-batch", "2", "--out", str(tmp_path / "out"), "--save-every", "3", "--learning-rate", "1e-3"]
    assert posttrain.main([*common, "--tokens", "384"]) == 0
    (row,) = training.text_blocks(checkpoint.load(source)[1], text, length=16, tokens=16, seed=0)
    ids = torch.tensor([row["input_ids"].tolist()])
    losses = [checkpoint.load(path)[0](ids, labels=ids).loss.item() for path in (source, tmp_path / "out" / "model")]
    assert losses[1] < losses[0] - 0.5
    subject = subjects.of_model(str(tmp_path / "out" / "model"))  # a table takes it as any model
    assert subject.layers == 6 and subject.weights
    first = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    for folder in ("checkpoint-6", "model"):  # as if it had been killed after the third of six steps
        shutil.rmtree(tmp_path / "out" / folder)
    (tmp_path / "out" / "checkpoint-5").mkdir()  # while it wrote one
    (tmp_path / "out" / "checkpoint-5" / "model.safetensors").write_bytes(first[:100])
    assert posttrain.main([*common, "--tokens", "384"]) == 0
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == first


@pytest.mark.parametrize(
    "changed, message",
    [
        (["--corpus", "c4-trian"], "unknown corpus 'c4-trian'; did you mean 'c4-train'"),
        (["--batch", "12"], "a batch of 12 rows cannot be made of micro-batches of 8"),
        (["--checkpoint", "llama-2"], "llama-2"),
        (["--length", "100000"], "less than one block of 100000"),
    ],
)
def test_posttraining_refuses_in_one_line(write_checkpoint, tmp_path, monkeypatch, capsys, changed, message):
    monkeypatch.setattr(corpora, "texts", lambda name: ["the layers of a model"])
    source = str(write_checkpoint(tmp_path / "dense"))
    command = ["--checkpoint", source, "--corpus", "c4-train", "--out", str(tmp_path / "out"), *changed]
    assert posttrain.main(command) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and message in shown and len(shown.splitlines()) == 1


@pytest.mark.parametrize("given, expected", [([], (1, True)), (["--micro-batch", "4"], (4, True))])
def test_post_training_above_3_b_takes_one_row_at_a_time_unless_told(given, expected, tmp_path, monkeypatch):
    requested = []

    def stop(settings, *args, **options):
        requested.append((settings.micro_batch, settings.checkpointing))
        raise UserError("enough")

    monkeypatch.setattr(trainer, "arguments", stop)
    common = ["--checkpoint", "llama-2-7b", "--corpus", "c4-train", "--out", str(tmp_path)]
    assert posttrain.main([*common, *given]) == 2 and requested == [expected]
    assert posttrain.main(["--checkpoint", "standin", *common[2:]]) == 2 and requested[-1] == (8, None)
