"""A streamed model does to the last bit what the same model in memory does, with two of its parts there at a time."""

import json
import multiprocessing
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import ARCHITECTURES
from transformers import AutoModelForCausalLM
from weights import changed_weights, weights

from common.calibration import collect, default_pairs
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.windowed_perplexity import token_nlls
from common.hooks import attach_patch, register_patch
from common.models import checkpoint, offload
from common.models.architectures import at_hand
from common.models.decoder import Decoder
from common.models.files.safetensors_reader import entries
from common.models.surgery import remove_layers
from common.utils.errors import UserError


@pytest.fixture(params=sorted(ARCHITECTURES))
def both(request, write_checkpoint, tmp_path):
    """The same checkpoint in memory and streamed, without room for states in memory."""
    return opened(write_checkpoint(tmp_path / "model", request.param))


@pytest.fixture
def llamas(write_checkpoint, tmp_path):
    return opened(write_checkpoint(tmp_path / "model", "llama"))


def opened(folder):
    whole, tokenizer = checkpoint.load(folder)
    streamed, _ = checkpoint.load(folder, stream=0)
    return whole, streamed, tokenizer


def there(model):
    """The parts whose weights are in memory: layers by number."""
    layers = dict(enumerate(model.model.layers))
    edges = {"embedding": model.model.embed_tokens, "head": model.lm_head}
    loaded = [name for name, layer in layers.items() if not next(layer.parameters()).is_meta]
    return loaded + [name for name, module in edges.items() if module.weight.untyped_storage().nbytes() > 16]


def test_logits_and_generated_tokens_are_equal(both, ids):
    whole, streamed, _ = both
    with torch.inference_mode():
        assert torch.equal(whole(ids).logits, streamed(ids).logits)
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(whole.generate(ids, **options), streamed.generate(ids, **options))
    tied = whole.config.tie_word_embeddings
    assert there(streamed) == (["embedding", "head"] if tied else ["head"])
    streamed.streamed.let_go()
    assert there(streamed) == []
    streamed.streamed.fetch(streamed.model.layers[1])
    assert there(streamed) == [1]  # another is read ahead


def test_statistics_are_equal_and_each_layer_is_read_once(both):
    whole, streamed, _ = both
    crops = torch.randint(3, 320, (5, 20), generator=torch.Generator().manual_seed(5))
    layers = len(whole.model.layers)
    options = {
        "span": 2,
        "pairs": [*default_pairs(layers, 2), (layers - 2, layers + 1)],
        "kinds": ("token", "channel"),
        "elementwise": [(1, 3)],
        "matrices": [(2, 4)],
        "batch_size": 2,
    }
    expected = collect(Decoder(whole), crops, **options)
    before = streamed.streamed.reads
    other = collect(Decoder(streamed), crops, **options)
    assert streamed.streamed.reads - before == layers
    assert expected.cosines == other.cosines and (expected.samples, expected.tokens) == (other.samples, other.tokens)
    for name in ("magnitudes", "ratios", "elementwise"):
        first, second = getattr(expected, name), getattr(other, name)
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(expected.moments[2, 4].gram, other.moments[2, 4].gram)
    assert torch.equal(expected.moments[2, 4].cross, other.moments[2, 4].cross)


def test_scores_are_equal_and_each_layer_is_read_once(both, ids):
    whole, streamed, tokenizer = both
    sequences = ids.repeat(3, 1)
    requests = [
        ((context, choice), tokenizer(context).input_ids, tokenizer(choice).input_ids)
        for context in ("the layers of", "a model is", "the stream of the model")
        for choice in (" removed", " scaled and", " the")
    ]
    layers = len(whole.model.layers)
    assert torch.equal(token_nlls(whole, sequences, max_tokens=48), token_nlls(streamed, sequences, max_tokens=48))
    before, read = streamed.streamed.reads, streamed.streamed.bytes_read
    scores = SharedContextLM(streamed, tokenizer, batch_size=2)._loglikelihood_tokens(requests, disable_tqdm=True)
    assert streamed.streamed.reads - before <= layers
    edges = [whole.model.embed_tokens.weight, whole.lm_head.weight]
    weights = [*edges, *whole.model.layers.parameters()]
    assert streamed.streamed.bytes_read - read <= sum(p.numel() * p.element_size() for p in weights)
    assert scores == SharedContextLM(whole, tokenizer, batch_size=2)._loglikelihood_tokens(requests, disable_tqdm=True)


def test_what_was_changed_is_kept_and_saved(both, ids, tmp_path):
    whole, streamed, tokenizer = both
    for model in (whole, streamed):
        decoder = Decoder(model)
        writers = [writer for layer in (1, 3, 4) for writer in decoder.residual_writers(layer)]
        for writer in (*decoder.embedding_writers(), *decoder.final_gains(), *writers):
            writer.scale_(0.5)
        remove_layers(model, [2, 3])
        for writer in decoder.residual_writers(1):
            writer.scale_(3.0)
    with torch.inference_mode():
        expected = whole(ids).logits
        assert torch.equal(expected, streamed(ids).logits)
    checkpoint.save(streamed, tokenizer, tmp_path / "saved")
    again, _ = checkpoint.load(tmp_path / "saved")
    assert not changed_weights(again, weights(whole))
    twice, _ = checkpoint.load(tmp_path / "saved", stream=0)
    with torch.inference_mode():
        assert torch.equal(expected, again(ids).logits) and torch.equal(expected, twice(ids).logits)


