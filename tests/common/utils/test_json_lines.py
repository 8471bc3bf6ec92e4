"""JSON lines against `json.loads` of each line."""

import json

import pytest

from common.cli.job import read
from common.utils.errors import UserError

ROWS = [{"text": f"paragraph {number} of the text"} for number in range(5)]
LEGAL = {
    "plain": ROWS,
    "line separator": [*ROWS, {"text": "one\u2028two"}],
    "paragraph separator": [*ROWS, {"text": "one\u2029two"}],
    "next line": [*ROWS, {"text": "one\u0085two"}],
    "other columns": [{"id": 3, "text": "a"}, {"text": "b", "more": [1, 2]}],
}


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(folder, content, name="data.jsonl"):
    (folder / name).write_text(content, encoding="utf-8", newline="")
    read.cache_clear()
    return str(folder / name)


@pytest.mark.parametrize("name", ["data.jsonl", "data.txt"])
@pytest.mark.parametrize("rows", LEGAL.values(), ids=LEGAL.keys())
def test_the_texts_alone_are_read(rows, name, tmp_path):
    expected = "\n\n".join(row["text"] for row in rows)
    for content in (lines(rows), "\ufeff" + lines(rows), lines(rows).replace("\n", "\r\n"), json.dumps(rows, indent=1)):
        assert read(write(tmp_path, content, name)) == expected


@pytest.mark.parametrize("first", ["[1]", "[]", "[2024]", "[1, 2]"])
def test_a_text_that_begins_with_a_bracketed_number_is_a_text(first, tmp_path):
    content = f"{first}\nA text with a footnote.\n"
    assert read(write(tmp_path, content, "notes.txt")) == content


@pytest.mark.parametrize("name", ["data.jsonl", "data.txt"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines(ROWS) + '{"text": "cut', "line 6 is no JSON"),
        (lines(ROWS[:2]) + "oops\n" + lines(ROWS[2:]), "line 3 is no JSON"),
        (lines(ROWS) + "[1]\n", "line 6 is no JSON object"),
        (lines([*ROWS, {"words": "x"}]), "without a column 'text'"),
        (json.dumps([{"words": "x"}]), "without a column 'text'"),
        (json.dumps(["one", "two"]), "line 1 is no JSON object"),
    ],
)
def test_what_is_damaged_is_refused_by_its_line(content, message, name, tmp_path):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, content, name))


def test_a_bad_first_line_is_refused_by_the_files_name(tmp_path):
    with pytest.raises(UserError, match="line 1 is no JSON"):
        read(write(tmp_path, "oops\n" + lines(ROWS)))


@pytest.mark.parametrize("content", ["{\\small a formula}\n\nand text", "[a link] and text", "{x} is a set\n{y}\n"])
def test_plain_text_that_begins_with_a_bracket_stays(content, tmp_path):
    assert read(write(tmp_path, content, "data.txt")) == content
