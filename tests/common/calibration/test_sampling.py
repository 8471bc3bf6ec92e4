"""Check the samplers of calibration tokens against their definitions."""

import random

import datasets
import pytest
import torch

from common.calibration import sample_crops, sample_documents, sample_lines
from common.utils.errors import UserError


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
    crops = sample_crops(ids, length=32, count=40, seed=3, apart=8)
    assert torch.equal(crops[:32], plain[:32])
    rest = set(crops[:32].flatten().tolist())
    assert rest & set(plain[32:].flatten().tolist()) and not rest & set(crops[32:].flatten().tolist())
    full = sample_crops(torch.arange(300), length=32, count=60, seed=3, apart=2)  # no room: as far away as there is
    for crop in full[58:, 0].tolist():
        shared = [sum(max(0, 32 - abs(start - other)) for other in full[:58, 0].tolist()) for start in range(237)]
        assert sum(max(0, 32 - abs(crop - other)) for other in full[:58, 0].tolist()) <= sorted(shared)[60]


def test_short_texts_and_unknown_shuffles_are_refused(tiny_tokenizer):
    with pytest.raises(UserError, match="calibration text has 40 tokens, too few for crops of 50"):
        sample_crops(torch.arange(40), length=50, count=1)
    with pytest.raises(UserError, match="less than one sequence of 4000"):
        sample_lines(tiny_tokenizer, ["a", "b"], length=4000)
    with pytest.raises(UserError, match="unknown shuffle 'numpy'"):
        sample_lines(tiny_tokenizer, ["a", "b"], length=1, shuffle="numpy")
    with pytest.raises(UserError, match="only 1 of 2 documents have 5 tokens, not 2"):
        options = {"length": 5, "count": 2, "generator": random.Random(0)}
        sample_documents(tiny_tokenizer, ["a", "the layers of a model are removed"], **options)


@pytest.mark.parametrize("shuffle", ["python", "datasets"])
def test_sleb_lines_are_shuffled_as_in_the_official_code_joined_and_cut(shuffle, tiny_tokenizer):
    texts = [f"line {i}" for i in range(50)]
    order = list(datasets.Dataset.from_dict({"text": texts}).shuffle(seed=0)["text"])
    if shuffle == "python":
        order = list(texts)
        random.Random(0).shuffle(order)
    expected = tiny_tokenizer("\n\n".join(order[:20]), return_tensors="pt").input_ids[0]
    sequences = sample_lines(tiny_tokenizer, texts, length=16, count=20, shuffle=shuffle)
    assert sequences.flatten().equal(expected[: sequences.numel()])
    assert len(expected) - sequences.numel() < 16


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
