"""The patch in pieces against naive loops, and statistics without first tokens against a forward pass by hand."""

import copy

import pytest
import torch
from heads import streams

from common.calibration import collect, corpora
from common.hadamard import hadamard_matrix
from common.hooks import patches
from common.models import checkpoint, loading
from common.models.decoder import Decoder
from common.pruning.pipeline import Context, context_of, run_recipe
from common.pruning.recipe import Calibration, Recipe
from common.pruning.steps import Given
from common.utils.errors import UserError
from papers.linearpatch.patch import TOKENS, LinearPatch, insert_patch, patch_values
from papers.linearpatch.probe import PIECES, massive_channels, piece_matrix
from papers.linearpatch.steps import LinearPatchRepair, Probe

BLOCK = (2, 4)
ESTIMATORS = ("ratio-of-means", "pooled-l1", "least-squares")


@pytest.fixture
def crops():
    return torch.randint(3, 320, (4, 24), generator=torch.Generator().manual_seed(7))


@pytest.fixture
def loud(tiny_llama):
    """A model with two channels far louder than the others."""
    with torch.no_grad():
        tiny_llama.model.embed_tokens.weight[:, [5, 40]] *= 5000
    return tiny_llama


def statistics(model, crops, **options):
    return collect(Decoder(model), crops, span=2, moments=[BLOCK], elementwise=[BLOCK], **options)


def test_pieces_are_what_they_are_said_to_be(loud, crops):
    collected = statistics(loud, crops)
    before = streams(loud, crops)[BLOCK[0]].double()
    magnitudes = before.abs().mean((0, 1))
    loud_ones = [k for k in range(64) if magnitudes[k] >= 10 * magnitudes.median()]
    assert loud_ones == [5, 40] == massive_channels(collected.magnitude(BLOCK[0])).nonzero().flatten().tolist()
    rotation = hadamard_matrix(64)
    d, rotated = (patch_values(collected, *BLOCK, kind=kind) for kind in ("diagonal", "hadamard"))
    x = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    through_a = (x @ rotation * rotated) @ rotation.T
    by_hand = {name: torch.zeros_like(x) for name in PIECES}
    for row in range(len(x)):
        for k in range(64):
            alone = torch.zeros(64, dtype=torch.float64)
            alone[k] = x[row, k]
            a, scaled = (alone @ rotation * rotated) @ rotation.T, alone * d
            by_hand["A"][row] += a
            by_hand["d"][row] += scaled
            by_hand["factor"][row, k] = a[k]  # what A leaves of a channel in that channel
            by_hand["massive"][row] += a if k in loud_ones else scaled
            by_hand["others"][row] += scaled if k in loud_ones else a
    torch.testing.assert_close(by_hand["A"], through_a)
    for piece in PIECES:
        torch.testing.assert_close(
            x @ piece_matrix(collected, *BLOCK, piece=piece), by_hand[piece], rtol=1e-9, atol=1e-9
        )
    patch = LinearPatch(rotated)
    torch.testing.assert_close(piece_matrix(collected, *BLOCK).float(), patch.weight, rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="unknown piece of the patch 'massiv'; did you mean 'massive'"):
        piece_matrix(collected, *BLOCK, piece="massiv")


def test_channels_are_massive_by_the_stream_before_the_cut(tiny_llama, crops):
    """Channel 5 is loud in what the cut receives alone, channel 9 behind it."""

    def moved(_, args, out):
        out = out.clone()
        out[..., 5], out[..., 9] = 1.0, 5000.0
        return out

    with torch.no_grad():
        tiny_llama.model.embed_tokens.weight[:, 5] = 5000.0
    tiny_llama.model.layers[2].register_forward_hook(moved)
    collected = statistics(tiny_llama, crops)
    a, d, massive = (piece_matrix(collected, *BLOCK, piece=piece) for piece in ("A", "d", "massive"))
    assert torch.equal(massive, torch.where(torch.arange(64)[:, None] == 5, a, d))


