"""Numbers with their signs: what a reader sees as zero is neither above nor below it."""

import math

import pytest

from common.utils.signs import signed


@pytest.mark.parametrize("value", [-0.0, -0.0049, -1e-12, 0.0, 0.0049])
def test_what_rounds_to_zero_has_no_sign(value):
    assert signed(value, "+.2f") == signed(value, ".2f") == "0.00"


@pytest.mark.parametrize("value", [-0.0051, -12.3456, 7.0, 0.051])
def test_other_numbers_read_back_as_they_were_rounded(value):
    for form in ("+.2f", ".4g"):
        text = signed(value, form)
        assert "-" not in text
        assert float(text.replace("−", "-")) == float(format(value, form))


def test_what_is_no_finite_number_keeps_its_sign():
    assert (signed(-math.inf, "+.1f"), signed(math.inf, "+.1f")) == ("−inf", "+inf")
