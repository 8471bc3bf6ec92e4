"""A repaired plain checkpoint in other programs: Transformers, GGUF and back; and the cut as other programs take it."""

import gguf
import numpy as np
import pytest
import torch
import yaml
from gguf_file import gguf_name, write_gguf
from transformers import AutoModelForCausalLM, GgufConfig

from common.baselines.replaceme import replace_me
from common.cli.card import mergekit, prune_layers
from common.models import checkpoint
from extensions import refit

REPAIRS = {
    "replaceme": lambda model, ids: replace_me(model, ids, [2, 3]),
    "replaceme with a bias": lambda model, ids: replace_me(model, ids, [2, 3], bias=True),
    "refit": lambda model, ids: refit.refit(model, ids, [1, 3], following=1),
}


@pytest.fixture
def fused(request, make_tiny, tiny_tokenizer, tmp_path):
    """(a repaired model, its checkpoint)"""
    ids = torch.randint(5, 300, (8, 24), generator=torch.Generator().manual_seed(0))
    model = make_tiny("llama")
    REPAIRS[request.param](model, ids)
    return model, checkpoint.save(model, tiny_tokenizer, tmp_path / "model")


@pytest.mark.parametrize("fused", REPAIRS, indirect=True)
def test_a_fused_checkpoint_generates_in_plain_transformers(fused, ids, greedy):
    model, path = fused
    again = AutoModelForCausalLM.from_pretrained(path)
    assert not (path / checkpoint.PATCHES_JSON).exists()
    assert again.config.num_hidden_layers == len(again.model.layers) == 4
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert torch.equal(greedy(again, ids, True), greedy(model, ids, False))


@pytest.mark.parametrize("fused", REPAIRS, indirect=True)
def test_a_fused_checkpoint_becomes_gguf_and_comes_back(fused, ids, tiny_tokenizer, tmp_path):
    model, path = fused
    plain = AutoModelForCausalLM.from_pretrained(path)
    write_gguf(tmp_path / "tiny.gguf", plain, tiny_tokenizer, gguf.GGMLQuantizationType.F32)
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    data_by_name = {tensor.name: tensor.data for tensor in reader.tensors}
    assert reader.get_field("llama.block_count").contents() == 4
    assert data_by_name.keys() == {gguf_name(name) for name in model.state_dict()}
    for name, tensor in model.state_dict().items():
        if not name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp orders their rows in another way
            np.testing.assert_array_equal(data_by_name[gguf_name(name)], tensor.numpy(), err_msg=name)
    if plain.config.mlp_bias:
        return  # transformers reads no biases from a Llama's GGUF; llama.cpp does
    options = {"gguf_file": "tiny.gguf", "quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
    again = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    for (name, before), after in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(before, after), name
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("removed", [[2, 3], [5, 1, 3], [4, 5], [0]])
def test_the_cut_as_llama_cpp_and_mergekit_take_it(removed):
    pruned = [int(layer) for layer in prune_layers(removed).split(",")]
    assert pruned == sorted(removed)
    report = {
        "model": "a directory",
        "source": {"base_model": "org/model"},
        "layers": {"before": 6},
        "dtype": "bfloat16",
        "facts": {"removed": removed},
    }
    config = yaml.safe_load(mergekit(report))
    assert (config["merge_method"], config["dtype"]) == ("passthrough", "bfloat16")
    remaining = []
    for part in config["slices"]:
        [source] = part["sources"]
        assert source["model"] == "org/model"
        remaining += range(*source["layer_range"])
    assert remaining == [layer for layer in range(6) if layer not in removed]
