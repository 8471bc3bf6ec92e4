"""DeciLM's config against the tensors that are saved: names and shapes that its reading of ``block_configs`` asks for."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from common.baselines import llm_pruner, slicegpt, sublayer_removal
from common.models import checkpoint
from common.models.decoder import Decoder
from common.models.files import block_configs
from common.models.layers import structure
from common.models.layers.sublayers import ATTENTION, MLP, drop_sublayers, linear_attention
from common.models.layers.widths import slice_channels

IDS = torch.randint(3, 100, (3, 20), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def model():
    sizes = {"vocab_size": 100, "hidden_size": 48, "intermediate_size": 512, "num_hidden_layers": 8}
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


def asked_for(config):
    """Name -> shape of the layers' tensors, as engines read the config: MLPs rounded up to multiples of 256."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    size, shapes_by_name = width // heads, {}
    for number, block in enumerate(config["block_configs"]):
        prefix = f"model.layers.{number}"
        if not block["attention"]["no_op"]:
            keys = heads // block["attention"]["n_heads_in_group"] * size
            shapes = {"q": (heads * size, width), "k": (keys, width), "v": (keys, width), "o": (width, heads * size)}
            shapes_by_name |= {f"{prefix}.self_attn.{name}_proj.weight": shape for name, shape in shapes.items()}
            shapes_by_name[f"{prefix}.input_layernorm.weight"] = (width,)
        if not block["ffn"]["no_op"]:
            inner = int(2 * block["ffn"]["ffn_mult"] * width / 3)
            inner += -inner % 256
            shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
            shapes_by_name |= {f"{prefix}.mlp.{name}_proj.weight": shape for name, shape in shapes.items()}
            shapes_by_name[f"{prefix}.post_attention_layernorm.weight"] = (width,)
    return shapes_by_name


def test_the_config_asks_for_the_tensors_that_are_saved(model, tmp_path, caplog):
    drop_sublayers(model, [(0, ATTENTION), (3, MLP), (5, ATTENTION), (5, MLP)])
    slice_channels(model.model.layers[2], torch.arange(256))
    checkpoint.save(model, None, tmp_path / "model")
    stored = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items()}
    config = json.loads((tmp_path / "model" / block_configs.FILE).read_text())
    assert config == json.loads(json.dumps(block_configs.config(model)))
    assert asked_for(config) == {name: shape for name, shape in stored.items() if "layers" in name}
    assert (config["model_type"], config["num_hidden_layers"]) == ("nemotron-nas", 8)
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert "layers 3 have an attention and no MLP" in caplog.text


def test_a_plain_model_and_what_it_cannot_say_have_no_such_file(model, make_tiny, tmp_path):
    checkpoint.save(model, None, tmp_path / "plain")
    tiny = make_tiny("llama")  # 96 channels
    drop_sublayers(tiny, [(1, MLP)])
    checkpoint.save(tiny, None, tmp_path / "tiny")
    assert not list(tmp_path.glob(f"*/{block_configs.FILE}"))
    assert (tmp_path / "tiny" / structure.FILE).exists()


def test_what_it_cannot_say_has_no_config(model, make_tiny):
    narrow, sliced, linear = (copy.deepcopy(model) for _ in range(3))
    llm_pruner.prune(narrow, IDS, 0.6)
    slicegpt.slice_stream(sliced, IDS, 40)
    maps = sublayer_removal.linear_maps(Decoder(linear), IDS)
    linear_attention(linear, 2, *maps[2][1:])
    assert block_configs.config(model)
    for other in (narrow, sliced, linear, make_tiny("llama"), make_tiny("gemma2")):  # a tiny MLP has 96 channels
        assert block_configs.config(other) is None
