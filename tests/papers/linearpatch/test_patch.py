"""LinearPatch against its own algebra: three naive products, eigenvalues, unit scales, save and reload."""

import copy

import pytest
import torch
from heads import logits, streams

from common.calibration import collect
from common.hadamard import hadamard_matrix
from common.hooks import patches
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from papers import linearpatch


@pytest.fixture
def scales():
    return torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5


@pytest.mark.parametrize("layers", [None, [0, 1], [4, 5]], ids=["selected", "first", "last"])
def test_prune_is_selection_scales_removal_and_patch_by_hand(layers, tiny, crops):
    by_hand = copy.deepcopy(tiny)
    states = streams(by_hand, crops)
    cosines = [torch.cosine_similarity(states[s], states[s + 2], dim=-1).mean() for s in range(5)]
    start = layers[0] if layers else int(torch.stack(cosines).argmax())
    rotation = hadamard_matrix(64).float()
    means = [(states[b] @ rotation).abs().mean(1) for b in (start, start + 2)]
    d = (means[1] / means[0]).mean(0)
    remove_layers(by_hand, [start, start + 1])
    receiver = by_hand.model.layers[start] if start < 4 else by_hand.model.norm
    receiver.register_forward_pre_hook(lambda m, a: (((a[0] @ rotation) * d) @ rotation.T, *a[1:]))

    report = linearpatch.prune(tiny, crops, 2, layers=layers, batch_size=3)
    assert report["removed"] == [start, start + 1]
    torch.testing.assert_close(logits(tiny, crops), logits(by_hand, crops), rtol=1e-3, atol=1e-3)


def test_several_runs_get_one_patch_each_at_their_cut(tiny_llama, crops):
    statistics = collect(Decoder(tiny_llama), crops, span=2)
    ratios = {run: statistics.ratio(*run, rotated=True).float() for run in ((1, 2), (3, 5))}
    linearpatch.patch_interfaces(tiny_llama, statistics, [4, 1, 3])
    inserted = patches(tiny_llama)
    assert [p.position for p in inserted] == [1, 2]
    for patch, d in zip(inserted, ratios.values(), strict=True):
        torch.testing.assert_close(torch.linalg.eigvalsh(patch.module.weight), d.sort().values, rtol=1e-3, atol=1e-4)


def test_code_fidelity_spares_the_first_and_last_layer_and_uses_the_channel_cosine(tiny_llama, crops):
    statistics = collect(Decoder(tiny_llama), crops, span=2, kinds=("token", "channel"))
    cosines = {s: statistics.cosine("channel", s, s + 2) for s in (1, 2, 3)}
    start = max(cosines, key=cosines.get)
    assert linearpatch.prune(tiny_llama, crops, 2, fidelity="code")["removed"] == [start, start + 1]
