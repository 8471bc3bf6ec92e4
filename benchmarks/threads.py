"""Threads by free cores and passive waiting (`common.console.threads`) against OpenMP's defaults, idle and beside other
processes.

    python benchmarks/threads.py

Each way is a fresh process, since OpenMP reads its settings once. The ways take turns. The work is forward passes and greedy
decoding of a random model of 8 layers and 576 channels (SmolLM2-135M's width); imports do not count. The competing load is
one process a core that computes without pause. The process measures the load before it starts, as a tool does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.console.command_line import parse
from common.utils.ratios import Ratio, hand_over

WORK = """
import sys, time
if sys.argv[1] == "chosen":
    from common.console import threads
    threads.settle()
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=4096, hidden_size=576, intermediate_size=1536, num_hidden_layers=8,
                     num_attention_heads=9, num_key_value_heads=3)
model = LlamaForCausalLM(config).eval()
ids = torch.arange(256)[None]
def work():
    model(ids, use_cache=False)
    model.generate(ids[:, :8], attention_mask=torch.ones_like(ids[:, :8]), max_new_tokens=16, min_new_tokens=16,
                   do_sample=False, pad_token_id=0)
with torch.inference_mode():
    work()
    started = time.perf_counter()
    for _ in range(int(sys.argv[2])):
        work()
print(time.perf_counter() - started, torch.get_num_threads())
"""
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
WAYS = ("default", "chosen")


def seconds(way: str, passes: int) -> tuple[float, int]:
    """Return the seconds of the work in a fresh process, and the threads that it computed with."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", WORK, way, str(passes)]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(printed[-2]), int(printed[-1])


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many cores busy meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@dataclass(kw_only=True)
class Options:
    """The command line."""

    repeats: int = 3
    passes: int = 2


def main() -> None:
    """Measure both ways on the machine as it is and beside one busy process a core."""
    chosen = parse(Options, description=__doc__)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for processes, what in ((0, "no load of ours"), (cores, f"{cores} busy processes on {cores} cores")):
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        threads = {}
        with load(processes):
            for _ in range(chosen.repeats):
                for way in WAYS:
                    took, threads[way] = seconds(way, chosen.passes)
                    taken[way].append(took)
        default, ours = (statistics.median(taken[way]) for way in WAYS)
        measured = f"{ours:.2f} s with {threads['chosen']} threads, {default:.2f} s with {threads['default']}"
        print(f"{what}: {measured}; ratio {ours / default:.3f}")
        hand_over(Ratio(f"threads by free cores, {what}", measured, ours / default, "OpenMP's defaults"))


if __name__ == "__main__":
    main()
