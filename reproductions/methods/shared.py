"""What several papers use: ways to choose layers, and the measurements every table may ask for."""

from __future__ import annotations

from common import calibration, corpora, hooks, importance, selection
from common.errors import unknown
from common.evaluation import harness
from common.evaluation.perplexity import PROTOCOLS
from reproductions.prepared import Prepared


def _sleb(prepared: Prepared, progress: bool) -> list[int]:
    recipe, decoder = prepared.recipe, prepared.decoder
    wanted = dict(recipe.selection["calibration"])
    count = recipe.selection["count"]
    selection.check_count(count, decoder.num_layers)

    def search() -> list[int]:
        texts = corpora.texts(wanted["corpus"])
        options = {name: value for name, value in wanted.items() if name != "corpus"}
        windows = calibration.sample_lines(prepared.tokenizer, texts, **options)
        return selection.sleb(decoder, windows, count, batch_size=prepared.batch_size, progress=progress)

    # The search is greedy: the first layers of a longer removal are those of a shorter one.
    return prepared.searched("sleb", wanted, search, lambda found: len(found) >= count)[:count]


def _block_influence(prepared: Prepared, progress: bool) -> list[int]:
    choice = prepared.recipe.selection
    selection.check_count(choice["count"], prepared.decoder.num_layers)
    statistics = prepared.statistics(choice["count"], (choice["cosine"],), progress=progress)
    return selection.one_shot(importance.block_influence(statistics, choice["cosine"]), choice["count"])


def _window(prepared: Prepared, progress: bool) -> list[int]:
    choice = prepared.recipe.selection
    selection.check_count(choice["count"], prepared.decoder.num_layers)
    statistics = prepared.statistics(choice["count"], (choice["cosine"],), progress=progress)
    options = {"exclude_ends": choice["exclude_ends"]}
    return list(range(*selection.best_window(statistics, choice["count"], choice["cosine"], **options)))


def _given(prepared: Prepared, progress: bool) -> list[int]:
    """Layers named in the recipe, for instance those a paper prints."""
    return list(prepared.recipe.selection["layers"])


SELECTIONS = {"sleb": _sleb, "bi": _block_influence, "window": _window, "given": _given}


def _parameters(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Removed parameters less the patches', over the dense model's (the papers' Ratio, as a share)."""
    left = sum(p.numel() for p in prepared.model.parameters())
    patch = sum(p.numel() for p in hooks.patch_parameters(prepared.model))
    values = {"dense": prepared.parameters, "left": left, "patch": patch, "patch_millions": patch / 1e6}
    return values | {"ratio": (prepared.parameters - left - patch) / prepared.parameters}, {}, {}


def _perplexity(prepared: Prepared, argument: str) -> tuple[dict, dict, dict, dict]:
    """Perplexity by the named protocol, and the mean loss it comes from (nats per token), of each window too."""
    if argument not in PROTOCOLS:
        raise unknown("perplexity protocol", argument, PROTOCOLS)
    found = PROTOCOLS[argument].measured(prepared.model, prepared.tokenizer, limit=prepared.recipe.limit)
    values = {"nll": found.pop("nll"), "perplexity": found.pop("perplexity")}
    stderr = {"nll": found.pop("nll_stderr"), "perplexity": found.pop("stderr")}
    windows = found.pop("window_nlls")
    return values, {key: error for key, error in stderr.items() if error is not None}, found, {"nll": windows}


def _removed(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Which layers went, in order of removal; the list is in every record's details."""
    return {"count": len(prepared.details.get("removed", []))}, {}, {}


def task(prepared: Prepared, name: str) -> tuple[dict, dict, dict, dict]:
    """Accuracies of one lm-eval task, and which items are right.

    Stand-in tasks are named ``task@version``; other names are lm-eval's own.
    """
    name = name.partition("@")[0]
    batch_size = 16 if prepared.model.device.type == "cpu" else 64
    options = {"limit": prepared.recipe.limit, "batch_size": batch_size}
    found = harness.evaluate(prepared.model, prepared.tokenizer, [name], **options)
    scores = found[name]
    values = {metric: scores[metric] for metric in harness.METRICS if scores.get(metric) is not None}
    stderr = {metric: scores[f"{metric}_stderr"] for metric in values}
    return values, stderr, {"items": scores["n"], "lm_eval": found["raw"]}, found["items"].get(name, {})


BENCHMARKS = {"parameters": _parameters, "perplexity": _perplexity, "removed": _removed}
