"""The store of a teacher's logits: what is read is what the teacher says, and another teacher's is refused."""

import json

import pytest
import torch

from common.models.decoder import Decoder
from common.training import teacher_store
from common.training.teacher_store import TeacherStore, model_digest
from common.utils.errors import UserError


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(teacher_store, "SHARD_SAMPLES", 3)


@pytest.fixture
def sequences():
    return torch.randint(3, 320, (7, 10), generator=torch.Generator().manual_seed(3))


def store_of(model, sequences, folder, k=5):
    return TeacherStore(folder, Decoder(model), sequences, k)


def teacher(model, sequences, k):
    with torch.no_grad():
        logits = model(input_ids=sequences, use_cache=False).logits
    values, indices = logits.sort(-1, descending=True)
    probabilities = values[..., :k].exp() / values[..., :k].exp().sum(-1, keepdim=True)
    return probabilities, indices[..., :k]


def test_what_is_read_is_the_teachers_renormalised_top_k(tiny, sequences, tmp_path):
    store = store_of(tiny, sequences, tmp_path / "s")
    assert store.fill() == 7
    probabilities, indices = store.read([6, 0, 3])
    expected, where = teacher(tiny, sequences[[6, 0, 3]], 5)
    assert torch.equal(indices, where) and indices.dtype == torch.int64
    torch.testing.assert_close(probabilities, expected, rtol=1e-3, atol=1e-3)  # float16


def test_a_missing_or_half_written_shard_is_made_again(tiny_llama, sequences, tmp_path):
    store = store_of(tiny_llama, sequences, tmp_path)
    store.fill()
    expected = store.read(range(7))
    shards = sorted(tmp_path.glob("shard-*"))
    assert len(shards) == 3
    shards[1].write_bytes(shards[1].read_bytes()[:-40])  # cut off, as by a full disk
    shards[2].unlink()
    again = store_of(tiny_llama, sequences, tmp_path)
    assert again.fill() == 3 + 1
    assert all(torch.equal(a, b) for a, b in zip(again.read(range(7)), expected))
    assert again.fill() == 0


def test_another_stores_folder_is_refused_and_both_are_named(tiny_llama, sequences, tmp_path):
    store_of(tiny_llama, sequences, tmp_path).fill()
    store_of(tiny_llama, sequences, tmp_path)  # the same one is taken up again

    before = model_digest(tiny_llama)
    with torch.no_grad():
        tiny_llama.model.norm.weight[0] += 1
    after = model_digest(tiny_llama)
    with pytest.raises(UserError, match=f"another teacher.*{before}.*there.*{after}.*here"):
        store_of(tiny_llama, sequences, tmp_path)
    with torch.no_grad():
        tiny_llama.model.norm.weight[0] -= 1
    with pytest.raises(UserError, match=r"another K \(5 there, 6 here\)"):
        store_of(tiny_llama, sequences, tmp_path, k=6)
    with pytest.raises(UserError, match="another windows"):
        store_of(tiny_llama, sequences.flip(0), tmp_path)


def test_a_damaged_manifest_is_named(tiny_llama, sequences, tmp_path):
    store_of(tiny_llama, sequences, tmp_path / "s")
    (tmp_path / "s" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="manifest.json"):
        store_of(tiny_llama, sequences, tmp_path / "s")


def test_it_takes_k_numbers_and_k_indices_a_token(tiny_llama, tmp_path):
    sequences = torch.randint(3, 320, (4, 400), generator=torch.Generator().manual_seed(3))
    store = TeacherStore(tmp_path, Decoder(tiny_llama), sequences, 100)
    store.fill()
    assert store.bytes_per_token() == pytest.approx(100 * (2 + 2), rel=0.01)
    assert json.loads((tmp_path / "manifest.json").read_text())["K"] == 100
