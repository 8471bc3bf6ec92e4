"""Files in pieces: joined byte for byte, in folders of a size, refused where a piece is missing or damaged."""

import json
import random
import shutil

import pytest

from common.utils import pieces
from common.utils.errors import UserError


@pytest.fixture
def files(tmp_path):
    """Of sizes that fill pieces exactly, exceed them by one byte, and none at all."""
    rng, found = random.Random(5), {}
    for name, size in (("a/one.bin", 3000), ("b/two.bin", 1001), ("empty", 0), ("a/three", 10)):
        path = tmp_path / name.replace("/", "-")
        path.write_bytes(rng.randbytes(size))
        found[name] = path
    return found


def test_what_was_cut_is_joined(files, tmp_path):
    folders = pieces.cut(files, tmp_path / "out", size=1000, each=2000)
    for folder in folders:
        sizes = [path.stat().st_size for path in folder.glob("*.piece")]
        assert max(sizes) <= 1000 and sum(sizes) <= 2000
    assert len(folders) == 3  # 4,011 bytes
    joined = pieces.join(tmp_path / "out", tmp_path / "there")
    assert [path.relative_to(tmp_path / "there").as_posix() for path in joined] == list(files)
    for name, path in files.items():
        assert (tmp_path / "there" / name).read_bytes() == path.read_bytes()


def test_nothing_is_joined_before_all_has_come(files, tmp_path):
    folders = pieces.cut(files, tmp_path / "out", size=1000, each=2000)
    away = tmp_path / "away"
    folders[1].rename(away)
    with pytest.raises(UserError, match="are missing or damaged: 2 of 02. Nothing was joined") as caught:
        pieces.join(tmp_path / "out", tmp_path / "there")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "there").exists()
    away.rename(folders[1])
    piece = next(folders[0].glob("*.piece"))
    content = piece.read_bytes()
    piece.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="1 of 01"):
        pieces.join(tmp_path / "out", tmp_path / "there")


def test_a_file_that_is_there_needs_no_pieces_and_a_damaged_one_is_written_again(files, tmp_path):
    folders = pieces.cut(files, tmp_path / "out", size=1000, each=2000)
    pieces.join(tmp_path / "out", tmp_path / "there")
    (tmp_path / "there" / "a" / "three").write_bytes(b"other")
    pieces.join(tmp_path / "out", tmp_path / "there")
    assert (tmp_path / "there" / "a" / "three").read_bytes() == files["a/three"].read_bytes()
    for folder in folders:
        for piece in folder.glob("*.piece"):
            piece.unlink()
    assert len(pieces.join(tmp_path / "out", tmp_path / "there")) == len(files)


def test_a_list_that_leads_elsewhere_is_refused(files, tmp_path):
    (folder, *_) = pieces.cut(files, tmp_path / "out", size=1000, each=10_000)
    listed = json.loads((folder / pieces.LIST).read_text())
    for name in ("../outside", "/tmp/outside"):
        (folder / pieces.LIST).write_text(json.dumps({name: listed["a/three"]}))
        with pytest.raises(UserError, match="leads out of"):
            pieces.join(tmp_path / "out", tmp_path / "there")


def test_folders_that_cannot_be_meant(files, tmp_path):
    pieces.cut(files, tmp_path / "out", size=1000, each=2000)
    with pytest.raises(UserError, match="is not empty"):
        pieces.cut(files, tmp_path / "out", size=1000, each=2000)
    with pytest.raises(UserError, match="do not fit"):
        pieces.cut(files, tmp_path / "other", size=3000, each=2000)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(UserError, match="has no folder with a pieces.json"):
        pieces.join(tmp_path / "out", tmp_path / "there")
