"""One-pass statistics against stored Hugging Face hidden states, and the samplers against their definitions."""

import random

import datasets
import pytest
import torch

from common.calibration import Statistics, collect, default_pairs, sample_crops, sample_documents, sample_lines
from common.calibration.statistics import ESTIMATORS
from common.hadamard import hadamard_matrix
from common.models.decoder import Decoder
from common.utils.errors import UserError


def stored_states(model, ids) -> list[torch.Tensor]:
    """X[0..N] from Hugging Face, with X[N] taken before the final norm, and the state after it."""
    last = []
    handle = model.model.norm.register_forward_pre_hook(lambda module, args: last.append(args[0]))
    with torch.no_grad():
        out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    handle.remove()
    return [*out.hidden_states[:-1], last[0], out.hidden_states[-1]]


@pytest.fixture
def crops():
    return torch.randint(3, 320, (6, 20), generator=torch.Generator().manual_seed(5))


def naive_cosine(kind, x, y):
    x, y = x.double(), y.double()
    if kind == "token":
        return torch.nn.functional.cosine_similarity(x, y, dim=-1).mean()
    if kind == "channel":
        return torch.stack([torch.nn.functional.cosine_similarity(a, b, dim=0).mean() for a, b in zip(x, y)]).mean()
    if kind == "flat-batch":
        return torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0)
    return torch.stack(
        [torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in zip(x, y)]
    ).mean()


def test_cosines_are_those_of_stored_states(tiny, crops):
    decoder, states = Decoder(tiny), stored_states(tiny, crops)
    layers = decoder.num_layers
    pairs = [*default_pairs(layers, 3), (layers - 2, layers + 1)]
    kinds = ("token", "channel", "flat-batch", "flat-sentence")
    found = collect(decoder, crops, span=3, pairs=pairs, kinds=kinds, batch_size=4)
    for kind in kinds:
        for a, b in pairs:
            expected = naive_cosine(kind, states[a], states[b]).item()
            assert found.cosine(kind, a, b) == pytest.approx(expected, abs=2e-5), (kind, a, b)


