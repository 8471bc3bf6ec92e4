"""Corpora from a local mirror in the hub's layout, from loose files, and the errors without a hub."""

import gzip
import json
import time

import datasets
import pytest
import torch
from huggingface_hub import constants

from common.calibration import corpora
from common.models.files import hub
from common.utils.errors import UserError


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No corpus is remembered between tests, and the cache of `datasets` is a new one."""
    corpora._texts.cache_clear()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    yield
    corpora._texts.cache_clear()


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """An empty mirror; `mirror("org/name")` makes a dataset's folder in it."""
    (tmp_path / "hub").mkdir()
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))

    def folder(hub_id: str):
        path = tmp_path / "hub" / "datasets" / hub_id
        path.mkdir(parents=True, exist_ok=True)
        return path

    return folder


@pytest.fixture
def no_hub(monkeypatch):
    """A machine without network, whatever this one has."""
    monkeypatch.delenv("LAYERLAB_HUB", raising=False)
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: "the hub cannot be reached")


def rows(column: str, *texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_list([{column: text} for text in texts])


def test_wikitext_in_the_hubs_layout(mirror):
    folder = mirror("Salesforce/wikitext") / "wikitext-2-raw-v1"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        rows("text", "", f" = {split} = ", "words").to_parquet(folder / f"{split}-00000-of-00001.parquet")
    assert corpora.texts("wikitext2-test") == ["", " = test = ", "words"]
    assert "\n\n".join(corpora.texts("wikitext2-train")) == "\n\n = train = \n\nwords"


def test_a_dataset_card_names_the_config(mirror):
    folder = mirror("Salesforce/wikitext")
    (folder / "a").mkdir()
    rows("text", "right").to_parquet(folder / "a" / "test-0.parquet")
    rows("text", "wrong").to_parquet(folder / "other-test.parquet")
    card = "---\nconfigs:\n- config_name: wikitext-2-raw-v1\n  data_files:\n  - split: test\n    path: a/test-*\n---\n"
    (folder / "README.md").write_text(card)
    assert corpora.texts("wikitext2-test") == ["right"]


def test_loose_files_named_after_splits(mirror):
    folder = mirror("Salesforce/wikitext")
    (folder / "train.jsonl").write_text(json.dumps({"text": "first"}) + "\n" + json.dumps({"text": "second"}) + "\n")
    (folder / "test.jsonl").write_text(json.dumps({"text": "held out"}) + "\n")
    assert corpora.texts("wikitext2-train") == ["first", "second"]
    assert corpora.texts("wikitext2-test") == ["held out"]


def test_c4_reads_its_first_shard_alone(mirror):
    folder = mirror("allenai/c4") / "en"
    folder.mkdir()
    for shard in (0, 1):
        with gzip.open(folder / f"c4-validation.0000{shard}-of-00008.json.gz", "wt") as out:
            out.write(json.dumps({"text": f"shard {shard}", "timestamp": "t", "url": "u"}) + "\n")
    assert corpora.texts("c4-validation") == ["shard 0"]


def test_ptb_is_read_from_the_parquet_conversion(mirror):
    folder = mirror("ptb-text-only/ptb_text_only") / "penn_treebank" / "validation"
    folder.mkdir(parents=True)
    rows("sentence", "no it was n't black monday").to_parquet(folder / "0000.parquet")
    assert corpora.texts("ptb-validation") == ["no it was n't black monday"]
    assert corpora.get("ptb-validation").revision == "refs/convert/parquet"


@pytest.mark.parametrize("kind", ["models", "datasets"])
def test_a_mirror_that_does_not_exist_is_named(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "misspelt"))
    with pytest.raises(UserError, match="LAYERLAB_HUB names .*misspelt, which is no directory; correct or unset it"):
        hub.mirror(kind, "org/name")


def test_a_wrong_column_is_named(mirror):
    rows("content", "x").to_parquet(mirror("Salesforce/wikitext") / "test.parquet")
    with pytest.raises(UserError, match="no column 'text'; it has content"):
        corpora.texts("wikitext2-test")


def test_a_missing_split_is_one_line(mirror):
    rows("text", "x").to_parquet(mirror("Salesforce/wikitext") / "test.parquet")
    with pytest.raises(UserError, match="could not fetch dataset Salesforce/wikitext from the mirror: ") as caught:
        corpora.texts("wikitext2-train")
    message = str(caught.value)
    assert "\n" not in message and ".;" not in message
    assert message.endswith("complete its copy there, or unset LAYERLAB_HUB")


@pytest.mark.parametrize("name", ["wikitext2-test", "ptb-validation", "c4-validation"])
def test_without_a_hub_the_error_is_quick_and_one_line(no_hub, name):
    start = time.perf_counter()
    with pytest.raises(UserError, match="could not fetch dataset .*: the hub cannot be reached; .*toy model") as caught:
        corpora.texts(name)
    assert time.perf_counter() - start < 5
    assert "\n" not in str(caught.value)


def test_the_offline_switch_is_put_back(no_hub):
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    with pytest.raises(UserError):
        corpora.texts("wikitext2-test")
    assert before == (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)


