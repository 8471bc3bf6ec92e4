"""Draw calibration sentences (LaCo, section 3.4): ten from English Wikipedia for LLaMA 2.

For Baichuan 2 five are English and five Chinese, "randomly selected".

The paper does not publish them. The official notebooks hold two to five literal fragments, cut in mid-word; `QUOTED`
are two of them, kept as evidence and not used. Here they are complete sentences drawn with a seed.
"""

import random
import re
from collections.abc import Sequence
from itertools import islice

from common.calibration import corpora
from common.utils.errors import UserError

QUOTED = ("Mouron () is a commune in the Arde", "Torreorgaz is a municipality in the")  # the LLaMA-2-13B notebook's
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|(?<=[。！？])")
_CJK = re.compile(r"[\u4e00-\u9fff]")


def plain_sentences(document: str) -> list[str]:
    """Return the plain sentences of a document: 8 to 30 words, or 15 to 80 Chinese characters; no code, no headings."""
    paragraphs = [" ".join(p.split()) for p in document.split("\n\n") if ">>>" not in p and "---" not in p]
    return [s.strip() for p in paragraphs for s in _END.split(p) if _is_plain(s.strip())]


def _is_plain(sentence: str) -> bool:
    if _CJK.search(sentence):
        return 15 <= len(sentence) <= 80 and sentence.endswith("。")
    return 8 <= len(sentence.split()) <= 30 and sentence[0].isupper() and sentence.endswith(".")


def draw(documents: Sequence[str], count: int, seed: int) -> list[str]:
    """Draw `count` sentences, at most one per document, and return them in the order drawn.

    Raises:
        UserError: too few documents have a plain sentence.
    """
    rng = random.Random(seed)
    order = rng.sample(range(len(documents)), len(documents))
    candidates = filter(None, (plain_sentences(documents[index]) for index in order))
    sentences = [rng.choice(plain) for plain in islice(candidates, count)]
    if len(sentences) < count:
        raise UserError(
            f"only {len(sentences)} of {count} calibration sentences were found, one in each paragraph at most; a sentence "
            "has 8 to 30 words, begins with a capital letter and ends with a full stop (Chinese: 15 to 80 characters): use a "
            "text with more of them, or ask for fewer"
        )
    return sentences


def calibration_sentences(corpus: str | Sequence[str], count: int = 10, seed: int = 0) -> list[str]:
    """Draw `count` sentences of a named corpus, or equally many of each of several."""
    names = [corpus] if isinstance(corpus, str) else list(corpus)
    if count % len(names):
        raise UserError(f"{count} sentences cannot be split evenly over {', '.join(names)}; change the count")
    return [sentence for name in names for sentence in draw(corpora.texts(name), count // len(names), seed)]
