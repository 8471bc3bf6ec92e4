"""What a model is asked: one item of every task of the papers' suites, letter by letter, and its right answer.

The items have the hub's columns; the expected texts were written from lm-eval's definitions and Hendrycks' format by hand, so
a later lm-eval that asks otherwise fails here and not in a table.
"""

import datasets
import pytest
from hub_mirror import write_rows, write_subjects
from lm_eval.api.model import TemplateLM

from common.evaluation import harness, mmlu
from common.models.files import hub
from reproductions.reassessing.columns import TASKS
from reproductions.spec.columns import QUESTIONS


def after(context, *continuations):
    """What is scored: each of these after one context."""
    return [(context, continuation) for continuation in continuations]


ARC = {
    "id": "MCAS_1",
    "question": "Which part of a plant takes up water?",
    "choices": {"text": ["leaf", "root", "flower", "seed"], "label": ["A", "B", "C", "D"]},
    "answerKey": "B",
}
ARC_E = {**ARC, "choices": {"text": ["leaf", "root", "seed"], "label": ["1", "2", "3"]}, "answerKey": "3"}
ARC_PROMPT = "Question: Which part of a plant takes up water?\nAnswer:"
BOOLQ = {"question": "is the tower open at night", "passage": "The tower shuts at six.", "idx": 0, "label": 0}
COPA = {
    "premise": "The lamp went out.", "choice1": "The oil was used up.", "choice2": "The door was shut.",
    "question": "cause", "idx": 0, "label": 0,
}  # fmt: skip
HELLASWAG = {
    "ind": 4, "source_id": "wikihow~1", "split": "val", "split_type": "indomain",
    "activity_label": "How to plane a board",
    "ctx_a": "[header] How to plane a board [title] Fix the board. [step] Use a vice.",
    "ctx_b": "then YOU", "ctx": "not read",
    "endings": ["plane it. [substeps] Slowly.", "eat  it.", "sell it [title] At once.", "go."], "label": "3",
}  # fmt: skip
# marks leave one space of two; capitalize() lowers what follows
HELLASWAG_PROMPT = "How to plane a board: How to plane a board. Fix the board. Use a vice. Then you"
PIQA = {"goal": "to dry a boot,", "sol1": "fill it with paper.", "sol2": "fill it with water.", "label": 0}
BLANK = {"question": "The river is  _  .", "options": ["wide", "deep", "cold", "dry"], "answer": "C"}
PLAIN = {"question": "Who went first?", "options": ["Ann", "Ben", "Cem", "Dee"], "answer": "B"}
ASKED = {"question": "They went home  _  .", "options": ["at once", "late", "by boat", "not at all"], "answer": "D"}
RACE = {"article": "Four friends\ncame to a river.", "problems": str([BLANK, PLAIN, ASKED])}
RACE_PROMPT = (
    "Article: Four friends\ncame to a river.\n\n"
    " _  .cold\n"  # the last five characters of the question alone: the papers' lm-eval
    "Question: Who went first?\nAnswer: Ben\n"
    "They went home  _  ."
)
WINOGRANDE = {"option1": "cup", "option2": "box", "answer": "1"}
WSC = {
    "text": "The dog chased the cat, but its legs were too short.", "pronoun": "its", "pronoun_loc": 28,
    "quote": "its legs were too short", "quote_loc": 28, "options": ["The dog", "The cat"], "label": 0,
    "source": "made up",
}  # fmt: skip
OPENBOOKQA = {
    "id": "7-1",
    "question_stem": "A shadow is longest",
    "choices": {"text": ["at noon", "at dusk", "at night", "never"], "label": ["A", "B", "C", "D"]},
    "answerKey": "B",
}
MMLU = {"question": " How many ribs?", "subject": "anatomy", "choices": ["20", "22", "24", "26"], "answer": 2}
# lm-eval's own, as Reassessing asks: no examples, one space before the subject, letters after one
MMLU_PROMPT = (
    "The following are multiple choice questions (with answers) about anatomy.\n\n"
    "How many ribs?\nA. 20\nB. 22\nC. 24\nD. 26\nAnswer:"
)
# task -> (dataset, config, split, item, what is scored [(context, continuation)], place of the right one)
ITEMS = {
    "arc_challenge": (
        *("allenai/ai2_arc", "ARC-Challenge", "test", ARC),
        *(after(ARC_PROMPT, " leaf", " root", " flower", " seed"), 1),
    ),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test", ARC_E, after(ARC_PROMPT, " leaf", " root", " seed"), 2),
    "boolq": (
        *("aps/super_glue", "boolq", "validation", BOOLQ),
        *(after("The tower shuts at six.\nQuestion: is the tower open at night?\nAnswer:", " no", " yes"), 0),
    ),
    "copa": (
        *("aps/super_glue", "copa", "validation", COPA),
        # two spaces: lm-eval's delimiter and the choice's own
        *(after("The lamp went out because", "  the oil was used up.", "  the door was shut."), 0),
    ),
    "hellaswag": (
        *("Rowan/hellaswag", None, "validation", HELLASWAG),
        *(after(HELLASWAG_PROMPT, " plane it. Slowly.", " eat it.", " sell it. At once.", " go."), 3),
    ),
    "piqa": (
        *("baber/piqa", None, "validation", PIQA),
        *(after("Question: to dry a boot,\nAnswer:", " fill it with paper.", " fill it with water."), 0),
    ),
    "race_v2": (
        *("EleutherAI/race", "high", "test", RACE),
        *(after(RACE_PROMPT, " at once", " late", " by boat", " not at all"), 3),
    ),
    "winogrande": (
        *("allenai/winogrande", "winogrande_xl", "validation"),
        {"sentence": "The cup did not fit the box as the _ was too wide.", **WINOGRANDE},
        [(f"The cup did not fit the box as the {option}", " was too wide.") for option in ("cup", "box")],
        0,
    ),
    "wsc273": (
        *("lighteval/winograd_wsc", "wsc273", "test", WSC),
        # "The" is lowered within a sentence; again two spaces, lm-eval's delimiter and the text's own
        [(f"The dog chased the cat, but the {option}", "  legs were too short.") for option in ("dog", "cat")],
        0,
    ),
    "openbookqa": (
        *("allenai/openbookqa", "main", "test", OPENBOOKQA),
        *(after("A shadow is longest", " at noon", " at dusk", " at night", " never"), 1),
    ),
    "mmlu_anatomy": ("cais/mmlu", "anatomy", "test", MMLU, after(MMLU_PROMPT, " A", " B", " C", " D"), 2),
}


