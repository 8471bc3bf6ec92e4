"""Answers of one model on two machines, counted by hand."""

import numpy as np
import pytest
from stored_records import put_outcomes

from common.records.results import Recipe, Store
from reproductions.documents import machine_comparison
from reproductions.render.evidence import Loaded
from reproductions.spec import subsets

PLAIN = {"model": "small", "profile": "paper", "dtype": "bfloat16"}


@pytest.fixture
def text_of_records(tmp_path):
    """Puts records of one recipe, by benchmark: (device, right or wrong by item), and gives the text about all."""
    store = Store(tmp_path, None)

    def text_of(recipe, records):
        for benchmark, (device, right, *more) in records.items():
            put_outcomes(store, recipe, benchmark, {"acc": right}, provenance={"device": device} | dict(*more))
        return machine_comparison.text(Loaded(tmp_path, tmp_path / "none"))

    return text_of


def test_the_first_items_of_the_whole_are_held_against_the_part(text_of_records):
    right = np.arange(1838) % 3 == 0
    other = right.copy()
    other[[0, 3, 499]] ^= True  # 0 and 3 were right, 499 was wrong
    other[500:] ^= True  # of which the part knows nothing
    text = text_of_records(Recipe(**PLAIN), {"piqa" + subsets.MARK: ("cpu", right[:500]), "piqa": ("cuda", other)})
    assert text.splitlines() == [
        "- 1 model answered each task on both machines, pruned models counted.",
        "- Of a task's answers between 0.6 % (piqa, acc) and 0.6 % (piqa, acc) differ.",
        "- The accuracy of one model differs by at most 0.2 points.",
        "- Averaged over the models of a task it differs by at most 0.2.",
    ]
    text = text_of_records(
        Recipe(**PLAIN, selection={"method": "window", "count": 2}),
        {"piqa" + subsets.MARK: ("cpu", right[:500]), "piqa": ("cuda", right)},
    )
    assert "- 2 models answered" in text and "between 0.3 % (piqa, acc)" in text
    assert "one model differs by at most 0.2 points" in text
    assert "models of a task it differs by at most 0.1." in text
    text = text_of_records(
        Recipe(**PLAIN), {"winogrande" + subsets.MARK: ("cpu", right[:500]), "winogrande": ("cuda", ~right)}
    )
    assert "between 0.3 % (piqa, acc) and 100.0 % (winogrande, acc) differ" in text
    assert "- 1 to 2 models answered" in text


@pytest.mark.parametrize(
    ("more", "part", "whole"),
    [
        ({}, ("cuda",), "cuda"),  # one machine
        ({}, ("cpu", {"part_of": "piqa"}), "cuda"),  # was not asked by itself
        ({"training": {"method": "finetune"}}, ("cpu",), "cuda"),  # another training's weights
    ],
)
def test_what_tells_nothing_of_another_machine_is_left_out(more, part, whole, text_of_records):
    right = np.arange(1838) % 3 == 0
    device, *provenance = part
    records = {"piqa" + subsets.MARK: (device, ~right[:500], *provenance), "piqa": (whole, right)}
    assert text_of_records(Recipe(**PLAIN | more), records) == "Not measured yet."
