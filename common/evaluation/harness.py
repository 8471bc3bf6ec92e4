"""Multiple-choice tasks through lm-eval: its tasks, prompts and metrics, on a model object, offline where possible.

The toy model's tasks come from `common.toy.tasks`, and other tasks of this project (`OWN`) from the folder `tasks`
beside this module. All other names are lm-eval's, read from its YAML files unchanged except for `dataset_path`, which
points into the local mirror if that has the data set (`common.models.files.hub`: LAYERLAB_HUB).
"""

import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from common.calibration import corpora
from common.evaluation import human_eval
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.scores import weighted_mean, weighted_stderr
from common.models.files import hub
from common.utils import cache
from common.utils.errors import NoData, UserError, errors_only, first_of, unknown

log = logging.getLogger(__name__)

FEWSHOT_SEED = 1234
# What is handed back, and lm-eval's name for it (metric, filter). Other tasks than ours have accuracies, or these.
METRICS = {
    "acc": ("acc", "none"),
    "acc_norm": ("acc_norm", "none"),
    "score": ("score", "none"),
    "strict": ("exact_match", "strict-match"),
    "flexible": ("exact_match", "flexible-extract"),
    "exact": ("written_exactly", "none"),
    "contains": ("written_within", "none"),
    "pass_at_1": ("pass_at_1", "none"),
}
# The folders of lm-eval's task library that hold tasks of other names; known without a look at its fourteen thousand files.
_FOLDERS = {"arc_challenge": "arc", "arc_easy": "arc", "boolq": "super_glue", "copa": "super_glue"}
# Groups of subjects, lm-eval's own tasks: the folder that holds them and what their names begin with.
GROUPS = {"mmlu": ("mmlu/default", "mmlu_"), "cmmlu": ("cmmlu", "cmmlu_")}
# Requests that a process remembers: models that are measured one after another are asked the same, and reading, formatting
# and filling in templates took longer than a GPU's forward passes. About 500 MB.
REMEMBERED = 200_000
_remembered: dict[tuple, dict] = {}
OWN_TASKS = Path(__file__).parent / "tasks"
# Our tasks, each in a file of its name, and the folders that hold them.
OWN = {file.stem: file.parent for file in OWN_TASKS.glob("*/[!_]*.yaml")}
_TASK_LINE = re.compile(rb"""^["']?task["']?[ \t]*:[ \t]*["']?([^\s"'#\[{]+)""", re.M)


def evaluate(
    model,
    tokenizer,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    batch_size: int = 16,
    num_fewshot: int | None = None,
    lm=None,
) -> dict[str, dict]:
    """Score a model on lm-eval tasks.

    A group of `GROUPS` stands for its subjects. Of each task the first ``limit`` items are scored, with ``num_fewshot``
    examples before each item; None: all items, as many examples as the task says. ``lm`` is an lm-eval model to use
    instead of `SharedContextLM(model, tokenizer)`.

    Returns:
        {task: {'acc', 'acc_stderr', 'acc_norm', 'acc_norm_stderr', 'n'}} as fractions. None if a task does not have the
        metric, or if one item gives no standard error. Tasks with other metrics of `METRICS` have those as well. A
        group has the means over its subjects, weighted by items, beside the subjects' entries. Also 'raw', lm-eval's
        result as JSON types; 'items', {task: {metric: one outcome per item}} in the order of the data; and 'endings',
        {task: losses of right and wrong endings}, see `_endings`.

    Raises:
        UserError: an unknown task, a data set that is not available, or a task that runs code without permission.
    """
    import lm_eval
    from lm_eval.utils import handle_non_serializable

    if "humaneval" in tasks:
        human_eval.check_allowed()
    groups = {task: members(task) for task in tasks if task in GROUPS}
    with _lm_eval_quiet(), _templates_compiled_once():
        key = (tuple(tasks), limit, num_fewshot, os.environ.get(hub.MIRROR_VARIABLE))
        loaded = _remembered.get(key) or _prepared(_expanded(tasks), num_fewshot)
        lm = lm or SharedContextLM(model, tokenizer, batch_size=batch_size)
        results = lm_eval.evaluate(
            lm=lm,
            task_dict={"tasks": loaded, "groups": {}, "group_map": {}},
            limit=limit,
            log_samples=True,
            bootstrap_iters=0 if limit == 1 else 100,  # accuracies have closed forms; 0 turns standard errors off
        )
    if key not in _remembered:
        _remember(key, loaded)
    samples = results.pop("samples", {})
    items = {task: _items(task_samples) for task, task_samples in samples.items()}
    endings = {task: _endings(task_samples) for task, task_samples in samples.items()}
    raw = public(json.loads(json.dumps(results, default=handle_non_serializable)))
    scores = {name: _scores(raw, name) for name in loaded}
    pooled = {group: _pooled([scores[member] for member in names]) for group, names in groups.items()}
    return {**scores, **pooled, "raw": raw, "items": items, "endings": endings}


