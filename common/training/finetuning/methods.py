"""Choose what trains: adapters in every layer (LoRA, QLoRA), head and last layers (partial), or everything (full).

    lora     W x + (alpha / rank) B A x with trainable A [rank, in], B [out, rank]; then merged (Reassessing Eq. 2)
    qlora    the same over projections quantised to 4-bit NF4; merged in 4-bit, so the quantisation error stays
    partial  head, final norm and the last k layers. The paper names no norm; its official code trains it too. Or k others
             in a row: those next to the pruning interface are what CLP trains (arXiv 2510.23652, on both sides of it)
    full     every parameter

`attach` changes the model in place; `Attached.finish` makes it plain again. In a Mixtral only the attention projections
get adapters: its experts are no linear modules of these names, nor were they for the official code. A warning says so.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from common.models.architectures import architecture_of, body, layer_list
from common.models.decoder import Decoder
from common.models.surgery import untie_embeddings
from common.training.finetuning.settings import PROJECTIONS, Settings
from common.utils.errors import UserError, UserValueError

log = logging.getLogger(__name__)


@dataclass
class Attached:
    """A model ready to be trained.

    Attributes:
        parameters: The trained parameters, by name.
        boundary: Number of first layers that are frozen and come before every trained parameter.
        finish: Function that merges adapters and makes the model a plain one again, with every ``requires_grad`` as
            before.
    """

    parameters: dict[str, nn.Parameter]
    boundary: int
    finish: Callable[[], None]


def check_tuned_layers(layers: int, last: int, first: str | int | None = None) -> None:
    """Refuse to fine-tune more layers than the model has, counted from `first` on if it is given."""
    if not 0 <= last <= layers:
        raise UserValueError(
            f"cannot fine-tune the last {last} layers: the model has {layers} left; choose 0..{layers} or remove fewer"
        )
    if first is not None and first not in range(layers - last + 1):
        raise UserValueError(
            f"cannot fine-tune {last} layers from {first} on: the model has {layers} left; train fewer, or the last ones"
        )


def attach(model: nn.Module, settings: Settings) -> Attached:
    """Freeze the model except for the parameters that the method trains.

    Until `finish`, trained parameters are float32, and without autocast (on a CPU always) all are.

    Raises:
        UserError: no layer to adapt, or a machine without bitsandbytes (QLoRA).
    """
    if settings.method == "partial" and settings.untie:
        untie_embeddings(model)  # else the embedding would train with the head, and with it what is frozen
    before = {id(p): (p.requires_grad, p.dtype) for p in model.parameters()}
    dtype = next(model.parameters()).dtype
    if settings.autocast in (None, "float32") or next(model.parameters()).device.type == "cpu":
        _widen(model.parameters())
    merge, boundary = None, 0
    if settings.method in ("lora", "qlora"):
        merge = _add_adapters(model, settings, dtype)
    else:
        boundary = _choose(model, settings)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    _widen(trained.values())

    def finish() -> None:
        if merge is not None:
            merge()
        for parameter in model.parameters():
            requires_grad, dtype = before.get(id(parameter), (True, parameter.dtype))
            parameter.requires_grad_(requires_grad)
            parameter.grad = None
            parameter.data = parameter.data.to(dtype)

    return Attached(trained, boundary, finish)


def _widen(parameters: Iterable[nn.Parameter]) -> None:
    """Convert parameters to float32, in place; whole numbers (4-bit weights) stay."""
    for parameter in parameters:
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()


def _choose(model: nn.Module, settings: Settings) -> int:
    """Mark the parameters that train, without adding any; return the first layer that has some."""
    if settings.method == "full":
        model.requires_grad_(True)
        return 0
    decoder = Decoder(model)
    boundary = decoder.num_layers - settings.last if settings.first is None else settings.first
    model.requires_grad_(False)
    head = [] if decoder.tied else [decoder.lm_head]
    for module in (*head, decoder.norm, *decoder.layers[boundary : boundary + settings.last]):
        module.requires_grad_(True)
    return boundary


def _add_adapters(model: nn.Module, settings: Settings, dtype: torch.dtype) -> Callable[[], None]:
    """Put LoRA adapters on the layers' projections; return the function that merges them into weights of this dtype."""
    targets = _targets(model, settings)
    if any(parameter.ndim == 3 for parameter in layer_list(model).parameters()):
        log.warning(
            "adapters go to %s alone: the experts are stacked matrices, which stay as they are", ", ".join(targets)
        )
    if settings.quantised:
        quantise(model, settings.compute)
        model.is_loaded_in_4bit = True  # what peft looks for to choose its 4-bit adapters
    adapted = _adapted(model, settings, targets)

    def merge() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # peft: merging into 4-bit weights rounds; that is the method
            adapted.merge_and_unload(safe_merge=not settings.quantised)
        if settings.quantised:
            del model.is_loaded_in_4bit
            dequantise(model, dtype)
        for name in ("peft_config", "_hf_peft_config_loaded"):
            model.__dict__.pop(name, None)

    return merge


