"""Forecast a run's time, memory and disk before it begins: from counted operations and a rate that is measured.

`forecast` measures for about two seconds on a layer of the model's shape, before any weights are read. `streamed` reads one
layer of a streamed model and runs it.
"""

import copy
import time
from dataclasses import dataclass

import psutil
import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM

from common.cli import checks, measure
from common.cli.job import Job
from common.console.progress import clock, say
from common.evaluation.windowed_perplexity import MAX_TOKENS
from common.forward.token_log_probs import HEAD_ROWS
from common.hadamard import hadamard_transform
from common.models.architectures import at_hand, body, experts_option, head, layer_list
from common.models.surgery import slice_config

PASSES = 3  # over the test sequences: the dense model, no repair, the result
PROBED = 1024  # tokens that the probe runs
SECONDS = 2.0  # that the measurement takes, about
VOCABULARY = 2048  # rows of the head that are timed
DISK = 3e8  # bytes a second that weights are read and written at
START = 5.0  # seconds that a new process takes to import torch and transformers, which reads the result back
EDGE = 1024  # of the float64 matrices whose product it times
SOLVING = 0.8  # of a product's rate that solving in float64 comes to

# Bytes that the C library's allocator keeps of freed tensors: 0 to 0.25 GB from run to run (SmolLM2-360M's shape).
RETAINED = 100_000_000


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run.

    Attributes:
        peak_bytes: Peak memory of the process, or of the GPU.
        seconds: Time of the entire run.
        disk_bytes: Disk space for states that do not fit into memory, or for the checkpoint.
        parts: Seconds of each stage, if stages are listed separately.
    """

    peak_bytes: int
    seconds: float
    disk_bytes: int
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def disk(self) -> str:
        """Disk space as text."""
        return f"{self.disk_bytes / 1e9:.2f} GB" if self.disk_bytes >= 1e8 else f"{self.disk_bytes / 1e6:.1f} MB"

    def line(self) -> str:
        """Return the forecast in one line of text."""
        what = "on disk" if self.parts else "of states on disk"
        disk = f", {self.disk} {what}" if self.disk_bytes else ""
        return f"expected: {self.peak_bytes / 1e9:.2f} GB of memory at most, {clock(self.seconds)}{disk}"


class Stages:
    """Messages at the beginning of each stage: the expected time of the stage and of the run.

    The times are corrected by the stages that are done.
    """

    def __init__(self, expected: Forecast | None) -> None:
        self.pending = dict(expected.parts) if expected else {}
        self.count, self.started = len(self.pending), time.monotonic()
        self.expected_so_far = 0.0  # seconds that past stages were expected to take

    def begin(self, name: str, text: str) -> None:
        """Print the stage's text; stages without a forecast have no times."""
        expected = self.pending.pop(name, None)
        if expected is None:
            say(text)
            return
        elapsed = time.monotonic() - self.started
        pace = min(max(elapsed / self.expected_so_far, 0.25), 20.0) if self.expected_so_far > 1 else 1.0
        rest = clock(pace * (expected + sum(self.pending.values())))
        say(
            f"[{self.count - len(self.pending)}/{self.count}] {text}: about {clock(pace * expected)}, {rest} left in all"
        )
        self.expected_so_far += expected


@dataclass(frozen=True)
class Rates:
    """Speed of a machine, and the sizes of a model's parts.

    Attributes:
        token: Seconds per token and layer when a long sequence is read.
        step: Seconds per token and layer when tokens are generated one at a time.
        logits: Seconds for the logits of a token.
        operations: Float64 products per second.
        layer_bytes: Bytes of a layer's weights.
        edge_bytes: Bytes of embedding and head.
    """

    token: float
    step: float
    logits: float
    operations: float
    layer_bytes: int
    edge_bytes: int


