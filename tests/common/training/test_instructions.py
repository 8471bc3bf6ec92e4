"""Template, tokens and masks against examples written out by hand."""

import random

import datasets
import pytest

from common.toy import corpus
from common.training import instructions
from common.training.instructions import IGNORE, Example
from common.utils.errors import UserError

WITH_INPUT = """Below is an instruction that describes a task, paired with an input that provides further context. \
Write a response that appropriately completes the request.

### Instruction:
Add the numbers.

### Input:
1 2

### Response:
"""
WITHOUT_INPUT = """Below is an instruction that describes a task. \
Write a response that appropriately completes the request.

### Instruction:
Say a number.

### Response:
"""


def test_the_template_is_stanford_alpacas():
    assert instructions.prompt("Add the numbers.", "1 2") == WITH_INPUT
    assert instructions.prompt("Say a number.") == WITHOUT_INPUT


def test_only_the_response_and_the_end_are_learnt(tiny_tokenizer):
    row = instructions.encode(tiny_tokenizer, Example("Say a number.", "", "12"), cutoff=1000)
    length = len(tiny_tokenizer(WITHOUT_INPUT)["input_ids"])
    response = tiny_tokenizer("12")["input_ids"] + [tiny_tokenizer.eos_token_id]
    assert tiny_tokenizer.decode(row["input_ids"][:length]) == WITHOUT_INPUT
    assert row["input_ids"][length:] == response
    assert row["labels"] == [IGNORE] * length + response


def test_a_long_response_is_cut_and_has_no_end(tiny_tokenizer):
    length = len(tiny_tokenizer(WITHOUT_INPUT)["input_ids"])
    row = instructions.encode(tiny_tokenizer, Example("Say a number.", "", "z" * 50), cutoff=length + 10)
    assert len(row["input_ids"]) == len(row["labels"]) == length + 10
    assert row["labels"][length:] == row["input_ids"][length:] == tiny_tokenizer("z" * 10)["input_ids"]
    full = instructions.encode(tiny_tokenizer, Example("Say a number.", "", "z" * 10), cutoff=length + 10)
    assert full == row  # no room for the end token either


def test_rows_without_room_for_a_response_are_left_out(tiny_tokenizer):
    short, long = Example("Say a number.", "", "12"), Example("Say a number." + "z" * 200, "", "12")
    cutoff = len(tiny_tokenizer(WITHOUT_INPUT)["input_ids"]) + 5
    both, alone = (instructions.rows(tiny_tokenizer, examples, cutoff) for examples in ([long, short], [short]))
    assert both == alone
    with pytest.raises(UserError, match="shorten the instructions"):
        instructions.rows(tiny_tokenizer, [long], cutoff)


def test_missing_columns_and_empty_responses_are_named(tiny_tokenizer, caplog):
    with pytest.raises(UserError, match="no column 'output'; it has input, instruction"):
        instructions.from_table([{"instruction": "a", "input": ""}])
    with pytest.raises(UserError, match="row 1 of the data has no text in 'output'"):
        instructions.from_table([{"instruction": "a", "input": "", "output": "b"}, {"instruction": "c", "output": 7}])
    with pytest.raises(UserError, match="row 1 of the data has an empty 'output'"):  # a column that only some rows have
        instructions.from_table([{"instruction": "a", "input": "", "output": "b"}, {"instruction": "c"}])
    table = datasets.Dataset.from_list(
        [{"instruction": "a", "input": None, "output": "b"}, {"instruction": "c", "input": "", "output": " "}]
    )
    with pytest.raises(UserError, match="row 1 of mine has an empty 'output'"):
        instructions.from_table(table, name="mine")
    assert instructions.from_table(table, skip_empty=True) == [Example("a", "", "b")]
    assert "1 of 2 rows" in caplog.text


def test_the_split_is_that_of_datasets():
    examples = [Example(str(number), "", "x") for number in range(50)]
    table = datasets.Dataset.from_dict({"instruction": [e.instruction for e in examples]})
    expected = table.train_test_split(test_size=7, shuffle=True, seed=42)
    train, valid = instructions.split(examples, 7)
    assert [e.instruction for e in train] == expected["train"]["instruction"]
    assert [e.instruction for e in valid] == expected["test"]["instruction"]
    with pytest.raises(UserError, match="cannot hold out 50 of 50"):
        instructions.split(examples, 50)


