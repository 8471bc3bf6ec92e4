"""Check the words in which pages say a claim's verdict."""

import pytest

from reproductions.render import claim_verdicts


@pytest.mark.parametrize(
    ("difference", "unit", "paired", "said"),
    [
        (9.9, "%", True, "9.9 % higher, 95 % CI +9.4 to +10.4"),
        (-0.04, "points", True, "0.0 points, 95 % CI +9.4 to +10.4"),
        (-2.8, "points", False, "2.8 points less, 95 % CI +9.4 to +10.4 (unpaired)"),
    ],
)
def test_a_difference_says_its_direction_in_words_if_it_shows_any(difference, unit, paired, said):
    judged = {"difference": difference, "unit": unit, "interval": (9.4, 10.4), "paired": paired, "limit": None}
    assert claim_verdicts.effect(judged) == said


@pytest.mark.parametrize(
    ("counts", "contradicted", "said"),
    [
        ((1, 1), False, "1 comparison"),
        ((2, 2), False, "both comparisons support it"),
        ((3, 3), False, "all 3 comparisons support it"),
        ((0, 3), True, "0 of 3 comparisons support it"),
        ((1, 3), True, "1 of 3 comparisons support it, not enough"),
        ((2, 3), False, "2 of 3 comparisons support it"),
    ],
)
def test_counts_of_comparisons_say_what_they_count(counts, contradicted, said):
    assert claim_verdicts.supporting(*counts, contradicted) == said
