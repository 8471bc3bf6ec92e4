"""Baichuan and ChatGLM: tiny checkpoints in their own format, against a forward pass written from the published equations."""

import random

import pytest
import sentencepiece
import torch
from killed import killed_at
from own_formats import HEADS, HIDDEN, LAYERS, LINES, MODELS, PLAIN, train, write
from safetensors.torch import save_file
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from common.models import checkpoint, loading
from common.models.files import sentencepiece_models
from common.models.surgery import remove_layers
from common.utils.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))


def rms(x, weight, eps):
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def attend(q, k, v):
    """Causal attention of [tokens, heads, channels]; fewer heads of k and v serve as many neighbouring ones of q each."""
    tokens, heads, channels = q.shape
    mixed = torch.empty_like(q)
    for head in range(heads):
        other = head * k.shape[1] // heads
        scores = q[:, head] @ k[:, other].T / channels**0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
        mixed[:, head] = scores.softmax(-1) @ v[:, other]
    return mixed.reshape(tokens, heads * channels)


def turned(x, pairs):
    """RoFormer's rotation of [tokens, heads, channels] by complex numbers; pairs: the channels that rotate together."""
    tokens, size = len(x), len(pairs)
    angles = torch.arange(tokens)[:, None] * 10_000.0 ** (-torch.arange(size) / size)
    first, second = zip(*pairs, strict=True)
    rotated = torch.complex(x[..., list(first)], x[..., list(second)]) * torch.polar(torch.ones(()), angles)[:, None]
    turned_x = x.clone()
    turned_x[..., list(first)], turned_x[..., list(second)] = rotated.real, rotated.imag
    return turned_x


