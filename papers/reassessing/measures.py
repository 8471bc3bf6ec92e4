"""Measure perplexity as Reassessing does, and provide the beginnings of texts that its Table Q continues."""

from common.evaluation.generation import PROMPT_SETS, PromptSet
from common.evaluation.windowed_perplexity import Protocol, register

_SOURCE = "Reassessing, Tables G and J, as its official code measures: windows of 128 tokens, so values are far higher"

register(
    Protocol("reassessing-wikitext2", "PPL on WikiText2", "wikitext2-test", 128, notes=_SOURCE),
    Protocol(
        "reassessing-ptb",
        "PPL on PTB",
        "ptb-validation",
        128,
        notes=f"{_SOURCE}; the validation split, though the text says test",
    ),
)

_BEGINNINGS = [
    "To be or not to be, that is the question",
    "It fills me with such pride and joy",
    "What's great about the holiday season?",
]
PROMPT_SETS["reassessing-q"] = PromptSet(
    lambda: list(_BEGINNINGS), 128, "Reassessing, Table Q: the words both models' texts begin with (inferred)"
)
