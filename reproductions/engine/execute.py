"""From a recipe to a model as it says, and from there to the values of one benchmark.

The only module of the command line that loads models. What the names in a recipe stand for is registered in
`papers.<paper>.steps`, `common.pruning.steps` and `reproductions.spec.steps`; what can be measured in
`reproductions.measurements`; what a table wants measured is declared in the papers' modules beside this one.
"""

import ctypes
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import transformers

from common.calibration import corpora
from common.models import loading
from common.pruning.pipeline import Context, run_recipe
from common.pruning.recipe import PARTS, Recipe
from common.toy import corpus as toy_corpus
from common.utils.errors import UserError
from reproductions import measurements
from reproductions.engine import memory_check
from reproductions.engine.work import Work
from reproductions.measurements import shape_only
from reproductions.spec import shape_recipes, steps

# Pruned models of one table are held together up to this many bytes: a thousand toy models, ten models of 135 M, no larger.
HELD_TOGETHER = 4e9
# Above so many parameters a CPU takes days for a table: it has to be asked for by name.
MOST_ON_CPU = 3e9


def held_together(recipe: Recipe) -> int:
    """Return how many models of a recipe's kind fit into memory together, so that evaluations share their common states.

    Trained models are measured alone and at once: a kill while the next one is prepared would lose them.
    `reproductions.engine.runner` decides how long others are prepared before the first is measured.
    """
    if recipe.weights == shape_recipes.SHAPE_ONLY:
        return 1
    try:
        if steps.trains(recipe):
            return 1
        parameters = loading.parameters(recipe.model)
    except UserError:  # preparing it says so, in its cells
        return 1
    return max(1, int(min(16, HELD_TOGETHER / (parameters * getattr(torch, recipe.dtype).itemsize))))


def device_for(requested: str | None, dtype: str | None, work: Sequence[Work]) -> str:
    """Return the device to measure on: the requested one, else a GPU if there is one, else the CPU.

    Raises:
        UserError: a device or dtype that is not available; or a model too large for the CPU, unless the CPU was
            requested.
    """
    device = requested or ("cuda" if torch.cuda.is_available() else "cpu")
    loading.placement(device, dtype)
    if requested is None and device == "cpu":
        for name in {entry.recipe.model for entry in work if entry.recipe.weights != shape_recipes.SHAPE_ONLY}:
            parameters = loading.parameters(name)
            if parameters > MOST_ON_CPU:
                raise UserError(
                    f"{name} has {parameters / 1e9:.1f} B parameters, and there is no GPU. One row of full test sets takes "
                    "days on a CPU; say --device cpu (make: DEVICE=cpu) to measure it anyway"
                )
    return device


def prepare(
    recipe: Recipe, *, device: str = "cpu", progress: bool = False, force: bool = False, recorded: Mapping | None = None
) -> Context | shape_only.Shape:
    """Load the recipe's model and run the recipe (for a shape recipe: build the shape alone).

    Args:
        recipe: The recipe.
        device: Device to run on.
        progress: Show progress bars.
        force: Repeat searches and trainings that an earlier run finished.
        recorded: Details of an earlier result of the recipe, whose searches are reused.

    Raises:
        UserError: an unknown model, selection, repair or training, a recipe in another form than its steps write, or an
            error of loading, calibration and pruning.
    """
    check_spelling(recipe)
    if recipe.weights == shape_recipes.SHAPE_ONLY:
        return shape_only.prepare(recipe)
    _give_back()  # what is left of the last model: there may be room for one only
    if torch.cuda.is_available():
        if device.startswith("cuda:"):  # Trainer's device is the current one, whatever the model is on
            torch.cuda.set_device(device)
        torch.cuda.init()  # before it nothing is known of any GPU's memory
        torch.cuda.empty_cache()
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(gpu)
    torch.set_flush_denormal(True)  # a trained model's tiny numbers would slow a CPU down several times
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    memory_check.check(recipe, device)
    model, tokenizer = loading.load(recipe.model, device=device, dtype=recipe.dtype)
    parameters = sum(p.numel() for p in model.parameters())
    context = Context(model, tokenizer, recipe, parameters, force=force, progress=progress, recorded=recorded or {})
    context.provenance = _provenance(context)
    run_recipe(context)
    if recipe.profile == "paper":  # after the work: the texts it read are still at hand
        context.provenance["corpus"] = {name: corpora.digest(name) for kind, name in recipe.reads() if kind == "corpus"}
    context.model.eval()
    context.progress = False
    return context


def _give_back() -> None:
    """Free what nothing refers to any more, and let the system have it.

    glibc keeps freed states: beside small things that live on, a process that held 1 GB took 0.3 GB more for every recipe.
    """
    gc.collect()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def check_spelling(recipe: Recipe) -> None:
    """Refuse a recipe made before its steps were known, if they spell it otherwise: its record would not be found again.

    Raises:
        UserError: The recipe leaves out an option that has a default.
    """
    for part in PARTS:
        if (spelled := getattr(replace(recipe), part)) != getattr(recipe, part):
            raise UserError(f"the recipe's {part} leaves out defaults; write {json.dumps(spelled)}")


def _provenance(context: Context) -> dict:
    # Where the files lie on this machine says nothing to anyone else.
    recipe, model = context.recipe, context.model
    source = {"name": model.source["name"], "revision": model.source["revision"], "weights": recipe.weights}
    provenance: dict = {"model": source | {"dtype": recipe.dtype}}
    if model.device.type == "cuda":
        provenance["gpu"] = torch.cuda.get_device_name(model.device)
    if recipe.profile == "standin":
        provenance["corpus"] = {split: toy_corpus.digest(split) for split in ("train", "test")}
    return provenance


def benchmark(context: Context | shape_only.Shape, name: str) -> tuple:
    """Measure one benchmark: NAME, NAME@ARGUMENT, or an lm-eval task.

    Returns:
        Values, standard errors and details. Perplexities and tasks have a fourth part: outcomes per sequence or item,
        numpy arrays by name.
    """
    where = shape_only.benchmark if isinstance(context, shape_only.Shape) else measurements.measure
    return where(context, name)
