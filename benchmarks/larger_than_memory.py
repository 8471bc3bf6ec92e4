"""Pruning a model under a limit of memory that it does not fit into (`--stream`): expected against measured.

    python benchmarks/larger_than_memory.py [--methods refit] [--fresh] [--folder DIR]
    python benchmarks/larger_than_memory.py --shape llama-2-7b --limit 3 --samples 4 --length 128 --windows 4

Random weights in a registered model's shape are written once, a layer at a time (LLaMA-2-7B: 13.5 GB of bfloat16; float16,
as hubs have it, takes CPUs without instructions for it several times as long). Then the tools prune it in processes whose
private memory the kernel limits (RLIMIT_DATA: what exceeds it cannot be allocated). The numbers depend on nothing but shapes,
so random weights will do; perplexities are of no use and not shown. A run that is cut off goes on where it was: files of
weights and finished methods are kept in the folder (--fresh: methods are run again).

expected   what the tool says before it begins (`common.cli.forecast`)
measured   seconds of the process, and the most memory that it held at once (its resident set)
weights    what they alone would take in memory

Eight layers in the middle write a tenth of what the others do, so that they are chosen, as layers in the middle of real
models are; of random weights alike the last ones would be, which cost less to remove. The refit's damping is given
(--held-out 0): to choose it, several H'H are held.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.console.command_line import option, parse
from common.models import loading
from common.models.files.safetensors_reader import INDEX
from common.toy import WEIGHTS as STANDIN
from common.utils import cache
from common.utils.ratios import Ratio, hand_over

ROOT = Path(__file__).parents[1]
METHODS = {"linearpatch": [], "prunecomp": ["--metric", "bi"], "refit": ["--held-out", "0"]}
SPREAD, QUIET = 0.02, 0.002  # of weights, and of the output matrices in the middle


def write_random(shape: str, folder: Path, dtype: torch.dtype) -> int:
    """Return a checkpoint of random weights, a file a layer; the bytes of its weights."""
    config = loading.model_config(shape)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    config.dtype, config.architectures = dtype, [type(model).__name__]
    parts: dict[str, dict] = {}
    for name, parameter in model.named_parameters():
        part = ".".join(name.split(".")[:3]) if name.startswith("model.layers.") else "rest"
        parts.setdefault(part, {})[name] = parameter
    making = folder.with_name(f"{folder.name}.making")
    making.mkdir(parents=True, exist_ok=True)
    names, total = {}, 0
    for number, (part, parameters) in enumerate(parts.items()):
        file = making / f"{part}.safetensors"
        if not file.exists():
            unfinished, generator = file.with_suffix(".part"), torch.Generator().manual_seed(number)
            tensors = {
                name: random_like(p, dtype, generator, QUIET if quiet(name, config.num_hidden_layers) else SPREAD)
                for name, p in parameters.items()
            }
            save_file(tensors, unfinished, {"format": "pt"})
            unfinished.rename(file)
        print(f"\r{number + 1} of {len(parts)} files of weights", end="", flush=True)
        names |= dict.fromkeys(parameters, file.name)
        total += sum(p.numel() * dtype.itemsize for p in parameters.values())
    print()
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (making / INDEX).write_text(json.dumps(index))
    config.save_pretrained(making)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STANDIN / name, making / name)
    making.rename(folder)
    return total


def quiet(name: str, layers: int) -> bool:
    """Return whether a parameter is an output matrix of one of the eight layers in the middle."""
    part = name.split(".")
    return part[-2] in ("o_proj", "down_proj") and 0 <= int(part[2]) - (layers // 2 - 4) < 8


def random_like(parameter: Tensor, dtype: torch.dtype, generator: torch.Generator, spread: float) -> Tensor:
    """Weights of a parameter's shape: gains are 1."""
    if parameter.ndim == 1:
        return torch.ones(parameter.shape, dtype=dtype)
    return torch.empty(parameter.shape, dtype=dtype).normal_(0, spread, generator=generator)


def text(folder: Path) -> Path:
    """Return a text to calibrate on: the repository's own pages."""
    file = folder / "text.txt"
    file.write_text("\n\n".join(page.read_text() for page in sorted(ROOT.glob("**/*.md")) if ".venv" not in page.parts))
    return file


