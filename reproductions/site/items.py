"""Prompts and choices of a sample of each task's items, for the page that compares two models item by item.

Results keep whether a model answered each item correctly, not the text of the items and not the model's choice. The text
comes from the data sets of the folder that LAYERLAB_HUB names; without it the page shows the numbers of the items.
"""

import logging
import os
import random
from collections.abc import Iterable, Mapping, Sequence

from common.models.files.hub import MIRROR_VARIABLE
from common.utils.errors import UserError

log = logging.getLogger(__name__)

SAMPLE = 50
FIRST = 500  # tasks that are cut to their first items have these, too
# Task -> (data set on the hub, its licence as its authors state it). Text of other tasks is not shown.
LICENCES = {
    "arc_challenge": ("allenai/ai2_arc", "CC BY-SA 4.0"),
    "arc_easy": ("allenai/ai2_arc", "CC BY-SA 4.0"),
    "boolq": ("aps/super_glue (BoolQ)", "CC BY-SA 3.0"),
    "copa": ("aps/super_glue (COPA)", "BSD 2-Clause"),
    "hellaswag": ("Rowan/hellaswag", "MIT"),
    "openbookqa": ("allenai/openbookqa", "Apache 2.0"),
    "piqa": ("baber/piqa", "AFL 3.0"),
    "winogrande": ("allenai/winogrande", "CC BY"),
    "wsc273": ("lighteval/winograd_wsc", "CC BY 4.0"),
    "laco_boolq": ("aps/super_glue (BoolQ)", "CC BY-SA 3.0"),
    "laco_hellaswag": ("Rowan/hellaswag", "MIT"),
    "laco_piqa": ("baber/piqa", "AFL 3.0"),
}


def counts(packed: Iterable[Mapping[str, Mapping[str, dict]]]) -> dict[str, int]:
    """Return the number of items that every model answered, by task, from packed outcomes."""
    sizes_by_task: dict[str, int] = {}
    for benchmarks in packed:
        for benchmark, results in benchmarks.items():
            sizes = [outcomes["n"] for outcomes in results.values() if "bits" in outcomes]
            if sizes:
                task = benchmark.partition("@")[0]  # behind it a part or a version of the task
                sizes_by_task[task] = min(sizes_by_task.get(task, sizes[0]), sizes[0])
    return sizes_by_task


def sample(task: str, count: int) -> list[int]:
    """Return the numbers of the items to show, the same ones in every build."""
    numbers = range(min(count, FIRST))
    return sorted(random.Random(task).sample(numbers, min(SAMPLE, len(numbers))))


def page_contents(sizes: Mapping[str, int]) -> dict[str, dict]:
    """Return the page's content for each task.

    Args:
        sizes: Task -> number of its items.

    Returns:
        Task -> ``items``, each with its number (``id``) and, if the data set is available and its licence allows it,
        ``prompt``, ``choices`` and ``answer``; ``source`` and ``licence`` of the text, '' without text.
    """
    contents = {}
    for task, count in sorted(sizes.items()):
        ids = sample(task, count)
        texts = _texts(task, ids) if task in LICENCES and os.environ.get(MIRROR_VARIABLE) else {}
        source, licence = LICENCES[task] if texts else ("", "")
        items = [{"id": number} | texts.get(number, {}) for number in ids]
        contents[task] = {"items": items, "source": source, "licence": licence}
    return contents


def _texts(task: str, ids: Sequence[int]) -> dict[int, dict]:
    from common.evaluation import harness  # loads torch and lm-eval, which nothing else on the site needs

    try:
        loaded = harness.load_tasks([task])[task]
    except UserError as error:
        log.warning("the items of %s are shown without text: %s", task, error)
        return {}
    docs = loaded.eval_docs
    if max(ids) >= len(docs):
        log.warning("the items of %s are shown without text: the data set at hand has only %d", task, len(docs))
        return {}
    return {number: shown(loaded, docs[number]) for number in ids}


def shown(task, doc: Mapping) -> dict:
    """Return an item's prompt, its choices and the number of the right one, as in lm-eval."""
    text, choices, target = task.doc_to_text(doc), list(task.doc_to_choice(doc)), task.doc_to_target(doc)
    if isinstance(text, int):  # the choices are the contexts, and all have the same ending
        return {"prompt": "", "choices": [f"{choice} {target}".strip() for choice in choices], "answer": text}
    answer = target if isinstance(target, int) else choices.index(target)
    return {"prompt": text, "choices": choices, "answer": answer}
