"""The registry's shapes: what shapes.csv holds is read as it stands, or refused."""

from pathlib import Path

import pytest

from common.models import registry
from common.utils import csv_rows

ROWS = {row["shape"]: row for row in csv_rows.read(Path(registry.__file__).with_name("shapes.csv"))}


def test_what_may_be_empty_is_read_as_it_stands():
    long, tied = (registry._shape(ROWS[name]) for name in ("llama-3.1-8b", "smollm2-135m"))
    assert (long["tied"], long["rope"]["factor"], long["experts"]) == (False, 8.0, None)
    assert (tied["tied"], tied["rope"]) == (True, {})


@pytest.mark.parametrize(("column", "text"), [("tied", "no"), ("rope", "lama3"), ("layers", "")])
def test_a_value_that_is_not_known_is_refused(column, text):
    with pytest.raises((KeyError, ValueError), match=repr(text)):
        registry._shape(ROWS["llama-2-7b"] | {column: text})
