"""Errors name the nearest of what there is, and stay one short line whatever is asked for."""

import random

import pytest

from common.models.registry import REGISTRY
from common.utils.errors import unknown
from reproductions.spec import registry
from reproductions.spec.subjects import TOY

LETTERS = "abcdefghijklmnopqrstuvwxyz-0123456789 '\n"


@pytest.mark.parametrize(
    ("name", "names", "message"),
    [
        ("lama", ["llama", "qwen", "gemma"], "unknown thing 'lama'; did you mean 'llama'?"),
        ("ab", ["b", "a"], "unknown thing 'ab'; did you mean 'a' or 'b'? all: there"),
        ("zzz", ["b", "a"], "unknown thing 'zzz'; known: a, b"),
        ("zzz", [], "unknown thing 'zzz'; known: none"),
        ("table1", [f"table1-of-a-paper-with-a-long-name-{x}" for x in "pqrs"], "-p' or 'table1-of-a-paper"),
        ("zzz", [f"n, {i:02}" for i in range(40)], "; the nearest of 40: 'n, 00' or 'n, 01' or 'n, 02'; all: there"),
    ],
)  # fmt: skip
def test_the_nearest_three_or_all_of_a_few(name, names, message):
    assert message in str(unknown("thing", name, names, "all: there"))


def test_no_error_is_long():
    rng = random.Random(0)
    names = [*REGISTRY, *registry.targets(), *(row.method for row in registry.get("grid").rows(TOY))]
    for kind, choices in (("model", REGISTRY), ("target", registry.targets()), ("row", names), ("few", names[:9])):
        for length in [0, 1, 5, 20, 90, 10_000] * 4:
            text = str(unknown(kind, "".join(rng.choices(LETTERS, k=length)), choices, "`list` prints all"))
            assert len(text) <= 600 and "\n" not in text
            assert sum(other in text for other in map(repr, choices)) <= 3
