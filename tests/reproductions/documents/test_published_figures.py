"""The committed figures show the published records, and nothing but `published_figures` writes where they are."""

import re
import subprocess

import pytest

from common.utils.paths import ROOT
from figures import style
from reproductions.command_line import main
from reproductions.documents import published_figures
from reproductions.spec import registry


def svg(folder, values, name="one"):
    figure, (left, right) = style.plt.subplots(ncols=2)
    left.plot(values)
    right.imshow([[0, values[0]], [1, 2]])
    (path,) = style.save(figure, name, folder)
    return path.read_text()


def test_a_changed_number_is_told_from_a_last_digit(tmp_path):
    picture = svg(tmp_path, [1, 2, 3])
    assert published_figures.same_picture(picture, svg(tmp_path, [1, 2, 3 + 1e-4]))
    assert not published_figures.same_picture(picture, svg(tmp_path, [1, 2, 3.2]))
    assert not published_figures.same_picture(picture, svg(tmp_path, [0.5, 2, 3]))  # a pixel
    assert not published_figures.same_picture(picture, picture.replace("stroke: #", "stroke: #0", 1))


def test_what_is_missing_left_over_or_changed_is_named_and_put_right(tmp_path, monkeypatch):
    def draw(folder):
        return [svg(folder, [1, 2, 3], name) and folder / f"{name}.svg" for name in ("same", "changed", "missing")]

    monkeypatch.setattr(published_figures, "draw", draw)
    folder = tmp_path / "rendered"
    svg(folder, [1, 2, 3], "same")
    svg(folder, [1, 2, 9], "changed")
    (folder / "left-over.png").write_bytes(b"")
    assert published_figures.differing(folder) == ["changed.svg", "left-over.png", "missing.svg"]
    before = (folder / "same.svg").stat().st_mtime_ns
    published_figures.publish(folder)
    assert published_figures.differing(folder) == [] and (folder / "same.svg").stat().st_mtime_ns == before


@pytest.mark.slow
def test_committed_figures_show_the_published_records():
    assert published_figures.differing() == []


def test_showing_a_figure_writes_to_an_ignored_folder_alone(tmp_path, monkeypatch, capsys):
    ignored = subprocess.run(["git", "check-ignore", "-q", str(style.DRAWN / "x.svg")], cwd=ROOT)
    assert ignored.returncode == 0
    before = {path: path.stat().st_mtime_ns for path in style.RENDERED.iterdir()}
    monkeypatch.setattr(style, "DRAWN", tmp_path)
    assert main(["show", "figure2-prunecomp"]) == 0
    assert {path: path.stat().st_mtime_ns for path in style.RENDERED.iterdir()} == before
    assert str(tmp_path / "figure2-prunecomp.svg") in capsys.readouterr().err


def test_each_published_figure_is_one_file_and_links_lead_to_it():
    names = [path.name for path in style.RENDERED.iterdir()]
    assert len({name.rpartition(".")[0] for name in names}) == len(names)
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("papers/**/*.md"), *ROOT.glob("papers/*/*.ipynb")]
    linked = [name for file in files for name in re.findall(r"figures/rendered/([\w.-]+\.\w+)", file.read_text())]
    assert len(linked) > 20 and set(linked) <= set(names)
    drawn = {target for target, table in registry.targets().items() if table.draw}
    assert all(any(name.startswith(target) for name in names) for target in drawn)
