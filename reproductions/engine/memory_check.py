"""Check that a recipe's memory is there before its model is loaded."""

from common.models import loading, registry
from common.pruning.recipe import Recipe
from common.training.finetuning import Settings
from common.training.finetuning.memory import check_training, check_weights, need
from common.utils.errors import UserError
from papers.laco import training
from papers.reassessing.iterative import schedule
from reproductions.laco import recipes as laco

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def check(recipe: Recipe, device: str) -> None:
    """Refuse a recipe whose weights, or whose training, cannot fit into the device's memory.

    Raises:
        UserError: it does not fit; the message says what does.
    """
    spec = registry.find(recipe.model)
    if spec is None or "params" not in spec.facts:
        try:
            parameters = loading.parameters(recipe.model)
        except UserError:  # loading it says so
            return
        check_weights(recipe.model, parameters, ITEMSIZE[recipe.dtype], device)
        return
    settings, removed = _settings(recipe), _removed(recipe)
    itemsize = 4 if settings is not None and device == "cpu" else ITEMSIZE[recipe.dtype]  # a CPU trains in float32
    check_weights(recipe.model, spec.facts["params"], ITEMSIZE[recipe.dtype], device)
    if settings is not None and removed is not None:
        check_training(
            recipe.model, need(spec.facts, removed, settings, itemsize, gpu=device != "cpu"), settings, device
        )


def _settings(recipe: Recipe) -> Settings | None:
    """Of the training that a recipe names; None: it names none of these."""
    chosen, trained = recipe.selection or {}, recipe.training or {}
    if chosen.get("method") == "iterative":
        return Settings.of(chosen["tune"]["settings"])
    if trained.get("method") == "finetune":
        return Settings.of(trained["settings"])
    return training.settings(**trained["settings"]) if trained.get("method") == "laco-posttrain" else None


def _removed(recipe: Recipe) -> int | None:
    """Return how many layers are gone when training begins; None: that shows only then."""
    chosen, layers = recipe.selection or {}, registry.get(recipe.model).layers
    if chosen.get("method") == "iterative":
        return schedule(chosen["schedule"])[0]
    if chosen.get("method") == "laco":
        if chosen.get("layers") is not None:
            return layers - chosen["layers"]
        printed = laco.SETTINGS.get(recipe.model, {})
        return next((layers - left for left, kept in printed.items() if kept == (chosen["C"], chosen["T"])), None)
    return chosen.get("count", None if chosen else 0)
