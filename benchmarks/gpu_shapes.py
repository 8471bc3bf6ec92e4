"""Measure what depends on a model's shape and on a GPU, with random weights, in less than ten minutes.

    python benchmarks/gpu_shapes.py [--tiny]

patch       LinearPatch, Table 6: seconds of the C x C product against LLM-Streamline's network; 16 x 2048 tokens, C = 4096,
            float16, the mean of 1000 calls
finetuning  Reassessing, Tables 3 and E: memory and time of LoRA, QLoRA and partial fine-tuning of Llama-3.1-8B-Instruct
            without its last 8 layers; rows of 256 tokens, 16 micro-batches of 4 a step, float16 autocast over float32 weights
latency     Reassessing, Table D: memory and seconds of a forward pass over 64 tokens of the same model

Printed numbers stand beside the measured ones; they were made on other GPUs (Reassessing: two A100). Times of a whole
fine-tuning are extrapolated: micro-batches and optimiser steps are timed, and there are 1555 steps. Without a CUDA device
nothing is measured; --tiny runs every line on tiny shapes on any device, to check the code, and its numbers mean nothing.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from common.baselines.streamline import FeedForward
from common.console.command_line import answering, option, parse
from common.models import loading
from common.models.surgery import remove_layers
from common.training.finetuning.methods import attach
from common.training.finetuning.settings import Settings
from common.utils.errors import UserError
from common.utils.ratios import Ratio, hand_over
from reproductions.spec import reported

MODEL = "llama-3.1-8b-instruct"
LABEL, SPARSITY = "LLaMA-3.1-8B-It", "8/32"
STEPS = 1555  # 2 epochs of 49,760 rows in batches of 64
ACCUMULATE = 16
GIB, MIB = 2**30, 2**20
RATIO = "ratio (extension)"
LORA = "Reverse-order +LoRA"


def tiny_config() -> LlamaConfig:
    """Return a shape for checking the code."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "vocab_size": 64}
    return LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)


def seconds(work: Callable[[], object], calls: int, device: str, warmup: int = 3) -> float:
    """Return the mean wall time of ``calls`` calls in seconds, after a warm-up and with an empty device queue."""
    for _ in range(warmup):
        work()
    _wait(device)
    started = time.perf_counter()
    for _ in range(calls):
        work()
    _wait(device)
    return (time.perf_counter() - started) / calls


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak(device: str, unit: int) -> float | None:
    return torch.cuda.max_memory_allocated() / unit if device == "cuda" else None


