"""LaCo's layer similarity and post-training, against plain loops and Hugging Face's own hidden states."""

import copy
import math
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

from common import checkpoint
from common.errors import UserError
from papers.laco import merge_layers, posttrain, training
from papers.laco.layers import adjacent_cosines, adjacent_distances, merged_norms, merged_outputs

SENTENCES = ["the layers of a model", "are removed and the stream is scaled"]


@torch.no_grad()
def test_distances_of_adjacent_matrices(tiny):
    found = adjacent_distances(tiny)
    layers = tiny.model.layers
    for layer in range(5):
        one, two = layers[layer].self_attn.q_proj.weight, layers[layer + 1].self_attn.q_proj.weight
        expected = math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(one, two)))
        assert found["q_proj"]["distance"][layer] == pytest.approx(expected, rel=1e-5)
    # Random layers are what the yardstick describes.
    for sides in found.values():
        assert sides["distance"] == pytest.approx(sides["uncorrelated"], rel=0.1)
        assert len(sides["distance"]) == 5


@pytest.mark.parametrize("followers", [1, 3, 5])
def test_the_norm_of_equation_1_on_independent_and_on_equal_layers(make_tiny, followers):
    model = make_tiny()
    found = merged_norms(model, followers)
    assert found["ratio"] == pytest.approx([math.sqrt(followers + (followers - 1) ** 2)] * (6 - followers), rel=0.05)
    for layer in model.model.layers[1:]:
        layer.load_state_dict(model.model.layers[0].state_dict())
    assert merged_norms(model, followers)["ratio"] == pytest.approx([1.0] * (6 - followers), rel=1e-5)


@torch.no_grad()
def test_outputs_of_adjacent_and_of_merged_layers_are_those_of_full_forwards(tiny, tiny_tokenizer):
    def states(model):
        every = []
        for sentence in SENTENCES:
            ids = torch.tensor([tiny_tokenizer(sentence)["input_ids"]])
            every.append([h[0] for h in model(ids, output_hidden_states=True).hidden_states])
        return every

    def token_cosine(a, b):
        cosines = [float(torch.cosine_similarity(x, y, dim=0)) for s, t in zip(a, b) for x, y in zip(s, t)]
        return sum(cosines) / len(cosines)

    original = states(tiny)

    def outputs(every, layer):  # the last of hidden_states has been through the final norm
        return [sentence[layer + 1] for sentence in every]

    found = adjacent_cosines(tiny, tiny_tokenizer, SENTENCES)
    expected = [token_cosine(outputs(original, layer), outputs(original, layer + 1)) for layer in range(4)]
    assert found[:4] == pytest.approx(expected, abs=1e-5) and len(found) == 5

    found = merged_outputs(tiny, tiny_tokenizer, SENTENCES, followers=2)
    assert all(len(values) == 4 for values in found.values())
    target = outputs(original, 3)
    for name, merge in (("Eq. 1", "paper"), ("the code's merge", "code")):
        model = copy.deepcopy(tiny)
        merge_layers(model, 1, 2, merge)
        assert found[name][1] == pytest.approx(token_cosine(outputs(states(model), 1), target), abs=1e-5)
    assert found["no layer"][1] == pytest.approx(token_cosine(outputs(original, 0), target), abs=1e-5)
    assert found["first layer alone"][1] == pytest.approx(token_cosine(outputs(original, 1), target), abs=1e-5)
    with pytest.raises(UserError, match="no window of 7 layers in a model of 6"):
        merged_outputs(tiny, tiny_tokenizer, SENTENCES, followers=6)


def test_text_blocks_hold_the_documents_after_end_tokens(tiny_tokenizer):
    documents = ["the layers", "of a model", "are removed"]
    stream = [i for d in documents for i in (tiny_tokenizer.eos_token_id, *tiny_tokenizer(d)["input_ids"])]
    rows = training.text_blocks(tiny_tokenizer, documents, length=4)
    assert [list(row["input_ids"]) for row in rows] == [stream[i : i + 4] for i in range(0, len(stream) - 3, 4)]
    assert all((row["input_ids"] == row["labels"]).all() for row in rows)
    assert len(training.text_blocks(tiny_tokenizer, documents, length=4, tokens=8)) == 2
    with pytest.raises(UserError, match="less than one block of 500"):
        training.text_blocks(tiny_tokenizer, documents, length=500)


def test_four_gpus_take_the_32_sequences_of_appendix_b():
    config = load_config_from_file(str(Path(training.__file__).parent / "configs" / "zero2.yaml"))
    assert config.deepspeed_config["zero_stage"] == 2 and config.deepspeed_config["gradient_clipping"] == 1.0
    arguments = posttrain.arguments(training.settings(), "out", config.num_processes)
    step = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * config.num_processes
    assert step == training.SEQUENCES_PER_STEP == 32
    assert arguments.gradient_accumulation_steps == config.deepspeed_config["gradient_accumulation_steps"]
    assert (arguments.learning_rate, arguments.adam_beta1, arguments.adam_beta2) == (2e-4, 0.9, 0.95)
    assert (arguments.weight_decay, arguments.max_grad_norm, arguments.lr_scheduler_type) == (0.1, 1.0, "cosine")
    with pytest.raises(UserError, match="32 sequences a step do not split"):
        posttrain.arguments(training.settings(), "out", 3)


def test_posttraining_learns_and_continues(write_checkpoint, tmp_path, monkeypatch):
    from common import corpora

    text = ["the layers of a model are removed and the stream is scaled"] * 60
    monkeypatch.setattr(corpora, "texts", lambda name: text)
    source = write_checkpoint(tmp_path / "dense")
    common = ["--checkpoint", str(source), "--corpus", "wikitext2-train", "--length", "16", "--batch", "4"]
    common += ["--micro-batch", "2", "--out", str(tmp_path / "out"), "--save-every", "3", "--learning-rate", "1e-3"]
    posttrain.main([*common, "--tokens", "384"])
    ids = torch.tensor([training.text_blocks(checkpoint.load(source)[1], text, length=16)[0]["input_ids"].tolist()])
    losses = [checkpoint.load(path)[0](ids, labels=ids).loss.item() for path in (source, tmp_path / "out" / "model")]
    assert losses[1] < losses[0] - 0.5
    first = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    posttrain.main([*common, "--tokens", "384"])  # finished: the newest checkpoint is the last step
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == first