def test_how_the_model_is_to_generate_is_kept(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "llama")
    settings = {"eos_token_id": [2, 5, 9], "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    whole, streamed, tokenizer = opened(folder)
    assert streamed.generation_config == whole.generation_config
    for model, name in ((whole, "whole"), (streamed, "streamed")):
        checkpoint.save(model, tokenizer, tmp_path / name)
    files = [tmp_path / name / "generation_config.json" for name in ("whole", "streamed")]
    first, second = (json.loads(file.read_text()) for file in files)
    assert first == second and settings.items() <= second.items()
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"temperature": 0.7, "do_sample": True, "max_length": 96}))
    whole, streamed, _ = opened(folder)  # of older models it is in the config
    assert streamed.generation_config == whole.generation_config and streamed.generation_config.temperature == 0.7
    (folder / "generation_config.json").write_text("{")  # which transformers goes without
    whole, streamed, _ = opened(folder)
    assert streamed.generation_config.eos_token_id == whole.generation_config.eos_token_id == 2


class Halve(torch.nn.Module):
    kind = "halve-streamed"

    def forward(self, hidden):
        return hidden / 2


def test_patches_act_and_are_saved(llamas, ids, tmp_path):
    whole, streamed, tokenizer = llamas
    register_patch("halve-streamed", lambda tensors, options: Halve())
    for model in (whole, streamed):
        remove_layers(model, [2])
        attach_patch(model, 2, Halve())
    checkpoint.save(streamed, tokenizer, tmp_path / "saved")
    loaded, _ = checkpoint.load(tmp_path / "saved", stream=1 << 20)
    with torch.inference_mode():
        expected = whole(ids).logits
        assert torch.equal(expected, streamed(ids).logits) and torch.equal(expected, loaded(ids).logits)


def test_a_weight_that_is_replaced_is_kept_too(llamas, ids):
    whole, streamed, _ = llamas
    for model in (whole, streamed):
        projection = at_hand(model.model.layers[1]).mlp.down_proj
        projection.weight = torch.nn.Parameter(projection.weight.detach() * 2, requires_grad=False)
        at_hand(model.model.layers[4]).self_attn.o_proj.weight.data = torch.zeros(64, 64)
    with torch.inference_mode():
        assert torch.equal(whole(ids).logits, streamed(ids).logits)


def test_computed_in_another_type_and_saved_in_the_files(write_checkpoint, make_tiny, tmp_path, ids):
    folder = write_checkpoint(tmp_path / "model", "llama", make_tiny("llama").to(torch.bfloat16))
    whole, tokenizer = checkpoint.load(folder, dtype=torch.float32)
    streamed, _ = checkpoint.load(folder, dtype="float32", stream=0)
    with torch.inference_mode():
        assert torch.equal(whole(ids).logits, streamed(ids).logits)
    checkpoint.save(streamed, tokenizer, tmp_path / "saved")
    again, _ = checkpoint.load(tmp_path / "saved")
    assert again.dtype == torch.bfloat16 and not changed_weights(again.float(), weights(whole))


@pytest.mark.parametrize(
    "change, dtype, apart",
    [(0.0, None, False), (0.5, None, True), (1e-6, None, True), (1e-6, torch.bfloat16, False)],
    ids=["the same", "another", "hardly another", "the same once rounded"],
)
def test_a_head_of_its_own_is_tied_only_where_transformers_ties_it(
    write_checkpoint, make_tiny, ids, tmp_path, monkeypatch, change, dtype, apart
):
    """The config says that head and embedding are one; the files hold both."""
    monkeypatch.setattr(offload, "_ROWS", 7)
    model = make_tiny("gemma2")
    with torch.no_grad():
        model.model.embed_tokens.weight[-1] = 1.0
    file = write_checkpoint(tmp_path / "model", model=model) / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][-1] += change
    save_file(tensors, file, {"format": "pt"})
    whole, tokenizer = checkpoint.load(file.parent, dtype=dtype)
    streamed, _ = checkpoint.load(file.parent, dtype=dtype, stream=0)
    assert Decoder(whole).tied == Decoder(streamed).tied == (not apart)
    assert whole.config.tie_word_embeddings and streamed.config.tie_word_embeddings
    with torch.inference_mode():
        assert torch.equal(whole(ids).logits, streamed(ids).logits)
    for model, name in ((whole, "whole"), (streamed, "streamed")):
        remove_layers(model, [2])
        checkpoint.save(model, tokenizer, tmp_path / name)
    saved = entries(tmp_path / "streamed")
    assert saved.keys() == entries(tmp_path / "whole").keys() and ("lm_head.weight" in saved) == apart
    with torch.inference_mode():
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "streamed", dtype=whole.dtype)
        assert torch.equal(whole(ids).logits, again(ids).logits)


def test_a_missing_tensor_is_named(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "llama")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"hold no model\.layers\.2\.\S*up_proj"):
        checkpoint.load(folder, stream=0)


def changed(folder):
    """A streamed model of which two layers were changed."""
    model, _ = checkpoint.load(folder, stream=0)
    for layer in (1, 2):
        for writer in Decoder(model).residual_writers(layer):
            writer.scale_(2.0)
    return model


def test_changed_layers_of_a_killed_process_are_swept_and_a_living_ones_stay(write_checkpoint, tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path / "model", "llama")
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    forked = multiprocessing.get_context("fork")

    def change(done):
        model = changed(folder)
        done.set()
        time.sleep(600)
        del model

    done = [forked.Event() for _ in range(2)]
    processes = [forked.Process(target=change, args=(event,)) for event in done]
    try:
        for process in processes:
            process.start()
        assert all(event.wait(120) for event in done)
        there = set((tmp_path / "cache").glob("changed-layers-*"))
        assert len(there) == 2
        processes[0].kill()
        processes[0].join()
        model = changed(folder)
        left = set((tmp_path / "cache").glob("changed-layers-*"))
        assert len(left) == 2 and len(left & there) == 1
        del model
    finally:
        for process in processes:
            process.kill()
            process.join()
