"""EntroDrop against numpy's histograms of what a Hugging Face model hands from module to module."""

import numpy as np
import pytest
import torch
from heads import sublayer_streams
from scipy import stats

from common.baselines import entrodrop
from common.baselines import sublayer_steps as _steps  # noqa: F401 - registers them
from common.models.decoder import Decoder
from common.models.layers.sublayers import ATTENTION, MLP, SUBLAYERS, drop_sublayers
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError

IDS = torch.randint(3, 320, (3, 20), generator=torch.Generator().manual_seed(3))
ORDER = [(layer, sublayer) for layer in range(3) for sublayer in SUBLAYERS]


def naive_entropy(values, bins):
    return sum(stats.entropy(np.histogram(channel, bins=bins)[0]) for channel in values.T)


def naive_entropies(model, bins):
    """Of the stream before every sub-layer and after the last, sequence by sequence."""
    streams = ([stream[0].double().numpy() for stream in sublayer_streams(model, sequence[None])] for sequence in IDS)
    return np.mean([[naive_entropy(stream, bins) for stream in of_sequence] for of_sequence in streams], axis=0)


def test_entropies_are_those_of_numpys_histograms(tiny):
    entropies = entrodrop.entropies(Decoder(tiny), IDS)
    assert len(entropies) == 13
    np.testing.assert_allclose(entropies, naive_entropies(tiny, 20), rtol=1e-9)


def test_entropy_in_closed_form():
    even, still = torch.arange(40.0) / 7 - 2, torch.full((40,), 3.0)
    two = (torch.arange(40) % 4 == 0).float()
    assert entrodrop.binned_entropy(even[:, None]) == pytest.approx(np.log(20))
    assert entrodrop.binned_entropy(still[:, None]) == 0
    quarter = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert entrodrop.binned_entropy(torch.stack([even, still, two], 1)) == pytest.approx(np.log(20) + quarter)


def test_what_adds_least_is_removed_from_the_lowest_entropy_on():
    # before each sub-layer of layers 0, 1 and 2, and after all; the lowest input of a layer is that of layer 1
    entropies = [9.0, 2.0, 3.0, 4.5, 4.0, 4.2, 6.0]
    assert entrodrop.least_increase(entropies, ORDER, 1) == [(2, ATTENTION)]
    assert entrodrop.least_increase(entropies, ORDER, 2) == [(2, ATTENTION), (1, ATTENTION)]
    assert entrodrop.least_increase(entropies, ORDER, 1, MLP) == [(1, MLP)]
    assert entrodrop.least_increase(entropies, ORDER, 3, "both") == [(1, MLP), (2, ATTENTION), (1, ATTENTION)]
    assert entrodrop.least_increase(entropies, ORDER, 1, "layer") == [1]
    falling = [1.5, *entropies[1:]]  # then the lowest input is that of layer 0
    assert entrodrop.least_increase(falling, ORDER, 1, "both") == [(1, MLP)]
    without = [*entropies[:1], *entropies[3:]], [*ORDER[:1], *ORDER[3:]]  # two sub-layers
    assert entrodrop.least_increase(*without, 1, "layer") == [2]


def test_the_official_codes_first_two_layers_and_last_stay():
    order = [(layer, sublayer) for layer in range(6) for sublayer in SUBLAYERS]
    added = [-9, -9, -9, -9, 3, 1, 1, 2, 2, 5, -9, -9]  # attention and MLP of layers 0 .. 5
    entropies = np.cumsum([0, *added]).tolist()
    keep = {"kept": "ends"}
    assert entrodrop.least_increase(entropies, order, 3, **keep) == [(3, ATTENTION), (4, ATTENTION), (2, ATTENTION)]
    assert entrodrop.least_increase(entropies, order, 1, MLP, **keep) == [(2, MLP)]
    assert entrodrop.least_increase(entropies, order, 2, "layer", **keep) == [3, 2]
    with pytest.raises(UserError, match="there are 3 of kind 'attention'"):
        entrodrop.least_increase(entropies, order, 4, **keep)


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (1, {"kind": "atention"}, "did you mean 'attention'"),
        (3, {}, "cannot remove 3 of 3 sub-layers"),
        (0, {}, "cannot remove 0 of 3 sub-layers"),
        (2, {"kind": "layer"}, "cannot remove 2 of 3 layers; choose 1..1"),
        (2, {}, "cannot remove 2: from layer 2 on, where entropy rises, there are 1 of kind 'attention'"),
    ],
)
def test_what_is_refused(count, options, message):
    with pytest.raises(UserError, match=message):
        entrodrop.least_increase([9.0, 8.0, 7.0, 6.0, 4.0, 4.2, 6.0], ORDER, count, **options)
    with pytest.raises(UserError, match="from layer 3 on, .* there are 0"):  # it falls to the end
        entrodrop.least_increase([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0], ORDER, 1)


def test_whole_layers_go_by_name_and_sublayers_that_are_gone_are_not_asked(make_tiny, monkeypatch):
    # what each sub-layer adds, from layer 0's attention on; layer 1 has none
    entropies = np.cumsum([0, 1, 5, 2, 4, 4, 1, 2, 9, 9, 3, 1]).tolist()
    monkeypatch.setattr(entrodrop, "entropies", lambda *_, **__: entropies)

    def pruned(**options):
        model = make_tiny("llama")
        drop_sublayers(model, [(1, ATTENTION)])
        context = context_of(model, sequences=IDS, selection={"method": "entrodrop"} | options)
        run_recipe(context)
        return context

    whole = pruned(count=2, kind="layer")
    assert whole.removed == [1, 3] and len(whole.model.model.layers) == 4 and whole.details["entropies"] == entropies
    sublayers = pruned(count=4)
    assert sublayers.details["halves"] == [[layer, ATTENTION] for layer in (0, 3, 5, 2)] and sublayers.removed == []
