"""Register what is measured on a context, by the names that tables use.

A benchmark is a function ``f(context, argument) -> values, standard errors, details`` and, perhaps, outcomes per item. A
table asks for NAME or NAME@ARGUMENT, or for a part of either (`reproductions.spec.subsets`); every module of this
package is read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from common.utils.plugins import import_modules
from reproductions.spec import subsets

TASK = "task"  # what every name that is not registered is taken for: an lm-eval task
Measured = tuple  # values, standard errors, details[, outcomes per sequence or item: numpy arrays by name]


@dataclass(frozen=True)
class Benchmark:
    """A registered benchmark. reads: corpora that it reads on the paper's models, to be fetched beforehand."""

    measure: Callable[..., Measured]
    reads: tuple[str, ...] = ()


_BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str, reads: tuple[str, ...] = ()):
    """Register a function as the benchmark that tables request by ``name`` (decorator).

    Raises:
        ValueError: the name is taken.
    """

    def registered(measure: Callable[..., Measured]) -> Callable[..., Measured]:
        if name in _BENCHMARKS:
            raise ValueError(f"benchmark {name!r} is taken by {_BENCHMARKS[name].measure.__module__}")
        _BENCHMARKS[name] = Benchmark(measure, reads)
        return measure

    return registered


def batch_size(context) -> int:
    """Return the largest number of items of a task in one forward pass."""
    return 16 if context.model.device.type == "cpu" else 64


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Return every benchmark by name."""
    import_modules(__name__)
    return _BENCHMARKS


def measure(context, name: str) -> Measured:
    """Measure NAME or NAME@ARGUMENT; an unregistered name is an lm-eval task.

    Raises:
        UserError: an unknown task or argument, or data that are not available.
    """
    items = subsets.of_each(name)
    if items is not None:
        limited = replace(context.recipe, limit=min(items, context.recipe.limit or items))
        context, name = replace(context, recipe=limited), subsets.whole(name)
    base, _, argument = name.partition("@")
    return (
        benchmarks()[base].measure(context, argument)
        if base in benchmarks()
        else benchmarks()[TASK].measure(context, name)
    )
