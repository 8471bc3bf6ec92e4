"""Judge a written answer to a question of a multiple-choice task.

Pruned models pick the right option more often than they can write it (The Benchmark Illusion, arXiv 2606.17609, on
other questions). Three examples, written for this project, show that an answer is a few words. Some of ARC's questions
cannot be answered without their options ("Which of these ..."), and OpenBookQA's stems can often be completed in other
ways; all stay in, so that the items are those of the multiple-choice task. Compare models by these scores, not tasks.
"""

import re
import string

EXAMPLES = (
    ("What do people breathe in to stay alive?", "oxygen"),
    ("A thermometer is used to measure", "temperature"),
    ("Why does the moon shine at night?", "it reflects the light of the sun"),
)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return a text in lower case without punctuation, articles and double spaces (Rajpurkar et al., 2016: SQuAD)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def prompt(doc: dict) -> str:
    """Return the examples and the question of ARC, or the stem of OpenBookQA."""
    solved = [f"Question: {question}\nAnswer: {answer}" for question, answer in EXAMPLES]
    return "\n\n".join([*solved, f"Question: {doc.get('question') or doc['question_stem']}\nAnswer:"])


def right_option(doc: dict) -> str:
    """Return the text of the right option."""
    choices = doc["choices"]
    return choices["text"][choices["label"].index(doc["answerKey"].strip())]


def judged(doc: dict, results: list[str]) -> dict[str, float]:
    """Return whether the answer is the right option, and whether it has the right option as words."""
    answer, right = normalised(results[0]), normalised(right_option(doc))
    return {
        "written_exactly": float(answer == right),
        "written_within": float(bool(right) and f" {right} " in f" {answer} "),
    }
