"""The tables of Reassessing Layer Pruning, declared: their reported side, and the cells that need no weights."""

from __future__ import annotations

from common import models
from common.results import Recipe
from reproductions import declare, reported, shapes
from reproductions.registry import Column

TRAINABLE = Column("trainable parameters M", "trainable", "parameters", scale=1e-6, compare="exact", weight_free=True)
PARAMETERS = {"benchmark": "parameters", "key": "left", "scale": 1e-9, "compare": "exact", "weight_free": True}
MACS = Column("MACs G", "macs", "multiply_adds", scale=1e-9, compare="exact", weight_free=True)
PRUNING_RATES = [
    Column("PR %", "parameters", "ratio", scale=100, compare="exact", weight_free=True),
    Column("% of layers (ours)", "parameters", "layer_fraction", scale=100, compare="exact", weight_free=True),
]
MEMORY = [Column("memory MB", "memory", "allocated_mib", compare="exact", weight_free=True)]


def _removed(number: reported.Number) -> int:
    if declare.removed_layers(number) is not None:
        return declare.removed_layers(number)
    return 8 if number.sparsity == "25%" else 0


def _pruned(model: str, number: reported.Number) -> Recipe:
    return shapes.recipe(model, _removed(number))


def _quantized(model: str, number: reported.Number) -> Recipe:
    """Table 7: the pruned model at 16 bits, and with its layers' matrices at 4."""
    training = {"method": "gptq", "bits": 4} if "GPTQ" in number.variant else None
    return shapes.recipe(model, _removed(number), None, training)


def _trained(model: str, number: reported.Number) -> Recipe:
    """LoRA and QLoRA train the same adapters; the partial arm trains head, final norm and the last k layers."""
    if "LoRA" in number.variant:
        training = {"method": "lora", "rank": 8}
    else:
        training = {"method": "partial", "last": int(number.variant.partition("last ")[2] or 0)}
    return shapes.recipe(model, _removed(number), None, training)


def _rate(model: str, number: reported.Number) -> Recipe | None:
    """Table 6: whole layers only; theirs is a share of the parameters, the paper's own a share of the layers."""
    facts = models.get(model).facts
    share = float(number.sparsity.rstrip("%")) / 100
    if number.method in ("ShortGPT", "LaCo"):
        return shapes.recipe(model, round(share * facts["params"] / facts["layer_params"]))
    return shapes.recipe(model, round(share * facts["layers"])) if number.method.startswith("Our") else None


def _declared(number: str, title: str, **options):
    return declare.table("reassessing", number, title, **options)


TABLES = [
    _declared("1", "seven metrics, 25 %"),
    _declared("2", "four ways to fine-tune, 25 %"),
    _declared(
        "3",
        "cost of fine-tuning",
        weight_free=[TRAINABLE],
        shape=_trained,
        note="The partial arm trains the final norm too, as the official code does.",
    ),
    _declared("4", "against other pruning methods"),
    _declared("5", "Llama-3-70B, 20 %"),
    _declared(
        "6",
        "different pruning rates",
        weight_free=PRUNING_RATES,
        shape=_rate,
        note="PR % is recomputed as a share of the parameters, which is what the rates of ShortGPT and LaCo are. Those of "
        "the paper's own rows are shares of the layers, which are higher: embedding and head are forgotten. How many "
        "layers a row lacks is inferred from its printed rate.",
    ),
    _declared(
        "7",
        "pruning and quantization",
        weight_free=MEMORY,
        shape=_quantized,
        note="MB are MiB. At 16 bits: the weights (11,988.383) and one block of 512 bytes, the allocator's smallest, for "
        "each layer's and the model's table of rotary frequencies, as transformers kept them up to 4.47 (inferred: it "
        "accounts for the last 0.012). At 4 bits the least: layers' matrices without scales, embedding and head at 16.",
    ),
    _declared("8", "GSM8K"),
    _declared("A", "one-shot and iterative, 25 %"),
    _declared("B", "data for fine-tuning"),
    _declared("C", "amount of data for fine-tuning"),
    _declared(
        "D",
        "statistics of the pruned model",
        weight_free=[Column("parameters B", **PARAMETERS), MACS],
        shape=_pruned,
        note="MACs for 64 tokens: weight matrices once per token (head included), two per element of each norm; the products "
        "inside attention are left out.",
    ),
    _declared("E", "number of last layers trained"),
    _declared("F", "full fine-tuning"),
    _declared("G", "perplexity"),
    _declared("H", "Mixtral"),
    _declared("I", "HumanEval"),
    _declared("J", "number of calibration samples"),
    _declared("K", "without fine-tuning"),
    _declared("L", "seven metrics, 50 %"),
    _declared("M", "four ways to fine-tune, Taylor"),
    _declared("N", "one-shot and iterative, 50 %"),
    _declared("O", "number of calibration samples, in full"),
    _declared(
        "P", "against models of similar size", weight_free=[Column("# Parameters B", **PARAMETERS)], shape=_pruned
    ),
]
