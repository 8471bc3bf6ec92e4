"""lm-eval's own tasks from a local mirror, stand-in tasks, and what the harness hands back."""

import json
import time

import datasets
import pytest
import torch
from hub_mirror import QUESTIONS, TASKS, write_rows
from lm_eval.models.huggingface import HFLM

from common.evaluation import harness
from common.models.files import hub
from common.toy.tasks import COLUMNS as TOY_TASKS
from common.utils.errors import NoData, UserError
from reproductions.spec.columns import tasks as columns_of


def test_the_papers_suite_runs_from_a_mirror_as_with_hflm(mirror, tiny_llama, tiny_tokenizer):
    columns = columns_of("paper")
    names = [column.benchmark for column in columns]
    assert set(names) == set(TASKS)
    ours = harness.evaluate(tiny_llama, tiny_tokenizer, names)
    hflm = HFLM(pretrained=tiny_llama, tokenizer=tiny_tokenizer, backend="causal", batch_size=4)
    reference = harness.evaluate(tiny_llama, tiny_tokenizer, names, lm=hflm)
    for column in columns:
        assert ours[column.benchmark] == reference[column.benchmark]
        assert ours[column.benchmark]["n"] == QUESTIONS
        assert 0 <= ours[column.benchmark][column.key] <= 1
        assert ours[column.benchmark][f"{column.key}_stderr"] is not None
    raw = ours["raw"]
    assert raw["configs"]["arc_easy"].get("dataset_name") is None  # a folder of one config
    assert json.loads(json.dumps(raw)) == raw
    assert raw["configs"]["arc_easy"]["dataset_path"].startswith("LAYERLAB_HUB/datasets/")
    sources = [config["metadata"]["config_source"] for config in raw["configs"].values() if "metadata" in config]
    sources = [source for source in sources if isinstance(source, str)]
    assert sources and all(source.startswith(("lm_eval/", "common/evaluation/tasks/")) for source in sources)
    assert raw["results"]["boolq"]["acc,none"] == ours["boolq"]["acc"]


def test_limit_and_shots(mirror, tiny_llama, tiny_tokenizer):
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, ["arc_easy"], limit=1, num_fewshot=2)
    assert scores["arc_easy"]["n"] == 1
    assert scores["arc_easy"]["acc_stderr"] is None
    assert scores["raw"]["n-shot"]["arc_easy"] == 2


@pytest.mark.slow  # reads the stand-in's corpus
def test_toy_tasks_run_offline_and_quietly(tiny_llama, tiny_tokenizer, monkeypatch, capfd):
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: pytest.fail("the hub was probed"))
    names = list(TOY_TASKS)[:2]
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, names, limit=6)
    assert [scores[name]["n"] for name in names] == [6, 6]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("task", ["arc_easy", "winogrande"])
def test_without_a_hub_the_error_is_quick_and_one_line(task, tiny_llama, tiny_tokenizer, monkeypatch, tmp_path):
    monkeypatch.delenv("LAYERLAB_HUB", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: "the hub cannot be reached")
    start = time.perf_counter()
    with pytest.raises(UserError, match="could not fetch dataset allenai/.*: the hub cannot be reached; ") as caught:
        harness.evaluate(tiny_llama, tiny_tokenizer, [task])
    assert time.perf_counter() - start < 5
    assert "\n" not in str(caught.value)


@pytest.fixture
def gsm8k(mirror, tmp_path):
    """`gsm8k(count)` puts six questions and so many solved examples into the mirror."""
    rows = [{"question": f"what is {i} plus 1?", "answer": f"It is more.\n#### {i + 1}"} for i in range(6)]

    def put(count):
        for split, split_rows in (("train", rows[:count]), ("test", rows)):
            write_rows(tmp_path / "hub", "openai/gsm8k", "main", split, split_rows)

    return put


def test_gsm8k_keeps_its_shots_and_both_ways_to_read_an_answer(gsm8k, tiny_llama, tiny_tokenizer, answering):
    gsm8k(6)
    asked = answering(" #### 1", " so 2", " #### 7")
    evaluated = harness.evaluate(tiny_llama, tiny_tokenizer, ["gsm8k"], limit=3)
    scores, items = evaluated["gsm8k"], evaluated["items"]["gsm8k"]
    assert (scores["strict"], scores["flexible"], scores["n"]) == pytest.approx((1 / 3, 2 / 3, 3))
    assert items["strict"].tolist() == [True, False, False] and items["flexible"].tolist() == [True, True, False]
    prompt, _ = asked[0]
    assert prompt.count("Question:") == 6 and prompt.endswith("what is 0 plus 1?\nAnswer:")


def test_a_prompt_whose_solved_examples_are_not_there_is_no_data(gsm8k, tiny_llama, tiny_tokenizer):
    gsm8k(1)
    for ask in (
        lambda: harness.check(["gsm8k"]),
        lambda: harness.evaluate(tiny_llama, tiny_tokenizer, ["gsm8k"], limit=1),
    ):
        with pytest.raises(NoData, match="gsm8k shows 5 solved examples of its train split, which holds 1 here"):
            ask()
    assert harness.evaluate(tiny_llama, tiny_tokenizer, ["piqa"], limit=1)["piqa"]["n"] == 1  # shows none
    with pytest.raises(NoData, match="piqa shows 500 solved examples"):
        harness.evaluate(tiny_llama, tiny_tokenizer, ["piqa"], limit=1, num_fewshot=500)


def test_groups_hold_lm_evals_subjects():
    assert len(harness.members("mmlu")) == 57 and "mmlu_anatomy" in harness.members("mmlu")
    assert len(harness.members("cmmlu")) == 67


