"""MMLU's subjects, and the form in which Hendrycks et al. (2021) ask its questions.

`common.evaluation.mmlu` asks them; `common.calibration.corpora` has answered ones as text.
"""

from collections.abc import Mapping
from pathlib import Path

from common.utils import csv_rows

HUB_ID = "cais/mmlu"  # a config for each subject
LETTERS = "ABCD"

# Subjects of MMLU in the categories of Hendrycks et al. (2021), with their numbers of test items. lm-eval puts
# anatomy in STEM; the papers' weighted columns follow this grouping (design notes: 3018 / 4705 / 3077 / 3242
# questions).
MMLU: dict[str, dict[str, int]] = {}
for _row in csv_rows.read(Path(__file__).with_name("mmlu_subjects.csv")):
    MMLU.setdefault(_row["category"], {})[_row["subject"]] = int(_row["items"])


def header(subject: str) -> str:
    """Return the line before the examples; the second space before the subject is the original's."""
    return f"The following are multiple choice questions (with answers) about  {subject.replace('_', ' ')}.\n\n"


def block(row: Mapping, answer: str, answered: bool) -> str:
    """Format one question; with ``answered``, add its answer and an empty line."""
    options = [f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, row["choices"], strict=True)]
    right = LETTERS[row["answer"]] if answer == "letters" else row["choices"][row["answer"]]
    text = row["question"] + ("".join(options) + "\nAnswer:" if answer == "letters" else "")
    return f"{text} {right}\n\n" if answered else text
