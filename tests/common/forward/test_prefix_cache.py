"""States shared between evaluations: the same answers as without, and never across different weights."""

import copy

import pytest
import torch
from lm_eval.api.instance import Instance

from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.windowed_perplexity import token_nlls
from common.forward import prefix_cache
from common.forward.hidden_state_files import STALE, StateFiles
from common.forward.prefix_cache import weights_chain
from common.hooks import attach_patch
from common.models import half_precision
from common.models.decoder import Decoder
from common.models.surgery import remove_layers


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(prefix_cache, "STORE", StateFiles())
    return prefix_cache.STORE


def test_layers_that_compute_in_float32_are_covered_under_their_own_digests(tiny_llama, monkeypatch):
    model = tiny_llama.bfloat16()
    plain = weights_chain(Decoder(model))
    monkeypatch.setattr(half_precision, "least_rows", lambda dtype: 8)
    half_precision.speed_up(model, torch.bfloat16, "cpu")
    widened = weights_chain(Decoder(model))
    assert list(widened) == list(plain) == [1, 2, 3, 4, 5]
    assert not set(widened.values()) & set(plain.values())


def requests():
    pairs = [("the layers of a model", f" are {ending}") for ending in ("removed", "scaled and removed", "a stream")]
    pairs += [("quick zebra", " the stream is"), ("quick zebra is", " scaled")]
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def scored(model, tokenizer):
    lm = SharedContextLM(model, tokenizer)
    return lm.loglikelihood(requests()), lm.layers_saved


