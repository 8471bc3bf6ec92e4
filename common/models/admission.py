"""Refuse a checkpoint's directory that would be read as another model, before its weights are read.

Every way to load a model passes here: the tools, with and without --stream, `common.models.load`, `checkpoint.load` and
the reproductions' MODEL=. `read_config` checks config.json alone; `check_directory` also the files beside it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

from common.models import unlisted
from common.models.architectures import LISTED, SUPPORTED
from common.models.files import renamed_architectures
from common.models.files.safetensors_reader import DTYPES, INDEX, PATCHES, WHOLE, TensorEntry, entries
from common.utils import atomic_files
from common.utils.errors import UserError, first_of, plural

_OF_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_ADAPTER, _GENERATION = "adapter_config.json", "generation_config.json"
# How quantised checkpoints name what belongs to their weights, and files in which exporters describe them.
_SCALES = (
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale", "weight_packed", "weight_shape"),
    *("scales", "qweight", "qzeros", "g_idx", "absmax", "quant_map", "SCB"),
    *("gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"),
)
_QUANTISED_BY = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")


class WrapperError(UserError):
    """A supported language model is one part of the model."""


def explained(error: BaseException) -> str:
    """Return an error's text on one line; its type as well where the text alone says nothing."""
    text = " ".join(str(error).split())
    return text if text and not isinstance(error, KeyError) else f"{type(error).__name__} {text}".strip()


def check_directory(path: Path) -> None:
    """Refuse a directory that holds no loadable checkpoint.

    Raises:
        UserError: there is no checkpoint, its config or weights cannot be used, or an adapter is beside them.
    """
    if not path.exists():
        atomic_files.recover(path.resolve())  # a kill may have left it beside its place
    if not path.is_dir():
        raise UserError(f"cannot load {path}: no such directory")
    content = _content(path / "config.json")
    if renamed := renamed_architectures.config(content, path):
        raise UserError(
            f"cannot load {path}: transformers has {content['model_type']!r} under the name {renamed['model_type']!r} alone. "
            "Give the directory to common.models.load or to a tool, which convert its safetensors weights once"
        )
    _check_architecture(path, content)
    _check_unquantised(path, content)
    if (path / _ADAPTER).exists():
        raise UserError(
            f"cannot load {path}: an adapter lies beside the model ({_ADAPTER}), and transformers would apply it. Merge it "
            "(peft's merge_and_unload, then save_pretrained), or move it away"
        )
    weights = [file for file in path.glob("*.safetensors") if file.name != PATCHES]
    if not weights:
        raise UserError(
            f"cannot load {path}: it has no safetensors weights, and pickled ones are never loaded; "
            "convert them first with save_pretrained"
        )
    if not (path / WHOLE).is_file() and not (path / INDEX).is_file():
        raise UserError(
            f"cannot load {path}: it has {first_of(sorted(file.name for file in weights), 2)}, but {INDEX}, which says "
            f"where each tensor is, is missing. Download it, or give one file the name {WHOLE}"
        )
    _check_generation(path)


def check_wrapper(path: Path) -> None:
    """Refuse a directory that holds no supported language model beside other parts, or a quantised one.

    Raises:
        UserError: as described.
    """
    content = _content(path / "config.json")
    _check_unquantised(path, content)
    try:
        _check_architecture(path, content)
    except WrapperError:
        return
    raise UserError(f"cannot take a language model out of {path}: it holds nothing else. Give it to the tools as it is")


def read_config(file: Path):
    """Return the transformers config in a config.json.

    Raises:
        UserError: the file cannot be read, its architecture is not supported, or it is quantised.
    """
    path, content = file.parent, _content(file)
    renamed = renamed_architectures.config(content, path)
    _check_architecture(path, renamed or content)
    _check_unquantised(path, content)
    try:
        if renamed:
            config = transformers.AutoConfig.for_model(**renamed)
        else:
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:  # whatever a config may do to its class: there is no common base
        raise UserError(f"cannot load {path}: its config.json is not understood ({explained(error)})") from error
    if config.model_type == "opt" and (
        config.word_embed_proj_dim != config.hidden_size
        or not config.do_layer_norm_before
        or config._remove_final_layer_norm
    ):
        raise UserError(
            f"cannot load {path}: this OPT projects its embeddings, or has no final norm (as OPT-350m), which is not "
            "supported. Take another size"
        )
    text = config.get_text_config(decoder=True)
    pad, rows = getattr(text, "pad_token_id", None), getattr(text, "vocab_size", None)
    if isinstance(pad, int) and isinstance(rows, int) and not -rows <= pad < rows:
        raise UserError(
            f"cannot load {path}: pad_token_id {pad} in config.json has no row, the embedding has {rows:,}. Set pad_token_id "
            "to a token below that, or resize the embedding with model.resize_token_embeddings"
        )
    return config


def built(config, path: Path | str, kind: type[nn.Module] | None = None) -> nn.Module:
    """Build the model of a config, or of this class, without weights on torch's meta device; errors name ``path``.

    Raises:
        UserError: no model can be built from the config.
    """
    try:
        with torch.device("meta"), no_init_weights():
            model = kind(config) if kind else transformers.AutoModelForCausalLM.from_config(config)
        model.tie_weights()
        return model
    except Exception as error:  # as above
        message = f"cannot load {path}: no model can be built from its config.json ({explained(error)})"
        raise UserError(message) from error


