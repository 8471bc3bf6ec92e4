"""The registry's facts against built models; loading from names, directories, a mirror, a cache, and from nowhere."""

import re
import time
from types import SimpleNamespace

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoModelForCausalLM

from common.models import loading
from common.models.architectures import SUPPORTED
from common.models.files import hub
from common.models.files.renamed_architectures import FORMATS
from common.utils.errors import UserError
from reproductions.spec import subjects

PAPER = [name for name, spec in loading.REGISTRY.items() if spec.profile == "paper"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """An empty cache, no mirror, and a hub that refuses connections at once."""
    monkeypatch.delenv("LAYERLAB_HUB", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "own-cache"))


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts(name):
    """Every count of the papers, rebuilt from the facts without weights (Baichuan as Llama, ChatGLM as GLM)."""
    spec = loading.get(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(loading.model_config(spec))
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.facts["params"]
    layers = model.model.layers
    assert len(layers) == spec.facts["layers"]
    assert {sum(p.numel() for p in layer.parameters()) for layer in layers} == {spec.facts["layer_params"]}


@pytest.mark.parametrize(
    ("name", "removed", "ratio"),
    [("llama-2-7b", 7, 21.02), ("llama-2-7b", 9, 27.03), ("qwen3-8b", 5, 11.78), ("qwen3-8b", 7, 16.49)],
)
def test_ratios_printed_in_the_papers(name, removed, ratio):
    facts = loading.get(name).facts
    assert round(100 * removed * facts["layer_params"] / facts["params"], 2) == ratio


def test_registry_is_consistent():
    for name, spec in loading.REGISTRY.items():
        assert (spec.name, spec.profile in ("standin", "paper")) == (name, True)
        assert (spec.wheels is None) == bool(spec.hub_id or spec.profile == "standin")
        assert spec.facts["model_type"] in {*SUPPORTED, *FORMATS}
    config = loading.model_config("llama-3.1-8b")
    assert config.rope_parameters["rope_type"] == "llama3"
    assert loading.get("Qwen/Qwen3-8B").name == "qwen3-8b"


@pytest.mark.parametrize(
    ("wrong", "right"), [("llama2-7b", "llama-2-7b"), ("qwen3", "qwen3-8b"), ("Qwen/Qwen3-8b", "Qwen/Qwen3-8B")]
)
def test_unknown_names_are_answered_with_near_ones(wrong, right):
    with pytest.raises(UserError, match="unknown model") as caught:
        loading.load(wrong)
    assert f"did you mean {right!r}" in str(caught.value)


def test_nothing_near_names_three():
    with pytest.raises(UserError, match=r"the nearest of \d+: '[^']+' or '[^']+' or '[^']+'$"):
        loading.get("zzzzzz")


def test_directory(write_checkpoint, tmp_path, ids):
    path = write_checkpoint(tmp_path / "tiny", "gemma2")
    model, tokenizer = loading.load(path)
    assert model(ids).logits.shape == (2, 24, 320)
    assert tokenizer.decode(tokenizer("a stream")["input_ids"]) == "a stream"
    assert model.source == {"name": str(path), "path": str(path), "revision": None}


def test_dtype_on_a_cpu_is_float32_unless_asked(write_checkpoint, make_tiny, tmp_path):
    path = write_checkpoint(tmp_path / "tiny", model=make_tiny().to(torch.bfloat16))
    assert loading.load(path)[0].dtype == torch.float32
    assert loading.load(path, dtype="bfloat16")[0].dtype == torch.bfloat16
    with pytest.raises(UserError, match="unknown dtype 'floot16'; did you mean 'float16'"):
        loading.load(path, dtype="floot16")


def test_mirror_comes_first(write_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))
    path = write_checkpoint(tmp_path / "hub" / "models" / "meta-llama" / "Llama-2-7b-hf")
    model, _ = loading.load("llama-2-7b")
    assert model.source == {"name": "llama-2-7b", "path": str(path), "revision": None}
    assert loading.load("meta-llama/Llama-2-7b-hf")[0].config.num_hidden_layers == 6
    with pytest.raises(UserError, match="could not fetch meta-llama/Llama-2-13b-hf"):
        loading.load("llama-2-13b")


