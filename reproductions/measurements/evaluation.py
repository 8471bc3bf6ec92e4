"""Benchmarks beyond lm-eval's single tasks and perplexity: MMLU, LaCo's tasks, generation, groups of tasks."""

import numpy as np

from common.evaluation import generation, harness, mmlu
from common.evaluation.scores import average, average_stderr
from common.pruning.pipeline import Context
from reproductions.measurements import batch_size, benchmark


@benchmark("mmlu")
def _mmlu(context: Context, argument: str) -> tuple:
    """Measure MMLU by a protocol of `common.evaluation.mmlu`; without an argument, lm-eval's group of that name."""
    if not argument:
        return _by_size(context, "mmlu")
    options = {"limit": context.recipe.limit, "batch_size": batch_size(context)}
    values, errors, details = mmlu.evaluate(context.model, context.tokenizer, mmlu.get(argument), **options)
    return values, errors, details, details.pop("right")


def _group(context: Context, group: str, shots: int | None = None) -> tuple[dict, dict[str, dict], list[dict]]:
    """Return the scores of a group, subjects weighted by size, those of every subject, and every subject's outcomes."""
    options = {"limit": context.recipe.limit, "batch_size": batch_size(context), "num_fewshot": shots}
    scores = harness.evaluate(context.model, context.tokenizer, [group], **options)
    members = harness.members(group)
    return scores[group], {task: scores[task] for task in members}, [scores["items"][task] for task in members]


def _by_size(context: Context, group: str) -> tuple[dict, dict, dict, dict]:
    """Measure Reassessing's zero-shot accuracies of a group of subjects, weighted by their sizes as lm-eval does."""
    pooled, subjects, items = _group(context, group)
    metrics = [metric for metric in ("acc", "acc_norm") if pooled[metric] is not None]
    errors = {metric: pooled[f"{metric}_stderr"] for metric in metrics}
    outcomes = {metric: np.concatenate([subject[metric] for subject in items]) for metric in metrics}
    return {metric: pooled[metric] for metric in metrics}, errors, {"subjects": subjects}, outcomes


def _by_subject(context: Context, group: str) -> tuple[dict, dict, dict]:
    """Measure LaCo's five-shot accuracy of a group of subjects, all subjects alike as OpenCompass averages them."""
    _, subjects, _ = _group(context, group, shots=5)
    score = average({task: scores["acc"] for task, scores in subjects.items()})
    error = average_stderr({task: scores["acc_stderr"] for task, scores in subjects.items()})
    return {"score": score}, {"score": error}, {"subjects": subjects}


benchmark("laco_mmlu")(lambda context, argument: _by_subject(context, "mmlu"))
benchmark("laco_cmmlu")(lambda context, argument: _by_subject(context, "cmmlu"))
benchmark("cmmlu")(lambda context, argument: _by_size(context, "cmmlu"))


@benchmark("docstring_generation")
def _docstring_generation(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Measure the toy model's generation benchmark; the argument is its version."""
    values, errors, details = generation.docstring_generation(
        context.model, context.tokenizer, limit=context.recipe.limit
    )
    return values, errors, details, details.pop("outcomes")


@benchmark("generations")
def _generations(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Generate continuations of a prompt set, kept in the record's details."""
    return generation.generations(context.model, context.tokenizer, argument)