def test_alpaca_is_read_from_the_mirror(mirror, tmp_path, tiny_tokenizer):
    rows = [{"instruction": f"Repeat {n}.", "input": "x" if n % 2 else "", "output": str(n)} for n in range(12)]
    folder = tmp_path / "hub" / "datasets" / "yahma" / "alpaca-cleaned" / "data"
    folder.mkdir(parents=True)
    datasets.Dataset.from_list(rows).to_parquet(folder / "train-00000-of-00001.parquet")
    train, valid = instructions.load(tiny_tokenizer, "alpaca-cleaned", count=5, held_out=3, cutoff=400)
    assert (len(train), len(valid)) == (5, 3)
    texts = [tiny_tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in train + valid]
    answers = {int(text.rpartition("\n")[2]) for text in texts}
    assert len(answers) == 8  # no row is in both
    assert all(f"Repeat {n}." in text for n in answers for text in texts if text.endswith(f"\n{n}"))
    with pytest.raises(UserError, match="unknown instruction data 'alpaca'"):
        instructions.load(tiny_tokenizer, "alpaca")


def test_alpaca_is_split_before_empty_responses_are_left_out(monkeypatch):
    """As the official code draws the held-out rows, which trains on empty responses."""
    rows = [{"instruction": str(n), "input": "", "output": "" if n % 4 == 0 else "x"} for n in range(40)]
    table = datasets.Dataset.from_list(rows)
    monkeypatch.setattr(instructions.corpora, "open_dataset", lambda *_: table)
    drawn = table.train_test_split(test_size=12, shuffle=True, seed=42)
    answered = {part: [row["instruction"] for row in drawn[part] if row["output"]] for part in drawn}
    train, valid = instructions.SOURCES["alpaca-cleaned"](None, 12, 42)
    assert [example.instruction for example in train] == answered["train"]
    assert [example.instruction for example in valid] == answered["test"]
    first, _ = instructions.SOURCES["alpaca-cleaned"](5, 12, 42)
    assert [example.instruction for example in first] == answered["train"][:5]


def test_the_toys_instructions_come_from_its_training_documents(tiny_tokenizer, monkeypatch):
    def document(name, split, kind="function"):
        text = f"Return the {name}.\n\nMore about it."
        return corpus.Document(text, "numpy", "numerical", "numpy", name, kind, split, ("self", "a", "b"))

    examples = [
        document(*of) for of in (("one", "train"), ("two", "test"), ("three", "valid"), ("C", "train", "class"))
    ]
    monkeypatch.setattr(corpus, "documents", lambda: examples)
    train, valid = instructions.load(tiny_tokenizer, "standin", cutoff=1000)
    (text,) = [tiny_tokenizer.decode(row["input_ids"]) for row in train]
    assert text.endswith("### Input:\none(a, b)\n\n### Response:\nReturn the one.</s>")
    assert len(valid) == 1 and "three(a, b)" in tiny_tokenizer.decode(valid[0]["input_ids"])


def test_blocks_are_the_shuffled_text_in_pieces(tiny_tokenizer):
    texts = ["the layers", "of a model", "are removed", "and the stream is scaled"] * 3
    order = list(range(len(texts)))
    random.Random(5).shuffle(order)
    stream = []
    for index in order:
        stream += [*tiny_tokenizer(texts[index])["input_ids"], tiny_tokenizer.eos_token_id]
    rows = instructions.blocks(tiny_tokenizer, texts, length=7, count=3, seed=5)
    assert [row["input_ids"] for row in rows] == [stream[0:7], stream[7:14], stream[14:21]]
    assert all(row["labels"] == row["input_ids"] for row in rows)
    with pytest.raises(UserError, match="do not fill 3 blocks of 700"):
        instructions.blocks(tiny_tokenizer, texts, length=700, count=3)
