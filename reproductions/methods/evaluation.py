"""Benchmarks beyond lm-eval's single tasks and perplexity: MMLU, LaCo's tasks, generation, groups of tasks."""

from __future__ import annotations

from common.evaluation import generation, mmlu
from reproductions.prepared import Prepared


def _mmlu(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """MMLU by a protocol of `common.evaluation.mmlu`; without one, lm-eval's group of that name."""
    return mmlu.evaluate(
        prepared.model,
        prepared.tokenizer,
        mmlu.get(argument),
        limit=prepared.recipe.limit,
        batch_size=16 if prepared.model.device.type == "cpu" else 64,
    )


def _docstring_generation(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """The stand-in's generation benchmark; the argument is its version."""
    return generation.docstring_generation(prepared.model, prepared.tokenizer, limit=prepared.recipe.limit)


def _generations(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Continuations of a prompt set, kept in the record's details."""
    return generation.generations(prepared.model, prepared.tokenizer, argument)


BENCHMARKS = {"mmlu": _mmlu, "docstring_generation": _docstring_generation, "generations": _generations}
