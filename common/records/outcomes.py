"""Read and write outcomes per item of many recipes in one NumPy archive.

recipe [n], mark [n]          which record a line belongs to (`common.records.results.mark`)
<name> [n, items]             its outcomes: bool for right or wrong answers, float32 for losses
<recipe>/<mark>/<name>        outcomes of a record that do not fit in these (another number of items, other names)
"""

import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from common.records.record_json import Unreadable
from common.utils import atomic_files

Key = tuple[str, str]  # recipe hash, mark
_NAMES = ("recipe", "mark")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member: the same outcomes make the same bytes


class Outcomes:
    """The outcomes in one archive, which need not exist; decompressed on request.

    Raises:
        Unreadable: The file is no archive of arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays: dict[str, np.ndarray] = {}
        if path.is_file():
            try:
                with np.load(path, allow_pickle=False) as archive:
                    self._arrays = dict(archive)
            except Exception as error:  # zipfile, zlib and numpy have no common base for what a damaged archive does
                raise Unreadable("items", f"{path} is no archive of arrays ({error})") from error
        together = zip(*(self._arrays.get(name, ()) for name in _NAMES), strict=True)
        self._lines = {(str(recipe), str(mark)): line for line, (recipe, mark) in enumerate(together)}
        self._apart = {tuple(name.split("/")[:2]) for name in self._arrays if "/" in name}

    def records(self) -> set[Key]:
        """Return the records that have outcomes here."""
        return self._lines.keys() | self._apart

    def get(self, recipe: str, mark: str) -> dict[str, np.ndarray]:
        """Return a result's outcomes: name -> array [items]; {} if there are none."""
        if (line := self._lines.get((recipe, mark))) is not None:
            return {name: array[line] for name, array in self._arrays.items() if name not in _NAMES and "/" not in name}
        prefix = f"{recipe}/{mark}/"
        return {name.removeprefix(prefix): array for name, array in self._arrays.items() if name.startswith(prefix)}


def write(path: Path, outcomes: Mapping[Key, Mapping[str, np.ndarray]]) -> None:
    """Replace an archive atomically; the same outcomes give the same bytes. Without outcomes there is no file.

    Raises:
        OSError: The file cannot be written; the earlier one is unchanged.
    """
    shapes = {
        key: tuple(
            (name, arrays_by_name[name].shape, arrays_by_name[name].dtype.str) for name in sorted(arrays_by_name)
        )
        for key, arrays_by_name in outcomes.items()
    }
    if not shapes:
        path.unlink(missing_ok=True)
        return
    counts = Counter(shapes.values())
    prevailing = min(counts, key=lambda shape: (-counts[shape], shape))
    together = sorted(key for key, shape in shapes.items() if shape == prevailing)
    arrays = {name: np.array([key[at] for key in together]) for at, name in enumerate(_NAMES)}
    arrays |= {name: np.stack([outcomes[key][name] for key in together]) for name, *_ in prevailing}
    for key in outcomes.keys() - set(together):
        arrays |= {"/".join((*key, name)): array for name, array in outcomes[key].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files.whole(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w") as out:
                np.lib.format.write_array(out, np.asanyarray(arrays[name]), allow_pickle=False)
