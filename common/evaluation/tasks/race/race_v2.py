"""RACE's high-school part with the prompt of lm-eval 0.4.4, with which LinearPatch's and Prune&Comp's numbers were made.

An item is an article and its questions; the last one is asked, the others stand before it with their answers. One that
ends in a blank is shown as its last five characters and the answer: " _  .the model". Since May 2026 (pull request 3716,
version 3.0 of the task `race`) lm-eval shows the sentence instead: "It is the model". Scores of the two prompts are not
comparable; all else is equal.
"""

import ast

LETTERS = "ABCD"
BLANK = "  _  ."  # how RACE writes a blank at the end of a sentence
SHOWN = 5  # characters of such a question that version 2.0 shows


def questions(doc: dict) -> list[dict]:
    """Return the item's questions: each has question, options and answer (a letter)."""
    return ast.literal_eval(doc["problems"])


def prompt(doc: dict) -> str:
    """Return the article, an empty line, the earlier questions with their answers, and the last question."""
    *answered, last = questions(doc)
    lines = [f"Article: {doc['article']}", ""]
    for item in answered:
        text, right = item["question"], item["options"][LETTERS.index(item["answer"])]
        lines += [text[-SHOWN:] + right] if text.endswith(BLANK) else [f"Question: {text}", f"Answer: {right}"]
    return "\n".join([*lines, last["question"]])


def options(doc: dict) -> list[str]:
    """Return the four options of the last question."""
    return questions(doc)[-1]["options"]


def answer(doc: dict) -> int:
    """Return the place of the right one."""
    return LETTERS.index(questions(doc)[-1]["answer"])
