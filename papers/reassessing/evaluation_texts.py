"""Register the texts that Reassessing evaluates on, and the beginnings of texts that its Table Q continues."""

from common.evaluation.generation import PROMPT_SETS, PromptSet
from common.evaluation.windowed_perplexity import Protocol, register

# Tables G and J, as the official code measures: sequences of 128 tokens, so values are far higher; PTB's validation split,
# though the text says test.
register(
    Protocol("reassessing-wikitext2", "wikitext2-test", 128),
    Protocol("reassessing-ptb", "ptb-validation", 128),
)

_BEGINNINGS = [
    "To be or not to be, that is the question",
    "It fills me with such pride and joy",
    "What's great about the holiday season?",
]
PROMPT_SETS["reassessing-q"] = PromptSet(
    lambda: list(_BEGINNINGS), 128, "Reassessing, Table Q: the words both models' texts begin with (inferred)"
)
