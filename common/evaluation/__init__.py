"""Measuring models: perplexity protocols, and multiple-choice suites through lm-eval.

What is named here is imported when it is asked for: tables, which load no torch, read `common.evaluation.scores`.
"""

import importlib
from typing import Any

_WHERE = {
    "PROTOCOLS": "common.evaluation.windowed_perplexity",
    "Protocol": "common.evaluation.windowed_perplexity",
    "perplexity": "common.evaluation.windowed_perplexity",
    "summarise": "common.evaluation.windowed_perplexity",
    "token_nlls": "common.evaluation.windowed_perplexity",
}

__all__ = ["PROTOCOLS", "Protocol", "perplexity", "summarise", "token_nlls"]


def __getattr__(name: str) -> Any:  # on demand, so that what needs no torch does not load it
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
