"""Measuring models: perplexity protocols, and multiple-choice suites through lm-eval.

The names here are imported on first use, because tables, which load no torch, read `common.evaluation.scores`.
"""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {"common.evaluation.windowed_perplexity": ("PROTOCOLS", "Protocol", "perplexity", "summarise", "token_nlls")},
)
