"""Measuring models: perplexity protocols, and multiple-choice suites through lm-eval.

`common.evaluation.perplexity` is the function; the module of the same name is reached as
`from common.evaluation.perplexity import ...`. `multiple_choice` and `harness` import lm-eval, so they are not
imported here. Tables, which load no torch, read `common.scores`.
"""

from common.evaluation.perplexity import PROTOCOLS, Protocol, perplexity, summarise, token_nlls

__all__ = ["PROTOCOLS", "Protocol", "perplexity", "summarise", "token_nlls"]