@pytest.mark.parametrize("piece", ["A", "massive"])
def test_strength_goes_from_nothing_to_the_piece_and_beyond(piece, loud, crops):
    collected = statistics(loud, crops)
    whole, eye = piece_matrix(collected, *BLOCK, piece=piece), torch.eye(64, dtype=torch.float64)
    assert torch.equal(piece_matrix(collected, *BLOCK, piece=piece, strength=0), eye)
    for strength in (0.25, 1.0, 1.5):
        expected = (1 - strength) * eye + strength * whole
        torch.testing.assert_close(piece_matrix(collected, *BLOCK, piece=piece, strength=strength), expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_skipped_tokens_count_in_nothing(estimator, loud, crops):
    """Against the states of a plain forward pass without its first tokens."""
    before, after = (streams(loud, crops)[boundary][:, 1:].double() for boundary in BLOCK)
    collected = statistics(loud, crops, skip=1, batch_size=3)
    assert (collected.samples, collected.tokens, collected.skip) == (4, 4 * 23, 1)
    for rotated in (False, True):
        x, y = (side @ hadamard_matrix(64) if rotated else side for side in (before, after))
        expected = {
            "ratio-of-means": (y.abs().mean(1) / x.abs().mean(1)).mean(0),
            "pooled-l1": y.abs().sum((0, 1)) / x.abs().sum((0, 1)),
            "least-squares": (x * y / before.square().sum(-1, keepdim=True)).sum((0, 1))
            / (x * x / before.square().sum(-1, keepdim=True)).sum((0, 1)),
        }[estimator]
        torch.testing.assert_close(collected.ratio(*BLOCK, estimator, rotated), expected, rtol=1e-4, atol=1e-6)
    cosines = torch.nn.functional.cosine_similarity(before, after, dim=-1)
    assert collected.cosine("token", *BLOCK) == pytest.approx(cosines.mean().item(), rel=1e-5)
    assert not collected.holds([], span=2, kinds=("token",)) and collected.holds([], span=2, kinds=("token",), skip=1)
    with pytest.raises(UserError, match="samples of 24 tokens the first 24 cannot be skipped"):
        statistics(loud, crops, skip=24)


def test_a_streamed_pass_skips_the_same_tokens(write_checkpoint, loud, crops, tmp_path):
    folder = write_checkpoint(tmp_path / "model", model=loud)
    streamed, _ = loading.load(str(folder), stream=10_000)
    whole, parts = (statistics(model, crops, skip=2) for model in (loud, streamed))
    for rotated in (False, True):
        assert torch.equal(whole.ratio(*BLOCK, rotated=rotated), parts.ratio(*BLOCK, rotated=rotated))


def test_the_whole_piece_is_the_patch_and_strength_0_the_cut_alone(loud, crops, ids):
    def logits(repair):
        model = copy.deepcopy(loud)
        context = context_of(model, sequences=crops, selection=Given((2, 3)), repair=repair)
        run_recipe(context)
        with torch.no_grad():
            return context, model(input_ids=ids, use_cache=False).logits

    context, probed = logits(Probe())
    torch.testing.assert_close(probed, logits(LinearPatchRepair())[1], rtol=1e-4, atol=1e-4)
    expected = {"run": [2, 4], "position": 2, "diagonal": 0, "massive": [5, 40]}
    assert context.details["patches"][0] | {"diagonal": 0} == expected
    assert context.details["repair"]["calibration_tokens"] == crops.numel()
    torch.testing.assert_close(logits(Probe("d"))[1], logits(LinearPatchRepair("diagonal"))[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(Probe(strength=0.0))[1], logits(None)[1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(Probe(first=False))[1], probed)
    assert torch.equal(logits(Probe(acts_on="all"))[1], probed)


def test_massive_tokens_stay_as_they_are_or_change_alone(loud, crops, tmp_path, tiny_tokenizer):
    matrix = piece_matrix(statistics(loud, crops), *BLOCK)
    hidden = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(11))
    hidden[0, 0] *= 40  # 9 times the median norm is not massive, 40 times is
    hidden[1, 3] *= 9 * hidden[1].norm(dim=-1).median() / hidden[1, 3].norm()
    changed = (hidden.double() @ matrix).float()
    expected = {"all": changed, "ordinary": changed.clone(), "massive": hidden.clone()}
    expected["ordinary"][0, 0], expected["massive"][0, 0] = hidden[0, 0], changed[0, 0]
    for acts_on in TOKENS:
        patch = LinearPatch(matrix, "matrix", acts_on=acts_on)
        torch.testing.assert_close(patch(hidden), expected[acts_on], rtol=1e-4, atol=1e-3)
        model = copy.deepcopy(loud)
        insert_patch(model, BLOCK[0], patch)
        again, _ = checkpoint.load(checkpoint.save(model, tiny_tokenizer, tmp_path / acts_on))
        assert torch.equal(patches(again)[0].module(hidden), patch(hidden))
    with pytest.raises(UserError, match="unknown tokens of a patch 'odd'"):
        LinearPatch(matrix, "matrix", acts_on="odd")


def test_the_step_makes_the_same_patch_for_ordinary_tokens(loud, crops):
    def patch(**options):
        model = copy.deepcopy(loud)
        run_recipe(context_of(model, sequences=crops, selection=Given((2, 3)), repair=LinearPatchRepair(**options)))
        return patches(model)[0].module

    plain, spared = patch(), patch(acts_on="ordinary")
    assert torch.equal(plain.weight, spared.weight)
    assert (plain.options.get("acts_on"), spared.options["acts_on"]) == (None, "ordinary")


def test_scales_may_come_from_another_text_than_the_choice(loud, tiny_tokenizer, monkeypatch):
    texts = {"one": ["the layers of a model are removed "] * 30, "two": ["0 1 2 3 4 5 6 7 8 9 + - = ( ) "] * 30}
    monkeypatch.setattr(corpora, "joined_ids", lambda tokenizer, name: corpora.encode(tokenizer, "".join(texts[name])))

    def prepared(probe, text):
        entry = Calibration(text, "windows", 16, 4)
        recipe = Recipe("m", "paper", selection=Given((2, 3)), repair=probe, calibration=entry)
        context = Context(copy.deepcopy(loud), tiny_tokenizer, recipe, 0)
        run_recipe(context)
        return context

    other = prepared(Probe(calibration=Calibration("two", "windows", 16, 3)), "one")
    same = prepared(Probe(calibration=Calibration("two", "windows", 16, 3)), "two")
    assert other.details["patches"] == same.details["patches"] != prepared(Probe(), "one").details["patches"]
    assert other.details["repair"]["calibration_tokens"] == 48
    assert ("corpus", "two") in other.recipe.reads() and ("corpus", "one") in other.recipe.reads()
    assert Recipe(**vars(other.recipe)).hash == other.recipe.hash
