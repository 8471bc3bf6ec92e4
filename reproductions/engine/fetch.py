"""Download what a target needs from the hub, so that it can run where there is no network."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tqdm import tqdm

from common.calibration import corpora
from common.evaluation import harness, mmlu
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models import checkpoint, loading
from common.pruning.recipe import Recipe
from common.training import instructions
from common.utils.errors import NoData, errors_only
from reproductions import measurements  # noqa: F401 - steps: those that recipes name
from reproductions.engine.work import Work
from reproductions.spec import shape_recipes, steps, subsets  # noqa: F401 - steps: those that recipes name
from reproductions.spec.narrowing import choose_rows
from reproductions.spec.registry import Table
from reproductions.spec.subjects import PAPER, Subject

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lacking:
    """Missing data with reasons, by benchmark and by recipe that is calibrated or trained on it."""

    benchmarks: dict[str, str] = field(default_factory=dict)
    recipes: dict[str, str] = field(default_factory=dict)  # by hash
    texts: dict[tuple[str, str], str] = field(default_factory=dict)  # what these recipes read, by kind and name

    def why(self, recipe: Recipe, benchmark: str) -> str | None:
        """Return why a cell has no data; None if it has data, or reads none."""
        return self.benchmarks.get(benchmark) or self.recipes.get(recipe.hash)

    def everything(self, work: Sequence[Work]) -> bool:
        """Return whether all of this work reads data, and none of it is available."""
        if len(_of_data(work)) < len(work):
            return False
        cells = [(entry.recipe, name) for entry in work for name in entry.benchmarks if _readers(name)]
        return bool(self.benchmarks or self.recipes) and all(self.why(*cell) for cell in cells)


def fetch(
    table: Table,
    subject: Subject,
    *,
    models: Sequence[str] = (),
    pattern: str | None = None,
    convert_weights: bool = False,
) -> Iterator[str]:
    """Fetch every model, corpus and task of the chosen rows, one after the other; yield a line for each.

    ``convert_weights`` converts pickled weights to safetensors if a model has no others. The other arguments choose
    rows, see `reproductions.spec.narrowing.choose_rows`.

    Raises:
        UserError: something could not be fetched; earlier downloads are kept and not repeated.
    """
    rows = [row for row in choose_rows(table, subject, models, pattern, None) if row.recipe]
    rows = [row for row in rows if row.recipe.weights != shape_recipes.SHAPE_ONLY]  # a shape needs nothing
    if subject.toy:
        yield "the toy model profile needs nothing from the hub"
        return
    jobs = [("model", name) for name in dict.fromkeys(row.model for row in rows)]
    jobs += dict.fromkeys(job for row in rows for job in _texts(row.recipe))
    names = dict.fromkeys(column.benchmark for column in table.columns_for(subject) if column.benchmark and rows)
    jobs += [("benchmark", name) for name in names]
    lacking = []
    for kind, name in tqdm(jobs, desc="fetching", disable=None):
        try:
            _model(name, convert_weights) if kind == "model" else _DATA[kind](name)
            yield f"{kind} {name}: here"
        except NoData as error:  # what else there is makes most of a table
            lacking.append(error)
            yield f"{kind} {name}: no data ({error})"
    if lacking and len(lacking) == sum(kind != "model" for kind, _ in jobs):
        raise lacking[0]


def lacking(work: Sequence[Work]) -> Lacking:
    """Check once, before any cell is measured, which data are missing."""
    real = _of_data(work)
    texts = {entry.recipe.hash: _texts(entry.recipe) for entry in real}
    names = dict.fromkeys(name for entry in real for name in entry.benchmarks if _readers(name))
    jobs = [("benchmark", name) for name in names] + list(dict.fromkeys(job for jobs in texts.values() for job in jobs))
    absent: dict[tuple[str, str], str] = {}
    with errors_only("datasets", logging.CRITICAL):  # the reason is in the error; the library says it in ten lines more
        for kind, name in tqdm(jobs, desc="looking for data", disable=None, leave=False):
            try:
                _DATA[kind](name)
            except NoData as error:
                absent[kind, name] = str(error)
            except Exception as error:  # whatever it is: a cell that runs into it says so
                log.debug("%s %s: %r", kind, name, error)
    return Lacking(
        benchmarks={name: absent["benchmark", name] for name in names if ("benchmark", name) in absent},
        recipes={
            key: f"for the row's {kind} {name}: {absent[kind, name]}"
            for key, jobs in texts.items()
            for kind, name in jobs[::-1]
            if (kind, name) in absent
        },
        texts={job: reason for job, reason in absent.items() if job[0] != "benchmark"},
    )


def _of_data(work: Sequence[Work]) -> list[Work]:
    """Return the work that reads data: the toy model's is at hand, and shapes need none."""
    return [e for e in work if e.recipe.profile != "standin" and e.recipe.weights != shape_recipes.SHAPE_ONLY]


def summary(absent: Lacking, tables: Sequence[Table]) -> str:
    """Summarise the missing data, by columns and by texts that rows are calibrated or trained on.

    The first reason is given in full.
    """
    labels = {column.benchmark: column.label for table in tables for column in table.columns(PAPER.profile)}
    columns = ", ".join(dict.fromkeys(labels.get(subsets.whole(name), name) for name in absent.benchmarks))
    texts = ", ".join(name for _, name in absent.texts)
    subjects = " nor for ".join(filter(None, (columns, texts and f"the rows that read {texts}")))
    first, *other_reasons = dict.fromkeys([*absent.texts.values(), *absent.benchmarks.values()])
    return f"no data for {subjects}: {first}" + (f" (and {len(other_reasons)} more)" if other_reasons else "")


def _texts(recipe: Recipe) -> list[tuple[str, str]]:
    """Return what a recipe is calibrated and trained on: (kind, name)."""
    return sorted(recipe.reads(), key=lambda pair: pair[0])


def _model(name: str, convert_weights: bool) -> None:
    # read, too: what a tokenizer lacks is better known before hours are paid for
    checkpoint.load_tokenizer(loading.resolve(name, convert_weights=convert_weights))


def _readers(name: str) -> list[Callable]:
    """Return the calls that load the text or items of a benchmark; none for those that measure the model alone."""
    base, _, argument = subsets.whole(name).partition("@")
    benchmarks = measurements.benchmarks()
    readers = [partial(corpora.texts, corpus) for corpus in (benchmarks[base].reads if base in benchmarks else ())]
    if base in ("perplexity", "scaled"):
        readers.append(partial(corpora.texts, PROTOCOLS[argument].corpus))
    elif base == "endings":
        readers.append(lambda: harness.load_tasks([argument.partition("@")[0]]))
    elif base == "mmlu" and argument:
        readers.append(partial(_mmlu, argument))
    elif (group := base.removeprefix("laco_")) in harness.GROUPS:
        readers.append(lambda: harness.load_tasks(harness.members(group)))
    elif base not in benchmarks:
        readers.append(lambda: harness.load_tasks([base]))
    return readers


def _mmlu(name: str) -> None:
    protocol = mmlu.get(name)
    for subject in tqdm(protocol.subjects, desc=f"mmlu@{name}", disable=None):
        _ = [protocol.rows(subject, split) for split in ("dev", "test")]


def _benchmark(name: str) -> None:
    for load in _readers(name):
        load()


_DATA = {
    "corpus": corpora.texts,
    "instructions": lambda name: instructions.SOURCES[name](None, 1, 0),
    "benchmark": _benchmark,
}
