"""A local mirror of the hub's datasets: the columns, configs and splits of the hub's own repositories, a few rows each."""

import shutil

import datasets
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from common.models.files import hub

QUESTIONS = 4
STORY = "The trophy does not fit in the suitcase because it is too big."


def _arc(i):
    choices = {"text": ["a layer", "a model", "the stream", "one"], "label": ["A", "B", "C", "D"]}
    return {"id": str(i), "question": f"what is removed {i}", "choices": choices, "answerKey": "ABCD"[i % 4]}


def _race(i):
    problem = {"question": "It is _ .", "options": ["a", "the model", "layers", "one"], "answer": "ABCD"[i % 4]}
    return {"article": f"the model {i}", "problems": str([{**problem, "question": "What is it?"}, problem])}


def _winograd(i):
    return {
        "text": STORY,
        "pronoun": "it",
        "pronoun_loc": STORY.index(" it ") + 1,
        "quote": "it is too big",
        "quote_loc": STORY.index("it is too"),
        "options": ["the trophy", "the suitcase"],
        "label": i % 2,
        "source": "tiny",
    }


def _hellaswag(i):
    texts = {"activity_label": "Pruning", "ctx_a": "A model is cut.", "ctx_b": "the stream", "split": "val"}
    endings = ["is scaled.", "is removed [step] now.", "ends.", "is a layer of models."]
    return {"ind": i, **texts, "ctx": "c", "endings": endings, "label": str(i % 4), "source_id": "s", "split_type": "s"}


def _winogrande(i):
    options = {"option1": "model", "option2": "layer", "answer": str(i % 2 + 1)}
    return {"sentence": "the stream left the layer as the _ was scaled", **options}


def _copa(i):
    choices = {"choice1": "The model was cut.", "choice2": "A layer was added.", "question": ["cause", "effect"][i % 2]}
    return {"premise": "The stream is small.", **choices, "idx": i, "label": i % 2}


def _mmlu(subject, split, i):
    return {"question": f"what is {split} {i}", "subject": subject, "choices": list("wxyz"), "answer": i % 4}


def _cmmlu(subject, split, i):
    options = {letter: letter.lower() for letter in "ABCD"}
    return {"Question": f"what is {split} {i} of {subject}", **options, "Answer": "ABCD"[i % 4]}


def _piqa(i):
    return {"goal": f"cut {i}", "sol1": "remove layers", "sol2": "a", "label": i % 2}


def _boolq(i):
    return {"question": f"is it {i}", "passage": "the model is one", "idx": i, "label": i % 2}


# dataset, config, split, row maker: the columns and splits of the hub's own repositories.
TASKS = {
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", "test", _arc),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test", _arc),
    "hellaswag": ("Rowan/hellaswag", "", "validation", _hellaswag),
    "piqa": ("baber/piqa", "", "validation", _piqa),
    "boolq": ("aps/super_glue", "boolq", "validation", _boolq),
    "copa": ("aps/super_glue", "copa", "validation", _copa),
    "winogrande": ("allenai/winogrande", "winogrande_xl", "validation", _winogrande),
    "wsc273": ("lighteval/winograd_wsc", "wsc273", "test", _winograd),
    "race_v2": ("EleutherAI/race", "high", "test", _race),
}


def _four(make):
    return [make(i) for i in range(4)]


def _commonsense(i):
    choices = {"label": list("ABCDE"), "text": ["a", "model", "layers", "one", "stream"]}
    question = {"question": f"what is removed {i}", "question_concept": "layer"}
    return {"id": str(i), **question, "choices": choices, "answerKey": "ABCDE"[i]}


def _cmnli(i):
    return {"sentence1": f"模型{i}", "sentence2": "层", "label": [0, 1, 2, -1][i], "idx": i}


def _c3(i):
    texts = {"context": ["模型", "很大"], "question": "什么大？", "answer": "层"}
    return {"id": i, **texts, "choice": ["模型", "层", "数据"][: 2 + i % 2]}


def _wsc(i):
    words = {"span1_index": 1, "span2_index": 9, "span1_text": "the layer", "span2_text": "it"}
    return {"text": f"The layer {i} left as it was scaled.", **words, "idx": i, "label": i % 2}


def _xsum(i):
    return {"document": f"the model {i} is cut", "summary": "a model is cut", "id": str(i)}


RACE = {"example_id": "high1.txt", "article": "The model is pruned.", "options": ["the model", "one", "a layer", "it"]}


def _race_of(*questions):
    return lambda i: {**RACE, "question": questions[i % len(questions)], "answer": "ABCD"[i]}


