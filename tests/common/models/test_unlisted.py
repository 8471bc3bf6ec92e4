"""Architectures without an entry: taken if they compute what Llama's layout says, refused by what differs."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM

from common.models import checkpoint, language_model
from common.models.architectures import LEARNT, SUPPORTED
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.utils.errors import UserError
from extensions.refit import refit

SIZES = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """What one test learns no other one knows."""
    before = dict(SUPPORTED)
    yield
    SUPPORTED.clear()
    SUPPORTED.update(before)
    LEARNT.clear()


def saved(folder, kind, **settings):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | settings)).eval()
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def test_one_built_as_llama_is_taken_with_a_note(tmp_path, ids, caplog):
    plain = saved(tmp_path / "model", "seed_oss")
    model, _ = checkpoint.load(tmp_path / "model")
    assert "'seed_oss' is not among those that this project tests" in caplog.text
    remove_layers(model, [1])
    again, _ = checkpoint.load(checkpoint.save(model, None, tmp_path / "out"))
    decoder = Decoder(plain)
    expected = decoder.logits(decoder.run(decoder.embed_tokens(ids), layers=[0, 2, 3]))
    assert torch.equal(again(ids).logits, expected)
    with pytest.raises(UserError, match="'seed_oss' is not read layer by layer"):
        checkpoint.load(tmp_path / "model", stream=0)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("mamba", {}, "it has no list model.layers"),
        ("nemotron", {}, "its final norm does not multiply by its weight"),
        ("flex_olmo", {}, "its layers differ in input_layernorm, post_feedforward_layernorm"),
        ("doge", {}, "layer 0 has a parameter of its own, input_residual"),
        ("exaone_moe", {"first_k_dense_replace": 1}, "mlp.down_proj of layer 1 is no linear module"),
        ("diffllama", {}, "self_attn.lambda_init depends on the layer's index"),
        ("glm", {}, None),
        ("arcee", {}, None),
    ],
)
def test_one_that_differs_is_refused_by_what_differs(kind, settings, message, tmp_path):
    saved(tmp_path / "model", kind, **settings)
    if message is None:
        model, _ = checkpoint.load(tmp_path / "model")
        assert SUPPORTED[kind].matrices and not SUPPORTED[kind].narrows
        refit(model, torch.arange(3, 43).reshape(2, 20), [1])
        return
    with pytest.raises(UserError, match=f"architecture '{kind}' is not supported.*{message}"):
        checkpoint.load(tmp_path / "model")
    assert kind not in SUPPORTED


@torch.no_grad()
def test_what_a_layer_does_besides_is_found(tmp_path, ids, monkeypatch):
    """A layer that adds something else than its sub-layers."""
    saved(tmp_path / "model", "seed_oss")
    kind = type(AutoModelForCausalLM.from_pretrained(tmp_path / "model").model.layers[0])
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, hidden, **arguments: 1.1 * forward(self, hidden, **arguments))
    with pytest.raises(UserError, match="layer 0 is not its input plus attention plus MLP"):
        checkpoint.load(tmp_path / "model")


VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_a_wrapper_is_refused_with_the_command_that_takes_its_language_model(
    tied, tmp_path, ids, tiny_tokenizer, capsys
):
    text = {**SIZES, "model_type": "gemma3_text", "sliding_window": 8}
    config = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config=VISION, mm_tokens_per_image=4, tie_word_embeddings=tied,
        image_token_index=319,
    )  # fmt: skip
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config).eval()
    whole.save_pretrained(tmp_path / "whole")
    tiny_tokenizer.save_pretrained(tmp_path / "whole")
    with pytest.raises(UserError, match="python -m common.models.language_model .* NEW-DIRECTORY"):
        checkpoint.load(tmp_path / "whole")
    assert language_model.main([str(tmp_path / "whole"), str(tmp_path / "text")]) == 0
    alone, tokenizer = checkpoint.load(tmp_path / "text")
    assert torch.equal(alone(ids).logits, whole(input_ids=ids).logits) and len(tokenizer) == len(tiny_tokenizer)
    assert language_model.main([str(tmp_path / "text"), str(tmp_path / "more")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    remove_layers(alone, [1])
    pruned = checkpoint.save(alone, tokenizer, tmp_path / "pruned")
    assert language_model.main([str(tmp_path / "whole"), str(pruned)]) == 2
    assert "the directory is not empty" in capsys.readouterr().err
    assert len(AutoModelForCausalLM.from_pretrained(pruned).model.layers) == 3  # not replaced


AUDIO = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "text", "beside"),
    [
        ("mistral3", "ministral3", {"vision_config": {"model_type": "pixtral", **VISION}, "image_token_index": 319}),
        ("smolvlm", "llama", {"vision_config": VISION}),
        ("voxtral", "llama", {"audio_config": AUDIO}),
    ],
)
def test_language_models_of_other_wrappers_are_taken_out(kind, text, beside, tmp_path, ids, tiny_tokenizer):
    """One that is not listed, one that transformers calls text_model, and one beside an audio encoder."""
    config = AutoConfig.for_model(kind, text_config={**SIZES, "model_type": text}, **beside)
    torch.manual_seed(0)
    whole = AutoModelForMultimodalLM.from_config(config).eval()
    whole.save_pretrained(tmp_path / "whole")
    tiny_tokenizer.save_pretrained(tmp_path / "whole")
    with pytest.raises(UserError, match="python -m common.models.language_model .* NEW-DIRECTORY"):
        checkpoint.load(tmp_path / "whole")
    assert language_model.main([str(tmp_path / "whole"), str(tmp_path / "text")]) == 0
    alone, _ = checkpoint.load(tmp_path / "text")
    assert alone.config.model_type == text and torch.equal(alone(ids).logits, whole(input_ids=ids).logits)


def test_no_language_model_is_taken_out_of_others(tmp_path, capsys):
    saved(tmp_path / "plain", "llama")
    saved(tmp_path / "quantised", "llama")
    config = AutoConfig.for_model("mistral3", text_config={**SIZES, "model_type": "mistral"}, vision_config=VISION)
    config.quantization_config = {"quant_method": "fp8"}
    config.save_pretrained(tmp_path / "quantised")
    saved(tmp_path / "hybrid", "llama")
    AutoConfig.for_model("lfm2_vl", text_config={"model_type": "lfm2"}).save_pretrained(tmp_path / "hybrid")
    for name, message in {
        "plain": "it holds nothing else",
        "quantised": "the model is quantised",
        "hybrid": "has architecture 'lfm2', which is not supported (",
    }.items():
        assert language_model.main([str(tmp_path / name), str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "out").exists()
