"""What the names in a recipe stand for: how layers are chosen, removed, repaired, trained and measured, by paper.

A module here may define these dictionaries, by the names that recipes and tables use (unique over all modules):

    SELECTIONS  f(prepared, progress) -> layers in order of removal; leaves the model as it is
    PRUNERS     f(prepared, progress): chooses, removes and repairs at once; sets ``prepared.details["removed"]``
    REPAIRS     f(prepared, removed, progress): removes the given layers and repairs the cut
    TRAININGS   f(prepared, progress): trains what is left
    BENCHMARKS  f(prepared, argument) -> values, standard errors, details; a benchmark is NAME or NAME@ARGUMENT
    READS       the corpora that a benchmark reads on the paper's models by itself, to be fetched beforehand

Adding a method is adding an entry; `reproductions.measure` finds it.
"""

from __future__ import annotations

import importlib
from functools import cache

MODULES = (
    "shared",
    "linearpatch",
    "distillation",
    "prunecomp",
    "laco",
    "reassessing",
    "theory",
    "statistics",
    "quantization",
    "evaluation",
)
KINDS = ("SELECTIONS", "PRUNERS", "REPAIRS", "TRAININGS", "BENCHMARKS")


@cache
def known(kind: str) -> dict:
    """Every entry of one of the KINDS, or of READS, by name.

    Raises:
        ValueError: two modules claim one name.
    """
    found: dict = {}
    for name in MODULES:
        entries = getattr(importlib.import_module(f"{__name__}.{name}"), kind, {})
        if twice := found.keys() & entries.keys():
            raise ValueError(f"{kind} {sorted(twice)} of reproductions.methods.{name} are taken")
        found |= entries
    return found
