"""FinerCut against a loop over whole passes of the Hugging Face model; what it reuses and keeps."""

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from silenced import silenced

from common.baselines import finercut, sublayer_removal
from common.baselines import sublayer_steps as _steps  # noqa: F401 - registers them
from common.models.decoder import Decoder
from common.models.layers.sublayers import ATTENTION, drop_sublayers, present
from common.pruning.pipeline import SAMPLERS, Context
from common.pruning.recipe import Recipe
from common.utils.errors import UserError

IDS = torch.randint(3, 320, (3, 14), generator=torch.Generator().manual_seed(3))


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.double()


def distance(dense, pruned):
    """The mean divergence, token by token."""
    tokens = list(zip(dense.flatten(0, 1), pruned.flatten(0, 1)))  # scipy gives the root of the divergence
    return sum(jensenshannon(a.softmax(0).numpy(), b.softmax(0).numpy()) ** 2 for a, b in tokens) / len(tokens)


def naive(model, count):
    dense, removed = logits(model), []
    for _ in range(count):
        remaining = [sublayer for sublayer in present(model) if sublayer not in removed]
        costs = {sublayer: distance(dense, logits(silenced(model, [*removed, sublayer]))) for sublayer in remaining}
        removed.append(min(costs, key=costs.__getitem__))
    return removed


@pytest.mark.parametrize("architecture", ["gemma2", "mistral"])
def test_it_is_the_greedy_search_with_whole_passes(make_tiny, architecture, monkeypatch):
    monkeypatch.setattr(finercut, "ROWS", 5)  # several parts of a window pass the head
    model = make_tiny(architecture)
    assert finercut.finer_cut(Decoder(model), IDS, 3) == naive(model, 3)


def test_divergences_of_nothing_and_of_opposites():
    sure = torch.full((1, 50), -200.0)
    first, second = (sure.index_fill(1, torch.tensor([token]), 0).log_softmax(-1) for token in (3, 7))
    assert finercut.divergences(first, first).item() == pytest.approx(0, abs=1e-6)
    assert finercut.divergences(first, second).item() == pytest.approx(torch.tensor(2.0).log().item())  # its largest


def test_a_trial_runs_what_follows_the_sublayer_it_leaves_out_alone(tiny_llama, monkeypatch):
    ran, added = [], Decoder.added
    monkeypatch.setattr(Decoder, "added", lambda *given: ran.append(given[2:]) or added(*given))
    decoder = Decoder(tiny_llama)
    finercut.finer_cut(decoder, IDS, 2)
    assert len(ran) == len(IDS) * sum(sublayers * (sublayers + 1) // 2 for sublayers in (12, 11))
    assert decoder.executions == 6 * len(IDS)  # the dense pass


def test_it_continues_from_what_is_removed_and_from_what_was_found(make_tiny):
    model = make_tiny("llama")
    removed = finercut.finer_cut(Decoder(model), IDS, 3)
    assert finercut.finer_cut(Decoder(model), IDS, 3, begun=removed[:2]) == removed
    assert finercut.finer_cut(Decoder(model), IDS, 1, begun=removed[:2]) == removed[:1]
    drop_sublayers(model, [(2, ATTENTION)])  # dense is the model as it is given
    assert finercut.finer_cut(Decoder(model), IDS, 1) == naive(model, 1)


@pytest.mark.parametrize("count", [0, 12])
def test_what_is_refused(tiny_llama, count):
    with pytest.raises(UserError, match=f"cannot remove {count} of 12 sub-layers; choose 1..11"):
        finercut.finer_cut(Decoder(tiny_llama), IDS, count)


@pytest.mark.parametrize("method", ["finercut", "blockpruner"])
def test_a_search_for_more_continues_from_that_for_fewer(make_tiny, method, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path))
    monkeypatch.setattr("common.pruning.pipeline._MADE", set())
    searches, greedy = [], sublayer_removal.greedy

    def counted(decoder, ids, count, *given, begun, **options):
        searches.append((len(ids), len(begun), count))
        return greedy(decoder, ids, count, *given, begun=begun, **options)

    monkeypatch.setattr(sublayer_removal, "greedy", counted)
    monkeypatch.setattr(finercut, "greedy", counted)
    monkeypatch.setitem(SAMPLERS, "counted", lambda context, entry: IDS[: entry.count])
    text = {"corpus": "counted", "sampler": "counted", "count": 3}

    def chosen(count, **options):
        selection = {"method": method, "count": count} | options
        context = Context(make_tiny("llama"), None, Recipe("tiny", "paper", selection=selection, calibration=text), 0)
        context.recipe.step("selection").apply(context)
        return context.details["halves"]

    one, three = chosen(1), chosen(3)
    assert chosen(2) == three[:2] and one == three[:1]
    assert searches == [(3, 0, 1), (3, 1, 3)]  # of three windows; 2 is the beginning of 3
    chosen(2, calibration=text | {"count": 1})
    assert searches[2:] == [(1, 0, 2)]
    with pytest.raises(UserError, match="cannot remove 0 of 12"):
        chosen(0)
