"""Threads by free cores and passive waiting (`common.console.threads`) against OpenMP's defaults, idle and under load.

    python benchmarks/threads.py

Each way is a fresh process, since OpenMP reads its settings once. The ways take turns. The work is forward passes and greedy
decoding of a random model of 8 layers and 576 channels (SmolLM2-135M's width); imports do not count. The load is one
process a core that computes without pause. The process measures the load before it starts, as a tool does.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from common.utils.ratios import Ratio, hand_over

REPEATS, CORES = 3, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
WORK = """
import sys, time
if sys.argv[1] == "chosen":
    from common.console import threads
    threads.settle()
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=4096, hidden_size=576, intermediate_size=1536, num_hidden_layers=8,
                                     num_attention_heads=9, num_key_value_heads=3)).eval()
ids = torch.arange(256)[None]
def work():
    model(ids, use_cache=False)
    model.generate(ids[:, :8], attention_mask=torch.ones_like(ids[:, :8]), max_new_tokens=16, min_new_tokens=16,
                   do_sample=False, pad_token_id=0)
with torch.inference_mode():
    work()
    started = time.perf_counter()
    work()
    work()
print(time.perf_counter() - started, torch.get_num_threads())
"""
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def seconds(way: str) -> tuple[float, int]:
    """Return the seconds of the work in a fresh process, and the threads that it computed with."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", WORK, way]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(printed[-2]), int(printed[-1])


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep ``processes`` cores busy while the context is open."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    """Print the ratios on the idle machine and beside one busy process per core."""
    for processes, load_name in ((0, "no load of its own"), (CORES, f"{CORES} busy processes on {CORES} cores")):
        with load(processes):
            timings = [(seconds("default"), seconds("chosen")) for _ in range(REPEATS)]
        default, settled = (statistics.median(took for took, _ in way) for way in zip(*timings, strict=True))
        (_, many), (_, few) = timings[-1]
        measured = f"{settled:.2f} s with {few} threads, {default:.2f} s with {many}"
        hand_over(
            Ratio(f"threads by free cores, {load_name}", measured, settled / default, "OpenMP's defaults", most=1.1)
        )


if __name__ == "__main__":
    main()
