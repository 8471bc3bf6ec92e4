"""Download what a target needs from the hub, so that it can run where there is no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from common import corpora, instructions, models
from common.evaluation import PROTOCOLS, harness, mmlu
from reproductions import methods
from reproductions.registry import Table
from reproductions.runner import choose_rows


def fetch(table: Table, profile: str, *, models: Sequence[str] = (), pattern: str | None = None) -> Iterator[str]:
    """Fetch every model, corpus and task of the chosen rows, one after the other; yields a line for each.

    Raises:
        UserError: something could not be fetched; what came before is kept and not fetched again.
    """
    rows = [row for row in choose_rows(table, profile, models, pattern, None) if row.recipe]
    if profile == "standin":
        yield "the stand-in profile needs nothing from the hub"
        return
    jobs = [("model", name) for name in dict.fromkeys(row.model for row in rows)]
    jobs += [("corpus", name) for name in dict.fromkeys(_corpora(rows))]
    jobs += [("instructions", name) for name in dict.fromkeys(_instructions(rows))]
    benchmarks = dict.fromkeys(column.benchmark for column in table.columns(profile) if column.benchmark)
    jobs += [("benchmark", name) for name in benchmarks]
    for kind, name in tqdm(jobs, desc="fetching", disable=None):
        _FETCH[kind](name)
        yield f"{kind} {name}: here"


def _corpora(rows) -> Iterator[str]:
    for row in rows:
        entries = (row.recipe.calibration, (row.recipe.selection or {}).get("calibration"))
        yield from (entry["corpus"] for entry in entries if entry)
    yield from (data[name] for data in _data(rows) for name in ("corpus", "validation") if name in data)


def _data(rows) -> Iterator[dict]:
    """What the rows train on."""
    for row in rows:
        trainings = (row.recipe.training, (row.recipe.selection or {}).get("tune"))
        yield from (training["data"] for training in trainings if training and "data" in training)


def _instructions(rows) -> Iterator[str]:
    yield from (data["source"] for data in _data(rows) if "source" in data)


def _benchmark(name: str) -> None:
    """Load the text or items of a benchmark; those that measure the model alone need none."""
    base, _, argument = name.partition("@")
    if base == "perplexity":
        corpora.texts(PROTOCOLS[argument].source)
    elif base == "mmlu" and argument:
        protocol = mmlu.get(argument)
        for subject in tqdm(protocol.subjects, desc=name, disable=None):
            _ = [protocol.rows(subject, split) for split in ("dev", "test")]
    elif (group := base.removeprefix("laco_")) in harness.GROUPS:
        harness.load_tasks(harness.members(group))
    elif base not in methods.known("BENCHMARKS"):
        harness.load_tasks([base])


_FETCH = {
    "model": models.resolve,
    "corpus": corpora.texts,
    "instructions": lambda name: instructions.SOURCES[name](None, 1, 0),
    "benchmark": _benchmark,
}