def test_losses_of_endings_are_what_accuracy_per_character_is_made_of(mirror, tiny_llama, tiny_tokenizer):
    """Right where acc_norm is right if one wrong ending is there; against a naive sum of log-probabilities in any case."""
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, ["hellaswag", "piqa", "winogrande"])
    losses = scores["endings"]["piqa"]
    right = losses["right"] < losses["wrong"]  # two endings: the mean of the wrong ones is the other
    assert right.tolist() == scores["items"]["piqa"]["acc_norm"].tolist()
    assert scores["endings"]["winogrande"] == {}  # several contexts, one ending
    task = harness.load_tasks(["hellaswag"])["hellaswag"]
    for place, doc in enumerate(task.eval_docs):
        context = tiny_tokenizer(task.doc_to_text(doc))["input_ids"]
        losses = []
        for ending in task.doc_to_choice(doc):
            ids = torch.tensor(tiny_tokenizer(f"{task.doc_to_text(doc)} {ending}")["input_ids"])
            with torch.no_grad():
                chances = tiny_llama(ids[None]).logits[0, :-1].log_softmax(-1)
            of_ending = chances.gather(1, ids[1:, None])[len(context) - 1 :]
            losses.append(-float(of_ending.sum()) / len(ending))
        gold = int(task.doc_to_target(doc))
        assert scores["endings"]["hellaswag"]["right"][place] == pytest.approx(losses[gold], rel=1e-3)
        others = [loss for index, loss in enumerate(losses) if index != gold]
        assert scores["endings"]["hellaswag"]["wrong"][place] == pytest.approx(sum(others) / 3, rel=1e-3)


def test_the_index_of_tasks_is_lm_evals_own(tmp_path, monkeypatch):
    """Files as its library has them, against what its task manager finds in them."""
    texts = {
        "plain.yaml": "task: plain\ndataset_path: a\n",
        "quoted.yaml": '"task": "quoted"\n"dataset_path": "a"\n',
        "late.yaml": "include: plain.yaml\ntag:\n  - some\ntask: late # as it is\n",
        "group.yaml": "group: both\ntask:\n  - plain\n  - late\n",
        "deep/below.yaml": "task: 'below'\ndataset_path: a\n",
        "_part.yaml": "dataset_path: a\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(harness, "_library", lambda: tmp_path)
    harness._index.cache_clear()
    index = harness._index()
    harness._index.cache_clear()
    assert set(index) == set(harness._manager(include_path=[str(tmp_path)]).all_subtasks)
    assert index["below"] == tmp_path / "deep"


@pytest.fixture
def own_task(tmp_path, monkeypatch):
    """Make `own` the name of a task with these choices and metrics."""

    def named(choices, metrics=("acc", "acc_norm")):
        monkeypatch.setattr(harness, "_remembered", {})
        monkeypatch.setattr(harness, "_toy_configs", lambda tasks: {"own": own_config(tmp_path, choices, metrics)})

    return named


def own_config(folder, choices, metrics):
    rows = [
        {"q": f"the river {n}", "choices": choices if n == 3 else ["a", "bb", "ccc"], "label": n % 3} for n in range(6)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "task": "own", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_target": "{{label}}",
        "doc_to_choice": "{{choices}}", "metric_list": [{"metric": name} for name in metrics], "num_fewshot": 0,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_choice_is_scored_as_with_hflm(blank, own_task, tiny_llama, tiny_tokenizer):
    own_task(["a", blank, "ccc"])
    hflm = HFLM(pretrained=tiny_llama, tokenizer=tiny_tokenizer, backend="causal", batch_size=1)
    ours = harness.evaluate(tiny_llama, tiny_tokenizer, ["own"])
    assert ours["own"] == harness.evaluate(tiny_llama, tiny_tokenizer, ["own"], lm=hflm)["own"]
    assert ours["endings"]["own"] == {}


def test_measurements_that_would_be_dropped_are_refused_or_said(own_task, caplog):
    own_task(["a", "b", "c"], ["f1"])
    with pytest.raises(UserError, match="the task own measures f1, which is not reported here"):
        harness.load_tasks(["own"])
    own_task(["a", "b", "c"], ["acc", "f1"])
    harness.load_tasks(["own"])
    assert "own: f1 is not reported" in caplog.text


def test_a_second_model_is_asked_the_same_requests_and_answers_as_alone(mirror, make_tiny, tiny_tokenizer, monkeypatch):
    first, second = make_tiny("llama"), make_tiny("llama")
    with torch.no_grad():
        second.lm_head.weight.mul_(-0.5)
    tasks = ["arc_easy", "boolq"]
    alone = []
    for model in (first, second):
        harness._remembered.clear()
        alone.append(harness.evaluate(model, tiny_tokenizer, tasks, limit=3))
    harness._remembered.clear()
    loads, load = [], harness.load_tasks
    monkeypatch.setattr(harness, "load_tasks", lambda names: loads.append(names) or load(names))
    together = [harness.evaluate(model, tiny_tokenizer, tasks, limit=3) for model in (first, second, first)]
    assert len(loads) == 1
    for scored_alone, scored_together in zip([*alone, alone[0]], together, strict=True):
        assert {task: scored_alone[task] for task in tasks} == {task: scored_together[task] for task in tasks}
        assert scored_alone["raw"]["results"] == scored_together["raw"]["results"]
    assert str(alone[0]["endings"]) != str(alone[1]["endings"])
    harness.evaluate(first, tiny_tokenizer, tasks, limit=2)
    assert len(loads) == 2
    monkeypatch.setattr(harness, "REMEMBERED", 0)
    harness.evaluate(first, tiny_tokenizer, tasks, limit=1)
    assert not harness._remembered
