"""MMLU's prompt, scoring and weighting against hand-written text, full forward passes and the papers' numbers."""

import itertools
from dataclasses import replace

import pytest
import torch
from hub_mirror import write_subjects

from common.evaluation import mmlu, scores
from common.toy import exam
from common.utils.errors import UserError

ROWS = [
    {"question": f"What is removed {i}?", "subject": "s", "choices": ["a layer", "the model", "one", "it"], "answer": a}
    for i, a in enumerate([1, 3, 0, 2, 1, 0, 3, 1])
]


def small(answer="letters", **options):
    rows = {"dev": ROWS[:3], "test": ROWS[2:]}
    categories = {"first": ("high_school_physics",), "second": ("anatomy", "virology")}
    return mmlu.Examination("small", categories, lambda _, split: rows[split], answer, **options)


def naive(model, tokenizer, subject, row, examples, answer):
    """One choice at a time, whole prompt, by the Hugging Face model."""
    text = mmlu.header(subject)
    for example in examples:
        text += mmlu.block(example, answer, answered=True)
    text += mmlu.block(row, answer, answered=False)
    prompt = tokenizer(text)["input_ids"]
    with torch.no_grad():
        if answer == "letters":
            logits = model(torch.tensor([prompt])).logits[0, -1]
            likely = [float(logits[tokenizer.convert_tokens_to_ids(letter)]) for letter in "ABCD"]
        else:
            likely = []
            for choice in row["choices"]:
                whole = tokenizer(f"{text} {choice}")["input_ids"]
                logp = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
                total = sum(float(logp[at - 1, whole[at]]) for at in range(len(prompt), len(whole)))
                likely.append(total / len(choice))
    return likely.index(max(likely)) == row["answer"]


@pytest.mark.parametrize("answer", ["letters", "options"])
def test_answers_are_those_of_full_forward_passes(make_tiny, tiny_tokenizer, answer):
    protocol = small(answer)
    shares = []
    for architecture in ("llama", "gemma2"):
        model = make_tiny(architecture)
        values, errors, details = mmlu.evaluate(model, tiny_tokenizer, protocol)
        expected = {
            subject: [naive(model, tiny_tokenizer, subject, row, ROWS[:3], answer) for row in ROWS[2:]]
            for subject in protocol.subjects
        }
        for subject, right in expected.items():
            assert details["subjects"][subject] == {"accuracy": sum(right) / 6, "questions": 6, "shots": 3}
        assert values["weighted"] == pytest.approx(sum(map(sum, expected.values())) / 18)
        assert details["right"]["weighted"].tolist() == [*itertools.chain(*expected.values())]
        assert {key: right.mean() for key, right in details["right"].items()} == pytest.approx(values)
        assert values.keys() == errors.keys() == {"first", "second", "weighted"}
        shares.append(values["weighted"])
    assert any(shares)


@pytest.mark.parametrize("answer", ["letters", "options"])
def test_examples_are_dropped_until_the_prompt_fits(tiny_tokenizer, answer):
    whole = mmlu.ask(small(answer), tiny_tokenizer, "anatomy", ROWS[4], ROWS[:3])
    longest = len(whole.prompt) + (0 if answer == "letters" else max(map(len, whole.choices)))
    exactly = mmlu.ask(small(answer, context=longest), tiny_tokenizer, "anatomy", ROWS[4], ROWS[:3])
    shorter = mmlu.ask(small(answer, context=longest - 1), tiny_tokenizer, "anatomy", ROWS[4], ROWS[:3])
    assert (whole.shots, exactly.shots, shorter.shots) == (3, 3, 2)
    two = mmlu.ask(small(answer), tiny_tokenizer, "anatomy", ROWS[4], ROWS[:2])  # the last example went
    assert shorter.prompt == two.prompt
    with pytest.raises(UserError, match="a question on anatomy has .* tokens, more than 9"):
        mmlu.ask(small(answer, context=9), tiny_tokenizer, "anatomy", ROWS[4], ROWS[:3])


