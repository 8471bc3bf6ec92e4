"""Scaling and patches against running the two sub-layers by hand."""

import copy

import pytest
import torch
from torch import nn

from common.hooks import attach_patch, patch_parameters, patches, scale_stream
from common.models.decoder import Decoder
from common.utils.errors import UserError


@torch.no_grad()
def test_hooks_go_away_on_errors(tiny_llama, ids):
    before = tiny_llama(ids).logits

    with pytest.raises(RuntimeError, match="stop"), scale_stream(tiny_llama, 3, 2.0):
        raise RuntimeError("stop")
    assert torch.equal(tiny_llama(ids).logits, before)


@pytest.mark.parametrize("boundary", [0, 2, 6])
@torch.no_grad()
def test_scale_and_patch_act_at_their_boundary(tiny, ids, boundary, make_patch):
    decoder = Decoder(tiny)
    hidden = decoder.run(decoder.embed_tokens(ids), 0, boundary)
    scaled = decoder.logits(decoder.run(hidden * 1.5, boundary))
    patch = make_patch(0.3)
    patched = decoder.logits(decoder.run(patch(hidden), boundary))
    with scale_stream(tiny, boundary, 1.5):
        assert torch.equal(tiny(ids, use_cache=False).logits, scaled)
    with scale_stream(tiny, boundary, torch.full((64,), 1.5)):
        assert torch.equal(tiny(ids, use_cache=False).logits, scaled)
    attach_patch(tiny, boundary, patch)
    assert torch.equal(tiny(ids, use_cache=False).logits, patched)
    assert torch.equal(decoder.logits(decoder.run(decoder.embed_tokens(ids))), patched)


def test_a_patch_is_no_part_of_the_plain_model(tiny_llama, ids, make_patch):
    keys, count = list(tiny_llama.state_dict()), tiny_llama.num_parameters()
    patch = make_patch(0.1)
    attach_patch(tiny_llama, 2, patch)
    assert (list(tiny_llama.state_dict()), tiny_llama.num_parameters()) == (keys, count)
    assert patch_parameters(tiny_llama) == list(patch.parameters())
    tiny_llama.to(torch.bfloat16)
    assert patch.gain.dtype == torch.float32  # keeps its own precision
    assert tiny_llama(ids).logits.dtype == torch.bfloat16


@torch.no_grad()
def test_a_deep_copy_has_its_own_patch(tiny_llama, ids, make_patch):
    attach_patch(tiny_llama, 3, make_patch(0.2))
    before = tiny_llama(ids).logits
    clone = copy.deepcopy(tiny_llama)
    assert torch.equal(clone(ids).logits, before)
    patches(clone)[0].module.shift.add_(5.0)
    assert not torch.equal(clone(ids).logits, before)
    assert torch.equal(tiny_llama(ids).logits, before)


def test_bad_positions_and_kinds_are_refused(tiny_llama, make_patch):
    for position in (-1, 7):
        with pytest.raises(UserError, match=f"no boundary X\\[{position}\\].*0..6"):
            attach_patch(tiny_llama, position, make_patch(0.0))
    with pytest.raises(UserError, match="has no kind"):
        attach_patch(tiny_llama, 1, nn.Identity())
