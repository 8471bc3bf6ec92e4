"""What a streamed run will take, said before it begins: from the model's sizes, and from one layer that is read and run."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
import torch

from common.cli.job import Job
from common.evaluation.windowed_perplexity import MAX_TOKENS
from common.forward.token_log_probs import HEAD_ROWS
from common.hadamard import hadamard_transform
from common.models.architectures import at_hand
from common.utils.progress import clock

PASSES = 3  # over the test windows: the dense model, the cut alone, the result
PROBED = 1024  # tokens that the probe runs
EDGE = 1024  # of the float64 matrices whose product it times
SOLVING = 0.8  # of a product's rate that solving in float64 comes to

# Bytes that the C library's allocator keeps of freed tensors: 0 to 0.25 GB from run to run (SmolLM2-360M's shape).
RETAINED = 100_000_000


@dataclass(frozen=True)
class Forecast:
    """peak_bytes: of the process (on a GPU: of the GPU). seconds: of the whole run. disk_bytes: of states that do not fit."""

    peak_bytes: int
    seconds: float
    disk_bytes: int

    def line(self) -> str:
        spilled = f", {self.disk_bytes / 1e9:.1f} GB of states on disk" if self.disk_bytes else ""
        return f"expected: {self.peak_bytes / 1e9:.2f} GB of memory at most, {clock(self.seconds)}{spilled}"


@torch.inference_mode()
def forecast(job: Job) -> Forecast:
    """Time and memory of a streamed job, from one layer read and run on one window (a few seconds)."""
    decoder, streamed, options = job.decoder, job.model.streamed, job.options
    config, width = decoder.config, decoder.hidden_size
    item = streamed.dtype.itemsize
    tests = 0 if options.no_evaluation else job.test_windows.numel()
    calibration = options.samples * job.length
    layer = decoder.layers[decoder.num_layers // 2]

    started = time.perf_counter()
    streamed.fetch(layer)
    reading = time.perf_counter() - started
    ids = torch.randint(0, config.vocab_size, (max(1, PROBED // job.length), min(job.length, PROBED)))
    hidden = decoder.embed_tokens(ids)
    place = decoder.num_layers // 2
    a_token = min(_seconds(lambda: decoder.run(hidden, place, place + 1)) for _ in range(2)) / ids.numel()
    rows = hidden.flatten(0, 1)[:HEAD_ROWS]
    edge = _seconds(lambda: at_hand(decoder.lm_head))
    head = _seconds(lambda: decoder.head(rows).float().logsumexp(-1)) / len(rows)
    wide = hidden.float()
    statistics = _seconds(lambda: hadamard_transform(wide).abs().mean(1)) / ids.numel()
    streamed.let_go()
    operations, own_bytes = job.method.beside(job)

    def one_pass(tokens: int, more: float = 0.0) -> float:
        return edge + decoder.num_layers * max(reading, tokens * (a_token + more))

    seconds = time.time() - psutil.Process().create_time()  # so far
    seconds += operations / (SOLVING * _float64_rate(streamed.device)) if operations else 0
    seconds += job.method.passes(job) * one_pass(calibration, 2 * statistics)
    seconds += PASSES * (one_pass(tests) + edge + tests * head) if tests else 0
    seconds += 2 * decoder.num_layers * reading  # read and written once more

    few = min(calibration, job.batch_size * job.length)
    batch = max(few, min(tests, MAX_TOKENS))
    a_row = item * (4 * width + 3 * getattr(config, "intermediate_size", 4 * width))
    inside = batch * (a_row + 4 * 4 * width)  # with float32 copies for statistics
    logits = 2 * HEAD_ROWS * config.vocab_size * 4 if tests else 0
    states = max(calibration * _open_states(job), tests) * width * item
    held = min(states, streamed.states)
    here = psutil.Process().memory_info().rss + RETAINED
    if streamed.device.type == "cuda":
        here = torch.cuda.memory_allocated(streamed.device)
    own = streamed.layer_bytes() + few * a_row + own_bytes if own_bytes else 0  # then no layer is read ahead
    peak = here + max(streamed.two_bytes() + max(inside, logits), own) + held
    return Forecast(int(peak), seconds, int(states - held))


def _open_states(job: Job) -> int:
    """States of all calibration tokens that wait at once: a window's, or what an iteration starts from again."""
    return 1 + (job.count or 1)


def _float64_rate(device: torch.device) -> float:
    """Operations a second of a product of float64 matrices."""
    square = torch.ones(EDGE, EDGE, dtype=torch.float64, device=device)
    return 2 * EDGE**3 / min(_seconds(lambda: square @ square) for _ in range(2))


def _seconds(work) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