def test_the_letters_are_bare_and_must_differ(tiny_tokenizer):
    assert mmlu.letter_tokens(tiny_tokenizer) == [[tiny_tokenizer.convert_tokens_to_ids(x)] for x in "ABCD"]
    with pytest.raises(UserError, match="cannot be distinguished"):
        mmlu.letter_tokens(lambda text, **_: {"input_ids": [7]})


def test_hendrycks_has_57_subjects_and_the_papers_weights():
    protocol = mmlu.get("hendrycks")
    assert len(protocol.subjects) == len(set(protocol.subjects)) == 57
    counts = {subject: count for category in scores.MMLU.values() for subject, count in category.items()}
    subjects = {
        s: {"accuracy": (i * 7 % 10) / 10, "questions": counts[s], "shots": 5} for i, s in enumerate(protocol.subjects)
    }
    values, _ = mmlu.summarise(protocol, subjects)
    right = {s: entry["accuracy"] * counts[s] for s, entry in subjects.items()}
    shares = [sum(right[s] for s in category) / sum(category.values()) for category in scores.MMLU.values()]
    assert [values[key] for key in protocol.categories] == pytest.approx(shares)
    assert values["weighted"] == pytest.approx(sum(right.values()) / 14042)
    sizes = {key: sum(counts[s] for s in members) for key, members in protocol.regrouped.items()}
    assert sizes == {"stem_harness": 3153, "other_harness": 3107}


def test_subjects_weigh_by_their_questions_and_alike_in_a_part(make_tiny, tiny_tokenizer):
    tests = {"anatomy": ROWS[2:4], "virology": ROWS[2:], "high_school_physics": ROWS[3:7]}
    protocol = replace(small(), rows=lambda subject, split: ROWS[:3] if split == "dev" else tests[subject])
    for limit, weights in (
        (None, {"anatomy": 2, "virology": 6, "high_school_physics": 4}),
        (2, dict.fromkeys(tests, 2)),
    ):
        values, _, details = mmlu.evaluate(make_tiny("llama"), tiny_tokenizer, protocol, limit=limit)
        accuracies = {subject: entry["accuracy"] for subject, entry in details["subjects"].items()}
        mean = sum(accuracies[subject] * weight for subject, weight in weights.items()) / sum(weights.values())
        assert values["weighted"] == pytest.approx(mean)


def test_subjects_are_read_with_the_hubs_columns(mirror, tmp_path, make_tiny, tiny_tokenizer):
    splits = {"dev": ROWS[:2], "test": ROWS[2:], "validation": ROWS[:1]}
    write_subjects(tmp_path / "hub", "cais/mmlu", dict.fromkeys(("anatomy", "virology"), splits))
    protocol = replace(mmlu.get("hendrycks"), categories={"other": ("anatomy", "virology")}, regrouped={})
    values, errors, details = mmlu.evaluate(make_tiny("llama"), tiny_tokenizer, protocol, limit=2)
    assert values.keys() == errors.keys() == {"other", "weighted"}
    assert details["subjects"]["anatomy"]["questions"] == 2 and details["subjects"]["anatomy"]["shots"] == 2


@pytest.mark.slow  # reads the stand-in's corpus
def test_the_toys_questions_are_sound_and_their_examples_are_others():
    for subject in mmlu.get("standin-options-1").subjects:
        questions, examples = exam.questions(subject), exam.examples(subject)
        assert len(questions) == exam.QUESTIONS and len(examples) == exam.SHOTS
        assert not {row["question"] for row in questions} & {row["question"] for row in examples}
        for row in [*questions, *examples]:
            assert len(set(row["choices"])) == 4 and 0 <= row["answer"] < 4
    answers = [row["answer"] for s in mmlu.get("standin-options-1").subjects for row in exam.questions(s)]
    assert all(60 < answers.count(letter) < 130 for letter in range(4))  # of 380: the place says nothing