def alone(model, tokenizer, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(prefix_cache, "STORE", StateFiles(limit=0))
        answers, saved = scored(model, tokenizer)
    assert saved == 0
    return answers


def test_a_pruned_model_starts_where_it_parts_and_scores_the_same(tiny, tiny_tokenizer, monkeypatch):
    pruned = copy.deepcopy(tiny)
    remove_layers(pruned, [4])
    scored(tiny, tiny_tokenizer)
    answers, saved = scored(pruned, tiny_tokenizer)
    assert saved > 0 and saved % 4 == 0  # every pass began at layer 4
    assert answers == alone(pruned, tiny_tokenizer, monkeypatch)  # to the bit
    again, saved_again = scored(tiny, tiny_tokenizer)
    assert saved_again >= saved and again == alone(tiny, tiny_tokenizer, monkeypatch)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"])
def test_other_weights_share_nothing_behind_them(tiny_llama, tiny_tokenizer, monkeypatch, name):
    scored(tiny_llama, tiny_tokenizer)
    with torch.no_grad():
        tiny_llama.get_parameter(name)[0, 0] += 0.5
    answers, saved = scored(tiny_llama, tiny_tokenizer)
    assert saved == 0 and answers == alone(tiny_llama, tiny_tokenizer, monkeypatch)


def test_a_patch_a_hook_or_a_replaced_forward_ends_the_shared_part(tiny_llama, tiny_tokenizer, make_patch, monkeypatch):
    scored(tiny_llama, tiny_tokenizer)
    assert list(weights_chain(Decoder(tiny_llama))) == [1, 2, 3, 4, 5]
    attach_patch(tiny_llama, 3, make_patch(0.5))
    assert list(weights_chain(Decoder(tiny_llama))) == [1, 2, 3]
    answers, saved = scored(tiny_llama, tiny_tokenizer)
    assert saved > 0 and answers == alone(tiny_llama, tiny_tokenizer, monkeypatch)
    tiny_llama.model.layers[1].mlp.forward = lambda x: x
    assert list(weights_chain(Decoder(tiny_llama))) == [1]


@pytest.mark.parametrize("position", [2, 3, 4])
def test_states_of_a_patched_model_are_those_before_its_patch(
    make_tiny, tiny_tokenizer, make_patch, monkeypatch, position
):
    models = {"first": 0.5, "second": -0.8, "plain": None}
    for name, shift in models.items():
        models[name] = make_tiny("llama")
        if shift is not None:
            attach_patch(models[name], position, make_patch(shift))
    for name in ("first", "second", "plain", "first"):  # the patched one comes first: nothing else has been stored
        answers, _ = scored(models[name], tiny_tokenizer)
        assert answers == alone(models[name], tiny_tokenizer, monkeypatch), name


def test_norm_epsilon_and_configuration_are_part_of_the_digest(tiny_llama):
    before = weights_chain(Decoder(tiny_llama))
    tiny_llama.model.layers[2].input_layernorm.variance_epsilon = 0.1
    changed = weights_chain(Decoder(tiny_llama))
    assert changed[2] == before[2] and changed[4] != before[4]
    tiny_llama.config.rope_parameters = {"rope_type": "default", "rope_theta": 5.0}
    assert weights_chain(Decoder(tiny_llama))[2] != before[2]


def sequences():
    return torch.randint(3, 320, (5, 11), generator=torch.Generator().manual_seed(4))


def test_perplexity_starts_where_a_model_parts(tiny, monkeypatch, store):
    pruned = copy.deepcopy(tiny)
    remove_layers(pruned, [3])
    token_nlls(tiny, sequences())
    assert store.hits == 0
    shared = token_nlls(pruned, sequences())
    assert store.hits == 1
    monkeypatch.setattr(prefix_cache, "STORE", StateFiles(limit=0))
    assert torch.equal(shared, token_nlls(pruned, sequences()))


@torch.no_grad()
def test_equal_weights_that_attend_to_other_tokens_share_nothing(make_tiny, store):
    """Layers of the same weights slide in turn: without the first of them each slides where another did not."""
    model = make_tiny("gemma2")
    for layer in model.model.layers[1:]:
        layer.load_state_dict(model.model.layers[0].state_dict())
    pruned = copy.deepcopy(model)
    remove_layers(pruned, [0])
    for evaluated in (model, model, pruned):
        scores = evaluated(sequences(), use_cache=False).logits[:, :-1].log_softmax(-1)
        expected = -scores.gather(-1, sequences()[:, 1:, None]).squeeze(-1)
        torch.testing.assert_close(token_nlls(evaluated, sequences()), expected, rtol=1e-4, atol=1e-4)
    assert store.hits == 1  # of the model after itself


def test_every_row_of_a_table_starts_at_its_interface(make_tiny, tiny_tokenizer, make_patch, monkeypatch):
    """Dense, pruned, the same with a patch: the second leaves the state at its cut, which no even spread would have."""
    monkeypatch.setattr("common.forward.hidden_state_files.SPREAD", 1)
    dense, pruned, patched = (make_tiny("llama") for _ in range(3))
    for model in (pruned, patched):
        remove_layers(model, [4])
    attach_patch(patched, 4, make_patch(0.5))
    assert scored(dense, tiny_tokenizer)[1] == 0
    starts = []
    for model in (pruned, patched):
        lm = SharedContextLM(model, tiny_tokenizer)
        assert lm.loglikelihood(requests()) == alone(model, tiny_tokenizer, monkeypatch)
        starts.append(lm.layers_saved * 5 // (lm.layers_saved + lm.layers_run))
    assert starts == [3, 4]


def test_models_that_take_turns_leave_the_same_states_each_time(store):
    pruned = [{1: "a1", 2: "a2", 3: "a3", 4: f"{row}"} for row in range(2)]
    for batches in ("pq", "rs", "tu"):
        assert filled(store, CHAIN, 6, batches) == [0, 0]
        assert [filled(store, chain, 5, batches) for chain in pruned] == [[3, 3], [3, 3]]
    assert store.bytes == 6 * 5 * 40  # nothing but the dense model's


CHAIN = {1: "a1", 2: "a2", 3: "a3", 4: "a4", 5: "a5"}


def filled(store, chain, layers, batches):
    """One model goes over all batches, beginning each at the deepest state; where it began."""
    began = []
    depths = store.begin(chain, layers)
    for batch in batches:
        began.append(store.deepest(chain, batch)[0])
        for depth in depths:
            if depth > began[-1]:
                store.put(chain[depth], batch, torch.full((10,), float(depth)))
    return began


def test_states_come_back_as_they_went(store):
    state = torch.randn(2, 3, 4).bfloat16()
    store.begin({1: "a"}, 2)
    store.put("a", "batch", state)
    depth, read = store.deepest({1: "a"}, "batch")
    assert depth == 1 and torch.equal(read, state) and read.dtype == state.dtype
    assert store.deepest({1: "a"}, "other") == (0, None)
    assert store.bytes == 48


def test_rows_that_do_not_fit_keep_what_they_can_and_do_not_thrash():
    batches = list("pqrstu")
    for room in range(1, 40):
        store = StateFiles(limit=40 * room)
        filled(store, CHAIN, 6, batches)
        for row in range(4):
            began = filled(store, {**CHAIN, 5: f"row {row}"}, 5, batches)
            assert store.bytes <= 40 * room
        # what fits is one boundary of every batch, or as many batches as there is room for; never nothing
        assert sum(start > 0 for start in began) >= min(room, len(batches)), room


def test_the_boundary_that_others_replace_best_is_removed_first():
    store = StateFiles(limit=40 * 4)
    filled(store, CHAIN, 6, "p")
    assert store.bytes == 160
    assert store.deepest({1: "a1"}, "p")[0] == 0  # a model that parts at 1 has one layer to run again
    assert [store.deepest({depth: CHAIN[depth]}, "p")[0] for depth in (2, 3, 4, 5)] == [2, 3, 4, 5]


def test_boundaries_nobody_asked_for_make_room_when_they_are_old():
    store = StateFiles(limit=40 * 5)
    filled(store, CHAIN, 6, "p")
    for row in range(STALE):  # all of them part behind layer 3
        assert filled(store, {1: "a1", 2: "a2", 3: "a3", 4: f"{row}"}, 5, "p") == [3]
    assert filled(store, {1: "b1", 2: "b2"}, 3, "p") == [0]
    assert filled(store, {1: "b1", 2: "b2", 3: "c"}, 4, "p") == [2]
    assert [store.deepest({depth: CHAIN[depth]}, "p")[0] for depth in (1, 2, 3)] == [0, 0, 3]


def test_a_disk_that_fails_costs_no_answer(tiny_llama, tiny_tokenizer, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "file"))
    before, _ = scored(tiny_llama, tiny_tokenizer)
    again, saved = scored(tiny_llama, tiny_tokenizer)
    assert saved == 0 and again == before == alone(tiny_llama, tiny_tokenizer, monkeypatch)
    assert "cannot keep states" in caplog.text


def test_states_leave_no_file_behind(tiny_llama, tiny_tokenizer, tmp_path, store):
    scored(tiny_llama, tiny_tokenizer)
    assert store.bytes > 0 and list(tmp_path.iterdir()) == []
