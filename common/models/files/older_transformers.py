"""Config and tokenizer of a saved model, readable by programs built on transformers before 5.

transformers 5 writes names that 4 does not understand, in part without an error: 4 knows no ``rope_parameters`` and
computes with the default base (10,000 instead of SmolLM2's 100,000: another model), and refuses the tokenizer class
``TokenizersBackend``. MLX, converters to GGUF and others read the old names, too. So a saved model keeps the files of
its source: config.json except for the changes, and the tokenizer's files byte for byte. If the source itself has only
the new names, the old ones are added.

``auto_map`` names code in the source's repository, which is never run here and is not saved with the model. It is left
out: with trust_remote_code, programs would look for that code and fail.
"""

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import transformers

CONFIG = "config.json"
# Vocabulary files. A directory without any of them and without tokenizer_config.json has no tokenizer.
VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "tiktoken.model"),
)
TOKENIZER_FILES = (*VOCABULARIES, "tokenizer_config.json")
# With these, all that makes numbers of a text. A chat template's own file does not: no text here goes through one.
TOKENS = (*TOKENIZER_FILES, "merges.txt", "added_tokens.json", "special_tokens_map.json")
_BESIDE = ("chat_template.jinja", "chat_template.json")
_NEW_CLASS, _OLD_CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"
_CODE = "auto_map"
# Where it was read from; nothing of the tokenizer itself.
_LOADING = ("backend", "is_local", "local_files_only")


def rewrite(directory: Path, source: Path | None = None) -> None:
    """Rewrite the output of `save_pretrained` in `directory` for older transformers: config, and tokenizer if there is one.

    The config that the present transformers reads from the file stays the same. If it would not, or if the architecture
    is not one of transformers, the file is not changed. The model and an unchanged tokenizer were read from ``source``.
    """
    written = _read(directory / CONFIG)
    written.pop(_CODE, None)
    if written.get("model_type") in transformers.CONFIG_MAPPING:
        target, merged = _understood(written), _changed(written, source) if source else written
        # transformers drops some names, as sliding_window_pattern, only where it derives the layers' types from them
        extra = _understood(merged).keys() - target.keys()
        for content in (merged, {name: value for name, value in merged.items() if name not in extra}, written):
            config = older_names(content)
            config.pop(_CODE, None)
            if _understood(config) == target:
                (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
                break
    if (directory / "tokenizer_config.json").exists():
        _tokenizer(directory, source)


def older_names(config: Mapping) -> dict:
    """Return a config.json's content with the names of transformers 4 added where it has only those of 5."""
    renamed, rope = dict(config), config.get("rope_parameters")
    if "dtype" in renamed:
        renamed.setdefault("torch_dtype", renamed["dtype"])
    if not isinstance(rope, dict) or "rope_theta" not in rope:  # those of each type of layer have no old name in common
        return renamed
    scaling = {name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")}
    renamed.setdefault("rope_theta", rope["rope_theta"])
    if "partial_rotary_factor" in rope:
        renamed.setdefault("partial_rotary_factor", rope["partial_rotary_factor"])
    if scaling.get("rope_type", "default") != "default":
        renamed.setdefault("rope_scaling", scaling)
    return renamed


def _changed(written: dict, source: Path) -> dict:
    """Return the source's config.json with what the saved config has otherwise than transformers makes of the source's."""
    original = _read(source / CONFIG)
    before = json.loads(transformers.AutoConfig.from_pretrained(source, local_files_only=True).to_json_string())
    differs = {name: value for name, value in written.items() if name not in before or before[name] != value}
    differs.pop("transformers_version", None)
    if "dtype" in differs and "torch_dtype" in original:
        differs["torch_dtype"] = differs.pop("dtype")
    dropped = before.keys() - written.keys()
    return {name: value for name, value in (original | differs).items() if name not in dropped}


def _understood(config: dict) -> dict:
    """Return what transformers makes of a config.json's content, beside what says who wrote it."""
    content = transformers.AutoConfig.for_model(**copy.deepcopy(config)).to_dict()  # which writes into what it is given
    return {name: value for name, value in content.items() if name != "transformers_version"}


def _tokenizer(directory: Path, source: Path | None) -> None:
    # a vocabulary under another name, which some class knows, would be lost
    if source and any((source / name).exists() for name in VOCABULARIES):
        for name in (*TOKENS, *_BESIDE):
            if (source / name).exists():
                shutil.copyfile(source / name, directory / name)
            elif name != "tokenizer_config.json":
                (directory / name).unlink(missing_ok=True)
    file = directory / "tokenizer_config.json"
    settings = _read(file)
    older = {name: value for name, value in settings.items() if name != _CODE}
    if settings.get("tokenizer_class") == _NEW_CLASS:
        older = {name: value for name, value in older.items() if name not in _LOADING} | {"tokenizer_class": _OLD_CLASS}
    if older != settings:
        file.write_text(json.dumps(older, indent=2) + "\n", encoding="utf-8")


def _read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))
