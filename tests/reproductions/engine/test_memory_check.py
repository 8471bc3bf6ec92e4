"""What cannot be held is said before a model is loaded."""

import pytest

from common.models import loading
from common.pruning.recipe import Recipe
from common.training.finetuning import memory as needs
from common.utils.errors import UserError
from reproductions.engine import execute, memory_check
from reproductions.laco import recipes as laco
from reproductions.spec import registry
from reproductions.spec.subjects import PAPER


@pytest.fixture
def card(monkeypatch):
    """A device of 80 GB; loading a model fails the test."""
    monkeypatch.setattr(needs, "capacity", lambda device: 80e9)
    monkeypatch.setattr(loading, "load", lambda *a, **k: pytest.fail("loaded"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("llama-3-70b", "70.6 B parameters, 141 GB, and cuda has 80 GB: .*--device auto.*--stream"),
        ("mixtral-8x7b", "46.7 B parameters, 93 GB"),
    ],
)
def test_large_models_need_several_cards_or_streaming(card, model, message):
    with pytest.raises(UserError, match=message):
        execute.prepare(Recipe(model, "paper", dtype="bfloat16"), device="cuda")


def test_lacos_training_is_refused_before_loading(card, monkeypatch):
    recipe = laco.trained("llama-2-7b", PAPER, None)
    with pytest.raises(UserError, match="training 4.9 B of llama-2-7b's 4.9 B parameters takes 89 GB"):
        execute.prepare(recipe, device="cuda")
    monkeypatch.setattr(needs, "capacity", lambda device: 141e9)
    memory_check.check(recipe, "cuda")


def test_every_other_paper_recipe_of_up_to_8_b_fits_80_gb(card):
    rows = [row for table in registry.targets().values() for row in table.rows(PAPER) if row.recipe]
    rows = [row for row in rows if "post train" not in row.method]  # LaCo's, see above
    recipes = {row.recipe.hash: row.recipe for row in rows if row.recipe.weights != "shape only"}
    checked = [recipe for recipe in recipes.values() if recipe.model not in ("llama-3-70b", "mixtral-8x7b")]
    assert len(checked) > 300
    for recipe in checked:
        memory_check.check(recipe, "cuda")
