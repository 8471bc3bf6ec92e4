"""Download what a target needs from the hub, so that it can run where there is no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from common import corpora, instructions, models
from common.errors import NoData
from common.evaluation import PROTOCOLS, harness, mmlu
from reproductions import benchmarks, settings, shapes, steps  # noqa: F401 - steps: those that recipes name
from reproductions.registry import Table
from reproductions.runner import choose_rows
from reproductions.settings import Subject


def fetch(
    table: Table, subject: Subject | str, *, models: Sequence[str] = (), pattern: str | None = None
) -> Iterator[str]:
    """Fetch every model, corpus and task of the chosen rows, one after the other; yields a line for each.

    Raises:
        UserError: something could not be fetched; what came before is kept and not fetched again.
    """
    subject = settings.subject(subject)
    rows = [row for row in choose_rows(table, subject, models, pattern, None) if row.recipe]
    rows = [row for row in rows if row.recipe.weights != shapes.WEIGHTS]  # a shape needs nothing
    if subject.standin:
        yield "the stand-in profile needs nothing from the hub"
        return
    jobs = [("model", name) for name in dict.fromkeys(row.model for row in rows)]
    jobs += sorted(dict.fromkeys(pair for row in rows for pair in row.recipe.reads()), key=lambda pair: pair[0])
    names = dict.fromkeys(column.benchmark for column in table.columns_for(subject) if column.benchmark and rows)
    jobs += [("benchmark", name) for name in names]
    lacking = []
    for kind, name in tqdm(jobs, desc="fetching", disable=None):
        try:
            _FETCH[kind](name)
            yield f"{kind} {name}: here"
        except NoData as error:  # what else there is makes most of a table
            lacking.append(error)
            yield f"{kind} {name}: no data ({error})"
    if lacking and len(lacking) == sum(kind != "model" for kind, _ in jobs):
        raise lacking[0]


def _benchmark(name: str) -> None:
    """Load the text or items of a benchmark; those that measure the model alone need none."""
    base, _, argument = name.partition("@")
    known = benchmarks.known()
    for corpus in known[base].reads if base in known else ():
        corpora.texts(corpus)
    if base == "perplexity":
        corpora.texts(PROTOCOLS[argument].source)
    elif base == "mmlu" and argument:
        protocol = mmlu.get(argument)
        for subject in tqdm(protocol.subjects, desc=name, disable=None):
            _ = [protocol.rows(subject, split) for split in ("dev", "test")]
    elif (group := base.removeprefix("laco_")) in harness.GROUPS:
        harness.load_tasks(harness.members(group))
    elif base not in known:
        harness.load_tasks([base])


_FETCH = {
    "model": models.resolve,
    "corpus": corpora.texts,
    "instructions": lambda name: instructions.SOURCES[name](None, 1, 0),
    "benchmark": _benchmark,
}