def _forget(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def row(
    paper: str,
    table: str,
    key: tuple[str, str, str],
    column: str,
    measured: float | None,
    note: str = "",
    dtype: str = "float16",
) -> dict:
    """Return one cell: the printed value, the measured one, and the type of the computation."""
    number = reported.cells(paper, table).get((*key, column))
    return {
        "paper": paper,
        "table": table,
        "method": key[2],
        "column": column,
        "printed": number.value if number else None,
        "measured": measured,
        "note": note,
        "dtype": dtype,
    }


@torch.no_grad()
def patch(device: str, tiny: bool) -> list[dict]:
    """Time LinearPatch's patch and LLM-Streamline's FFN (LinearPatch, Table 6)."""
    config = tiny_config() if tiny else loading.model_config("llama-2-7b")
    batch, length, calls = (2, 8, 3) if tiny else (16, 2048, 1000)
    dtype = torch.float16 if device == "cuda" else torch.float32
    width = config.hidden_size
    x = torch.randn(batch, length, width, device=device, dtype=dtype)
    matrix = torch.randn(width, width, device=device, dtype=dtype) / width**0.5
    network = FeedForward.like(config).to(device, dtype)
    seconds_by_method = {
        "LLM-Streamline(FFN)": seconds(lambda: network(x), calls, device),
        "LinearPatch": seconds(lambda: x @ matrix, calls, device),
    }
    table6 = partial(row, "linearpatch", "6")
    cells = [table6(("LLaMA-2-7B", "", name), "Time cost (s)", value) for name, value in seconds_by_method.items()]
    ratio = seconds_by_method["LLM-Streamline(FFN)"] / seconds_by_method["LinearPatch"]
    note = f"the patch: {3 * config.intermediate_size / width:.2f} by multiply-adds"
    return [*cells, table6(("", "", "FFN / patch"), RATIO, ratio, note)]


def pruned(device: str, tiny: bool) -> torch.nn.Module:
    """Return Llama-3.1-8B without its last 8 layers, with random float32 weights; memory peaks count from here."""
    with torch.device(device):
        config = tiny_config() if tiny else loading.model_config(MODEL)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    count = 1 if tiny else 8
    remove_layers(model, range(config.num_hidden_layers - count, config.num_hidden_layers))
    _forget(device)  # the removed layers: the whole model has held more than a pass or a step of this one
    return model


def arms(tiny: bool) -> dict[str, Settings]:
    """Return the settings of each row by name: Table 3's six, then the longer ones of Table E."""
    longest = 2 if tiny else 10
    settings = {LORA: Settings(method="lora"), "Reverse-order +QLoRA": Settings(method="qlora")}
    for last in range(longest + 1):
        name = "Reverse-order +lm_head" + (f" & last {last}" if last else "")
        settings[name] = Settings(method="partial", last=last)
    return settings


def finetuning(device: str, tiny: bool) -> list[dict]:
    """Measure the memory and time of fine-tuning (Reassessing, Tables 3 and E).

    A row that the machine cannot run has the reason in its note.
    """
    cells = []
    for name, settings in arms(tiny).items():
        model = None
        try:
            model = pruned(device, tiny)
            measured = train(model, settings, device, 8 if tiny else 256, 2 if tiny else 8)
        except (UserError, ImportError, torch.cuda.OutOfMemoryError) as error:
            measured = {"reason": str(error).splitlines()[0]}
        del model
        table = "E" if name.rpartition(" ")[2].isdigit() and int(name.rpartition(" ")[2]) > 3 else "3"
        about = {"note": measured.get("reason", measured.get("note", "")), "dtype": measured.get("dtype", "")}
        for column in ("GPU memory GB", "training time s"):
            cells.append(row("reassessing", table, (LABEL, SPARSITY, name), column, measured.get(column), **about))
    return cells + list(against_lora(cells))


def against_lora(cells: list[dict]) -> Iterator[dict]:
    """Yield each arm's time as a share of LoRA's in the same run, beside the printed share."""
    times = {c["method"]: c for c in cells if c["column"] == "training time s" and c["measured"]}
    lora = times.pop(LORA, None)
    for name, cell in times.items() if lora else ():
        printed = cell["printed"] / lora["printed"]
        share = cell["measured"] / lora["measured"]
        key, note = ("", "", f"time of {name} / LoRA"), f"LoRA, in this run: {printed:.2f} as printed"
        yield row("reassessing", cell["table"], key, RATIO, share, note, cell["dtype"])


def train(model: torch.nn.Module, settings: Settings, device: str, tokens: int, micro_batches: int) -> dict:
    """Measure the peak memory of one step, and extrapolate the time of all steps.

    Micro-batches and an optimizer step are timed separately.
    """
    attached = attach(model, settings)
    _forget(device)  # making 4-bit weights holds more than training with them
    trained = list(attached.parameters.values())
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda" and settings.method != "qlora")
    ids = torch.randint(model.config.vocab_size, (settings.micro_batch, tokens), device=device)
    dtype = torch.bfloat16 if settings.method == "qlora" else torch.float16
    if settings.method == "qlora" and device == "cuda":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()

    def forward_backward() -> None:
        with torch.autocast(device, dtype, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / ACCUMULATE
        scaler.scale(loss).backward()

    def step() -> None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(trained, settings.clip)
        scaler.step(optimizer)
        scaler.update()

    forward_backward()
    step()  # the optimiser's state is there from now on
    micro_batch = seconds(forward_backward, micro_batches, device, warmup=1)
    update = seconds(step, 1, device, warmup=0)
    return {
        "GPU memory GB": _peak(device, GIB),
        "training time s": STEPS * (ACCUMULATE * micro_batch + update),
        "dtype": str(dtype).removeprefix("torch."),
        "note": f"{len(trained)} tensors, {sum(p.numel() for p in trained) / 1e6:.2f} M, micro-batch {micro_batch:.3f} s",
    }


@torch.no_grad()
def latency(device: str, tiny: bool) -> list[dict]:
    """Measure memory at 32 bits and time of a pass over 64 tokens (Reassessing, Table D).

    The printed latency is over WikiText-2's test text in sequences that the paper does not name; here it is one pass.
    """
    model = pruned(device, tiny).eval()
    ids = torch.zeros(1, 64, dtype=torch.long, device=device)
    once = seconds(lambda: model(ids, use_cache=False), 2 if tiny else 50, device)
    key = (LABEL, SPARSITY, "Llama-3.1-6.3B-It-Alpaca +lm_head & last 3")
    table_d = partial(row, "reassessing", "D", key, dtype="float32")
    return [
        table_d("memory MiB", _peak(device, MIB), "float32, one pass over 64 tokens"),
        table_d("latency s", None, "windows are not named; see the next line"),
        table_d("seconds per 64 tokens (extension)", once),
    ]


def measure(device: str, tiny: bool) -> list[dict]:
    """Return all cells.

    Raises:
        UserError: no CUDA device, and not ``tiny``.
    """
    if device != "cuda" and not tiny:
        raise UserError(
            "no CUDA device: these times and memories are a GPU's, so nothing was measured; run it where "
            "torch.cuda.is_available() holds, or with --tiny to check the code alone"
        )
    torch.manual_seed(0)
    return [*patch(device, tiny), *finetuning(device, tiny), *latency(device, tiny)]


def ratios(cells: list[dict]) -> Iterator[Ratio]:
    """Yield measured over printed values, and this project's ratios to the baselines that their notes name."""
    for c in cells:
        subject = f"{c['paper']}, Table {c['table']}, {c['method']}: {c['column']}"
        if c["measured"] and c["printed"]:
            share = c["measured"] / c["printed"]
            yield Ratio(subject, f"{c['measured']:.4g}", share, "as printed, on another GPU", dtype=c["dtype"])
        elif c["measured"] and c["column"] == RATIO:
            yield Ratio(subject, f"{c['measured']:.4g}", c["measured"], c["note"], dtype=c["dtype"])


@dataclass(kw_only=True)
class Options:
    """The command line."""

    tiny: bool = option(False, "tiny shapes on any device: checks the code")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Print the cells; return 2 if nothing can be measured."""
    options = parse(Options, arguments, description=__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cells = measure(device, options.tiny)
    print(f"on {torch.cuda.get_device_name() if device == 'cuda' else 'a CPU; the numbers mean nothing'}")
    for c in cells:
        numbers = ["" if c[name] is None else f"{c[name]:.6g}" for name in ("printed", "measured")]
        print(f"{c['paper']} {c['table']}, {c['method']}: {c['column']}:", *numbers, c["note"])
    if not options.tiny:
        hand_over(*ratios(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
