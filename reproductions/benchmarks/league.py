"""The league's texts: so few tokens that hundreds of rows can be measured, spread so that they are like the whole."""

from __future__ import annotations

from common.evaluation.perplexity import Protocol, register, spread

WINDOW = 512
_NOTES = "{} windows of 512 tokens, evenly spread over the test split"

register(
    Protocol("league-wikitext2", "WIKI-2", "wikitext2-test", WINDOW, notes=_NOTES.format(48), windows=spread(48)),
    Protocol("league-ptb", "PTB", "ptb-test", WINDOW, notes=_NOTES.format(24), windows=spread(24)),
)
