"""Close every figure that a test of figures draws."""

import pytest

from figures.style import plt


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")
