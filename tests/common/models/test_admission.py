"""What would be read as another model is refused by every way in, and never changes what is there."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tools import edited_config

from common import models
from common.models import checkpoint
from common.utils.errors import UserError
from reproductions.command_line import main as reproductions


@pytest.fixture(scope="module")
def plain(tmp_path_factory, write_checkpoint):
    return write_checkpoint(tmp_path_factory.mktemp("plain") / "model")


def in_eight_bits(folder, scale="weight_scale_inv"):
    """Blocks of 16 x 16 in float8 with their scales, as DeepSeek publishes; the config says nothing of it."""
    tensors = {}
    for name, value in load_file(folder / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            tensors[name] = value
            continue
        blocks = value.reshape(value.shape[0] // 16, 16, value.shape[1] // 16, 16)
        factor = blocks.abs().amax((1, 3)) / 448
        tensors[name] = (blocks / factor[:, None, :, None]).reshape(value.shape).to(torch.float8_e4m3fn)
        tensors[name.replace("weight", scale)] = factor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def scales_alone(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def adapter(folder):
    (folder / "adapter_config.json").write_text("{}")


FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
CONFIGS = {
    "quantised": (edited_config(quantization_config=FP8), "the model is quantised"),
    "quantised, by vendors": (edited_config(compression_config={"format": "pack-quantized"}), "the model is quantised"),
    "pad token": (edited_config(pad_token_id=320), "pad_token_id 320"),
    "strict type": (edited_config(initializer_range=1), "expected float, got int"),
    "layer types": (
        edited_config(layer_types=["full_attention"] * 8),
        r"\(6\) must be equal to the number of `layer_types` \(8\)",
    ),
    "no base": (edited_config(rope_parameters=None, rope_theta=None), "no model can be built from its config.json"),
}
FILES = {
    "eight bits": (in_eight_bits, "weight_scale_inv is stored as F32"),
    "scales": (scales_alone, "weight_scale is stored as F32"),
    "vocabulary": (
        edited_config(vocab_size=321),
        r"embed_tokens.weight is 320 x 64 in the files, .* asks for 321 x 64",
    ),
    "heads": (edited_config(num_attention_heads=8), r"q_proj.weight is 64 x 64 in the files, .* asks for 128 x 64"),
    "adapter": (adapter, "an adapter lies beside the model"),
}


@pytest.fixture
def damaged(plain, tmp_path, request):
    damage, message = request.param
    folder = shutil.copytree(plain, tmp_path / "model")
    damage(folder)
    return folder, message


@pytest.mark.parametrize("damaged", [*CONFIGS.values(), *FILES.values()], ids=[*CONFIGS, *FILES], indirect=True)
@pytest.mark.parametrize("stream", [None, 0], ids=["memory", "stream"])
def test_refused_by_loading(damaged, stream):
    folder, message = damaged
    for load in (models.load, checkpoint.load):
        with pytest.raises(UserError, match=message):
            load(folder, stream=stream)


@pytest.mark.parametrize("damaged", CONFIGS.values(), ids=CONFIGS.keys(), indirect=True)
def test_refused_by_the_tables(damaged, capsys):
    folder, _ = damaged
    assert reproductions(["run", "table1-linearpatch", "--model", str(folder)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: cannot load") and printed.count("\n") == 1


@pytest.mark.parametrize("changed", [{"word_embed_proj_dim": 32}, {"do_layer_norm_before": False}])
def test_an_opt_of_another_form_is_refused(changed, write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "opt")
    edited_config(**changed)(folder)
    with pytest.raises(UserError, match=r"\(as OPT-350m\), which is not supported"):
        models.load(folder)


def test_stacked_experts_are_compared_too(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "mixtral")
    edited_config(intermediate_size=104)(folder)
    with pytest.raises(UserError, match=r"mlp.experts.gate_up_proj is \(4, 192, 64\) .* asks for \(4, 208, 64\)"):
        checkpoint.load(folder, stream=0)


@pytest.mark.parametrize("stream", [None, 0])
def test_generation_settings_that_transformers_keeps_are_kept(plain, tmp_path, stream):
    folder = shutil.copytree(plain, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.9}')
    model, tokenizer = checkpoint.load(folder, stream=stream)
    checkpoint.save(model, tokenizer, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["temperature"] == 0.9
    (folder / "generation_config.json").write_text('{"do_sample": false, "num_return_sequences": 3}')
    with pytest.raises(UserError, match="does not accept its generation_config.json"):
        checkpoint.load(folder, stream=stream)