def _expanded(tasks: Sequence[str]) -> list[str]:
    """Return the tasks with groups replaced by their members."""
    return [member for task in tasks for member in (members(task) if task in GROUPS else [task])]


def _prepared(tasks: Sequence[str], num_fewshot: int | None) -> dict:
    """Return lm-eval's tasks by name, with their numbers of examples."""
    loaded = load_tasks(tasks)
    for task in loaded.values():
        # As lm-eval's command line: a task that fixes its number of shots at 0 keeps it.
        fixed = task.get_config("num_fewshot")
        if fixed != 0:
            task.set_config(key="num_fewshot", value=(fixed or 0) if num_fewshot is None else num_fewshot)
        _check_examples(task)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return loaded


def _remember(key: tuple, loaded: dict) -> None:
    """Keep tasks with the requests that they have built, for the next model."""

    def drop_answers(task, **_) -> None:  # of the model before
        for instance in task.instances:
            instance.resps, instance.filtered_resps = [], {}

    for task in loaded.values():
        task.build_all_requests = partial(drop_answers, task)
    _remembered[key] = loaded
    cache.forget(_remembered, lambda tasks: sum(len(task.instances) for task in tasks.values()), REMEMBERED)


def _items(samples: Sequence[Mapping]) -> dict[str, np.ndarray]:
    """Return the outcomes by item, for every metric of a task: right or wrong, or a score where there is more between."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    outcomes = {}
    for name, (metric, kind) in METRICS.items():
        values = [sample[metric] for sample in ordered if metric in sample and sample.get("filter", "none") == kind]
        if values and all(isinstance(value, bool | int | float) for value in values):
            values = np.array(values, np.float32)
            outcomes[name] = values.astype(bool) if np.isin(values, (0, 1)).all() else values
    return outcomes


def _endings(samples: Sequence[Mapping]) -> dict[str, np.ndarray]:
    """Return the losses of right and of wrong endings ('right', 'wrong': the mean), by item, in nats per character.

    Nothing of a task whose items do not give one context several endings.
    """
    losses_by_item = []
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        pairs, right = sample["arguments"], sample.get("target")
        one_context = len(pairs) > 1 and len({pair[0] for pair in pairs}) == 1
        if not one_context or not str(right).isdigit() or not all(pair[1].strip() for pair in pairs):
            return {}  # a blank ending has no characters to divide by
        losses = [
            -answer[0] / len(pair[1].lstrip()) for pair, answer in zip(pairs, sample["filtered_resps"], strict=True)
        ]
        wrong = [loss for place, loss in enumerate(losses) if place != int(right)]
        losses_by_item.append((losses[int(right)], sum(wrong) / len(wrong)))
    columns = np.array(losses_by_item, np.float32).reshape(-1, 2).T
    return dict(zip(("right", "wrong"), columns, strict=True)) if losses_by_item else {}


def check(tasks: Sequence[str]) -> None:
    """Refuse unknown tasks, and tasks whose data are not available, before a model is read.

    Raises:
        UserError: as `evaluate`.
    """
    if "humaneval" in tasks:
        human_eval.check_allowed()
    with _lm_eval_quiet():
        load_tasks(_expanded(tasks))


def load_tasks(tasks: Sequence[str]) -> dict:
    """Load lm-eval tasks with their data sets; return the task objects by name, in the order of ``tasks``."""
    toy = _toy_configs(tasks)
    library = [task for task in tasks if task not in toy]
    loaded = _load_library(library) if library else {}
    for config in toy.values():
        loaded |= _manager().load([config])["tasks"]
    loaded = {task: loaded[task] for task in tasks}
    for task in loaded.values():
        _check_metrics(task)
        _check_examples(task)
    return loaded


def _check_metrics(task) -> None:
    """Refuse a task whose measurements would be dropped; say which ones are where others are kept.

    Raises:
        UserError: it has no metric of `METRICS`.
    """
    kinds = [ensemble.name for ensemble in getattr(task, "_filters", [])] or ["none"]
    measured = {(metric, kind) for metric in task.aggregation() for kind in kinds}
    name, dropped = task.get_config("task"), sorted({metric for metric, _ in measured - set(METRICS.values())})
    if measured.isdisjoint(METRICS.values()):
        raise UserError(
            f"the task {name} measures {first_of(dropped, 4)}, which is not reported here. Choose a task with accuracy "
            "(perplexity is measured on the test text), or run lm-eval on the saved model"
        )
    if dropped := [metric for metric in dropped if metric not in {reported for reported, _ in METRICS.values()}]:
        log.warning("%s: %s is not reported, only its other metrics", name, first_of(dropped, 4))


def _check_examples(task) -> None:
    """Refuse a task with fewer solved items than its prompt shows.

    Raises:
        NoData: there are fewer, as where a mirror holds the test split alone.
    """
    shots = task.get_config("num_fewshot") or 0
    if shots and (available := len(list(islice(task.fewshot_docs(), shots)))) < shots:
        name, split = task.get_config("task"), task.get_config("fewshot_split") or "training"
        raise NoData(
            f"{name} shows {shots} solved examples of its {split} split, which holds {available} here; put the whole split "
            "into the mirror, or unset LAYERLAB_HUB"
        )


def members(group: str) -> list[str]:
    """Return the tasks of a group of `GROUPS`, in alphabetical order."""
    folder, prefix = GROUPS[group]
    library = _manager(include_path=[str(_library() / folder)])
    return sorted(task for task in library.all_subtasks if task.startswith(prefix))


def _toy_configs(tasks: Sequence[str]) -> dict[str, dict]:
    if all(_folder(task) for task in tasks):
        return {}
    from common.toy import tasks as toy

    return {name: toy.task_config(name) for name in tasks if name in toy.TASKS}


def _manager(**options):
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=False, **options)


def _library() -> Path:
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent


def _folder(task: str) -> Path | None:
    """Return the folder that probably holds a task; None where only reading the whole library tells."""
    if task in OWN:
        return OWN[task]
    folders = [*(folder for folder, prefix in GROUPS.values() if task.startswith(prefix)), _FOLDERS.get(task, task)]
    return next((path for folder in folders if (path := _library() / folder).is_dir()), None)


@lru_cache(maxsize=1)
def _index() -> dict[str, Path]:
    """Return the folder of every task in lm-eval's library, by the name in its file.

    This takes two seconds; lm-eval reads each file as YAML, which takes ten or more.
    """
    log.info("reading the names in lm-eval's task library")
    matches = ((file, _TASK_LINE.search(file.read_bytes())) for file in _library().rglob("*.y*ml"))
    return {match[1].decode(): file.parent for file, match in matches if match}


def _library_manager(tasks: Sequence[str]):
    """Return a task manager that knows lm-eval's own `tasks` and ours, or raise UserError with the nearest names."""
    folders = {folder for task in tasks if (folder := _folder(task))}
    manager = _manager(include_path=sorted(map(str, folders)))
    others = [task for task in tasks if task not in manager.all_subtasks]
    if not others:
        return manager
    for task in others:
        if task not in _index():
            from common.toy import tasks as toy

            raise unknown("task", task, [*_index(), *OWN, *toy.TASKS])
    return _manager(include_path=sorted(map(str, folders | {_index()[task] for task in others})))


