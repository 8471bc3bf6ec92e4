"""A checkpoint's index of weight files: read, or named with what is wrong in it."""

import pytest

from common import pickled
from common.errors import UserError
from common.safetensors_files import INDEX, entries, shards


def test_every_file_is_named_once_in_order(tmp_path):
    (tmp_path / INDEX).write_text('{"metadata": {}, "weight_map": {"a": "two", "b": "one", "c": "two"}}')
    assert shards(tmp_path / INDEX) == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    ['{"weight_map": {"a": 5}}', '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": null}', "[]", "3", "{"],
)
@pytest.mark.parametrize("read", [entries, lambda folder: pickled._shards(folder)])
def test_an_index_that_names_no_files_is_named(tmp_path, text, read):
    for name in (INDEX, pickled.INDEX):
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"cannot read .*index\.json: .*; save or download it again"):
        read(tmp_path)
