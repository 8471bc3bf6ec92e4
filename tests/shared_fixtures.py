"""Shared fixtures: tiny models and their checkpoints, and what keeps tests apart from each other and from the machine.

A plugin that conftest.py loads: all of it imports torch.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
import uuid
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
import transformers
from heads import logits
from hub_mirror import mirror, rows_of_tasks  # noqa: F401
from tiny_models import ARCHITECTURES, HIDDEN, VOCAB, tiny_model
from tiny_models import tiny_tokenizer as _tiny_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from common.calibration import corpora
from common.cli import forecast, measure, read_back
from common.evaluation import significance
from common.models import checkpoint
from common.pruning import calibration_text
from common.records import results
from common.toy import corpus as toy_corpus
from common.training.finetuning import memory


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_look_through():
    """Hide what lives so far from the garbage collector: a million objects of libraries and tests. Trainer often collects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def denormals():
    """Tools flush tiny numbers to zero, in all of their process; the next test has them again."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _own_work_folder(tmp_path_factory, monkeypatch):
    """No test finds another's searches, checkpoints, directories of models and texts."""
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path_factory.getbasetemp() / "work" / uuid.uuid4().hex))
    monkeypatch.setattr("common.models.loading._DIRECTORIES", {})
    yield
    if "LAYERLAB_HUB" in os.environ:  # nor another's texts: two mirrors may name theirs alike
        corpora._texts.cache_clear()
        calibration_text._ids.cache_clear()
        if "common.evaluation.harness" in sys.modules:
            sys.modules["common.evaluation.harness"]._remembered.clear()


@pytest.fixture(autouse=True)
def _corpus_is_slow(request, monkeypatch):
    """Reading the toy model's corpus takes a core more than a minute where it is not cached: only what is marked slow may."""
    if request.node.get_closest_marker("slow") is None:
        refuse = "reads the toy model's corpus: mark it slow, or give it documents of its own"
        monkeypatch.setattr(toy_corpus, "documents", lambda: pytest.fail(refuse))


@pytest.fixture(autouse=True)
def _room_for_any_model(monkeypatch):
    """Tiny models stand under the names of large ones: what the machine could hold of those is not looked at."""
    monkeypatch.setattr(memory, "capacity", lambda device: float("inf"))


@pytest.fixture(autouse=True)
def _read_back_here(monkeypatch):
    """Saved checkpoints are read back in this process: another one would load torch for each. test_read_back starts some."""
    monkeypatch.setattr(read_back, "in_fresh_process", read_back.of_checkpoint)


@pytest.fixture(autouse=True)
def _little_is_timed(monkeypatch):
    """A tool's times are of a few tokens, and of small matrices."""
    for name, value in (("GENERATED", 2), ("BATCHES", (1, 2)), ("TIMED_PROMPT", 8)):
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(forecast, "EDGE", 64)


@pytest.fixture(scope="session", autouse=True)
def _state_of_this_checkout():
    """Each run notes commit and changes of the code that it runs: git tells them once. Other repositories are asked anew."""
    ask, checkout = results._git, results.ROOT
    told = cache(ask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_git", lambda *a: (told if checkout == results.ROOT else ask)(*a))
        yield


@pytest.fixture
def few_replicates(monkeypatch):
    """Verdicts come from 50 replicates, for tests in which no verdict counts; others do not meet these."""
    monkeypatch.setattr(significance, "REPLICATES", 50)
    monkeypatch.setattr(significance, "draws", lru_cache(significance.draws.__wrapped__))
    monkeypatch.setattr(significance, "_resampled", {})


@pytest.fixture(scope="session", autouse=True)
def quiet_and_single_threaded():
    """One thread, so that results and timings do not depend on the machine; no transformers chatter."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request) -> str:
    """The name of each tiny model in turn."""
    return request.param


@pytest.fixture(scope="session")
def make_tiny() -> Callable:
    """`make_tiny(name)` -> a fresh copy of the tiny model of that architecture (see `ARCHITECTURES`), in eval mode."""
    return lambda name="llama": copy.deepcopy(tiny_model(name))


@pytest.fixture
def tiny(architecture, make_tiny):
    """A fresh tiny model, once per architecture."""
    return make_tiny(architecture)


@pytest.fixture
def tiny_llama(make_tiny):
    """A fresh tiny Llama model."""
    return make_tiny("llama")


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with at most as many tokens as the tiny models; it adds no special tokens by itself."""
    return _tiny_tokenizer()


@pytest.fixture(scope="session")
def write_checkpoint(make_tiny, tiny_tokenizer) -> Callable[..., Path]:
    """`write_checkpoint(path, name="llama", model=None)`: a tiny model and tokenizer as they would lie on the hub."""

    def write(path, name: str = "llama", model=None) -> Path:
        path = Path(path)
        (model if model is not None else make_tiny(name)).save_pretrained(path)
        tiny_tokenizer.save_pretrained(path)
        return path

    return write


@pytest.fixture
def reloaded(tmp_path) -> Callable:
    """`reloaded(model, ids, plain=True)` -> the model loaded again, if plain by Transformers alone: with the same logits."""

    def reload(model, ids, plain=True):
        folder = checkpoint.save(model, None, tmp_path / "reloaded")
        again = AutoModelForCausalLM.from_pretrained(folder) if plain else checkpoint.load(folder)[0]
        assert torch.equal(logits(again, ids), logits(model, ids))
        return again

    return reload


@pytest.fixture
def ids() -> torch.Tensor:
    """Two random token sequences [2, 24], longer than every sliding window of the tiny models."""
    return torch.randint(3, VOCAB, (2, 24), generator=torch.Generator().manual_seed(7))


class Shift(nn.Module):
    """A patch that is easy to recognise, in float32: x * gain + shift."""

    kind = "test.shift"

    def __init__(self, shift: float, width: int = HIDDEN):
        super().__init__()
        self.options = {"width": width}
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.shift = nn.Parameter(torch.full((width,), shift))

    def forward(self, hidden):
        return hidden.float() * self.gain + self.shift


@pytest.fixture
def crops() -> torch.Tensor:
    """Five random calibration sequences [5, 18]."""
    return torch.randint(3, VOCAB, (5, 18), generator=torch.Generator().manual_seed(6))


@pytest.fixture(scope="session")
def make_patch() -> Callable[[float], nn.Module]:
    """`make_patch(shift)` -> a small trainable patch of kind 'test.shift' with options {"width": 64}."""
    return Shift


@pytest.fixture(scope="session")
def greedy() -> Callable:
    """`greedy(model, ids, use_cache)` -> `ids` continued by eight greedy tokens."""

    def generate(model, ids, use_cache):
        model.generation_config.eos_token_id = None  # random models stop at random
        return model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=use_cache, pad_token_id=0)

    return generate
