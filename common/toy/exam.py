"""A small examination in the form of MMLU: subjects in four categories, questions with four options, built from docstrings.

A question gives the name and signature of a held-out function and the first half of its summary; the right option is how
the summary continues, the others are how summaries of other functions of the same subject do. Subjects are packages (for
the standard library: groups of modules), categories the toy model's domains, "tools" being one of them. The examples
shown before the questions come from the validation split, never from the documents asked about.

Rows have the columns of `cais/mmlu`: question, subject, choices, answer.
"""

import random
from functools import lru_cache

from common.toy import corpus
from common.toy.corpus import Document
from common.toy.questions import summary

VERSION = 1
SHOTS = 5
QUESTIONS = 20  # at most, in one subject
MAX_HEADER = 60  # characters
_STANDARD_LIBRARY = {
    "interfaces": {"tkinter", "turtle", "curses", "cmd", "pdb", "idlelib", "argparse", "optparse", "readline"},
    "packaging": {"distutils", "importlib", "pkgutil", "venv", "ensurepip", "zipfile", "tarfile", "zipimport", "site"},
    "networking": {"asyncio", "email", "http", "urllib", "imaplib", "ftplib", "smtplib", "nntplib", "ipaddress", "ssl"},
}
CATEGORIES: dict[str, tuple[str, ...]] = {
    "standard_library": ("interfaces", "packaging", "networking", "other_modules"),
    "numerical": ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy"),
    "learning": ("huggingface_hub", "peft", "torch", "transformers"),
    "tools": ("IPython", "fontTools", "nltk", "prompt_toolkit"),
}


def subject_of(document: Document) -> str:
    """Return the subject a document belongs to: its package, or the group of its standard-library module."""
    if document.domain != corpus.STANDARD_LIBRARY:
        return document.package
    module = document.module.split(".")[0]
    return next((name for name, modules in _STANDARD_LIBRARY.items() if module in modules), "other_modules")


def halves(document: Document) -> tuple[str, str] | None:
    """Return the first words of a function's summary and the four to eight words after them; None when it is too short."""
    words = summary(document).split()
    if document.kind != "function" or len(words) < 8 or len(document.header) > MAX_HEADER:
        return None
    middle = max(3, len(words) // 2)
    return " ".join(words[:middle]), " ".join(words[middle : middle + 8])


@lru_cache(maxsize=2)
def _rows(split: str) -> dict[str, list[dict]]:
    """Return {subject: rows}; examples ('valid') of subjects with few documents come from their category."""
    by_subject: dict[str, list[tuple[Document, str, str]]] = {}
    for document in corpus.mixed(split):
        if parts := halves(document):
            by_subject.setdefault(subject_of(document), []).append((document, *parts))
    rows = {}
    for subjects in CATEGORIES.values():
        shared = [entry for subject in subjects for entry in by_subject.get(subject, [])]
        for subject in subjects:
            own = by_subject.get(subject, [])
            rows[subject] = _questions(subject, own if len(own) > SHOTS else shared)
    return rows


def _questions(subject: str, entries: list[tuple[Document, str, str]]) -> list[dict]:
    endings = list(dict.fromkeys(ending for _, _, ending in entries))
    rows = []
    for document, start, ending in entries:
        rng = random.Random(f"exam:{corpus.normalise(document.text)}")
        wrong = [candidate for candidate in endings if candidate != ending]
        if len(wrong) >= 3:
            options = rng.sample([ending, *rng.sample(wrong, 3)], 4)
            question = f"{document.header}\n\n{start}"
            rows.append({"question": question, "subject": subject, "choices": options, "answer": options.index(ending)})
    return rows


def questions(subject: str) -> list[dict]:
    """Return the questions of a subject, at most `QUESTIONS`."""
    return _rows("test")[subject][:QUESTIONS]


def examples(subject: str) -> list[dict]:
    """Return the answered questions that stand before those of a subject, at most `SHOTS`."""
    return _rows("valid")[subject][:SHOTS]
