"""The layer that writes the first token's massive activation: planted, found, and named where it goes."""

import json
from types import SimpleNamespace

import pytest
import torch
from tools import main

from common.calibration import massive_activations
from common.cli import measure
from common.models.decoder import Decoder
from extensions.refit.tool import METHOD


@pytest.fixture
def ids():
    return torch.randint(3, 320, (4, 18), generator=torch.Generator().manual_seed(6))


def planted(model, layer, size):
    """From this layer on the first token's state has so large a channel."""

    def more(module, args, out):
        out = out.clone()
        out[:, 0, 0] += size
        return out

    return model.model.layers[layer].register_forward_hook(more)


@torch.no_grad()
def test_norms_are_those_of_hugging_faces_hidden_states(tiny_llama, ids):
    with massive_activations.watched(tiny_llama) as norms:
        states = tiny_llama(ids, output_hidden_states=True, use_cache=False).hidden_states
    for layer, (first, median) in enumerate(zip(norms.first, norms.median, strict=True)):
        sizes = states[layer].norm(dim=-1)
        assert first == pytest.approx(sizes[:, 0].mean().item(), rel=1e-5)
        assert median == pytest.approx(sizes.sort(1).values[:, (18 - 1) // 2].mean().item(), rel=1e-5)
    assert norms.writer is None


@torch.no_grad()
@pytest.mark.parametrize(("size", "writer"), [(0.0, None), (1e4, 2)])
def test_the_writer_is_the_layer_that_makes_the_first_token_massive(tiny_llama, ids, size, writer):
    decoder = Decoder(tiny_llama)
    planted(tiny_llama, 2, size)
    with massive_activations.watched(tiny_llama) as norms:
        for batch in ids.split(1):
            decoder.run(decoder.embed_tokens(batch))
    assert norms.writer == writer


@torch.no_grad()
def test_a_tool_says_that_the_layer_of_the_massive_activation_is_removed(tiny_llama, ids):
    planted(tiny_llama, 2, 1e4)
    with massive_activations.watched(tiny_llama) as norms:
        tiny_llama(ids, use_cache=False)

    def warning(facts: dict, removed: list[int], paper: str = "linearpatch") -> str:
        method = SimpleNamespace(paper=paper)
        return measure.massive_activation(SimpleNamespace(shared=facts, removed=removed, method=method))

    assert warning({"norms": norms}, [3]) == warning({}, [2]) == ""
    text = warning({"norms": norms}, [1, 2])
    assert text.startswith("layer 2, which is removed, writes the first token's massive activation")
    assert "extensions.refit" in text and "extensions.refit" not in warning({"norms": norms}, [2], "refit")
    assert all(f"{norm:,.0f}" in text for norm in (norms.first[2], norms.first[3], norms.median[3]))


def test_the_card_has_it(write_checkpoint, tmp_path, monkeypatch):
    """Of a model in which every norm counts as massive, the layer that raises the first token's most is named if it goes."""
    monkeypatch.setattr(massive_activations, "TIMES", 0.0)
    source, text = write_checkpoint(tmp_path / "tiny", "llama"), tmp_path / "text.txt"
    text.write_text("The layers of a model are removed, one after the other, and the stream is measured. " * 200)
    cards = []
    for layers in ("1", "2", "3"):
        options = ["--model", str(source), "--text", str(text), "--layers", layers, "--samples", "2", "--length", "32"]
        assert main(METHOD, [*options, "--test-samples", "2", "--held-out", "0", "--out", str(tmp_path / layers)]) in (
            0,
            3,
        )
        notes = json.loads((tmp_path / layers / "pruning.json").read_text())["notes"]
        matching = [note for note in notes if "massive activation" in note]
        cards.append(bool(matching))
        assert all(note in (tmp_path / layers / "README.md").read_text() for note in matching)
        assert all(note.startswith(f"layer {layers}, which is removed") for note in matching)
    assert sum(cards) <= 1
