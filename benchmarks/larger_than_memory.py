"""Pruning a model under a limit of memory that it does not fit into (`--stream`): expected against measured.

    python benchmarks/larger_than_memory.py
    python benchmarks/larger_than_memory.py --shape llama-2-7b --limit 3 --samples 4 --length 128 --test-samples 4

Random weights in a registered model's shape are written once, a layer at a time (LLaMA-2-7B: 13.5 GB of bfloat16). Then the
tools prune it in processes whose private memory the kernel limits (RLIMIT_DATA: what exceeds it cannot be allocated). The
numbers depend on nothing but shapes.

the forecast   what the tool says before it begins (`common.cli.forecast`)
measured         seconds of the process, and the most memory that it held at once (its resident set)
weights          what they alone would take in memory

Eight layers in the middle write a tenth of what the others do, so that they are chosen, as layers in the middle of real
models are; of random weights alike the last ones would be, which cost less to remove. The refit's damping is given
(--held-out 0): to choose it, several H'H are held.
"""

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
from common.toy import WEIGHTS as TOY
from common.utils import cache
from common.utils.ratios import Ratio, hand_over

ROOT = Path(__file__).parents[1]
DTYPE = torch.bfloat16
METHODS = {"linearpatch": [], "prunecomp": ["--metric", "bi"], "refit": ["--held-out", "0"]}
HELD = 0.2  # GB of hidden states, of the memory allowed
FOLDER = cache.folder() / "random-weights"
SPREAD, QUIET = 0.02, 0.002  # of weights, and of the output matrices in the middle


def write_random(shape: str, folder: Path) -> None:
    """Write a checkpoint of random weights, one file per layer."""
    config = loading.model_config(shape)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE)
    config.dtype, config.architectures = DTYPE, [type(model).__name__]
    parts: dict[str, dict] = {}
    for name, parameter in model.named_parameters():
        part = ".".join(name.split(".")[:3]) if name.startswith("model.layers.") else "rest"
        parts.setdefault(part, {})[name] = parameter
    making = folder.with_name(f"{folder.name}.making")
    making.mkdir(parents=True, exist_ok=True)
    files = {}
    for number, (part, parameters) in enumerate(parts.items()):
        generator = torch.Generator().manual_seed(number)
        spreads = {name: QUIET if quiet(name, config.num_hidden_layers) else SPREAD for name in parameters}
        tensors = {name: random_like(p, generator, spreads[name]) for name, p in parameters.items()}
        save_file(tensors, making / f"{part}.safetensors", {"format": "pt"})
        files |= dict.fromkeys(parameters, f"{part}.safetensors")
    total = sum(p.numel() * DTYPE.itemsize for p in model.parameters())
    (making / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": files}))
    config.save_pretrained(making)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOY / name, making / name)
    making.rename(folder)


def quiet(name: str, layers: int) -> bool:
    """Return whether a parameter is an output matrix of one of the eight layers in the middle."""
    part = name.split(".")
    return part[-2] in ("o_proj", "down_proj") and 0 <= int(part[2]) - (layers // 2 - 4) < 8


def random_like(parameter: Tensor, generator: torch.Generator, spread: float) -> Tensor:
    """Return random weights of a parameter's shape; gains are 1."""
    if parameter.ndim == 1:
        return torch.ones(parameter.shape, dtype=DTYPE)
    return torch.empty(parameter.shape, dtype=DTYPE).normal_(0, spread, generator=generator)


def prune(method: str, model: Path, out: Path, limit: int, options: list[str]) -> tuple[float, float, float, float]:
    """Run a tool with a limit on its private memory; return GB and seconds, forecast and measured."""
    module = f"{'extensions' if method == 'refit' else 'papers'}.{method}"
    command = [sys.executable, "-m", module, "--model", str(model), "--out", str(out), "--force", *options]
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    shutil.rmtree(out, ignore_errors=True)
    if status not in (0, 3 << 8):  # 3: saved, and said to be broken, as random weights may be
        raise SystemExit(output)
    forecast = re.search(r"expected: ([\d.]+) GB of memory at most, ([\d:]+)", output)
    parts = enumerate(reversed(forecast[2].split(":")))
    return (
        float(forecast[1]),
        sum(int(part) * 60**place for place, part in parts),
        usage.ru_maxrss * 1024 / 1e9,
        seconds,
    )


@dataclass(kw_only=True)
class Options:
    """The command line."""

    shape: str = option("smollm2-360m", "a registered model")
    limit: float = option(2.0, "GB of private memory")
    samples: int = 8
    length: int = 128
    test_samples: int = 4


def main() -> None:
    """Print the ratios."""
    options = parse(Options, description=__doc__)
    dtype = str(DTYPE).removeprefix("torch.")
    model = FOLDER / f"{options.shape}-{dtype}-quiet-middle"
    if not model.is_dir():
        print(f"writing random weights to {model}", flush=True)
        write_random(options.shape, model)
    text = FOLDER / "text.txt"  # to calibrate on: the repository's own pages
    text.write_text("\n\n".join(page.read_text() for page in sorted(ROOT.glob("**/*.md")) if ".venv" not in page.parts))
    size = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e9
    shared = ["--remove", "7", "--stream", str(HELD), "--text", str(text)]
    for name in ("samples", "length", "test_samples"):
        shared += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    for method in METHODS:
        out = FOLDER / f"pruned-{model.name}-{method}"
        expected_gb, expected_s, gb, seconds = prune(
            method, model, out, int(options.limit * 1e9), [*shared, *METHODS[method]]
        )
        subject = f"{method}, {options.shape}'s shape, {options.limit:g} GB allowed"
        near = {"least": 0.8, "most": 1.2, "dtype": dtype}
        hand_over(
            Ratio(f"{subject}: memory", f"{gb:.2f} GB", gb / size, f"weights, {size:.2f} GB", dtype=dtype),
            Ratio(f"{subject}: memory", f"{gb:.2f} GB", gb / expected_gb, "the forecast", **near),
            Ratio(f"{subject}: time", f"{seconds:.0f} s", seconds / expected_s, "the forecast", **near),
        )


if __name__ == "__main__":
    main()
