"""MMLU the way Hendrycks et al. (2021) score it, as LinearPatch and Prune&Comp do (LinearPatch, Table 12; design notes).

The prompt is a header, up to five answered questions of the same subject, and the question; the answer is the letter A to
D whose token is likeliest at the last position. From a prompt of more than `context` tokens examples are dropped, the last
one first, until it fits. The header has two spaces before the subject's name, as in the original. A letter's token is
that of the bare letter ('A', not ' A'), as in the official code; for some tokenizers that is not the token after a space.

Accuracies are weighted by questions, within categories and over all. With a limit every subject has as many questions,
and all weigh alike. lm-eval's own `mmlu` differs: one space in its header, ' A' in place of 'A', zero shots by default,
no example is ever dropped, and anatomy counts as STEM.

`answer="options"` is a variant for models too small to answer by letter: the options are not listed, each continues the
question, the one likeliest per character is the answer, and the examples show it in full. Header, examples, their
dropping and the weighting are the same code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice

import numpy as np

from common.calibration import corpora
from common.calibration.mmlu_questions import HUB_ID, LETTERS, MMLU, block, header
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.scores import accuracy_stderr, weighted_mean, weighted_stderr
from common.utils.errors import UserError
from common.utils.token_ids import open_ended

Rows = list[dict]


@dataclass(frozen=True)
class Examination:
    """Settings of one MMLU-like examination.

    Attributes:
        categories: Category -> subjects.
        rows: Function from a subject and a split, 'dev' or 'test', to rows with question, choices and answer (0..3).
        answer: 'letters', or 'options' (module docstring).
        shots: Number of examples in a prompt, at most.
        context: Largest number of tokens in a prompt.
        regrouped: Further categories, which are no part of the weighted average.
    """

    name: str
    categories: Mapping[str, Sequence[str]]
    rows: Callable[[str, str], Rows]
    answer: str = "letters"
    shots: int = 5
    context: int = 2048
    regrouped: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def subjects(self) -> list[str]:
        """Return all subjects, in the order of their categories."""
        return [subject for subjects in self.categories.values() for subject in subjects]


@dataclass(frozen=True)
class Question:
    """A question ready to be scored.

    Attributes:
        prompt: Token ids of the prompt.
        choices: Token ids of one continuation per choice.
        lengths: Characters of each choice.
        shots: Number of examples in the prompt.
        answer: Index of the right choice.
    """

    prompt: list[int]
    choices: list[list[int]]
    lengths: list[int]
    shots: int
    answer: int


def letter_tokens(tokenizer) -> list[list[int]]:
    """Return the token of each bare letter, the last of its encoding, because some tokenizers put a mark before it.

    Raises:
        UserError: the letters' tokens cannot be distinguished.
    """
    tokens = [tokenizer(letter, add_special_tokens=False)["input_ids"][-1:] for letter in LETTERS]
    if len({tuple(token) for token in tokens}) < len(LETTERS) or not all(tokens):
        raise UserError(f"the tokenizer gives the letters {LETTERS} the tokens {tokens}, which cannot be distinguished")
    return tokens


def ask(protocol: Examination, tokenizer, subject: str, row: Mapping, examples: Rows) -> Question:
    """Return the question with as many examples as fit into the context.

    Raises:
        UserError: the question alone does not fit.
    """
    for shots in range(min(protocol.shots, len(examples)), -1, -1):
        shown = "".join(block(example, protocol.answer, answered=True) for example in examples[:shots])
        text = header(subject) + shown + block(row, protocol.answer, answered=False)
        opened = open_ended(tokenizer)
        prompt = opened(text, verbose=False)["input_ids"]
        if protocol.answer == "letters":
            choices, needed = letter_tokens(tokenizer), len(prompt)
        else:
            encoded_options = [opened(f"{text} {choice}", verbose=False)["input_ids"] for choice in row["choices"]]
            choices, needed = [tokens[len(prompt) :] for tokens in encoded_options], max(map(len, encoded_options))
        if needed <= protocol.context:
            lengths = [len(str(choice)) for choice in row["choices"]]
            return Question(prompt, choices, lengths, shots, int(row["answer"]))
    raise UserError(f"{protocol.name}: a question on {subject} has {needed} tokens, more than {protocol.context}")


def evaluate(
    model, tokenizer, protocol: Examination, *, limit: int | None = None, batch_size: int = 16
) -> tuple[dict, dict, dict]:
    """Score a model on the first ``limit`` questions of each subject of an examination; None: on all.

    Returns:
        Values, standard errors and details. Values: accuracies as shares, of each category, 'weighted' over all
        questions, and of `regrouped` categories. Details: 'subjects', {subject: {'accuracy', 'questions', 'shots'}}
        with the mean number of examples that fitted; 'right', {key of a value: bool [questions]}, the questions
        answered correctly, subject by subject.

    Raises:
        UserError: a question that does not fit, or a data set that is not available.
    """
    lm = SharedContextLM(model, tokenizer, batch_size=batch_size, max_length=protocol.context)
    questions_by_subject = {}
    for subject in protocol.subjects:
        examples = protocol.rows(subject, "dev")
        rows = protocol.rows(subject, "test")[:limit]
        questions_by_subject[subject] = [ask(protocol, tokenizer, subject, row, examples) for row in rows]
    correct = iter(_correct(lm, list(chain(*questions_by_subject.values())), protocol.answer))
    subjects, outcomes = {}, {}
    for subject, questions in questions_by_subject.items():
        outcomes[subject] = list(islice(correct, len(questions)))
        subjects[subject] = {
            "accuracy": sum(outcomes[subject]) / len(questions),
            "questions": len(questions),
            "shots": sum(question.shots for question in questions) / len(questions),
        }
    right = {
        key: np.array(list(chain(*(outcomes[subject] for subject in members))))
        for key, members in _groups(protocol).items()
    }
    return *summarise(protocol, subjects), {"subjects": subjects, "protocol": protocol.name, "right": right}


def _correct(lm, questions: Sequence[Question], answer: str) -> list[bool]:
    requests = [
        ((str(number), str(choice)), question.prompt, tokens)
        for number, question in enumerate(questions)
        for choice, tokens in enumerate(question.choices)
    ]
    answers = iter(lm._loglikelihood_tokens(requests, disable_tqdm=False))
    correct = []
    for question in questions:
        scores = [next(answers)[0] for _ in question.choices]
        if answer == "options":
            scores = [score / length for score, length in zip(scores, question.lengths, strict=True)]
        correct.append(scores.index(max(scores)) == question.answer)
    return correct


def _groups(protocol: Examination) -> dict[str, Sequence[str]]:
    """Return the subjects of every value, by its key."""
    return {**protocol.categories, "weighted": protocol.subjects, **protocol.regrouped}


def summarise(protocol: Examination, subjects: Mapping[str, Mapping]) -> tuple[dict, dict]:
    """Return question-weighted accuracies by category and over all questions, and their standard errors."""
    values, errors = {}, {}
    for key, members in _groups(protocol).items():
        questions = {subject: subjects[subject]["questions"] for subject in members}
        accuracies = {subject: subjects[subject]["accuracy"] for subject in members}
        values[key] = weighted_mean(accuracies, questions)
        spread = {subject: accuracy_stderr(accuracies[subject], questions[subject]) for subject in members}
        errors[key] = weighted_stderr(spread, questions)
    return values, errors


def _hendrycks() -> Examination:
    keys = {"stem": "STEM", "humanities": "Humanities", "social": "Social Sciences", "other": "Others"}
    categories = {key: tuple(MMLU[name]) for key, name in keys.items()}
    regrouped = {  # lm-eval's: anatomy is STEM
        "stem_harness": (*categories["stem"], "anatomy"),
        "other_harness": tuple(subject for subject in categories["other"] if subject != "anatomy"),
    }
    return Examination(
        "hendrycks", categories, lambda *named: list(corpora.open_dataset(HUB_ID, *named)), regrouped=regrouped
    )


def _toy(answer: str) -> Examination:
    from common.toy import exam  # reads the corpus

    def rows(subject: str, split: str) -> Rows:
        return exam.examples(subject) if split == "dev" else exam.questions(subject)

    return Examination(f"standin-{answer}-{exam.VERSION}", exam.CATEGORIES, rows, answer, exam.SHOTS, context=256)


_PROTOCOLS = {
    "hendrycks": _hendrycks,
    "standin-letters-1": partial(_toy, "letters"),
    "standin-options-1": partial(_toy, "options"),
}


def get(name: str) -> Examination:
    """Return the examination of this name."""
    return _PROTOCOLS[name]()
