"""Draw the published figures into ``figures/rendered``: ``python -m reproductions.documents.published_figures [--check]``.

Other commands draw into ``build/figures``, which git ignores. Every published figure is one SVG file, made from published
records alone.
"""

import base64
import io
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.console.command_line import answering, option, parse
from figures import style
from reproductions.documents import findings
from reproductions.render import chance_levels, show
from reproductions.render.evidence import Loaded
from reproductions.spec import registry

# How far coordinates (in points) and colours (of 255) of two renders may differ. Last digits depend on the machine.
POINTS, COLOURS = 0.05, 2
_ID = re.compile(r"\b[mpchi][0-9a-f]{10}\b")  # matplotlib's ids are hashes of coordinates
_IMAGE = re.compile(r'"data:image/png;base64,([^"]*)"')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def draw(folder: Path) -> list[Path]:
    """Draw every published figure into a folder and return the files."""
    store = Loaded()
    files = findings.drawn(store, folder)
    files += chance_levels.drawn(store, folder)
    for table in registry.targets().values():
        for subject in show.published(table, store) if table.draw else ():
            files += show.drawn(table, store, subject, folder=folder)
    return files


def publish(folder: Path = style.RENDERED) -> list[Path]:
    """Draw every published figure and delete other files of the folder; files with the same picture are not changed."""
    with tempfile.TemporaryDirectory() as place:
        drawn = {path.name: path for path in draw(Path(place))}
        for path in folder.iterdir() if folder.exists() else ():
            if path.name not in drawn:
                path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in drawn.items():
            target, content = folder / name, path.read_text(encoding="utf-8")
            if not target.exists() or not same_picture(target.read_text(encoding="utf-8"), content):
                target.write_text(content, encoding="utf-8")
    return [folder / name for name in drawn]


def differing(folder: Path = style.RENDERED) -> list[str]:
    """Return the names of published figures that are missing, superfluous, or different from the published results."""
    with tempfile.TemporaryDirectory() as place:
        drawn = {path.name: path.read_text(encoding="utf-8") for path in draw(Path(place))}
    published = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    changed = [name for name in drawn.keys() & published if not same_picture(published[name], drawn[name])]
    return sorted([*changed, *(drawn.keys() ^ published.keys())])


def same_picture(svg: str, other: str) -> bool:
    """Return whether two SVG files show the same picture, except for `POINTS` and `COLOURS`."""
    (text, numbers, images), (text2, numbers2, images2) = _parts(svg), _parts(other)
    return (
        text == text2
        and np.allclose(numbers, numbers2, rtol=0, atol=POINTS)
        and len(images) == len(images2)
        and all(a.shape == b.shape and np.abs(a - b).max() <= COLOURS for a, b in zip(images, images2))
    )


def _parts(svg: str) -> tuple[list[str], list[float], list[np.ndarray]]:
    """Return an SVG's text between its numbers, with ids counted in order, its numbers, and its embedded images."""
    images = [_pixels(match[1]) for match in _IMAGE.finditer(svg)]
    names: dict[str, str] = {}
    svg = _ID.sub(lambda match: names.setdefault(match[0], f"id{'x' * len(names)}"), _IMAGE.sub('""', svg))
    return _NUMBER.split(svg), [float(number) for number in _NUMBER.findall(svg)], images


def _pixels(encoded: str) -> np.ndarray:
    return 255 * style.plt.imread(io.BytesIO(base64.b64decode(encoded)), format="png").astype(float)


@dataclass(kw_only=True)
class FigureCommand:
    """Draw the published figures."""

    check: bool = option(False, "only say which differ from the published records")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Draw the published figures, or check them; return the exit status."""
    options = parse(FigureCommand, arguments, prog="python -m reproductions.documents.published_figures")
    if options.check:
        names = differing()
        print("\n".join(names) or "every published figure shows the published records")
        return 1 if names else 0
    print(f"{len(publish())} figures in {style.RENDERED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
