"""Measure perplexity as LinearPatch does; its tables' dense rows and those of Prune&Comp are the same."""

from common.evaluation.windowed_perplexity import Protocol, c4_crops, register

_SOURCE = "LinearPatch, section 4.1 and official code; the dense rows of Prune&Comp are the same"

register(
    Protocol("linearpatch-wikitext2", "WIKI-2", "wikitext2-test", 2048, notes=_SOURCE),
    Protocol(
        "linearpatch-c4",
        "C4",
        "c4-validation",
        2048,
        notes=f"{_SOURCE}: 256 crops of long documents of shard 0 of 8, seed 0",
        windows=c4_crops,
    ),
    Protocol("linearpatch-ptb", "PTB", "ptb-validation", 2048, notes=f"{_SOURCE}: the validation split, not test"),
)
