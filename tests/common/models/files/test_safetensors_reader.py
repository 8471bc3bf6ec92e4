"""Which weight files a checkpoint has: those that transformers loads. Its index: read, or named with what is wrong in it."""

import pytest
import torch
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM

from common.models.files import pickled_weights
from common.models.files.safetensors_reader import INDEX, entries, shards
from common.utils.errors import UserError


def test_every_file_is_named_once_in_order(tmp_path):
    (tmp_path / INDEX).write_text('{"metadata": {}, "weight_map": {"a": "two", "b": "one", "c": "two"}}')
    assert shards(tmp_path / INDEX) == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    ['{"weight_map": {"a": 5}}', '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": null}', "[]", "3", "{"],
)
@pytest.mark.parametrize("read", [entries, lambda folder: pickled_weights.shards(folder)])
def test_an_index_that_names_no_files_is_named(tmp_path, text, read):
    for name in (INDEX, pickled_weights.INDEX):
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"cannot read .*index\.json: .*; save or download it again"):
        read(tmp_path)


@pytest.mark.parametrize("parts_stay", [False, True])
def test_what_transformers_loads_is_read_where_an_index_is_left_from_an_earlier_save(make_tiny, tmp_path, parts_stay):
    old, new = make_tiny("llama"), make_tiny("llama")
    with torch.no_grad():
        new.model.norm.weight += 1
    old.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(shards(tmp_path / INDEX)) > 1
    if parts_stay:
        save_model(new, str(tmp_path / "model.safetensors"), {"format": "pt"})
    else:  # transformers clears the parts away, but not the index that names them
        new.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    tensors = {name: entry.read() for name, entry in entries(tmp_path).items()}
    assert tensors.keys() == loaded.keys() and all(torch.equal(tensors[name], loaded[name]) for name in loaded)
    assert torch.equal(tensors["model.norm.weight"], new.model.norm.weight)