def of_baichuan(t, ids, normalised=True, skipped=()):
    """Baichuan 2 report, section 2: rotary positions, SwiGLU, RMSNorm before each half, NormHead."""
    x, size = t["model.embed_tokens.weight"][ids], HIDDEN // HEADS
    for layer in (f"model.layers.{number}." for number in range(LAYERS) if number not in skipped):
        read = rms(x, t[f"{layer}input_layernorm.weight"], 1e-6)
        q, k, v = (
            (read @ t[f"{layer}self_attn.W_pack.weight"][n * HIDDEN : (n + 1) * HIDDEN].T).view(-1, HEADS, size)
            for n in range(3)
        )
        pairs = [(j, j + size // 2) for j in range(size // 2)]
        x = x + attend(turned(q, pairs), turned(k, pairs), v) @ t[f"{layer}self_attn.o_proj.weight"].T
        read = rms(x, t[f"{layer}post_attention_layernorm.weight"], 1e-6)
        inner = silu(read @ t[f"{layer}mlp.gate_proj.weight"].T) * (read @ t[f"{layer}mlp.up_proj.weight"].T)
        x = x + inner @ t[f"{layer}mlp.down_proj.weight"].T
    head = t["lm_head.weight"]
    head = head / (head * head).sum(1, keepdim=True).sqrt() if normalised else head
    return rms(x, t["model.norm.weight"], 1e-6) @ head.T


def of_chatglm(t, ids, skipped=()):
    """ChatGLM 2: grouped queries with biases; of each head the first half rotates, neighbouring channels in pairs."""
    x, size, groups = t["transformer.embedding.word_embeddings.weight"][ids], HIDDEN // HEADS, 2
    for layer in (f"transformer.encoder.layers.{number}." for number in range(LAYERS) if number not in skipped):
        read = rms(x, t[f"{layer}input_layernorm.weight"], 1e-5)
        part = f"{layer}self_attention.query_key_value."
        packed = read @ t[f"{part}weight"].T + t[f"{part}bias"]
        q = packed[:, :HIDDEN].view(-1, HEADS, size)
        k = packed[:, HIDDEN : HIDDEN + groups * size].view(-1, groups, size)
        v = packed[:, HIDDEN + groups * size :].view(-1, groups, size)
        pairs = [(j, j + 1) for j in range(0, size // 2, 2)]
        x = x + attend(turned(q, pairs), turned(k, pairs), v) @ t[f"{layer}self_attention.dense.weight"].T
        read = rms(x, t[f"{layer}post_attention_layernorm.weight"], 1e-5)
        gate, up = (read @ t[f"{layer}mlp.dense_h_to_4h.weight"].T).chunk(2, -1)
        x = x + (silu(gate) * up) @ t[f"{layer}mlp.dense_4h_to_h.weight"].T
    x = rms(x, t["transformer.encoder.final_layernorm.weight"], 1e-5)
    return x @ t["transformer.output_layer.weight"].T


def oracle(name, tensors, ids, skipped=()):
    if name == "chatglm2":
        return torch.stack([of_chatglm(tensors, sequence, skipped) for sequence in ids])
    return torch.stack([of_baichuan(tensors, sequence, name == "baichuan2", skipped) for sequence in ids])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_it_computes_what_the_equations_say_whole_pruned_saved_and_streamed(name, tmp_path, ids):
    tensors = write(tmp_path / "own", name)
    model, tokenizer = loading.load(tmp_path / "own")
    assert model.config.model_type == ("glm" if name == "chatglm2" else "llama")
    expected = oracle(name, tensors, ids)
    assert expected.std() > 0.1
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    remove_layers(model, [1, 3])
    expected = oracle(name, tensors, ids, skipped=(1, 3))
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    saved = checkpoint.save(model, tokenizer, tmp_path / "pruned", source=loading.resolve(tmp_path / "own"))
    plain = AutoModelForCausalLM.from_pretrained(saved).eval()
    assert torch.equal(plain(ids).logits, model(ids).logits)
    assert loading.load(saved)[1]("the model in 2023").input_ids == tokenizer("the model in 2023").input_ids
    streamed, _ = loading.load(tmp_path / "own", stream=0)
    remove_layers(streamed, [1, 3])
    torch.testing.assert_close(streamed(ids).logits, expected, rtol=1e-4, atol=1e-4)


def test_the_head_is_rounded_once(tmp_path):
    """In bfloat16 the length itself would be off by up to a 256th of it."""
    tensors = write(tmp_path / "own", "baichuan2")
    stored = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(stored, tmp_path / "own" / "model.safetensors")
    head = loading.load(tmp_path / "own", dtype="bfloat16")[0].lm_head.weight
    exact = stored["lm_head.weight"].double()
    assert torch.equal(head, (exact / exact.norm(dim=1, keepdim=True)).bfloat16())


def test_it_is_described_and_converted_once_and_again_where_its_files_change(tmp_path, ids, capsys):
    write(tmp_path / "own", "baichuan2")
    description = loading.describe(str(tmp_path / "own"))
    assert description.layers == LAYERS
    first = loading.resolve(description.name)
    assert capsys.readouterr().err.count("converting it to LlamaForCausalLM, once") == 1
    model, _ = loading.load(first)
    assert description.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert loading.resolve(tmp_path / "own") == first and not capsys.readouterr().err
    (tmp_path / "own" / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    tokenizer = loading.load(tmp_path / "own")[1]
    assert tokenizer("the model").input_ids[0] == 1 and tokenizer.pad_token_id == 0


def test_pickled_weights_of_the_hub_are_converted_when_asked_in_one_step(tmp_path, ids, monkeypatch):
    tensors = write(tmp_path / "hub" / "models" / "baichuan-inc" / "Baichuan2-7B-Base", "baichuan2", pickled=True)
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))
    with pytest.raises(UserError, match="--convert-weights` converts them once"):
        loading.load("baichuan2-7b")
    loading.resolve("baichuan2-7b", convert_weights=True)
    model, _ = loading.load("baichuan2-7b")
    torch.testing.assert_close(model(ids).logits, oracle("baichuan2", tensors, ids), rtol=1e-4, atol=1e-4)
    assert len(list((tmp_path / "cache").rglob("model*.safetensors"))) == 1


def test_a_conversion_that_is_killed_at_any_moment_is_made_again(tmp_path, ids):
    tensors = write(tmp_path / "own", "baichuan2")
    expected = oracle("baichuan2", tensors, ids)
    moment = 1
    while killed_at(moment, lambda: loading.resolve(tmp_path / "own")):
        moment += 9
    assert moment > 40
    loading.resolve(tmp_path / "own")
    torch.testing.assert_close(loading.load(tmp_path / "own")[0](ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert [path.name for path in (tmp_path / "cache" / "models").glob("*/.*.making-*")] == []


# Positions by ALiBi, other frequencies and quantised weights are in tests/common/cli/test_bad_inputs.py.
REFUSED = {
    "13B": ("baichuan2", {"hidden_size": 5120}, "its positions are ALiBi's"),
    "another": ("baichuan2", {"architectures": ["OursForCausalLM"]}, "only Baichuan's own are known"),
    "tied": ("baichuan2", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    "incomplete": ("baichuan2", {"rms_norm_eps": None}, "its config.json has no 'rms_norm_eps'"),
    "more layers": ("baichuan2", {"num_hidden_layers": 6}, "model.layers.5.input_layernorm.weight"),
    "more heads": ("chatglm2", {"multi_query_group_num": 4}, "has 64 rows, and its config.json asks for 96"),
    "first ChatGLM": ("chatglm2", {"padded_vocab_size": None}, "it is the first ChatGLM"),
    "LayerNorm": ("chatglm2", {"rmsnorm": False}, "rmsnorm is False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_with_the_reason(case, tmp_path):
    name, changes, message = REFUSED[case]
    write(tmp_path / "own", name, **changes)
    with pytest.raises(UserError, match=message):
        loading.load(tmp_path / "own")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_other_ways_in_say_what_to_do(tmp_path):
    write(tmp_path / "own", "baichuan2")
    with pytest.raises(UserError, match=r"under the name 'llama' alone. Give the directory to common.models.load"):
        checkpoint.load(tmp_path / "own")
    write(tmp_path / "pickled", "baichuan2", pickled=True)
    with pytest.raises(UserError, match="its safetensors weights once"):
        loading.load(tmp_path / "pickled")


SPLITTING = {
    "Baichuan 2": PLAIN,
    "as trained by default": {},
    "a space before": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "normalised": {
        "normalization_rule_name": "nmt_nfkc_cf",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "without bytes": {"byte_fallback": False, "vocab_size": 80},
}


@pytest.mark.parametrize("case", SPLITTING)
def test_text_is_split_and_joined_as_sentencepiece_does(case, tmp_path):
    file = train(tmp_path, **SPLITTING[case])
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ours = sentencepiece_models.read(file)
    draw = random.Random(0)
    letters = "the modlrsv 12\n\t  \u5927\u6a21\u578b\u00e9<>\U0001f642\ufb01\u00bd\u3000\u00a0"
    texts = [*LINES, *sentencepiece_models.PROBES, " ", "", "a<reserved_1>b <reserved_1><reserved_0> c"]
    texts += ["".join(draw.choices(letters, k=draw.randint(1, 40))) for _ in range(300)]
    for text in texts:
        assert ours(text, add_special_tokens=False).input_ids == original.encode(text), text
        if case != "without bytes":  # where sentencepiece shows what it does not know
            assert ours.decode(original.encode(text)) == original.decode(original.encode(text))


def test_chatglm_begins_with_its_two_tokens_and_finds_none_in_text(tmp_path):
    write(tmp_path / "own", "chatglm2")
    tokenizer = loading.load(tmp_path / "own")[1]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own" / "tokenizer.model"))
    size = pieces.get_piece_size()
    text = "philosophers [MASK] sop"
    assert tokenizer(text).input_ids == [size + 1, size + 3, *pieces.encode(text)]


def test_a_tokenizer_that_cannot_be_had_exactly_is_refused(tmp_path):
    with pytest.raises(UserError, match="would be split into"):
        sentencepiece_models.read(train(tmp_path, user_defined_symbols=["<reserved_0>"], add_dummy_prefix=True))
    with pytest.raises(UserError, match="not made by byte-pair encoding"):
        sentencepiece_models.read(train(tmp_path, model_type="unigram", byte_fallback=False, vocab_size=45))
    with pytest.raises(UserError, match="it is no SentencePiece model"):
        sentencepiece_models.read(tmp_path / "text")