class Asked(TemplateLM):
    """Keeps what is asked, and finds the request at one place likeliest."""

    eot_token_id = 0

    def __init__(self, favourite: int) -> None:
        super().__init__()
        self.favourite, self.requests = favourite, []

    def loglikelihood(self, requests, disable_tqdm=False):
        self.requests = [request.args for request in requests]
        return [(-1.0 - (number != self.favourite), False) for number in range(len(requests))]

    def _loglikelihood_tokens(self, *_, **__):
        raise NotImplementedError

    loglikelihood_rolling = generate_until = tok_encode = _loglikelihood_tokens


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """An empty mirror; the hub must not be asked."""
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: pytest.fail("the hub was probed"))
    return tmp_path / "hub"


def test_every_task_of_the_papers_suites_is_pinned():
    names = {*(task for task, _ in QUESTIONS.values()), *TASKS.values()} - {"mmlu", "cmmlu"}
    assert names | {"mmlu_anatomy"} == set(ITEMS)


@pytest.mark.parametrize("task", ITEMS)
def test_what_is_scored_and_what_is_right(hub_folder, task):
    hub_id, config, split, item, expected, right = ITEMS[task]
    if hub_id == "cais/mmlu":
        write_subjects(hub_folder, hub_id, {config: {"dev": [item], split: [item]}})
    else:
        for name in {"train", split}:
            write_rows(hub_folder, hub_id, config, name, [item])
    for favourite in range(len(expected)):
        lm = Asked(favourite)
        scores = harness.evaluate(None, None, [task], lm=lm)[task]
        assert lm.requests == expected
        assert scores["acc"] == (favourite == right)


def test_a_consequence_in_copa_follows_a_therefore(hub_folder):
    item = {**ITEMS["copa"][3], "question": "effect", "label": 1}
    for name in ("train", "validation"):
        write_rows(hub_folder, "aps/super_glue", "copa", name, [item])
    lm = Asked(1)
    assert harness.evaluate(None, None, ["copa"], lm=lm)["copa"]["acc"] == 1
    assert lm.requests[1] == ("The lamp went out therefore", "  the door was shut.")


def test_lm_evals_race_of_today_asks_otherwise(hub_folder):
    """The reason for `race_v2`; when this fails, lm-eval has gone back and its own task can be used again."""
    write_rows(hub_folder, "EleutherAI/race", "high", "test", [ITEMS["race_v2"][3]])
    lm = Asked(0)
    harness.evaluate(None, None, ["race"], lm=lm)
    papers = ITEMS["race_v2"][4][0][0]
    assert lm.requests[0][0] == papers.replace(" _  .cold\n", "The river is cold\n")


def test_mmlu_as_hendrycks_asks_it(hub_folder, tiny_tokenizer):
    """Five examples of six, two spaces before the subject, bare letters; the question's own spaces stay."""
    examples = [
        {"question": f"Which is {n}?", "subject": "s", "choices": ["one", "two", "six", "ten"], "answer": n % 4}
        for n in range(6)
    ]
    item = {"question": "What falls fastest? ", "subject": "s", "choices": ["a", "b", "c", "d"], "answer": 3}
    write_subjects(hub_folder, "cais/mmlu", {"high_school_physics": {"dev": examples, "test": [item]}})
    protocol = mmlu.get("hendrycks")
    (row,) = protocol.rows("high_school_physics", "test")
    shown = protocol.rows("high_school_physics", "dev")
    question = mmlu.ask(protocol, tiny_tokenizer, "high_school_physics", row, shown)
    assert tiny_tokenizer.decode(question.prompt) == (
        "The following are multiple choice questions (with answers) about  high school physics.\n\n"
        "Which is 0?\nA. one\nB. two\nC. six\nD. ten\nAnswer: A\n\n"
        "Which is 1?\nA. one\nB. two\nC. six\nD. ten\nAnswer: B\n\n"
        "Which is 2?\nA. one\nB. two\nC. six\nD. ten\nAnswer: C\n\n"
        "Which is 3?\nA. one\nB. two\nC. six\nD. ten\nAnswer: D\n\n"
        "Which is 4?\nA. one\nB. two\nC. six\nD. ten\nAnswer: A\n\n"
        "What falls fastest? \nA. a\nB. b\nC. c\nD. d\nAnswer:"
    )
    assert [tiny_tokenizer.decode(choice) for choice in question.choices] == ["A", "B", "C", "D"]
    assert (question.answer, question.shots) == (3, 5)