@pytest.mark.parametrize("rotated", [False, True])
def test_magnitudes_and_ratios_are_those_of_stored_states(tiny, crops, rotated):
    decoder, states = Decoder(tiny), [s.double() for s in stored_states(tiny, crops)[:-1]]
    if rotated:
        states = [s @ hadamard_matrix(s.shape[-1]) for s in states]
    found = collect(decoder, crops, span=3, batch_size=4, elementwise=[(1, 4)])
    torch.testing.assert_close(found.magnitude(2, rotated), states[2].abs().mean((0, 1)), rtol=1e-4, atol=1e-5)
    for a, b in [(0, 1), (1, 4), (3, 6)]:
        of_means = (states[b].abs().mean(1) / states[a].abs().mean(1)).mean(0)
        pooled = states[b].abs().sum((0, 1)) / states[a].abs().sum((0, 1))
        torch.testing.assert_close(found.ratio(a, b, "ratio-of-means", rotated), of_means, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.ratio(a, b, "pooled-l1", rotated), pooled, rtol=1e-4, atol=1e-5)
    elementwise = (states[4].abs() / states[1].abs()).mean((0, 1))
    # Near-zero denominators dominate Eq. 4, so float32 states give it only roughly.
    torch.testing.assert_close(found.ratio(1, 4, "elementwise", rotated), elementwise, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rotated", [False, True])
def test_a_channel_that_is_zero_before_the_cut_is_left_alone(tiny, crops, rotated, estimator):
    rotation = hadamard_matrix(64) if rotated else torch.eye(64, dtype=torch.float64)
    keeps = rotation @ torch.diag((torch.arange(64) != 5).double()) @ rotation.T  # all but channel 5 of X H
    with torch.no_grad():
        weight = tiny.model.embed_tokens.weight
        weight.copy_(weight.double() @ keeps)
    x, y = (s.double() @ rotation for s in stored_states(tiny, crops)[0:3:2])
    assert x[..., 5].abs().max() < 1e-5 * x.abs().mean()  # rotated: but for rounding
    assert y[..., 5].abs().mean() > 0.1 * y.abs().mean()
    decoder = Decoder(tiny)
    found = collect(decoder, crops, span=2, batch_size=4, elementwise=[(0, 2)], moments=[(0, 2)])
    scales = found.ratio(0, 2, estimator, rotated)
    assert scales[5] == 1
    others = torch.arange(64) != 5
    assert scales[others].isfinite().all() and not (scales[others] == 1).any()
    if estimator == "ratio-of-means":
        expected = (y.abs().mean(1) / x.abs().mean(1)).mean(0)[others]
        torch.testing.assert_close(scales[others], expected, rtol=1e-4, atol=1e-5)


def test_a_channel_that_is_zero_in_one_sample_counts_as_one_there(tiny_llama, crops):
    crops[2] = 9
    with torch.no_grad():
        tiny_llama.model.embed_tokens.weight[9, 5] = 0
    x, y = (s.double().abs().mean(1)[:, 5] for s in stored_states(tiny_llama, crops)[:2])
    rest = torch.arange(len(crops)) != 2
    expected = ((y[rest] / x[rest]).sum() + 1) / len(crops)
    assert collect(Decoder(tiny_llama), crops).ratio(0, 1)[5].item() == pytest.approx(expected.item(), rel=1e-4)


def test_batch_size_changes_nothing_and_each_batch_costs_one_pass(tiny_llama, crops):
    decoder = Decoder(tiny_llama)
    one = collect(decoder, crops, span=2, batch_size=6)
    assert decoder.executions == decoder.num_layers
    two = collect(decoder, crops, span=2, batch_size=1)
    assert decoder.executions == decoder.num_layers * 7
    assert one.cosine("token", 1, 3) == pytest.approx(two.cosine("token", 1, 3), abs=1e-7)
    torch.testing.assert_close(one.ratio(1, 3, rotated=True), two.ratio(1, 3, rotated=True), rtol=1e-5, atol=0)


def test_statistics_do_not_grow_with_samples(tiny_llama, crops):
    def held(statistics: Statistics) -> int:
        tensors = [*statistics.magnitudes.values(), *statistics.ratios.values()]
        return sum(t.numel() for t in tensors) + len(statistics.cosines)

    few = collect(Decoder(tiny_llama), crops[:2], span=2)
    many = collect(Decoder(tiny_llama), crops.repeat(5, 1), span=2)
    assert held(few) == held(many)


def test_crops_are_the_official_draws():
    ids = torch.arange(1000)
    generator = random.Random(2)
    expected = [generator.randint(0, 900 - 50 - 1) for _ in range(7)]
    crops = sample_crops(ids, length=50, count=7, seed=2)
    assert crops[:, 0].tolist() == expected
    assert torch.equal(crops[3], torch.arange(expected[3], expected[3] + 50))
    assert crops[:3].equal(sample_crops(ids, length=50, count=3, seed=2))


def test_validation_crops_lie_in_the_last_tenth():
    ids = torch.arange(1000)
    crops = sample_crops(ids, length=50, count=200, stretch="validation")
    starts = crops[:, 0]
    assert starts.min() >= 900 and starts.max() <= 1000 - 50 - 1 and len(starts.unique()) > 40
    training = sample_crops(ids, length=50, count=200)
    assert not set(crops.flatten().tolist()) & set(training.flatten().tolist())
    with pytest.raises(UserError, match="too few for crops of 120 from its last 10%"):
        sample_crops(ids, length=120, count=1, stretch="validation")


def test_crops_that_are_to_be_apart_share_no_token_with_the_others():
    ids = torch.arange(4000)
    plain = sample_crops(ids, length=32, count=40, seed=3)
    found = sample_crops(ids, length=32, count=40, seed=3, apart=8)
    assert torch.equal(found[:32], plain[:32])
    rest = set(found[:32].flatten().tolist())
    assert rest & set(plain[32:].flatten().tolist()) and not rest & set(found[32:].flatten().tolist())
    full = sample_crops(torch.arange(300), length=32, count=60, seed=3, apart=2)  # no room: as far away as there is
    for crop in full[58:, 0].tolist():
        shared = [sum(max(0, 32 - abs(start - other)) for other in full[:58, 0].tolist()) for start in range(237)]
        assert sum(max(0, 32 - abs(crop - other)) for other in full[:58, 0].tolist()) <= sorted(shared)[60]


def test_short_text_and_unknown_names_are_refused(tiny_llama, crops, tiny_tokenizer):
    with pytest.raises(UserError, match="calibration text has 40 tokens, too few for crops of 50"):
        sample_crops(torch.arange(40), length=50, count=1)
    with pytest.raises(UserError, match="less than one window of 4000"):
        sample_lines(tiny_tokenizer, ["a", "b"], length=4000)
    with pytest.raises(UserError, match="unknown shuffle 'numpy'"):
        sample_lines(tiny_tokenizer, ["a", "b"], length=1, shuffle="numpy")
    with pytest.raises(UserError, match="only 1 of 2 documents have 5 tokens, not 2"):
        options = {"length": 5, "count": 2, "generator": random.Random(0)}
        sample_documents(tiny_tokenizer, ["a", "the layers of a model are removed"], **options)
    with pytest.raises(UserError, match="unknown cosine"):
        collect(Decoder(tiny_llama), crops, kinds=("tokens",))
    with pytest.raises(UserError, match="up to 1 layers, not 3"):
        collect(Decoder(tiny_llama), crops).ratio(0, 3)


def test_sleb_lines_are_shuffled_joined_and_cut(tiny_tokenizer):
    texts = [f"line {i}" for i in range(50)]
    order = list(texts)
    random.Random(0).shuffle(order)
    expected = tiny_tokenizer("\n\n".join(order[:20]), return_tensors="pt").input_ids[0]
    windows = sample_lines(tiny_tokenizer, texts, length=16, count=20)
    assert windows.flatten().equal(expected[: windows.numel()])
    assert len(expected) - windows.numel() < 16


def test_sleb_lines_are_those_of_the_official_code(tiny_tokenizer):
    texts = [f"line {i}" for i in range(50)]
    rows = datasets.Dataset.from_dict({"text": texts}).shuffle(seed=0)[:20]["text"]
    expected = tiny_tokenizer("\n\n".join(rows), return_tensors="pt").input_ids[0]
    windows = sample_lines(tiny_tokenizer, texts, length=16, count=20, shuffle="datasets")
    assert windows.flatten().equal(expected[: windows.numel()])


def test_documents_are_drawn_after_the_crops_each_once(tiny_tokenizer):
    """The official loop: the crops seed the generator, the documents go on with it and redraw what is short or known."""
    texts = ["the stream is scaled " * n for n in (1, 9, 2, 12, 1, 15, 11)]
    documents = [tiny_tokenizer(text)["input_ids"] for text in texts]
    generator, expected, history = random.Random(0), [], []
    for _ in range(6):
        generator.randint(0, 900 - 50 - 1)
    while len(expected) < 4:
        index = generator.randint(0, 6)
        if index not in history and len(documents[index]) >= 30:
            history.append(index)
            start = generator.randint(0, len(documents[index]) - 30)
            expected.append(documents[index][start : start + 30])
    generator = random.Random(0)
    sample_crops(torch.arange(1000), length=50, count=6, generator=generator)
    crops = sample_documents(tiny_tokenizer, texts, length=30, count=4, generator=generator)
    assert crops.tolist() == expected
