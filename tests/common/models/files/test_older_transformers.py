"""What is saved says the same to programs that know the names of transformers 4 alone.

None of them is installed here. Their part is taken by the file without any of the new names, which transformers 5 read as
they were written then.
"""

import copy
import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from common.models import checkpoint, surgery
from common.models.files import older_transformers

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
ROPES = {"plain": (1e5, None), "llama3": (5e5, LLAMA3), "linear": (2e4, {"rope_type": "linear", "factor": 2.0})}


def read(file):
    return json.loads(file.read_text())


def understood(directory):
    return AutoConfig.from_pretrained(directory).to_dict() | {"_name_or_path": ""}


@pytest.fixture(params=ROPES)
def of_old(request, make_tiny, write_checkpoint, tmp_path):
    """A checkpoint as transformers 4 wrote it, with a key of its author's own."""
    model, (base, scaling) = make_tiny("llama"), ROPES[request.param]
    config = copy.deepcopy(model.config)
    config.rope_parameters = {"rope_theta": base, **(scaling or {"rope_type": "default"})}
    path = write_checkpoint(tmp_path / "source", model=AutoModelForCausalLM.from_config(config))
    old_config = {k: v for k, v in read(path / "config.json").items() if k not in ("rope_parameters", "dtype")}
    old_config |= {"torch_dtype": "float32", "rope_theta": base, "rope_scaling": scaling}
    old_config["transformers_version"] = "4.40.0"
    (path / "config.json").write_text(json.dumps(old_config | {"authors_own": 1}))
    tokens = read(path / "tokenizer_config.json") | {"tokenizer_class": "PreTrainedTokenizerFast", "authors_own": 2}
    (path / "tokenizer_config.json").write_text(json.dumps(tokens))
    (path / "special_tokens_map.json").write_text('{"bos_token": "<s>"}')
    return path


def test_a_pruned_model_keeps_the_words_of_what_it_was_read_from(of_old, ids, tmp_path):
    model, tokenizer = checkpoint.load(of_old)
    surgery.remove_layers(model, [1, 4])
    saved = checkpoint.save(model, tokenizer, tmp_path / "saved", source=of_old)
    assert read(saved / "config.json") == read(of_old / "config.json") | {"num_hidden_layers": 4}
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (saved / name).read_bytes() == (of_old / name).read_bytes()
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(saved)(ids).logits, model(ids).logits)


def test_a_pattern_of_layers_that_fits_no_longer_goes_and_the_other_names_stay(tmp_path):
    """Of Command R7B: transformers derives layer_types from its sliding_window_pattern."""
    source = tmp_path / "source"
    source.mkdir()
    old = {"model_type": "cohere2", "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4}
    old |= {"rope_theta": 50000, "sliding_window_pattern": 4, "torch_dtype": "bfloat16", "sliding_window": 8}
    (source / "config.json").write_text(json.dumps(old))
    config = AutoConfig.from_pretrained(source)
    config.layer_types = [kind for index, kind in enumerate(config.layer_types) if index not in (1, 2)]
    config.num_hidden_layers = 6
    config.save_pretrained(tmp_path / "saved")
    kept = understood(tmp_path / "saved")
    older_transformers.rewrite(tmp_path / "saved", source)
    assert understood(tmp_path / "saved") == kept
    saved = read(tmp_path / "saved" / "config.json")
    assert saved["rope_theta"] == 50000 and saved["torch_dtype"] == "bfloat16"
    assert saved["layer_types"] == config.layer_types and "sliding_window_pattern" not in saved


def test_another_type_is_said_by_the_name_that_the_source_has(of_old, tmp_path):
    model, tokenizer = checkpoint.load(of_old, dtype="bfloat16")
    saved = checkpoint.save(model, tokenizer, tmp_path / "saved", source=of_old)
    assert read(saved / "config.json") == read(of_old / "config.json") | {"torch_dtype": "bfloat16"}
    assert AutoModelForCausalLM.from_pretrained(saved).dtype == torch.bfloat16


def test_without_a_source_the_old_names_stand_beside_the_new(tiny, tiny_tokenizer, tmp_path):
    tiny.config.rope_parameters |= {"rope_theta": 3e5} | (LLAMA3 if tiny.config.model_type == "llama" else {})
    saved = checkpoint.save(tiny, tiny_tokenizer, tmp_path / "saved")
    config = read(saved / "config.json")
    old = {name: value for name, value in config.items() if name not in ("rope_parameters", "dtype")}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps(old))
    assert understood(tmp_path / "old") == understood(saved)
    assert config["rope_theta"] == 3e5
    assert read(saved / "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    text = "the stream of a model"
    assert AutoTokenizer.from_pretrained(saved)(text)["input_ids"] == tiny_tokenizer(text)["input_ids"]


def test_an_architecture_of_somebody_elses_code_is_left_as_it_is(tmp_path):
    for config in ({"model_type": "somebodys-own", "dtype": "float32"}, {"dtype": "float32"}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        older_transformers.rewrite(tmp_path, source=tmp_path)
        assert read(tmp_path / "config.json") == config


def test_a_word_that_would_change_the_model_is_not_written(of_old, tmp_path, monkeypatch):
    model, tokenizer = checkpoint.load(of_old)
    monkeypatch.setattr(older_transformers, "older_names", lambda config: config | {"rms_norm_eps": 0.5})
    saved = checkpoint.save(model, tokenizer, tmp_path / "saved", source=of_old)
    assert AutoConfig.from_pretrained(saved).rms_norm_eps == model.config.rms_norm_eps != 0.5


def test_code_that_is_not_saved_is_not_named(write_checkpoint, tmp_path, ids):
    """A program that trusts remote code reads the result, too."""
    source = write_checkpoint(tmp_path / "source")
    for name, of in (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")):
        content = json.loads((source / name).read_text())
        code = ["custom.Code", None] if of == "AutoTokenizer" else "custom.Code"
        (source / name).write_text(json.dumps(content | {"auto_map": {of: code}}))
    model, tokenizer = checkpoint.load(source)
    out = checkpoint.save(model, tokenizer, tmp_path / "out", source=source)
    with pytest.raises(OSError, match=r"custom\.py"):
        AutoModelForCausalLM.from_pretrained(source, trust_remote_code=True)
    again = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert torch.equal(again(ids).logits, model(ids).logits)
    saved_tokenizer = AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    assert saved_tokenizer("The layers")["input_ids"] == tokenizer("The layers")["input_ids"]