def _load_library(tasks: Sequence[str]) -> dict:
    from lm_eval.tasks._yaml_loader import load_yaml

    manager = _library_manager(tasks)
    loaded = {}
    # as the YAML files say, includes resolved, functions left alone
    options = {"resolve_func": False, "recursive": True}
    configs = {task: load_yaml(manager.task_index[task].yaml_path, **options) for task in tasks}
    hub_ids = [config["dataset_path"] for config in configs.values() if "dataset_path" in config]
    with corpora.reachable_or_cached(*hub_ids) as blocked:
        for task, config in configs.items():
            hub_id = config.get("dataset_path", task)
            mirrored = _mirrored(hub_id, config.get("dataset_name"))
            # an inline group is lm-eval's own way to take a task from its library with changes
            entry = {"group": "_", "task": [{"task": task, **mirrored}]}
            source = manager
            if task == "humaneval":  # a manager that knows lm-eval's own would load its metric from the hub
                entry, source = human_eval.config(config) | mirrored, _manager()
            try:
                loaded[task] = source.load([entry])["tasks"][task]
            except Exception as error:  # ConnectionError, httpx2.HTTPError, FileNotFoundError: no common base
                raise corpora.unavailable(hub_id, error, blocked) from error
    return loaded


def _mirrored(hub_id: str, config: str | None) -> dict[str, str | None]:
    """Return the changes to a task that make it read its dataset from the local mirror.

    None when that does not have it.
    """
    folder = hub.mirror("datasets", hub_id)
    if folder is None:
        return {}
    path, name = corpora.mirrored_config(folder, config)
    return {"dataset_path": path, "dataset_name": name}


