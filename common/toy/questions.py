"""Nine ways to make a multiple-choice question of a docstring; what the tasks of `common.toy.tasks` are built from.

Every answer is objective: it is what the docstring says, and the other choices come from other held-out docstrings or
from a mechanical change to this one.
"""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from common.toy.corpus import Document

CONTEXT_WORDS = 40
CHOICE_WORDS = 14
SECTIONS = ("Parameters", "Returns", "Notes", "Examples", "See Also", "References", "Raises")
# One form is right in its sentence; the other is the choice beside it.
FORMS = (
    ("is", "are"),
    ("has", "have"),
    ("a", "an"),
    ("this", "these"),
    ("was", "were"),
    ("does", "do"),
    ("that", "those"),
)
OTHER_FORM = {**dict(FORMS), **{b: a for a, b in FORMS}}

NUMPY_PARAMETER = re.compile(r"^(?P<name>\w+) ?: (?P<type>\S[^\n]*)\n(?P<text>(?:[ ]{2,}\S[^\n]*\n?)+)", re.M)
GOOGLE_PARAMETER = re.compile(r"^ +(?P<name>\w+) \((?P<type>[^)\n]+)\): *(?P<text>\S[^\n]*)", re.M)


@dataclass(frozen=True)
class Item:
    """One question: its text and the choices, of which the first is right until they are shuffled."""

    question: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A documented parameter: the start of its entry in the text, and its three parts."""

    start: int
    name: str
    type: str
    text: str
    numpy: bool


@dataclass
class Pool:
    """Wrong choices from the held-out documents of one domain."""

    continuations: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def tail(text: str, words: int = CONTEXT_WORDS) -> str:
    """Return the last ``words`` words of a text, its line breaks kept."""
    starts = [m.start() for m in re.finditer(r"\S+", text)]
    return text[starts[-words] if len(starts) > words else 0 :].rstrip()


def head(text: str, words: int = CHOICE_WORDS) -> str:
    """Return the first ``words`` words of a text on one line."""
    return " ".join(text.split()[:words])


def summary(document: Document) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return head(document.text.split("\n\n")[0], 20)


def entries(document: Document) -> list[Entry]:
    """Return the parameters a docstring documents, in numpydoc or Google form."""
    pattern = NUMPY_PARAMETER if NUMPY_PARAMETER.search(document.text) else GOOGLE_PARAMETER
    return [
        Entry(m.start("name"), m["name"], m["type"].strip(), head(m["text"]), pattern is NUMPY_PARAMETER)
        for m in pattern.finditer(document.text)
    ]


def sentences(document: Document) -> list[str]:
    """Return the plain sentences of eight to thirty words in the prose paragraphs of a docstring."""
    prose = [" ".join(p.split()) for p in document.text.split("\n\n") if ">>>" not in p and "---" not in p]
    split = [s for p in prose for s in re.split(r"(?<=[.!?]) (?=[A-Z])", p)]
    return [s for s in split if 8 <= len(s.split()) <= 30 and s[0].isupper() and s.endswith(".")]


def _with_context(document: Document) -> list[tuple[str, str]]:
    """Return each plain sentence but the first, with the sentence before it."""
    plain = sentences(document)
    return list(zip(plain, plain[1:], strict=False))


def _text_before(document: Document, position: int) -> str:
    start = len(document.passage) - len(document.text)
    return document.passage[: start + position]


def _wrong_choices(pool: Sequence[str], right: str, rng: random.Random) -> tuple[str, ...] | None:
    wrong: list[str] = []
    for _ in range(50):
        candidate = rng.choice(pool) if pool else right
        if candidate.lower() != right.lower() and candidate not in wrong:
            wrong.append(candidate)
        if len(wrong) == 3:
            return tuple(wrong)
    return None


def _item(question: str, right: str, pool: Sequence[str], rng: random.Random) -> Item | None:
    wrong = _wrong_choices(pool, right, rng) if question.strip() and right else None
    return Item(question, (right, *wrong)) if wrong else None


def _continuation_parts(document: Document) -> tuple[str, str] | None:
    words = list(re.finditer(r"\S+", document.text))
    if len(words) < 40 + CHOICE_WORDS:
        return None
    cut = words[39].end()
    return document.text[:cut], head(document.text[cut:])


def pools(documents: Iterable[Document]) -> dict[str, Pool]:
    """Return the wrong choices that documents offer, by domain."""
    by_domain: dict[str, Pool] = {}
    for document in documents:
        pool = by_domain.setdefault(document.domain, Pool())
        if parts := _continuation_parts(document):
            pool.continuations.append(parts[1])
        if len(summary(document).split()) >= 5:
            pool.summaries.append(summary(document))
        for entry in entries(document):
            pool.names.append(f"{entry.name} :")
            if entry.numpy and len(entry.type) <= 40:
                pool.types.append(entry.type)
            if len(entry.text.split()) >= 4:
                pool.descriptions.append(entry.text)
        pool.words += [w for s in sentences(document) for w in re.findall(r"(?<= )[a-z]{4,}(?=[ .,])", s)]
    return by_domain


def continuation(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which passage continues this docstring."""
    parts = _continuation_parts(document)
    return _item(parts[0], parts[1], pool.continuations, rng) if parts else None