def test_joined_ids_are_tokenised_once_and_without_warning(mirror, tiny_tokenizer, caplog, capfd):
    rows("text", "the layers", "", "a model " * 3000).to_parquet(mirror("Salesforce/wikitext") / "test.parquet")
    ids = corpora.joined_ids(tiny_tokenizer, "wikitext2-test")
    assert ids.dtype == torch.long and ids.ndim == 1 and len(ids) > tiny_tokenizer.model_max_length
    assert tiny_tokenizer.decode(ids) == "the layers\n\n\n\n" + "a model " * 3000
    assert "longer than" not in caplog.text + capfd.readouterr().err


def test_a_large_text_is_tokenised_in_parts_to_the_same_text(mirror, tiny_tokenizer, monkeypatch):
    documents = [f"the model has {n} layers" for n in range(40)]
    rows("text", "", *documents, "", "").to_parquet(mirror("Salesforce/wikitext") / "test.parquet")
    whole, asked = corpora.joined_ids(tiny_tokenizer, "wikitext2-test"), []
    monkeypatch.setattr(corpora, "LARGE", 800)
    encode = corpora.encode
    monkeypatch.setattr(corpora, "encode", lambda *given, **more: asked.append(len(given[1])) or encode(*given, **more))
    ids = corpora.joined_ids(tiny_tokenizer, "wikitext2-test")
    assert tiny_tokenizer.decode(ids) == tiny_tokenizer.decode(whole) == "\n\n".join(["", *documents, "", ""])
    assert len(asked) >= 8 and max(asked) < 200
    assert abs(len(ids) - len(whole)) <= len(asked)
    monkeypatch.setattr(corpora, "encode", encode)
    start = [7]  # as a tokenizer that begins each text with a special token
    monkeypatch.setattr(
        corpora,
        "open_ended",
        lambda _: lambda text, verbose, add_special_tokens: {"input_ids": start * add_special_tokens + [len(text)]},
    )
    assert corpora.joined_ids(None, "wikitext2-test").tolist()[0] == 7
    assert corpora.joined_ids(None, "wikitext2-test").tolist().count(7) == 1


@pytest.mark.slow
def test_toy_corpora_need_no_hub(no_hub):
    assert len(corpora.texts("standin-train")) > len(corpora.texts("standin-test")) > 100
    assert len("".join(corpora.texts("numerical"))) > 10_000


def test_text_of_a_task_leaves_out_the_items_that_are_asked(monkeypatch):
    rows = [{"ctx": f"context {i}", "endings": [f"no {i}", f"yes {i}"], "label": "1"} for i in range(503)]
    opened = []

    def open_dataset(*names, **options):
        opened.append(names)
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(corpora, "open_dataset", open_dataset)
    texts = corpora.texts("hellaswag-after-500")
    assert texts == ["context 500 yes 500", "context 501 yes 501", "context 502 yes 502"]
    assert opened == [("Rowan/hellaswag", None, "validation")]


def test_arcs_questions_are_asked_as_mmlus(monkeypatch):
    def row(name, answer, labels="ABCD"):
        choices = {"label": list(labels), "text": [f"{name} {label}" for label in labels]}
        return {"question": f"Which {name}?", "choices": choices, "answerKey": answer}

    easy = [row("star", "B"), row("rock", "3", "1234"), row("leaf", "A", "ABC"), row("fish", "A")]
    hard = [row("atom", "D"), row("gene", "E", "ABCDE"), row("wind", "C")]

    def opened(hub_id, level, split):
        assert hub_id == "allenai/ai2_arc"
        skipped = {"train": [], "test": [row("first", "A")] * 500}[split]
        return skipped + {"ARC-Easy": easy, "ARC-Challenge": hard}[level]

    monkeypatch.setattr(corpora, "open_dataset", opened)
    texts = corpora.texts("arc-lettered-train")
    assert corpora.texts("arc-lettered-after-500") == texts
    assert texts[0] == (
        "The following are multiple choice questions (with answers) about  science.\n\n"
        "Which star?\nA. star A\nB. star B\nC. star C\nD. star D\nAnswer: B"
    )
    asked = [(text.splitlines()[2], text[-1]) for text in texts]
    assert asked == [("Which star?", "B"), ("Which atom?", "D"), ("Which rock?", "C"), ("Which wind?", "C")]
    alone = ["Which star? star B", "Which atom? atom D", "Which rock? rock 3", "Which wind? wind C"]
    assert corpora.texts("arc-train") == corpora.texts("arc-after-500") == alone


def test_mmlus_examples_are_answered_questions_of_one_subject_after_the_other(monkeypatch):
    def open_dataset(hub_id, subject, split):
        assert (hub_id, split) == ("cais/mmlu", "dev")
        choices = [f"{place} of {subject}" for place in "wxyz"]
        return [{"question": f"Question {i}?", "choices": choices, "answer": 2} for i in range(5)]

    monkeypatch.setattr(corpora, "open_dataset", open_dataset)
    texts = corpora.texts("mmlu-dev")
    assert len(texts) == 5 * 57 == len(set(texts))
    assert texts[57] == (
        "The following are multiple choice questions (with answers) about  abstract algebra.\n\nQuestion 1?\n"
        "A. w of abstract_algebra\nB. x of abstract_algebra\nC. y of abstract_algebra\nD. z of abstract_algebra\nAnswer: C"
    )
