"""What repairs leave of each run, against least squares on Hugging Face's states; sets against every set there is."""

import itertools

import pytest
import torch
from heads import streams
from least_squares import ridge_solution, share, stream

from common.models.decoder import Decoder
from common.pruning.pipeline import context_of, run_recipe
from common.pruning.selection import runs as runs_of
from extensions import refit
from extensions.refit import least_residual
from tests.massive_model import FIRST, WRITER, planted


def left_over(h, missing, target, ridge=1e-3):
    """What the map from h to what is missing leaves, as a share of the target."""
    return share(missing - h @ ridge_solution(h, missing, ridge), target)


def naive(model, ids, a, b, ridge=1e-3):
    one, two = (stream(model, ids, boundary) for boundary in (a, b))
    return left_over(one, two - one, two, ridge)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("llama", {}), ("gemma2", {}), ("mixtral", {}), ("qwen3", {"ridge": 0.1})],
)
def test_every_run_is_scored_by_what_its_repair_leaves(kind, options, ids, make_tiny):
    model = make_tiny(kind)
    errors = least_residual.residual_errors(Decoder(model), ids, [1, 2, 3], batch_size=4, **options)
    assert sorted(errors) == [(a, a + n) for a in range(1, 5) for n in (1, 2, 3) if a + n < 6]
    for run, left in errors.items():
        assert left == pytest.approx(naive(model, ids, *run, **options), rel=2e-3, abs=1e-7)


def test_passes_that_hold_less_find_the_same(ids, tiny_llama, monkeypatch):
    decoder = Decoder(tiny_llama)
    whole = least_residual.residual_errors(decoder, ids, [1, 2])
    before = decoder.executions
    monkeypatch.setattr(least_residual, "MOMENT_BYTES", 8 * 64 * 64 * 3)  # one first layer at a time
    assert least_residual.residual_errors(decoder, ids, [1, 2]) == whole
    assert decoder.executions - before == 3 + 4 + 5 + 5  # a pass ends where its last run does


@pytest.mark.parametrize("seed", range(5))
def test_the_set_is_the_best_of_all_sets(seed):
    generator = torch.Generator().manual_seed(seed)
    runs = [(a, a + n) for a in range(1, 8) for n in range(1, 5) if a + n < 9]
    shares = dict(zip(runs, torch.rand(len(runs), generator=generator).tolist(), strict=True))
    sets = [runs_of(layers) for layers in itertools.combinations(range(1, 8), 4)]
    assert least_residual.least_set(shares, 4) == min(sets, key=lambda runs: sum(shares[run] for run in runs))


def test_steps_choose_by_the_scores(ids, make_tiny):
    scores = least_residual.residual_errors(Decoder(make_tiny("llama")), ids, [1, 2, 3])
    for shape in ("window", "set"):
        model = make_tiny("llama")
        context = context_of(model, sequences=ids, selection={"method": "least-left", "count": 3, "shape": shape})
        run_recipe(context)
        sequences = {run: share for run, share in scores.items() if run[1] - run[0] == 3}
        expected = [min(sequences, key=sequences.get)] if shape == "window" else least_residual.least_set(scores, 3)
        assert runs_of(context.details["removed"]) == expected
        assert len(model.model.layers) == 3


def test_each_time_the_layer_that_leaves_the_least_residual_is_removed_and_the_rest_refitted(ids, make_tiny):
    model, dense = make_tiny("llama"), make_tiny("llama")
    context = context_of(model, sequences=ids, selection={"method": "least-left-refit", "count": 2, "following": 1})
    run_recipe(context)
    scores = least_residual.residual_errors(Decoder(dense), ids, [1])
    first = min(scores, key=scores.get)
    by_hand, alive = make_tiny("llama"), [layer for layer in range(6) if layer != first[0]]
    refit.refit(by_hand, ids, [first[0]], following=1)
    left = {}
    for place in range(1, 4):
        own, target = stream(by_hand, ids, place), stream(dense, ids, alive[place + 1])
        left[alive[place]] = left_over(own, target - own, target)
    second = min(left, key=left.get)
    assert context.details["removed"] == [first[0], second]
    assert context.details["left"] == pytest.approx([scores[first], left[second]], rel=1e-3)
    refit.refit(by_hand, ids, [alive.index(second)], following=1, dense=dense, alive=alive)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, by_hand(ids).logits)


def test_choices_and_the_refit_have_the_same_ridge(ids, tiny_llama):
    alone = {place: naive(tiny_llama, ids, place, place + 1, ridge=0.1) for place in range(1, 5)}
    choices = least_residual.choices(tiny_llama, tiny_llama, range(6), ids, batch_size=4, ridge=0.1)
    assert choices == pytest.approx(alone, rel=2e-3)
    report, best = least_residual.prune(tiny_llama, ids, 1, following=0, ridge=0.1), min(alone, key=alone.get)
    assert report["removed"] == [best] and report["left"] == pytest.approx([alone[best]], rel=2e-3)


@torch.no_grad()
def test_with_grafting_first_tokens_are_no_part_of_the_fit(ids, make_tiny):
    """Runs that begin with their layer: the map is fitted on the other tokens, and what it leaves is a share of all."""
    model, ids = planted(make_tiny("llama")), ids.clone()
    ids[:, 0] = FIRST
    errors = least_residual.residual_errors_assuming_graft(Decoder(model), ids, [1, 2, 7], WRITER, batch_size=4)
    x = streams(model, ids)
    assert sorted(errors) == [(WRITER, WRITER + 1), (WRITER, WRITER + 2)]
    for (a, b), left in errors.items():
        h, missing = (value[:, 1:].flatten(0, 1).double() for value in (x[a], x[b] - x[a]))
        assert left == pytest.approx(left_over(h, missing, x[b]), rel=2e-3)
    assert [least_residual.residual_errors_assuming_graft(Decoder(model), ids, [1, 2], none) for none in (None, 0)] == [
        {},
        {},
    ]


def test_a_step_selects_with_grafting(ids, make_tiny):
    ids = ids.clone()
    ids[:, 0] = FIRST
    lefts = []
    for option in ({}, {"carried": True}):
        model = planted(make_tiny("llama"))
        decoder = Decoder(model)
        scores = least_residual.residual_errors(decoder, ids, [1, 2])
        scores |= least_residual.residual_errors_assuming_graft(decoder, ids, [1, 2], WRITER) if option else {}
        context = context_of(
            model, sequences=ids, selection={"method": "least-left", "count": 2, "shape": "set"} | option
        )
        run_recipe(context)
        assert runs_of(context.details["removed"]) == least_residual.least_set(scores, 2)
        lefts.append(context.details["left"])
    assert lefts[0] != lefts[1]
