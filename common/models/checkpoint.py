"""Saving and loading pruned, patched models.

A saved model is a plain `save_pretrained` directory (any Hugging Face tool reads it) with the tokenizer. If the model
carries patches (`common.hooks.attach_patch`), two files lie beside it:

    patches.json         {"format": 1, "patches": [{"kind", "package", "position", "options", "tensors": {name: shape}}]}
    patches.safetensors  "<index in the list>.<name>" -> tensor, in the patch's own dtype

Such a directory loaded by plain Hugging Face code is the pruned model without its patches; `load` restores both. A third,
`.layer-pruning.json` (`common.utils.atomic_files`), names every file that was written, and so what may be replaced
later. Where layers are not built as the config says, a fourth, ``structure.json`` (`common.models.layers.structure`),
tells how; plain code cannot load those.

Patches are not submodules of the model (why: `common.hooks`), so its own state dict needs no filtering. `common` knows no
method: a method's package registers how to rebuild its patch (`common.hooks.register_patch`) when it is imported.
Only safetensors are read; nothing is ever unpickled.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import tokenizers
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.hooks import attach_patch, patch_loader, patches
from common.models import half_precision, offload, unlisted
from common.models.admission import built, check_directory, check_shapes, explained, read_config
from common.models.files import block_configs, older_transformers, safetensors_reader
from common.models.layers import structure
from common.utils import atomic_files
from common.utils.errors import UserError, first_of

log = logging.getLogger(__name__)

FORMAT = 1
# A text that tokenizers of different kinds split differently: code, numbers, letters of other scripts, white space.
PROBE = "def f(x):\n\treturn 2023 - x  # na\u00efve \u65e5\u672c\u8a9e, don't; 650841823\n\n   \u00c4"
PATCHES_JSON = "patches.json"

# Numbers of layers that predict further tokens, behind the decoder. transformers reads none, so none is saved.
_FURTHER_TOKENS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def save(
    model: nn.Module,
    tokenizer,
    path: str | os.PathLike,
    texts: Mapping[str, str] | None = None,
    source: Path | None = None,
) -> Path:
    """Write model, patches and tokenizer to a directory, completely or not at all.

    An earlier checkpoint there is replaced if the directory holds nothing else (`not_replaceable`). If the process is
    killed, the directory holds either the earlier checkpoint or the new one.

    Args:
        model: The model.
        tokenizer: Its tokenizer; None: none is written.
        path: The directory.
        texts: Further files to write there, by name, such as a model card.
        source: Directory that the model, and an unchanged tokenizer, were read from
            (`common.models.files.older_transformers`).

    Raises:
        UserError: the directory holds other files.
    """
    path = Path(path)
    if reason := not_replaceable(path):
        raise UserError(f"cannot save to {path}: {reason}, or choose another path")

    def write(directory: Path) -> None:
        if offload.of(model) is None:
            model.save_pretrained(directory)
        else:
            offload.save(model, directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
        older_transformers.rewrite(directory, source)
        _write_patches(model, directory)
        structure.write(model, directory)
        block_configs.write(model, directory)
        for name, text in (texts or {}).items():
            (directory / name).write_text(text, encoding="utf-8")

    try:
        atomic_files.put(path.resolve(), write)
    # StrictDataclassError: a config that contradicts itself.
    except (OSError, ValueError, SafetensorError, StrictDataclassError) as error:
        raise UserError(f"cannot save to {path}: {explained(error)}; nothing was changed there") from error
    return path


def not_replaceable(path: Path) -> str | None:
    """Return why `save` may not write a checkpoint here, with a remedy; None if it may.

    It may if the directory is empty or missing, or if it holds only files that an earlier `save` wrote: its marker, no
    file that the marker does not name, and no weights that were written later.
    """
    if not path.exists():
        return "it is a link that leads nowhere; remove it" if path.is_symlink() else None
    if not path.is_dir():
        return "it is a file; move it away"
    if os.path.ismount(path.resolve()):
        return "it is where a disk is mounted, which cannot be exchanged; name a directory in it"
    try:
        present, recorded, changed = atomic_files.contents(path), atomic_files.files(path), atomic_files.changed(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror}); check its permissions"
    if recorded is None and present:
        kind = "a checkpoint that was not saved here" if "config.json" in present else "not empty, and no checkpoint"
        return f"it is {kind} (there is no {atomic_files.MARKER}, the list of what was saved); move it away"
    if unknown := sorted(present - (recorded or set())):
        return f"it holds {first_of(unknown, 1)}, which was not saved with the checkpoint; move that away"
    if newer := sorted(name for name in changed if name.endswith(".safetensors")):
        return (
            f"it holds {first_of(newer, 1)} of another size or time than was saved here, as after training in the same "
            "place (or copying); move it away"
        )
    return None


def load(
    path: str | os.PathLike,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    stream: int | None = None,
) -> tuple[nn.Module, object]:
    """Load a model with its patches, and its tokenizer, from a directory.

    Args:
        path: The directory.
        device: As for `torch`; 'auto' spreads the model over the available devices.
        dtype: A torch dtype or its name; None: as saved.
        stream: Hold two layers at a time and so many bytes of hidden states (`common.models.offload`).

    Returns:
        ``(model.eval(), tokenizer)``; the tokenizer is None if the directory holds none.

    Raises:
        UserError: the directory is no checkpoint, is incomplete, has only pickled weights, an unsupported architecture,
            or patches of an unregistered kind.
    """
    path = Path(path)
    check_directory(path)
    described = _read_patches(path)  # before the weights: a missing registration should not cost minutes
    parts = structure.read(path)
    config = read_config(path / "config.json")
    tokenizer = load_tokenizer(path)  # nor a missing package that it needs
    kind = structure.model_class(config, parts) if parts else None
    check_shapes(built(config, path, kind), safetensors_reader.entries(path), path)
    if stream is not None:
        if parts:
            raise UserError(f"cannot stream {path}: its layers are not built as its config says; leave --stream out")
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        model = offload.load(path, config, device=torch.device(device), dtype=dtype, states=stream)
        return _patched(model, described), tokenizer
    placement = {"device_map": "auto"} if str(device) == "auto" else {}
    try:
        model, report = (kind or transformers.AutoModelForCausalLM).from_pretrained(
            path,
            dtype=dtype or "auto",
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **placement,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UserError(f"cannot load {path}: {explained(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"cannot load {path}: {len(missing)} tensors are missing or misshapen ({', '.join(missing[:3])}, ...); "
            "the checkpoint is incomplete, save or download it again"
        )
    if unknown := sorted(report["unexpected_keys"]):
        log.warning("%s: its config knows no %s; they are left out", path, first_of(unknown, 3))
    if parts:
        model.__class__ = kind.__base__
    if not placement:
        model.to(device)
    return _patched(model, described), tokenizer


def _patched(model: nn.Module, described: list[tuple[dict, dict[str, Tensor]]]) -> nn.Module:
    for name in _FURTHER_TOKENS:
        if getattr(model.config, name, None):
            setattr(model.config, name, 0)
    half_precision.speed_up(model, model.dtype, (offload.of(model) or model).device)
    unlisted.check(model.eval())
    for entry, tensors in described:
        attach_patch(model, entry["position"], patch_loader(entry["kind"])(tensors, entry["options"]), entry["kind"])
    return model


def _write_patches(model: nn.Module, directory: Path) -> None:
    tensors, entries = {}, []
    for index, patch in enumerate(patches(model)):
        state = {name: value.detach().cpu().contiguous() for name, value in patch.module.state_dict().items()}
        tensors.update({f"{index}.{name}": value.clone() for name, value in state.items()})
        entries.append(
            {
                "kind": patch.kind,
                "package": getattr(patch_loader(patch.kind), "__module__", None),
                "position": patch.position,
                "options": dict(getattr(patch.module, "options", {})),
                "tensors": {name: list(value.shape) for name, value in state.items()},
            }
        )
    if entries:
        save_file(tensors, directory / safetensors_reader.PATCHES)
        (directory / PATCHES_JSON).write_text(json.dumps({"format": FORMAT, "patches": entries}, indent=1) + "\n")


def _read_patches(directory: Path) -> list[tuple[dict, dict[str, Tensor]]]:
    """Return [(entry of patches.json, its tensors)], empty when the directory has no patches."""
    description = directory / PATCHES_JSON
    if not description.exists():
        if (directory / safetensors_reader.PATCHES).exists():
            raise UserError(
                f"cannot load {directory}: {safetensors_reader.PATCHES} is there but {PATCHES_JSON} is missing"
            )
        return []
    try:
        content = json.loads(description.read_text())
        if content["format"] != FORMAT:
            raise UserError(f"cannot load {description}: format {content['format']!r}, this version reads {FORMAT}")
        stored = load_file(directory / safetensors_reader.PATCHES)
        described = [
            (entry, {name: stored[f"{index}.{name}"] for name in entry["tensors"]})
            for index, entry in enumerate(content["patches"])
        ]
        kinds = {entry["kind"]: entry.get("package") or "the package of its method" for entry, _ in described}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"cannot load the patches in {directory}: {explained(error)}; save the model again") from error
    for kind, package in sorted(kinds.items()):
        if patch_loader(kind) is None:
            raise UserError(
                f"cannot load {directory}: it has a patch of kind {kind!r}, which nothing imported so far can rebuild; "
                f"import {package} first"
            )
    return described


def digest(path: Path) -> str:
    """Return the first sixteen hexadecimal digits of the SHA-256 of a directory's config, weights, patches and tokenizer.

    Directories with different digests are different models, or read different tokens; results and searches of one do
    not apply to the other.
    """
    total = hashlib.sha256()
    described = [path / name for name in (structure.FILE, PATCHES_JSON, *older_transformers.TOKENS)]
    files = [path / "config.json", *filter(Path.exists, described), *sorted(path.glob("*.safetensors"))]
    for file in files:
        with file.open("rb") as content:
            total.update(f"{file.name}:{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def load_tokenizer(path: Path):
    """Return the tokenizer of a checkpoint's directory; None if it holds none.

    Raises:
        UserError: the tokenizer cannot be read.
    """
    if not any((path / name).exists() for name in older_transformers.TOKENIZER_FILES):
        return None
    for name in older_transformers.TOKENIZER_FILES:
        if (path / name).is_file() and (pointer := safetensors_reader.lfs_pointer(path / name)):
            raise UserError(f"cannot load the tokenizer in {path}: {name}: {pointer}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception
        if not any((path / name).exists() for name in older_transformers.TOKENS if name != "tokenizer_config.json"):
            raise UserError(
                f"cannot load the tokenizer in {path}: tokenizer_config.json is there, but no vocabulary, such as "
                "tokenizer.json. Copy it from the original model, or save the tokenizer again (tokenizer.save_pretrained)"
            ) from error
        raise UserError(
            f"cannot load the tokenizer in {path}: {explained(error)}; save or download it again"
        ) from error
    return _tokenizer_of_file(tokenizer, path)


def _tokenizer_of_file(tokenizer, path: Path):
    """Return the tokenizer, or one that reads tokenizer.json alone where the two split a text differently.

    For some classes transformers 5 takes no more than the vocabulary from the file: of a SentencePiece model under a class of
    byte-level ones (CodeQwen 1.5) that leaves single letters, without an error. ``instead_of``: the class that it replaces.
    """
    if not (path / "tokenizer.json").exists():
        return tokenizer
    filed = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    filed.no_truncation()
    filed.no_padding()
    file_ids = filed.encode(PROBE, add_special_tokens=False).ids
    if tokenizer(PROBE, add_special_tokens=False)["input_ids"] == file_ids:
        return tokenizer
    plain = transformers.PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    name, alike = type(tokenizer).__name__, plain(PROBE, add_special_tokens=False)["input_ids"] == file_ids
    log.warning(
        "%s: %s does not split text as its tokenizer.json does; %s",
        path,
        name,
        "the file is used" if alike else "check both",
    )
    plain.instead_of = name
    return plain if alike else tokenizer