def prune(method: str, model: Path, out: Path, limit: int, options: list[str]) -> dict:
    """Run a tool with so many bytes of private memory; what it expected, and what it took."""
    command = [
        sys.executable,
        "-m",
        f"{'extensions' if method == 'refit' else 'papers'}.{method}",
        "--model",
        str(model),
        "--out",
        str(out),
        "--force",
        *options,
    ]
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status not in (0, 3 << 8):  # 3: saved, and said to be broken, as random weights may be
        raise SystemExit(said)
    found = re.search(r"expected: ([\d.]+) GB of memory at most, ([\d:]+)", said)
    seconds = sum(int(part) * 60**place for place, part in enumerate(reversed(found[2].split(":"))))
    return {
        "expected_gb": float(found[1]),
        "expected_s": seconds,
        "gb": usage.ru_maxrss * 1024 / 1e9,
        "s": time.perf_counter() - started,
        "saved_gb": sum(file.stat().st_size for file in out.glob("*.safetensors")) / 1e9,
    }


def kept(path: Path, fresh: bool) -> dict | None:
    """Return a finished method's row."""
    return json.loads(path.read_text()) if path.is_file() and not fresh else None


def show(method: str, shape: str, row: dict, size: float, limit: float, dtype: str) -> None:
    """Print and hand over a method's row; size: GB of weights."""
    print(
        f"{method:12s} {row['expected_gb']:13.2f} GB {row['gb']:6.2f} GB {row['gb'] / row['expected_gb']:6.2f} "
        f"{row['expected_s']:13.0f} s {row['s']:7.0f} s {row['s'] / row['expected_s']:6.2f} {row['saved_gb']:6.2f} GB",
        flush=True,
    )
    what = f"{method}, {shape}'s shape, {limit:g} GB allowed"
    near = {"least": 0.8, "most": 1.2, "dtype": dtype}
    hand_over(
        Ratio(f"{what}: memory", f"{row['gb']:.2f} GB", row["gb"] / size, f"weights, {size:.2f} GB", dtype=dtype),
        Ratio(f"{what}: memory", f"{row['gb']:.2f} GB", row["gb"] / row["expected_gb"], "as said before", **near),
        Ratio(f"{what}: time", f"{row['s']:.0f} s", row["s"] / row["expected_s"], "as said before", **near),
    )


@dataclass(kw_only=True)
class Options:
    """The command line."""

    shape: str = option("smollm2-360m", "a registered model")
    methods: list[str] = option(list(METHODS), choices=METHODS)
    limit: float = option(2.0, "GB of private memory")
    states: float = option(0.2, "GB of hidden states, of these")
    dtype: str = "bfloat16"
    remove: int = 7
    samples: int = 8
    length: int = 128
    windows: int = 4
    fresh: bool = option(False, "run methods again that are finished")
    folder: Path = option(cache.folder() / "random-weights")


def main() -> None:
    """Print the ratios."""
    options = parse(Options, description=__doc__)
    model = options.folder / f"{options.shape}-{options.dtype}-quiet-middle"
    if not model.is_dir():
        print(f"writing random weights to {model}", flush=True)
        write_random(options.shape, model, getattr(torch, options.dtype))
    size = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e9
    shared = ["--stream", str(options.states), "--text", str(text(options.folder))]
    for name in ("remove", "samples", "length", "windows"):
        shared += [f"--{name}", str(getattr(options, name))]
    print(f"{options.shape}, {options.dtype}: {size:.2f} GB of weights; {options.limit:.1f} GB allowed", flush=True)
    print("method       memory: expected  measured  ratio   time: expected  measured  ratio   saved", flush=True)
    for method in options.methods:
        sizes = [options.remove, options.samples, options.length, options.windows, f"{options.limit:g}"]
        path = options.folder / f"{model.name}-{method}-{'-'.join(map(str, sizes))}.json"
        row = kept(path, options.fresh)
        if row is None:
            print(f"{method}: running since {time.strftime('%H:%M:%S')}", flush=True)
            out = options.folder / f"pruned-{model.name}-{method}"
            row = prune(method, model, out, int(options.limit * 1e9), [*shared, *METHODS[method]])
            shutil.rmtree(out)
            path.write_text(json.dumps(row) + "\n")
        show(method, options.shape, row, size, options.limit, options.dtype)


if __name__ == "__main__":
    main()
