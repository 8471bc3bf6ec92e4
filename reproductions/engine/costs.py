"""About how long cells take beside one another: in what order they are begun, and how they are shared out.

Work is counted in tokens that pass through the whole model times its parameters. The numbers are rounded estimates from the
sizes of the test sets and of what steps read; that one of them is off by half costs a few percent of a grid's time, and no
value depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.models import registry
from common.pruning.recipe import Recipe
from reproductions.engine.runner import Work
from reproductions.spec import subsets

# Thousands of tokens that a benchmark reads: its whole test set, what a question's answers share once.
THOUSANDS = {
    "arc_challenge": 95, "arc_easy": 140, "boolq": 490, "copa": 3, "hellaswag": 1_700, "openbookqa": 20, "piqa": 150,
    "race_v2": 520, "winogrande": 60, "wsc273": 11, "mmlu": 10_000, "cmmlu": 8_000,
    "perplexity": 400, "laco_mmlu": 10_000, "laco_cmmlu": 8_000, "laco_hellaswag": 1_700, "laco_boolq": 490,
    "laco_race_h": 1_600, "laco_race_m": 600, "laco_xsum": 1_500, "laco_chid": 800, "laco_c3": 700, "laco_cmnli": 900,
    "laco_piqa": 150, "laco_commonsense_qa": 40, "laco_wsc_p": 8, "laco_wsc_g": 8, "gsm8k": 1_500,
}  # fmt: skip
# Read off the pruned model, or off what preparing it has noted.
FREE = {
    "held-out-loss", "inserted", "laco-search", "laco-training", "layers", "macs", "memory", "parameters",
    "removed", "removed-each", "removed-order", "storage", "trainable", "training-cost", "window",
}  # fmt: skip
OTHER = 300  # a figure's curves at cuts, a few thousand tokens' statistics
FEW_ITEMS = 500  # of a test set that `sizes.ITEMS` does not count, roughly: what a limit leaves of it
INSTRUCTION = 110  # tokens, of Alpaca-cleaned's
# What trainings read where their recipe says no less: Alpaca twice; C4's first shard; 5,000 windows of 2,048 tokens.
ROWS, EPOCHS, SHARD, WINDOWS, LENGTH = 50_000, 2, 160_000_000, 5_000, 2_048
DISTILLED = ("linearpatch-distilled", "overrep", "streamline-ffn", "streamline-layer")
STEP = 3  # passes that a step of training costs
REFIT = 1.2  # passes: to the last refitted layer, and through each of these for each of its halves
PARAMETERS = 1e9  # of a model that is not registered
LOADING = 40_000  # reading a model's weights takes as long as so many tokens take on a GPU (16 GB at 1 GB/s)


def benchmark(recipe: Recipe, name: str) -> float:
    """Of one cell, its model being ready: tokens times parameters."""
    base = subsets.of_task(name)
    if base in FREE:
        return 0.0
    tokens = 1_000 * THOUSANDS.get(base, OTHER) * subsets.share(name)
    if recipe.limit is not None and base in THOUSANDS and base != "perplexity":
        tokens *= min(1.0, recipe.limit / subsets.ITEMS.get(base, FEW_ITEMS))
    return tokens * parameters(recipe.model)


def calibration(recipe: Recipe) -> float:
    """Of the pass that recipes of one model and one calibration share."""
    return _tokens(recipe.calibration) * parameters(recipe.model)


def _tokens(entry: Mapping | None) -> int:
    entry = entry or {}
    return (entry.get("count") or 0) * (entry.get("length") or 0)


def preparing(recipe: Recipe) -> float:
    """Of what a recipe needs for itself before its first cell, besides `loading` and `calibration`: search and training."""
    chosen, passes = recipe.selection or {}, 0.0
    count = chosen.get("count") or 8
    if chosen.get("method") in ("sleb", "iterated-patch"):
        layers = _facts(recipe.model).get("layers", 32)
        passes = count * layers / 2  # every layer left is tried, and what comes before it is not run again
    elif chosen.get("method") in ("blockpruner", "finercut"):
        layers = _facts(recipe.model).get("layers", 32)
        return count * layers * _tokens(chosen.get("calibration") or recipe.calibration) * parameters(recipe.model)
    elif chosen.get("method") in ("iterative", "prunecomp", "prunecomp-metric"):
        passes = count / 2
    elif chosen.get("method") == "window-loss":  # what is left behind every window, of a few of the samples
        layers, entry = _facts(recipe.model).get("layers", 32), recipe.calibration or {}
        passes = (layers - count) / 2 * chosen["samples"] / (entry.get("count") or 128)
    elif chosen.get("method") == "come":
        passes = count
    elif chosen.get("method") == "least-left-refit":
        passes = REFIT * count
    if (recipe.repair or {}).get("method") == "refit":
        passes += REFIT
    trained = _trained(recipe.repair) + _trained(recipe.training)
    if "schedule" in chosen:  # 1:b:c, a training for every b of c layers
        _, each, count = map(int, chosen["schedule"].split(":"))
        trained += -(-count // each) * _trained({"method": "finetune", **chosen["tune"]})
    read = _tokens(chosen.get("calibration") or recipe.calibration)  # a search may read text of its own
    return (passes * read + STEP * trained) * parameters(recipe.model)


def _trained(part: Mapping | None) -> int:
    """Tokens that a recipe's training reads."""
    part = part or {}
    data, method = part.get("data") or {}, part.get("method")
    if method == "finetune":
        epochs = (part.get("settings") or {}).get("epochs") or EPOCHS
        return (data.get("count") or ROWS) * epochs * (data.get("length") or INSTRUCTION)
    if method == "laco-posttrain":
        return min(SHARD, data.get("tokens") or SHARD)
    if method == "gptq":
        return _trained(part.get("after"))
    if method in DISTILLED:
        return (part.get("samples") or WINDOWS) * (part.get("length") or LENGTH)
    return 0


def loading(recipe: Recipe) -> float:
    """Of reading the weights."""
    return LOADING * parameters(recipe.model)


def of(work: Sequence[Work]) -> float:
    """Of recipes of one model and one calibration, one after another in one process."""
    if not work:
        return 0.0
    own = (loading(e.recipe) + preparing(e.recipe) + sum(benchmark(e.recipe, b) for b in e.benchmarks) for e in work)
    return calibration(work[0].recipe) + sum(own)


def parameters(model: str) -> float:
    """As registered; of other models a number that stands for any, since a run seldom has two of them."""
    return _facts(model).get("params") or PARAMETERS


def _facts(model: str) -> dict:
    spec = registry.find(model)
    return {} if spec is None else spec.facts