def _scores(raw: Mapping, task: str) -> dict[str, float | int | None]:
    """Return a task's scores, standard errors and number of items, from lm-eval's result."""
    values = raw["results"][task]
    scores: dict[str, float | int | None] = {}
    for name, (metric, kind) in METRICS.items():
        if name not in ("acc", "acc_norm") and f"{metric},{kind}" not in values:
            continue
        for key, raw_key in ((name, f"{metric},{kind}"), (f"{name}_stderr", f"{metric}_stderr,{kind}")):
            value = values.get(raw_key)
            # lm-eval writes 'N/A' where it has no standard error; n = 1 leaves none either
            scores[key] = float(value) if isinstance(value, int | float) and not math.isnan(value) else None
    return {**scores, "n": int(raw["n-samples"][task]["effective"])}


def _pooled(subjects: Sequence[Mapping]) -> dict[str, float | int | None]:
    """Return the scores of all items of several tasks, as lm-eval weights a group by size."""
    sizes = {str(index): subject["n"] for index, subject in enumerate(subjects)}
    pooled: dict[str, float | int | None] = {}
    for metric in ("acc", "acc_norm"):
        cells = {str(index): subject[metric] for index, subject in enumerate(subjects)}
        errors = {str(index): subject[f"{metric}_stderr"] for index, subject in enumerate(subjects)}
        pooled[metric] = None if None in cells.values() else weighted_mean(cells, sizes)
        pooled[f"{metric}_stderr"] = None if pooled[metric] is None else weighted_stderr(errors, sizes)
    return {**pooled, "n": sum(sizes.values())}


def public(value: object) -> object:
    """Return JSON content without this machine's folders.

    Paths in the mirror, in site-packages or in this repository become relative to it.
    """
    if isinstance(value, dict):
        return {name: public(part) for name, part in value.items()}
    if isinstance(value, list):
        return [public(part) for part in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    roots = {"": Path(__file__).parents[2]}
    if root := os.environ.get(hub.MIRROR_VARIABLE):
        roots[f"{hub.MIRROR_VARIABLE}/"] = Path(root).expanduser().absolute()
    if "/site-packages/" in value:
        return value.partition("/site-packages/")[2]
    for name, root in roots.items():
        if Path(value).is_relative_to(root):
            return f"{name}{Path(value).relative_to(root)}"
    return value


@contextmanager
def _lm_eval_quiet() -> Iterator[None]:
    """Keep lm-eval's remarks on its own options out of the log, and its bar when nobody is watching."""
    import lm_eval.api.task

    bar = lm_eval.api.task.tqdm
    if not sys.stderr.isatty():  # building requests shows a bar that no option turns off
        lm_eval.api.task.tqdm = partial(bar, disable=True)
    try:
        with errors_only("lm_eval"):
            yield
    finally:
        lm_eval.api.task.tqdm = bar


@contextmanager
def _templates_compiled_once() -> Iterator[None]:
    """lm-eval compiles a task's templates anew for each item and each use: a third of its time on HellaSwag."""
    from lm_eval.utils import env

    env.from_string = lru_cache(maxsize=64)(env.from_string)
    try:
        yield
    finally:
        del env.from_string