def summary_of_name(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which summary belongs to this name and signature."""
    right = summary(document)
    long_enough = document.kind == "function" and len(right.split()) >= 5
    return _item(document.header, right, pool.summaries, rng) if long_enough else None


def parameter_name(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which parameter is documented next. The signature stands in the question."""
    documented = [e for e in entries(document) if e.name in document.parameters]
    if len(documented) < 2 or not documented[0].numpy:
        return None
    entry = rng.choice(documented[1:])
    between = document.text[documented[documented.index(entry) - 1].start : entry.start]
    return _item(f"{document.header}\n\n{tail(between, 25)}", f"{entry.name} :", pool.names, rng)


def parameter_type(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which type has this parameter."""
    typed = [e for e in entries(document) if e.numpy and len(e.type) <= 40]
    if not typed:
        return None
    entry = rng.choice(typed)
    return _item(tail(_text_before(document, entry.start)) + f"\n{entry.name} :", entry.type, pool.types, rng)


def parameter_meaning(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which description belongs to this parameter."""
    described = [e for e in entries(document) if len(e.text.split()) >= 4]
    if not described:
        return None
    entry = rng.choice(described)
    lead = f"{entry.name} : {entry.type}\n   " if entry.numpy else f"{entry.name} ({entry.type}):"
    return _item(tail(_text_before(document, entry.start), 25) + f"\n{lead}", entry.text, pool.descriptions, rng)


def word(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which word fits here."""
    pattern = r"(?<= )[a-z]{4,}(?=[ .,])"
    places = [
        (context, sentence, match)
        for context, sentence in _with_context(document)
        for match in re.finditer(pattern, sentence)
        if len(sentence[: match.start()].split()) >= 5
    ]
    if not places:
        return None
    context, sentence, match = rng.choice(places)
    return _item(f"{context} {sentence[: match.start()].rstrip()}", match[0], pool.words, rng)


def section(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which section comes next."""
    pattern = rf"\n\n({'|'.join(SECTIONS)})\n-{{4,}}\n"
    headings = list(re.finditer(pattern, document.text))
    if not headings:
        return None
    match = rng.choice(headings)
    titles = [f"{title}\n{'-' * len(title)}" for title in SECTIONS]
    return _item(tail(_text_before(document, match.start())), f"{match[1]}\n{'-' * len(match[1])}", titles, rng)


def intact(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which of two sentences is intact. The other has two neighbouring words exchanged."""
    pairs = _with_context(document)
    if not pairs:
        return None
    context, sentence = rng.choice(pairs)
    words = sentence.split()
    at = rng.randrange(1, len(words) - 2)
    if words[at].lower() == words[at + 1].lower():
        return None
    broken = [*words[:at], words[at + 1], words[at], *words[at + 2 :]]
    return Item(context, (" ".join(words), " ".join(broken)))


def agreement(document: Document, pool: Pool, rng: random.Random) -> Item | None:
    """Ask which form is right here (is or are, a or an, this or these, ...)."""
    pairs = [(context, sentence.split()) for context, sentence in _with_context(document)]
    places = [(c, words, at) for c, words in pairs for at, word in enumerate(words) if word in OTHER_FORM and at >= 2]
    if not places:
        return None
    context, words, at = rng.choice(places)
    rest = words[at + 1 : at + 6]
    choices = (" ".join([words[at], *rest]), " ".join([OTHER_FORM[words[at]], *rest]))
    return Item(f"{context} {' '.join(words[:at])}", choices)