def check_shapes(model: nn.Module, stored: Mapping[str, TensorEntry], path: Path) -> None:
    """Refuse stored weights whose layers or shapes contradict the config's model; names that it lacks are not checked.

    Raises:
        UserError: names the missing layers, or the first tensor with both shapes.
    """
    layers, stored_layers = _layers(name for name, _ in model.named_parameters()), _layers(stored)
    if stored_layers and (missing := sorted(layers - stored_layers)):
        numbers = f"layer{'s' if len(missing) > 1 else ''} {first_of(missing, 5)}"
        raise UserError(
            f"cannot load {path}: config.json asks for {plural(len(layers), 'layer')}, and the files have no weights of "
            f"{numbers} (layers count from 0). Restore the config.json that was saved with the weights, or download "
            "the checkpoint again"
        )
    wrong = [
        (name, stored[name].shape, tuple(parameter.shape))
        for name, parameter in model.named_parameters()
        if name in stored and stored[name].shape != tuple(parameter.shape)
    ]
    if wrong:
        name, stored_shape, shape = wrong[0]
        rest = f", and so it is with {plural(len(wrong) - 1, 'more tensor')}" if len(wrong) > 1 else ""
        raise UserError(
            f"cannot load {path}: {name} is {_shape(stored_shape)} in the files, but config.json asks for "
            f"{_shape(shape)}{rest}. Restore the config.json that was saved with the weights"
        )


def layer_of(name: str) -> int | None:
    """Return the index of the layer that a checkpoint's tensor of this name belongs to; None if it belongs to none."""
    return int(match[1]) if (match := _OF_LAYER.search(name)) else None


def _layers(names: Iterable[str]) -> set[int]:
    """Return the indices of the decoder layers that tensors of these names belong to."""
    return set(map(layer_of, names)) - {None}


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _content(file: Path) -> dict:
    """Return what a config.json says."""
    if not file.is_file():
        if (file.parent / _ADAPTER).exists():
            raise UserError(
                f"cannot load {file.parent}: it holds an adapter ({_ADAPTER}), not a model. Merge it into its model (peft's "
                "merge_and_unload, then save_pretrained), and give that directory"
            )
        raise UserError(
            f"cannot load {file.parent}: it has no config.json, so it is no model checkpoint. Give a directory that "
            "save_pretrained wrote, or a hub id"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        content.get("model_type")  # which only an object has
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"cannot load {file.parent}: config.json cannot be read ({explained(error)})") from error
    return content


def _check_architecture(path: Path, content: dict) -> None:
    """Refuse an architecture that is not supported, unless it turns out to be built as Llama is."""
    kind = content.get("model_type")
    if kind in SUPPORTED:
        return
    wrapped = isinstance(text := content.get("text_config"), dict)
    inner, why = text.get("model_type") if wrapped else kind, ""
    if inner not in SUPPORTED and inner in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        except Exception as error:  # as in `read_config`
            raise UserError(f"cannot load {path}: its config.json is not understood ({explained(error)})") from error
        differences = unlisted.layout(built(config.get_text_config(decoder=True) if wrapped else config, path))
        why = f" ({'; '.join(differences)})" if differences else ""
    if inner not in SUPPORTED:
        subject = (
            f"the language model in {kind!r} has architecture {inner!r}, which" if wrapped else f"architecture {kind!r}"
        )
        raise UserError(f"cannot load {path}: {subject} is not supported{why}. {LISTED}")
    if wrapped:
        raise WrapperError(
            f"cannot load {path}: {kind!r} holds a language model beside other parts, and layers are removed from the "
            f"language model alone. Take it out first: python -m common.models.language_model {path} NEW-DIRECTORY"
        )


def _check_unquantised(path: Path, content: dict) -> None:
    """Refuse quantised weights: read without their scales they are another model."""
    described = content.get("quantization_config") or content.get("compression_config")
    if described or any(isinstance(part, dict) and part.get("quantization_config") for part in content.values()):
        why = "config.json has a quantization_config"
    else:
        beside = (f"{name} lies beside it" for name in _QUANTISED_BY if (path / name).exists())
        why = next(beside, None) or _quantised_tensor(path)
    if why:
        raise UserError(
            f"cannot load {path}: the model is quantised ({why}). Its weights mean nothing without their scales, which "
            "are not read here. Prune the model that it was made from, or where it was published quantised alone (as "
            "GPT-OSS) a bfloat16 conversion of it, and quantise the result again"
        )


def _quantised_tensor(path: Path) -> str | None:
    """Return what says that a checkpoint's tensors are quantised; None where nothing does, or a file is damaged."""
    try:
        stored = entries(path)
    except (OSError, UserError):  # told where they are read
        return None
    for name, entry in stored.items():
        if entry.dtype not in DTYPES or name.rpartition(".")[2] in _SCALES:
            return f"{name} is stored as {entry.dtype}"
    return None


def _check_generation(path: Path) -> None:
    """Refuse generation settings that transformers would not save again."""
    if not (path / _GENERATION).exists():
        return
    try:
        settings = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
        settings.validate(strict=False)
    except OSError:  # damaged: transformers goes by the model's config then
        return
    except Exception as error:
        raise UserError(
            f"cannot load {path}: transformers does not accept its {_GENERATION} ({explained(error)}). Correct the file, or "
            "move it away"
        ) from error
