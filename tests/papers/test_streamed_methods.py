"""Methods on a streamed model: the checkpoint that they make in memory, to the last bit."""

import pytest
import torch
from tiny_models import ARCHITECTURES

from common.baselines import llm_pruner, slicegpt
from common.calibration import collect
from common.models import checkpoint
from common.models.decoder import Decoder
from common.models.layers import sublayers
from common.pruning import importance
from common.pruning.selection import best_block
from common.utils.errors import UserError
from extensions import refit
from papers.linearpatch.patch import patch_interfaces
from papers.prunecomp import prune_and_compensate


def linearpatch(model, crops):
    statistics = collect(Decoder(model), crops, span=2, batch_size=2)
    patch_interfaces(model, statistics, list(range(*best_block(statistics, 2))))


METHODS = {
    "linearpatch": linearpatch,
    "prunecomp": lambda model, crops: prune_and_compensate(model, crops, 2, metric="bi", batch_size=2),
    "magnitudes": lambda model, crops: prune_and_compensate(model, crops, 2, metric="mag+", protected=[0, 5]),
    "refit": lambda model, crops: refit.refit(model, crops, [2, 3], following=1, batch_size=2),
}


def refitted_in_place(model, crops):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refit.method, "LARGE", 1)  # as where there is room for one H'H alone
        refit.refit(model, crops, [2, 3], following=1, batch_size=2)


METHODS |= {"refit in place": refitted_in_place}


METHODS["refit in place"] = refitted_in_place


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_same_checkpoint(name, method, write_checkpoint, tmp_path, crops, ids):
    if method.startswith("refit") and name in ("gemma2", "mixtral"):
        pytest.skip("refused: tests/extensions/refit/test_method.py")
    folder = write_checkpoint(tmp_path / "model", name)
    whole, tokenizer = checkpoint.load(folder)
    streamed, _ = checkpoint.load(folder, stream=0)
    for model in (whole, streamed):
        METHODS[method](model, crops)
    checkpoint.save(streamed, tokenizer, tmp_path / "out")
    again, _ = checkpoint.load(tmp_path / "out")
    for parameter, value in whole.named_parameters():
        assert torch.equal(value, again.get_parameter(parameter)), parameter
    with torch.inference_mode():
        expected = whole(ids).logits
        assert torch.equal(expected, streamed(ids).logits) and torch.equal(expected, again(ids).logits)
    assert len(again.model.layers) == len(streamed.model.layers) == 4


@pytest.mark.parametrize(
    "work",
    [
        lambda model, crops: sublayers.drop_sublayers(model, [(2, "attention")]),
        lambda model, crops: slicegpt.slice_stream(model, crops, 32),
        lambda model, crops: llm_pruner.prune(model, crops, 0.25),
        lambda model, crops: importance.taylor(Decoder(model), crops),
        lambda model, crops: prune_and_compensate(model, crops, 2, metric="taylor+", protected=[0, 5]),
    ],
    ids=["sub-layers", "slices", "heads", "scores by gradients", "layers by gradients"],
)
def test_what_changes_parts_of_layers_or_needs_gradients_is_refused(work, write_checkpoint, tmp_path, crops, ids):
    """It would leave another model than in memory."""
    streamed, _ = checkpoint.load(write_checkpoint(tmp_path / "model", "llama"), stream=0)
    with torch.inference_mode():
        before = streamed(ids).logits
    with pytest.raises(UserError, match="needs the whole model in memory"):
        work(streamed, crops)
    with torch.inference_mode():
        assert torch.equal(before, streamed(ids).logits)


def test_attention_and_mlp_apart_read_their_layer(write_checkpoint, tmp_path, ids):
    folder = write_checkpoint(tmp_path / "model", "llama")
    whole, streamed = (Decoder(checkpoint.load(folder, stream=stream)[0]) for stream in (None, 0))
    with torch.inference_mode():
        hidden = whole.embed_tokens(ids)
        for sublayer in ("attention", "mlp"):
            assert torch.equal(whole.added(hidden, 2, sublayer), streamed.added(hidden, 2, sublayer))