def test_cached_models_need_no_network(write_checkpoint, tmp_path):
    repository = tmp_path / "cache" / "models--Qwen--Qwen3-8B"
    path = write_checkpoint(repository / "snapshots" / "0123abcd", "qwen3")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    model, _ = loading.load("qwen3-8b")
    assert model.source["revision"] == "0123abcd"
    (path / "model.safetensors").unlink()  # an interrupted download is not taken for a model
    with pytest.raises(UserError, match="could not fetch Qwen/Qwen3-8B"):
        loading.load("qwen3-8b")


def test_each_commit_of_a_hub_model_is_a_model_of_its_own(write_checkpoint, tmp_path, monkeypatch):
    repository = tmp_path / "cache" / "models--somebody--small"
    (repository / "refs").mkdir(parents=True)
    recipes = []
    for commit in ("0123abcd", "4567ef01"):
        write_checkpoint(repository / "snapshots" / commit)
        (repository / "refs" / "main").write_text(commit)
        subject = subjects.of_model("somebody/small")
        recipes.append(subjects.recipe(subject.model, subject))
        assert recipes[-1].weights == commit == loading.load("somebody/small")[0].source["revision"]
    assert recipes[0].hash != recipes[1].hash
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))
    write_checkpoint(tmp_path / "hub" / "models" / "somebody" / "small")
    assert subjects.of_model("somebody/small").weights is None  # a mirror names no commit


def test_a_cached_model_is_there_whole_although_an_index_was_left_with_it(write_checkpoint, make_tiny, tmp_path):
    repository = tmp_path / "cache" / "models--Qwen--Qwen3-8B"
    path = repository / "snapshots" / "0123abcd"
    make_tiny("qwen3").save_pretrained(path, max_shard_size="200KB")
    write_checkpoint(path, "qwen3")  # one file; the index of the parts stays
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    assert (path / "model.safetensors.index.json").exists() and len(list(path.glob("*.safetensors"))) == 1
    assert loading.load("qwen3-8b")[0].source["revision"] == "0123abcd"


def refused_within(seconds, name="llama-2-7b"):
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        loading.load(name)
    assert time.monotonic() - start < seconds
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_hub_is_one_line_at_once():
    message = refused_within(5)
    assert message.startswith("could not fetch meta-llama/Llama-2-7b-hf: http://127.0.0.1:9 cannot be reached")
    assert message.endswith("`python -m reproductions fetch TARGET` on a machine with network, or use the toy model")


def test_a_hanging_name_server_does_not_hang_us(monkeypatch):
    monkeypatch.setattr(hub, "_probe", lambda: time.sleep(20))
    monkeypatch.setattr(hub, "PROBE_SECONDS", 0.3)
    assert "did not answer within 0.3 s" in refused_within(5)


def test_offline_switch(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refused_within(1)


@pytest.mark.parametrize(("status", "reason"), [(200, None), (404, None), (403, None), (502, "answered 502")])
def test_a_proxy_that_refuses_its_root_is_asked_for_models(status, reason, monkeypatch):
    session = SimpleNamespace(head=lambda *_, **__: SimpleNamespace(status_code=status))
    monkeypatch.setattr(hub, "get_session", lambda: session)
    answer = hub._probe()
    assert answer is None if reason is None else answer.endswith(reason)


def http_error(kind, status):
    return kind("long\nexplanation", response=httpx2.Response(status, request=httpx2.Request("GET", "http://x")))


@pytest.mark.parametrize(
    "error, message",
    [
        (
            http_error(GatedRepoError, 403),
            "accept its licence at https://huggingface.co/meta-llama/Llama-2-7b-hf.*hf auth login",
        ),
        (http_error(RepositoryNotFoundError, 401), "no such model, or it is private"),
        (
            httpx2.ConnectError("connection reset"),  # no OSError
            "connection reset; `python -m reproductions fetch TARGET`",
        ),
        (
            OSError(28, "No space left on device"),
            "No space left on device; free space there, or name a folder on a larger disk in HF_HOME$",
        ),
    ],
)
def test_what_the_hub_or_the_disk_refuses_is_one_line_with_the_remedy(error, message, monkeypatch):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(hub, "_probe", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    assert re.search(message, refused_within(5))


def test_toy_is_embedded():
    if not (loading.TOY_WEIGHTS / "config.json").exists():
        with pytest.raises(UserError, match=r"common\.toy\.train"):
            loading.load("standin")
        pytest.skip("the toy model is not trained in this checkout")
    model, tokenizer = loading.load("standin")
    assert model.config.num_hidden_layers == loading.model_config("standin").num_hidden_layers >= 16
    assert len(tokenizer) <= model.config.vocab_size
