"""LaCo's benchmarks from a local mirror with the hub's columns, against full forward passes and by hand."""

import datasets
import pytest
import torch
from hub_mirror import LACO_TASKS, RACE, write_rows
from lm_eval.api.instance import Instance

from common.evaluation import harness
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.tasks.laco import laco
from common.utils.errors import UserError

PPL = [name for name in LACO_TASKS if name not in ("laco_wsc_g", "laco_chid", "laco_xsum")]


@pytest.fixture
def laco_mirror(mirror, tmp_path):
    for hub_id, config, split, rows in LACO_TASKS.values():
        if rows:
            write_rows(tmp_path / "hub", hub_id, config, split, rows)


def naive(model, tokenizer, text):
    """The loss of OpenCompass: all predicted tokens' losses over the number of tokens, the first included."""
    ids = torch.tensor([tokenizer(text)["input_ids"][: laco.MAX_TOKENS]])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")) / ids.shape[1]


@pytest.mark.parametrize("name", PPL)
def test_the_option_of_lowest_loss_is_chosen(laco_mirror, tiny_llama, tiny_tokenizer, name):
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, [name])
    (task,) = harness.load_tasks([name]).values()
    right = []
    for doc in task.eval_docs:
        losses = [naive(tiny_llama, tiny_tokenizer, text) for text in task.doc_to_choice(doc)]
        right.append(losses.index(min(losses)) == task.doc_to_target(doc))
    assert scores[name]["n"] == len(right) == (3 if name == "laco_cmnli" else 4)
    assert scores[name]["score"] == pytest.approx(sum(right) / len(right))
    assert scores[name]["score_stderr"] is not None and scores[name]["acc"] is None


def options(name):
    (task,) = harness.load_tasks([name]).values()
    return [(task.doc_to_choice(doc), task.doc_to_target(doc)) for doc in task.eval_docs]


def test_options_are_whole_texts(laco_mirror):
    texts, target = options("laco_race_h")[1]
    assert texts[1] == "Article: The model is pruned.\nIt is one now ." and target == 1
    assert options("laco_race_h")[0][0][2] == "Article: The model is pruned.\nQuestion: What is it ?\nAnswer: a layer"
    texts = [f"Article: The model is pruned.\nThe model is {option}  ." for option in RACE["options"]]
    assert options("laco_race_m")[3] == (texts, 3)
    assert options("laco_hellaswag")[1][0][1] == "Pruning: A model is cut. The stream is removed now."
    assert options("laco_piqa")[1] == (["cut 1\nremove layers", "cut 1\na"], 1)
    texts, target = options("laco_wsc_p")[1]
    assert texts[target] == 'The layer 1 left as it was scaled.\nHere "it" refers to "the layer".'
    assert options("laco_commonsense_qa")[2][1] == 2
    assert options("laco_boolq")[1][0][1].endswith("Answer: Yes") and options("laco_boolq")[1][1] == 1
    assert options("laco_c3")[1] == ([f"文章：模型很大\n问题：什么大？\n答案：{c}" for c in ("模型", "层", "数据")], 1)
    assert [target for _, target in options("laco_cmnli")] == [0, 1, 2]


def test_generated_letters_are_compared(laco_mirror, tiny_llama, tiny_tokenizer, answering):
    asked = answering(" A. 一心一意", "选E。", "I think C")
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, ["laco_chid"])["laco_chid"]
    assert scores["n"] == 3 and scores["score"] == pytest.approx(2 / 3)  # 'I' is a letter of an idiom too
    first, second, _ = (prompt for prompt, _ in asked)
    assert first.startswith("他____地工作，——。\n") and "\nC. 五颜六色\n" in first
    assert second.startswith("他——地工作，____。\n")
    answering("B", "A", "Answer: B", "no letter")
    assert harness.evaluate(tiny_llama, tiny_tokenizer, ["laco_wsc_g"])["laco_wsc_g"]["score"] == 0.75


def test_summaries_are_scored_by_rouge(laco_mirror, tiny_llama, tiny_tokenizer, answering):
    asked = answering("\n a model is cut\nand more", "nothing of that")
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, ["laco_xsum"])["laco_xsum"]
    assert scores["score"] == pytest.approx(0.5)
    question = "Based on the previous text, provide a brief single summary:"
    assert asked[1][0] == f"Document: the model 1 is cut\n{question}"


@pytest.mark.parametrize("name", ["laco_wsc_g", "laco_xsum"])
def test_generation_itself_runs(laco_mirror, tiny_llama, tiny_tokenizer, name):
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, [name], limit=2)[name]
    assert 0 <= scores["score"] <= 1 and scores["n"] == 2


def test_the_end_of_a_long_text_is_lost(make_tiny, tiny_tokenizer):
    text = "the layers of a model are removed and the stream is scaled " * 3
    ids = tiny_tokenizer(text)["input_ids"]
    for architecture in ("llama", "gemma2", "qwen3"):
        model = make_tiny(architecture)
        lm = SharedContextLM(model, tiny_tokenizer)
        requests = [Instance("sequence_nll", {}, (text, limit), i) for i, limit in enumerate((2048, 20))]
        whole, cut = lm.sequence_nll(requests)
        assert whole == pytest.approx(naive(model, tiny_tokenizer, text), abs=1e-4)
        with torch.no_grad():
            logp = model(torch.tensor([ids[:20]])).logits[0].double().log_softmax(-1)
        assert cut == pytest.approx(-sum(float(logp[i, ids[i + 1]]) for i in range(19)) / 20, abs=1e-4)


def test_letters_within_words_do_not_count():
    letters = {"(B)": "B", "Because A": "A", "none": "", "答案是D。": "D", "K J": "J"}
    assert {text: laco.first_letter(text) for text in letters} == letters


def test_an_unknown_task_of_laco_is_named(laco_mirror, tiny_llama, tiny_tokenizer):
    with pytest.raises(UserError, match="unknown task 'laco_race'; did you mean 'laco_race_"):
        harness.evaluate(tiny_llama, tiny_tokenizer, ["laco_race"])


def test_the_first_thousand_documents_of_xsum():
    rows = datasets.Dataset.from_dict({"id": list(range(1200))})
    assert len(laco.first_thousand(rows)) == 1000
