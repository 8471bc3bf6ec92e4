"""Benchmarks beyond lm-eval's single tasks and perplexity: MMLU, LaCo's tasks, generation, groups of tasks."""

from __future__ import annotations

from common.evaluation import generation, harness, mmlu
from common.evaluation.scores import average, average_stderr
from reproductions.prepared import Prepared


def _batch_size(prepared: Prepared) -> int:
    return 16 if prepared.model.device.type == "cpu" else 64


def _mmlu(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """MMLU by a protocol of `common.evaluation.mmlu`; without an argument, lm-eval's group of that name."""
    if not argument:
        return _by_size(prepared, "mmlu")
    options = {"limit": prepared.recipe.limit, "batch_size": _batch_size(prepared)}
    return mmlu.evaluate(prepared.model, prepared.tokenizer, mmlu.get(argument), **options)


def _group(prepared: Prepared, group: str, shots: int | None = None) -> tuple[dict, dict[str, dict]]:
    """The scores of a group, subjects weighted by size, and those of every subject."""
    options = {"limit": prepared.recipe.limit, "batch_size": _batch_size(prepared), "num_fewshot": shots}
    found = harness.evaluate(prepared.model, prepared.tokenizer, [group], **options)
    return found[group], {task: found[task] for task in harness.members(group)}


def _by_size(prepared: Prepared, group: str) -> tuple[dict, dict, dict]:
    """Reassessing: zero-shot accuracies of a group of subjects, weighted by their sizes as lm-eval does."""
    pooled, subjects = _group(prepared, group)
    metrics = [metric for metric in ("acc", "acc_norm") if pooled[metric] is not None]
    errors = {metric: pooled[f"{metric}_stderr"] for metric in metrics}
    return {metric: pooled[metric] for metric in metrics}, errors, {"subjects": subjects}


def _by_subject(group: str):
    """LaCo: five-shot accuracies of a group of subjects, all subjects alike as OpenCompass averages them."""

    def benchmark(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
        _, subjects = _group(prepared, group, shots=5)
        score = average({task: scores["acc"] for task, scores in subjects.items()})
        error = average_stderr({task: scores["acc_stderr"] for task, scores in subjects.items()})
        return {"score": score}, {"score": error}, {"subjects": subjects}

    return benchmark


def _cmmlu(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    return _by_size(prepared, "cmmlu")


def _docstring_generation(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """The stand-in's generation benchmark; the argument is its version."""
    return generation.docstring_generation(prepared.model, prepared.tokenizer, limit=prepared.recipe.limit)


def _generations(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Continuations of a prompt set, kept in the record's details."""
    return generation.generations(prepared.model, prepared.tokenizer, argument)


BENCHMARKS = {
    "mmlu": _mmlu,
    "cmmlu": _cmmlu,
    "laco_mmlu": _by_subject("mmlu"),
    "laco_cmmlu": _by_subject("cmmlu"),
    "docstring_generation": _docstring_generation,
    "generations": _generations,
}
