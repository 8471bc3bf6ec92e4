"""Answers written without options: judged by hand, and generated as a naive loop generates them."""

import pytest
from heads import greedy_text
from hub_mirror import write_rows

from common.evaluation import harness
from common.evaluation.tasks.written import written

CHOICES = {"text": ["a layer", "The model", "the stream", "one"], "label": ["A", "B", "C", "D"]}


@pytest.mark.parametrize(
    ("answer", "exact", "contains"),
    [
        (" the MODEL.", 1, 1),
        ("Model", 1, 1),
        ("it is a model, I think", 0, 1),
        ("models", 0, 0),
        ("", 0, 0),
        ("a layer", 0, 0),
    ],
)
def test_case_articles_and_punctuation_do_not_count(answer, exact, contains):
    scores = written.judged({"choices": CHOICES, "answerKey": "B"}, [answer])
    assert scores == {"written_exactly": exact, "written_within": contains}


def row(task, i):
    """Return a question in the hub's columns."""
    if task == "openbookqa_written":
        return {"id": str(i), "question_stem": f"what is removed {i}", "choices": CHOICES, "answerKey": "B"}
    return {"id": str(i), "question": f"what is removed {i}", "choices": CHOICES, "answerKey": "B"}


@pytest.mark.parametrize(
    ("task", "hub_id", "config"),
    [("arc_easy_written", "allenai/ai2_arc", "ARC-Easy"), ("openbookqa_written", "allenai/openbookqa", "main")],
)
def test_an_answer_is_the_models_greedy_one(mirror, tmp_path, tiny_llama, tiny_tokenizer, task, hub_id, config):
    rows = [row(task, i) for i in range(4)]
    for doc in rows[:3]:  # what the model says is right there
        answer = greedy_text(tiny_llama, tiny_tokenizer, written.prompt(doc), 16).partition("\n")[0]
        assert written.normalised(answer)
        doc["choices"] = CHOICES | {"text": ["a layer", answer, "the stream", "one"]}
    rows[2]["choices"]["text"][1] = " ".join(written.normalised(rows[2]["choices"]["text"][1]).split()[:1])
    for split in ("train", "test"):
        write_rows(tmp_path / "hub", hub_id, config, split, rows)
    tiny_llama.generation_config.repetition_penalty = 5.0  # a model's own
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, [task])[task]
    assert (scores["exact"], scores["contains"], scores["n"]) == (0.5, 0.75, 4)