IDIOMS = ["一心一意", "三心二意", "五颜六色", "七上八下", "十全十美", "百发百中", "千变万化", "万无一失"]
CHID = {
    "idx": 0,
    "candidates": [*IDIOMS, "半途而废", "九牛一毛"],
    "content": ["他#idiom000001#地工作，#idiom000002#。", "天上#idiom000003#。"],
    "answers": {"text": [f"#idiom00000{number}#" for number in (1, 2, 3)], "candidate_id": [0, 4, 2]},
}
# hub dataset, config, split, rows: columns and kinds of values as on the hub.
LACO_TASKS = {
    "laco_cmnli": ("clue/clue", "cmnli", "validation", _four(_cmnli)),
    "laco_hellaswag": ("Rowan/hellaswag", None, "validation", _four(_hellaswag)),
    "laco_piqa": ("baber/piqa", None, "validation", _four(_piqa)),
    "laco_wsc_p": ("aps/super_glue", "wsc.fixed", "validation", _four(_wsc)),
    "laco_commonsense_qa": ("tau/commonsense_qa", None, "validation", _four(_commonsense)),
    "laco_boolq": ("aps/super_glue", "boolq", "validation", _four(_boolq)),
    "laco_race_h": ("ehovy/race", "high", "test", _four(_race_of("What is it ?", "It is _ now ."))),
    "laco_race_m": ("ehovy/race", "middle", "test", _four(_race_of("The model is  _  ."))),
    "laco_c3": ("clue/clue", "c3", "validation", _four(_c3)),
    "laco_wsc_g": ("aps/super_glue", "wsc.fixed", "validation", None),
    "laco_chid": ("clue/clue", "chid", "validation", [CHID]),
    "laco_xsum": ("EdinburghNLP/xsum", None, "validation", _four(_xsum)[:2]),
}


def write_rows(root, hub_id, config, split, rows):
    """One split of one dataset as a parquet file in the mirror `root`."""
    folder = root / "datasets" / hub_id / (config or "data")
    folder.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(folder / f"{split}-00000-of-00001.parquet")


def write_task(root, task, count):
    """One of the nine tasks with so many rows in its training and its test split."""
    hub_id, config, split, make = TASKS[task]
    for name in {"train", split}:
        write_rows(root, hub_id, config, name, [make(i) for i in range(count)])


def write_subjects(root, hub_id, subjects):
    """A dataset of several configs, ``{subject: {split: rows}}``, with the card that names its splits.

    Without the hub's card `datasets` would take a file named dev for the validation split.
    """
    card = ["---", "configs:"]
    for subject, splits in subjects.items():
        card += [f"- config_name: {subject}", "  data_files:"]
        for split, rows in splits.items():
            write_rows(root, hub_id, subject, split, rows)
            card += [f"  - split: {split}", f"    path: {subject}/{split}-*"]
    (root / "datasets" / hub_id / "README.md").write_text("\n".join([*card, "---", ""]))


def write_mmlus(root, subjects):
    """MMLU and CMMLU with five examples and ``subjects[name]`` questions of each subject."""
    for hub_id, make in (("cais/mmlu", _mmlu), ("haonan-li/cmmlu", _cmmlu)):
        rows = {
            subject: {
                split: [make(subject, split, i) for i in range(size)] for split, size in (("dev", 5), ("test", count))
            }
            for subject, count in subjects.items()
        }
        write_subjects(root, hub_id, rows)


@pytest.fixture(scope="session")
def rows_of_tasks(tmp_path_factory):
    """The nine tasks' datasets in the hub's layout, written once."""
    folder = tmp_path_factory.mktemp("rows") / "hub"
    for task in TASKS:
        write_task(folder, task, QUESTIONS)
    return folder


@pytest.fixture
def mirror(rows_of_tasks, tmp_path, monkeypatch):
    """The nine tasks' datasets with `QUESTIONS` rows in every split, in the hub's layout; the hub must not be asked."""
    shutil.copytree(rows_of_tasks, tmp_path / "hub", dirs_exist_ok=True)
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: pytest.fail("the hub was probed"))


def saved_llama(folder, tokenizer, *, hidden=32, layers=32, heads=4, seed=3):
    """Save a small random Llama with its tokenizer; returns the folder."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 320, "hidden_size": hidden, "intermediate_size": hidden * 3 // 2}
    counts = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads}
    config = LlamaConfig(**sizes, **counts, initializer_range=0.05)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_wikitext(hub_folder):
    """Write a training split of WikiText-2 with the hub's columns."""
    texts = [line for i in range(120) for line in ("", f" = Part {i} = \n", f" the stream of layer {i} is scaled . \n")]
    folder = hub_folder / "datasets" / "Salesforce" / "wikitext" / "wikitext-2-raw-v1"
    folder.mkdir(parents=True)
    datasets.Dataset.from_dict({"text": texts}).to_parquet(folder / "train-00000-of-00001.parquet")
