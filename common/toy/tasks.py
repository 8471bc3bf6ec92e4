"""Nine multiple-choice tasks built at run time from held-out docstrings, given to lm-eval as ordinary offline tasks.

The questions are those of `common.toy.questions`. Items depend on the documents and the task name alone, never on a
model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from common.toy import corpus, questions
from common.toy.corpus import Document
from common.toy.questions import Item, Pool

if TYPE_CHECKING:
    import datasets

VERSION = 1
ITEMS = 240


@dataclass(frozen=True)
class Task:
    """A task: its maker, its column label, the accuracy that is shown, and what joins question and choice."""

    make: Callable[[Document, Pool, random.Random], Item | None]
    label: str
    metric: str = "acc"
    delimiter: str = " "
    chance: float = 0.25


TASKS: dict[str, Task] = {
    "docstring_continuation": Task(questions.continuation, "Continue", "acc_norm"),
    "docstring_summary": Task(questions.summary_of_name, "Summary", "acc_norm", "\n\n"),
    "docstring_parameter_name": Task(questions.parameter_name, "ParName", "acc", "\n"),
    "docstring_parameter_type": Task(questions.parameter_type, "ParType", "acc_norm"),
    "docstring_parameter_meaning": Task(questions.parameter_meaning, "ParText", "acc_norm"),
    "docstring_word": Task(questions.word, "Word"),
    "docstring_section": Task(questions.section, "Section", "acc", "\n\n"),
    "docstring_intact": Task(questions.intact, "Intact", chance=0.5),
    "docstring_agreement": Task(questions.agreement, "Form", chance=0.5),
}
COLUMNS: dict[str, tuple[str, str]] = {name: (task.label, task.metric) for name, task in TASKS.items()}


@lru_cache(maxsize=1)
def _pools() -> dict[str, Pool]:
    return questions.pools(corpus.mixed("test"))


def items(name: str) -> Iterator[tuple[Item, int, list[str]]]:
    """Yield the items of one task with the answer's index and the shuffled choices, as long as there are documents."""
    pools = _pools()
    for document in corpus.mixed("test"):
        rng = random.Random(f"{name}:{corpus.normalise(document.text)}")
        item = TASKS[name].make(document, pools[document.domain], rng)
        if item is not None and len(set(item.choices)) == len(item.choices):
            order = rng.sample(range(len(item.choices)), len(item.choices))
            yield item, order.index(0), [item.choices[i] for i in order]


@lru_cache(maxsize=32)
def build(name: str, count: int = ITEMS) -> datasets.Dataset:
    """Return the first ``count`` items of a task: ``question`` str, ``choices`` list of str, ``answer`` int."""
    import datasets  # slow to import, and the names of the tasks are needed without it

    rows = []
    for item, answer, choices in items(name):
        rows.append({"question": item.question, "choices": choices, "answer": answer})
        if len(rows) == count:
            break
    return datasets.Dataset.from_list(rows)


def task_config(name: str) -> dict:
    """Return the lm-eval configuration of one task, as its TaskManager takes it."""
    task = TASKS[name]
    metrics = [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": build(name)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "target_delimiter": task.delimiter,
        "metric_list": metrics,
        "metadata": {"version": float(VERSION)},
    }
