"""The remembered stream: equal to the bit, never of another model, and off unless asked for."""

import pytest
import torch
from weights import changed_weights, weights

from common.calibration.block_boundaries import crossings
from common.forward import hidden_state_cache
from common.forward.hidden_state_cache import remembering
from common.models.decoder import Decoder
from extensions.refit import refit


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(hidden_state_cache, "_STATES", type(hidden_state_cache._STATES)())


def ids_of(seed=0, samples=4):
    return torch.randint(3, 320, (samples, 12), generator=torch.Generator().manual_seed(seed))


def ends(model, ids, **options):
    return [(c.before, c.after) for c in crossings(Decoder(model), ids, [(1, 3), (2, 4)], batch_size=2, **options)]


def test_states_are_those_of_the_pass_and_layers_run_once(make_tiny):
    model, ids = make_tiny("llama"), ids_of()
    plain = ends(model, ids)
    decoder = Decoder(model)
    with remembering():
        first = ends(model, ids)
        list(crossings(decoder, ids, [(1, 3), (2, 4)], batch_size=2))
    assert decoder.executions == 0
    for crossing_pairs in (first, plain):
        for reused, computed in zip(crossing_pairs, plain, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(reused, computed, strict=True))


def test_a_changed_layer_or_text_is_another_stream(make_tiny):
    model, ids = make_tiny("llama"), ids_of()
    with remembering():
        ends(model, ids)
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight.mul_(2)
        changed = ends(model, ids)
        other = ends(model, ids_of(1))
    for crossing_pairs, text in ((changed, ids), (other, ids_of(1))):
        for reused, computed in zip(crossing_pairs, ends(model, text), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(reused, computed, strict=True))


def test_nothing_is_kept_outside_and_no_more_than_the_limit_inside(make_tiny, monkeypatch):
    model, ids = make_tiny("llama"), ids_of()
    ends(model, ids)
    assert not hidden_state_cache._STATES
    size = 2 * 12 * model.config.hidden_size * 4
    monkeypatch.setattr(hidden_state_cache, "LIMIT", 3 * size)
    with remembering():
        ends(model, ids)
    assert len(hidden_state_cache._STATES) == 3


@pytest.mark.parametrize("removed", [[2, 3], [1, 3]])
def test_a_refit_is_the_same_with_and_without(make_tiny, removed):
    ids = ids_of(samples=16)
    plain, twice = make_tiny("llama"), [make_tiny("llama") for _ in range(2)]
    expected = refit(plain, ids, removed, following=1)
    with remembering():
        reports = [refit(model, ids, removed, following=1) for model in twice]
    assert reports == [expected, expected]
    assert not any(changed_weights(model, weights(plain)) for model in twice)
