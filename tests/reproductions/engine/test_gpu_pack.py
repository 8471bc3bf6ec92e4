"""Files in pieces: joined byte for byte, in folders of a size, refused where a piece is missing or damaged."""

import random
import shutil
import subprocess
import tarfile

import pytest

from common.utils.errors import UserError
from reproductions.engine import gpu_pack


@pytest.fixture
def files(tmp_path):
    """Of several sizes, none at all among them."""
    rng, found = random.Random(5), {}
    for name, size in (("a/one.bin", 3000), ("b/two.bin", 1001), ("empty", 0), ("a/three", 10)):
        path = tmp_path / name.replace("/", "-")
        path.write_bytes(rng.randbytes(size))
        found[name] = path
    return found


def test_what_was_cut_is_joined(files, tmp_path):
    folders = gpu_pack.cut(files, tmp_path / "out", size=2000, each=4000)
    sizes = [[path.stat().st_size for path in sorted(folder.glob("*.piece"))] for folder in folders]
    # The last one is the rest
    assert [size for one in sizes for size in one][:-1] == [2000] * (sum(map(len, sizes)) - 1)
    assert {len(one) for one in sizes[:-1]} == {2} and len(sizes[-1]) <= 2
    assert gpu_pack.join(tmp_path / "out", tmp_path / "there") == list(files)
    for name, path in files.items():
        assert (tmp_path / "there" / name).read_bytes() == path.read_bytes()


def test_nothing_is_joined_before_all_has_come(files, tmp_path):
    folders = gpu_pack.cut(files, tmp_path / "out", size=2000, each=4000)
    away = tmp_path / "away"
    folders[1].rename(away)
    with pytest.raises(UserError, match="are missing or damaged: 2 of 02. Nothing was joined") as caught:
        gpu_pack.join(tmp_path / "out", tmp_path / "there")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "there").exists()
    away.rename(folders[1])
    piece = next(folders[0].glob("*.piece"))
    content = piece.read_bytes()
    piece.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="1 of 01"):
        gpu_pack.join(tmp_path / "out", tmp_path / "there")


def test_standard_tools_join_the_pieces(files, tmp_path):
    gpu_pack.cut(files, tmp_path / "out", size=4000, each=9000)
    (tmp_path / "there").mkdir()
    command = "sha256sum --quiet -c 01/SHA256SUMS && cat */*.piece | tar x -C ../there"
    subprocess.run(["bash", "-c", command], cwd=tmp_path / "out", check=True)
    for name, path in files.items():
        assert (tmp_path / "there" / name).read_bytes() == path.read_bytes()


def test_a_file_that_is_there_is_replaced(files, tmp_path):
    gpu_pack.cut(files, tmp_path / "out", size=4000, each=9000)
    (tmp_path / "there" / "a").mkdir(parents=True)
    (tmp_path / "there" / "a" / "three").write_bytes(b"other")
    gpu_pack.join(tmp_path / "out", tmp_path / "there")
    assert (tmp_path / "there" / "a" / "three").read_bytes() == files["a/three"].read_bytes()
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["a", "b", "empty"]


def test_a_file_that_leads_elsewhere_is_refused(files, tmp_path):
    gpu_pack.cut({"../outside": files["a/three"]}, tmp_path / "out", size=4000, each=9000)
    with pytest.raises(tarfile.TarError):
        gpu_pack.join(tmp_path / "out", tmp_path / "there")
    assert not (tmp_path / "outside").exists()


def test_folders_that_cannot_be_meant(files, tmp_path):
    gpu_pack.cut(files, tmp_path / "out", size=1000, each=2000)
    with pytest.raises(UserError, match="is not empty"):
        gpu_pack.cut(files, tmp_path / "out", size=1000, each=2000)
    with pytest.raises(UserError, match="do not fit"):
        gpu_pack.cut(files, tmp_path / "other", size=3000, each=2000)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(UserError, match="has no folder with a SHA256SUMS"):
        gpu_pack.join(tmp_path / "out", tmp_path / "there")


def test_names_sort_as_the_pieces_do(tmp_path):
    """Beyond 99 folders, too: `cat */*.piece` joins them."""
    (tmp_path / "a").write_bytes(bytes(range(256)) * 600)
    folders = gpu_pack.cut({"a": tmp_path / "a"}, tmp_path / "out", size=1024, each=1024)
    assert len(folders) > 99 and folders == sorted(folders, key=lambda folder: int(folder.name))
    (names,) = {
        tuple(line.split()[1] for line in (folder / gpu_pack.SUMS).read_text().splitlines()) for folder in folders
    }
    assert list(names) == sorted(names)


def test_an_error_of_joining_says_so(tmp_path, monkeypatch, capsys):
    def full(source, target):
        raise OSError("No space left on device")

    monkeypatch.setattr(gpu_pack, "join", full)
    assert gpu_pack.main(["join", str(tmp_path)]) == 2
    assert "cannot join the pieces" in capsys.readouterr().err