def check_adapters(model: nn.Module, settings: Settings) -> None:
    """Refuse a model that cannot be adapted. It gets adapters, so give one without weights (`admission.built`).

    Raises:
        UserError: no layer to adapt, or peft does not support the layers.
    """
    _adapted(model, settings, _targets(model, settings))


def _targets(model: nn.Module, settings: Settings) -> list[str]:
    """Return the names of the linear modules that get adapters."""
    linear = {name.rpartition(".")[2] for name, module in body(model).named_modules() if isinstance(module, nn.Linear)}
    names = settings.targets
    if names == PROJECTIONS:  # and what other architectures have in their places
        for sublayer in architecture_of(model).sublayers.values():
            names += (*sublayer.readers, sublayer.writer)
    targets = [name for name in dict.fromkeys(names) if name in linear]
    if not targets:
        raise UserError(f"no layer to adapt: the model has no linear module named {', '.join(settings.targets)}")
    return targets


def _adapted(model: nn.Module, settings: Settings, targets: list[str]) -> nn.Module:
    """Return peft's model, which has adapters on these modules."""
    import peft

    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks the model by names that transformers is to drop
        torch.manual_seed(settings.seed)
        try:
            return peft.get_peft_model(model, config)
        except ValueError as error:  # such as experts that peft adapts as parameters, which take no dropout
            raise UserError(
                f"peft cannot adapt this model: {error} Fine-tune whole layers (partial) instead"
            ) from error


def four_bit():
    """Import and return bitsandbytes.

    Raises:
        UserError: it does not work on this machine; the message says what to do.
    """
    try:
        import bitsandbytes
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(
            f"QLoRA needs bitsandbytes, which does not work on this machine ({str(error).splitlines()[0]}); "
            "`pip install bitsandbytes==0.50.0`, or fine-tune with another method"
        ) from error
    return bitsandbytes


def _linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield (parent, name, module) of every linear module in the decoder layers: all but embedding and head."""
    for parent in list(layer_list(model).modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Linear):
                yield parent, name, module


def quantise(model: nn.Module, compute: str = "bfloat16") -> None:
    """Round the linear weights of the decoder layers to 4-bit NF4 with double quantisation, in place.

    Embedding, head, norms and Mixtral's stacked experts are not changed.

    Raises:
        UserError: bitsandbytes does not work.
    """
    bnb = four_bit()
    for parent, name, module in _linears(model):
        weight = module.weight
        new = bnb.nn.Linear4bit(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            compute_dtype=getattr(torch, compute),
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        options = {"requires_grad": False, "compress_statistics": True, "quant_type": "nf4"}
        new.weight = bnb.nn.Params4bit(weight.detach().to("cpu"), **options).to(weight.device)
        new.bias = module.bias
        # Its CPU kernel would repack the weights, rounding them further, and refuse widths that are no multiple of 64.
        new.support_avx512bf16_for_cpu = False
        setattr(parent, name, new.train(module.training))


def dequantise(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace 4-bit modules by plain ones with the same (rounded) weights, in place, so that any tool can read the model."""
    bnb = four_bit()
    for parent, name, module in _linears(model):
        if isinstance(module, bnb.nn.Linear4bit):
            weight = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            new = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
            new.weight = nn.Parameter(weight.to(dtype))
            if module.bias is not None:
                new.bias = nn.Parameter(module.bias.detach().to(dtype))
            setattr(parent, name, new.train(module.training))
