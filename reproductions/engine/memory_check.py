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
    try:
        parameters = loading.parameters(recipe.model)
    except UserError:  # loading it says so
        return
    check_weights(recipe.model, parameters, ITEMSIZE[recipe.dtype], device)
    spec = registry.find(recipe.model)
    if spec is None or "params" not in spec.facts:
        return
    settings, removed = _settings(recipe), _removed(recipe)
    if settings is not None and removed is not None:
        itemsize = 4 if device == "cpu" else ITEMSIZE[recipe.dtype]  # a CPU trains in float32
        training_need = need(spec.facts, removed, settings, itemsize, gpu=device != "cpu")
        check_training(recipe.model, training_need, settings, device)


def _settings(recipe: Recipe) -> Settings | None:
    """Return the settings of the training that a recipe names; None if it names none of these."""
    selection, training_step = recipe.selection or {}, recipe.training or {}
    if selection.get("method") == "iterative":
        return Settings.of(selection["tune"]["settings"])
    if training_step.get("method") == "finetune":
        return Settings.of(training_step["settings"])
    return training.settings(**training_step["settings"]) if training_step.get("method") == "laco-posttrain" else None


def _removed(recipe: Recipe) -> int | None:
    """Return how many layers are gone when training begins; None: that shows only then."""
    selection, layers = recipe.selection or {}, registry.get(recipe.model).layers
    if selection.get("method") == "iterative":
        return schedule(selection["schedule"])[0]
    if selection.get("method") == "laco":
        if selection.get("layers") is not None:
            return layers - selection["layers"]
        layers_left = {setting: left for left, setting in laco.SETTINGS.get(recipe.model, {}).items()}
        left = layers_left.get((selection["C"], selection["T"]))
        return None if left is None else layers - left
    return selection.get("count", None if selection else 0)
