"""Share what stands in for a model's generated answers."""

import pytest

from common.evaluation.multiple_choice import SharedContextLM


@pytest.fixture
def answering(monkeypatch):
    """`answering(*answers)` stands in for generation -> the (prompt, options) that are then answered so."""

    def stand_in(*answers):
        asked = []

        def generate(lm, requests, disable_tqdm=False):
            asked.extend(request.args for request in requests)
            return list(answers)

        monkeypatch.setattr(SharedContextLM, "generate_until", generate)
        return asked

    return stand_in
