"""The measurements that every table may ask for."""

from common import hooks
from common.evaluation import harness
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.pruning.pipeline import Context
from common.utils.errors import unknown
from reproductions.measurements import TASK, batch_size, benchmark
from reproductions.spec import steps, subsets  # noqa: F401 - and the papers' protocols


@benchmark("parameters")
def _parameters(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Compute the papers' Ratio as a share: removed parameters minus the patches', over the original model's."""
    left = sum(p.numel() for p in context.model.parameters())
    patch = sum(p.numel() for p in hooks.patch_parameters(context.model))
    values = {"dense": context.parameters, "left": left, "patch": patch, "patch_millions": patch / 1e6}
    return values | {"ratio": (context.parameters - left - patch) / context.parameters}, {}, {}


@benchmark("perplexity")
def _perplexity(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Measure perplexity by the named protocol, and its mean loss (nats per token), also of each sequence."""
    name, tokens = subsets.whole(argument), subsets.tokens(argument)
    if name not in PROTOCOLS:
        raise unknown("perplexity protocol", name, PROTOCOLS)
    protocol = PROTOCOLS[name] if tokens is None else PROTOCOLS[name].of_tokens(tokens)
    report = protocol.measured(context.model, context.tokenizer, limit=context.recipe.limit)
    values = {"nll": report.pop("nll"), "perplexity": report.pop("perplexity")}
    stderr = {"nll": report.pop("nll_stderr"), "perplexity": report.pop("stderr")}
    sequences = report.pop("window_nlls")
    return values, {key: error for key, error in stderr.items() if error is not None}, report, {"nll": sequences}


@benchmark("removed")
def _removed(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure which layers were removed, in order of removal; the list is in every record's details."""
    return {"count": len(context.details.get("removed", []))}, {}, {}


@benchmark(TASK)
def task(context: Context, name: str) -> tuple[dict, dict, dict, dict]:
    """Measure the accuracies of one lm-eval task, and which items are answered correctly.

    The toy model's tasks are named ``task@version``; other names are lm-eval's.
    """
    name = name.partition("@")[0]
    options = {"limit": context.recipe.limit, "batch_size": batch_size(context)}
    results = harness.evaluate(context.model, context.tokenizer, [name], **options)
    scores = results[name]
    values = {metric: scores[metric] for metric in harness.METRICS if scores.get(metric) is not None}
    stderr = {metric: scores[f"{metric}_stderr"] for metric in values}
    return values, stderr, {"items": scores["n"], "lm_eval": results["raw"]}, results["items"].get(name, {})
