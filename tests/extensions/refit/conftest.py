"""Sequences and models that the refit's tests share."""

import copy

import pytest
import torch


@pytest.fixture(scope="package")
def ids():
    """Eight random token sequences [8, 24]."""
    return torch.randint(5, 300, (8, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def pair(make_tiny):
    """A tiny Llama and a copy of it."""
    model = make_tiny("llama")
    return model, copy.deepcopy(model)