@torch.inference_mode()
def rates(job: Job) -> Rates:
    """Measure a layer of the model's shape, with constant weights, in the dtype of the computation.

    Of experts it has only those that one token uses, and of the vocabulary a part.
    """
    config = copy.deepcopy(job.config)
    slice_config(config, [job.layers // 2])  # the first layers of a mixture of experts may have none
    config.pad_token_id = None
    vocabulary, config.vocab_size = config.vocab_size, min(config.vocab_size, VOCABULARY)
    device = torch.device("cuda" if job.options.device == "auto" else job.options.device)
    dtype = getattr(torch, job.options.dtype) if job.options.dtype else job.config.dtype or torch.float32
    if device.type == "cpu" and not job.options.dtype:
        dtype = torch.float32
    layer = sum(p.numel() for p in layer_list(_empty(config)).parameters())
    if name := experts_option(config):
        active = config.num_experts_per_tok
        setattr(config, name, max(active) if isinstance(active, list) else active)
        for groups in {"n_group", "topk_group"} & vars(config).keys():
            setattr(config, groups, 1)
    model = _empty(config)
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                full = torch.full(weight.shape, 0.01, dtype=dtype, device=device)
                module._parameters[name] = nn.Parameter(full, requires_grad=False)
    model = model.to(device).eval()  # the buffers
    whole = body(model)
    ids = torch.zeros(1, min(job.length, 256), dtype=torch.long, device=device)
    _seconds(lambda: whole(ids, use_cache=False))  # warms up
    token = _seconds(lambda: whole(ids, use_cache=False)) / ids.numel()
    longer = min(job.length, 2048, int(SECONDS / 4 / token))
    if longer > ids.numel():
        ids = torch.zeros(1, longer, dtype=torch.long, device=device)
        token = _seconds(lambda: whole(ids, use_cache=False)) / ids.numel()
    rows = whole(ids, use_cache=False)[0][0, :64]
    logits = _least(lambda: head(model)(rows).float().logsumexp(-1)) / len(rows) * vocabulary / config.vocab_size
    return Rates(
        token,
        _least(lambda: whole(ids[:, :1], use_cache=False)),
        logits,
        _float64_rate(device),
        layer * dtype.itemsize,
        2 * vocabulary * job.config.hidden_size * dtype.itemsize,
    )


def _empty(config) -> nn.Module:
    """Return a model whose weights hold no numbers, on the meta device; its buffers are there."""
    with init_empty_weights(include_buffers=False):
        return AutoModelForCausalLM.from_config(config)


def forecast(job: Job) -> Forecast:
    """Forecast time, memory and disk of a job with its model in memory, before the weights are read.

    In a sweep each number of layers, and in a search each trial, counts as the longest.
    """
    rate, options = rates(job), job.options
    searched = job.counts if options.max_perplexity_increase is not None else []
    layers, count, requested = job.layers, max(job.counts, default=0), options.remove
    tests = 0 if options.no_evaluation else job.test_sequences.numel()
    stored = checks.stored_bytes(job.source)
    removed = min(searched, default=count)  # of a search the largest result
    result = checks.saved_bytes(job.source, removed, layers)
    try:
        if options.sweep or searched:
            options.remove = count  # methods read it
        tokens, (operations, own_bytes) = job.method.tokens(job), job.method.beside(job)
    finally:
        options.remove = requested

    def evaluation(layers: int) -> float:
        return tests * (layers * rate.token + rate.logits)

    pruning = tokens * layers * rate.token + operations / (SOLVING * rate.operations)
    reading, after = stored / DISK, evaluation(layers - removed)
    repairing = pruning + after
    if options.sweep:
        runs = len(job.counts)
        parts = {"read": reading, "original": evaluation(layers), "sweep": runs * (reading + repairing + after)}
        result = 0
    else:
        both = 2 * layers - removed
        times = [
            both * (measure.REPEATS + 1) * (measure.GENERATED * rate.step + size * measure.TIMED_PROMPT * rate.token)
            for size in ([] if options.quick else measure.BATCHES)
        ]
        timed = both * measure.SHOWN * rate.step + sum(seconds for seconds in times if seconds <= measure.PATIENCE)
        parts = {"read": reading, "original": evaluation(layers), "prune": repairing, "save": 2 * result / DISK + START}
        parts |= {"result": after, "compare": reading + timed}
    if searched:
        held_out = job.held_out_sequences.numel() * (layers * rate.token + rate.logits)
        trials = len(searched).bit_length()  # halving takes no more
        parts = {"search": held_out + trials * (reading + pruning + held_out)} | parts
    if not tests:
        parts = {name: seconds for name, seconds in parts.items() if name not in ("original", "result", "compare")}
    weights = layers * rate.layer_bytes + rate.edge_bytes
    width, inner = job.config.hidden_size, getattr(job.config, "intermediate_size", 4 * job.config.hidden_size)
    batch = max(MAX_TOKENS if tests else 0, min(8, options.samples) * job.length)
    work = max(own_bytes, batch * 4 * (8 * width + 3 * inner)) + 8 * HEAD_ROWS * job.config.vocab_size
    resident = psutil.Process().memory_info().rss + RETAINED if options.device == "cpu" else 0
    so_far = time.time() - psutil.Process().create_time()
    return Forecast(int(resident + weights + work), so_far + sum(parts.values()), result, tuple(parts.items()))


@torch.inference_mode()
def streamed(job: Job) -> Forecast:
    """Forecast time and memory of a streamed job, from one layer read and run on one sequence (a few seconds)."""
    decoder, streamed, options = job.decoder, job.model.streamed, job.options
    config, width = decoder.config, decoder.hidden_size
    item = streamed.dtype.itemsize
    tests = 0 if options.no_evaluation else job.test_sequences.numel()
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

    def one_pass(tokens: int, extra: float = 0.0) -> float:
        return edge + decoder.num_layers * max(reading, tokens * (a_token + extra))

    seconds = time.time() - psutil.Process().create_time()  # so far
    seconds += operations / (SOLVING * _float64_rate(streamed.device)) if operations else 0
    seconds += job.method.passes(job) * one_pass(calibration, 2 * statistics)
    seconds += PASSES * (one_pass(tests) + edge + tests * head) if tests else 0
    seconds += 3 * decoder.num_layers * reading + START  # read and written once more, and the result read back

    few = min(calibration, job.batch_size * job.length)
    batch = max(few, min(tests, MAX_TOKENS))
    a_row = item * (4 * width + 3 * getattr(config, "intermediate_size", 4 * width))
    inside = batch * (a_row + 4 * 4 * width)  # with float32 copies for statistics
    logits = 2 * HEAD_ROWS * config.vocab_size * 4 if tests else 0
    waiting = 1 + (job.count or 1)  # states of each calibration token: its own, or what an iteration starts from again
    states = max(calibration * waiting, tests) * width * item
    in_memory = min(states, streamed.states)
    resident = psutil.Process().memory_info().rss + RETAINED
    if streamed.device.type == "cuda":
        resident = torch.cuda.memory_allocated(streamed.device)
    own = streamed.layer_bytes() + few * a_row + own_bytes if own_bytes else 0  # then no layer is read ahead
    peak = resident + max(streamed.two_bytes() + max(inside, logits), own) + in_memory
    return Forecast(int(peak), seconds, int(states - in_memory))


def _float64_rate(device: torch.device) -> float:
    """Operations a second of a product of float64 matrices."""
    square = torch.ones(EDGE, EDGE, dtype=torch.float64, device=device)
    return 2 * EDGE**3 / _least(lambda: square @ square)


def _least(work) -> float:
    return min(_seconds(work) for _ in range(2))


def _seconds(work) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
