"""The stand-in's corpus, tasks and training recipe."""

import json
import math
import re

import pytest
import torch
from killed import raising_at

from common.toy import corpus, tasks, train, training
from common.toy.corpus import Document
from common.utils.errors import UserError


def document(text: str, split: str | None = None, **fields) -> Document:
    values = {"package": "p", "domain": "numerical", "module": "m", "qualname": "f", "kind": "function"}
    return Document(text=text, split=split or corpus.split_of(text), **{**values, **fields})


def sentence(seed: int, words: int = 40) -> str:
    return " ".join(f"w{chr(97 + (seed * 7 + i * i) % 26)}{chr(97 + (seed + i) % 26)}" for i in range(words))


def test_exporting_a_folder_without_a_run_is_refused_in_one_line(tmp_path, capsys):
    assert train.main(["--export", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == (
        f"error: cannot export {tmp_path}: it holds no checkpoint.pt. Train first: leave --export out"
    )


def test_split_ignores_case_digits_and_white_space():
    assert corpus.split_of("Return 10  items.\n  Now") == corpus.split_of("return 27 items. now")


def test_split_shares_are_the_stated_ones():
    splits = [corpus.split_of(sentence(i, 12) + str(math.pi * i)[2:] + "x" * (i % 97)) for i in range(4000)]
    texts = {corpus.normalise(sentence(i, 12) + "x" * (i % 97)) for i in range(4000)}
    assert len(texts) > 500  # enough distinct texts for the shares to mean anything
    assert abs(splits.count("test") / len(splits) - corpus.TEST_PERCENT / 100) < 0.05


def test_exact_repeats_are_dropped_and_the_first_stays():
    twice = [document(sentence(1), "train", module=module) for module in "ab"]
    assert [d.module for d in corpus.without_duplicates(twice)] == ["a"]


def test_near_duplicates_leave_the_held_out_split_but_not_training():
    base = sentence(3, 60)
    near = base.rsplit(" ", 1)[0] + " different"
    far = sentence(11, 60)
    remaining = corpus.without_duplicates([document(near, "test"), document(base, "train"), document(far, "test")])
    assert [(d.text, d.split) for d in remaining] == [(base, "train"), (far, "test")]


def test_documents_are_read_without_importing(tmp_path):
    source = '"""A module docstring that is long enough to be kept by the reader of files."""\n'
    source += "import a_package_that_does_not_exist\nraise SystemExit\n"
    source += "class A:\n    def go(self, x, *, y=1):\n"
    source += '        """Go somewhere with x and y, described at sufficient length for the reader."""\n'
    path = tmp_path / "module.py"
    path.write_text(source)
    documents = corpus._documents_of_file((str(path), "pkg", "tools", "pkg.module"))
    assert [(d.kind, d.qualname) for d in documents] == [("module", ""), ("function", "A.go")]
    assert documents[1].header == "A.go(x, y)"
    assert documents[1].passage.startswith("A.go(x, y)\n\nGo somewhere")


@pytest.mark.slow  # reads the corpus, as the three after it do
def test_held_out_documents_share_no_text_with_training():
    train_texts = {corpus.normalise(d.text) for d in corpus.split_documents("train")}
    held_out = [corpus.normalise(d.text) for d in corpus.split_documents("test")]
    assert len(held_out) > 1000
    assert not train_texts.intersection(held_out)


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_has_enough_sound_items(name):
    rows = list(tasks.build(name))
    assert len(rows) >= 200
    chance = tasks.TASKS[name].chance
    for row in rows:
        assert len(row["choices"]) == round(1 / chance) == len(set(row["choices"]))
        assert row["question"].strip() and all(choice.strip() for choice in row["choices"])
    positions = [row["answer"] for row in rows]
    for position in range(round(1 / chance)):  # the answer's place says nothing: within five standard deviations
        spread = 5 * math.sqrt(chance * (1 - chance) / len(rows))
        assert abs(positions.count(position) / len(rows) - chance) < spread


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docstring_word", "docstring_agreement", "docstring_continuation"])
def test_the_answer_is_what_a_held_out_docstring_says(name):
    texts = [" ".join(d.text.split()) for d in corpus.split_documents("test")]
    for row in list(tasks.build(name, 40)):
        # The sentence before may stand in another paragraph, so only the words around the answer are looked for.
        ending = " ".join(f"{row['question']} {row['choices'][row['answer']]}".split()[-7:])
        assert any(ending.rstrip(".") in text for text in texts), ending


@pytest.mark.slow
def test_items_are_the_same_when_built_twice():
    assert list(tasks.build("docstring_section", 20)) == list(tasks.build("docstring_section", 20))


SIZES = {"layers": 2, "hidden": 32, "heads": 2, "feed_forward": 64, "vocabulary": 300}
TINY = training.Setting(**SIZES, window=32, batch=2, tokens=32 * 2 * 20, warmup_steps=4)


@pytest.fixture
def tiny_corpus(monkeypatch):
    texts = [document(" ".join(sentence(i + j) for j in range(3)), "train") for i in range(12)]
    monkeypatch.setattr(corpus, "split_documents", lambda split, domain=None: texts)


def test_a_killed_training_resumes_to_the_same_weights(tiny_corpus, monkeypatch, tmp_path):
    options = {"save_every": 6, "eval_every": 5}
    whole = training.train(TINY, tmp_path / "whole", **options).state_dict()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.Windows, "batch", raising_at(10, training.Windows.batch))
        training.train(TINY, tmp_path / "parts", **options)
    parts = training.train(TINY, tmp_path / "parts", **options).state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    assert steps[-1] == TINY.steps


def test_a_run_with_other_settings_is_not_overwritten(tiny_corpus, tmp_path):
    training.train(TINY, tmp_path, save_every=10, eval_every=10)
    with pytest.raises(UserError, match=re.escape("choose another --out")):
        other = training.Setting(**{**TINY.__dict__, "layers": 3})
        training.train(other, tmp_path, save_every=10, eval_every=10)


def test_learning_rate_rises_holds_and_falls_to_zero():
    setting = training.Setting(tokens=1000 * 8 * 256, warmup_steps=100, decay_share=0.2)
    assert setting.rate(0) == pytest.approx(setting.learning_rate / 100)
    assert setting.rate(500) == setting.learning_rate
    assert setting.rate(900) == pytest.approx(setting.learning_rate / 2)
    assert setting.rate(1000) == 0
