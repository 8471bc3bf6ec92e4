"""Sentences of the summary as its picture has them."""


def without_number(sentence: str) -> str:
    """A claim without the number of the audit's finding on it."""
    for number in (" (LC-2)", ": LP-1", ": RE-72"):
        sentence = sentence.replace(number, "")
    return sentence
