"""What a model is measured by before and after: perplexity, tasks, speed, memory, and three texts to look at."""

from __future__ import annotations

import gc
import math
import re
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn

from common import hooks
from common.calibration import massive_activations
from common.cli.job import Job
from common.cli.options import tasks
from common.evaluation import harness, significance
from common.evaluation.generation import complete
from common.evaluation.windowed_perplexity import summarise, token_nlls
from common.models.architectures import absent, at_hand, embedding, final_norm, head, layer_list
from common.models.surgery import without_layers
from common.utils.errors import UserError, plural
from common.utils.peak_memory import peak_memory_bytes
from common.utils.progress import say
from common.utils.token_ids import open_ended

BROKEN = 10.0  # times the dense model's perplexity
REPEATS, ENOUGH = 20, 1.0  # of what is timed: at most so many, or until so many seconds were taken by three or more
_SEEN: list[int] = []  # marks of the process's memory that were reset
GENERATED, PROMPT, SHOWN = 16, 24, 40  # tokens: timed, of a prompt, of a sample


def whole(job: Job, when: str) -> dict:
    """Everything that is measured of the dense and of the finished model; {} where nothing is wanted.

    Raises:
        UserError: the dense model's perplexity is no number, so that nothing can be compared with it.
    """
    if job.options.no_evaluation:
        return {}
    with nullcontext() if job.removed else massive_activations.watched(job.model) as norms:
        found = perplexity(job, job.model, when)
    job.kept.setdefault("norms", norms)  # of the dense model, which comes first
    if not job.removed and not math.isfinite(found["perplexity"]):
        raise UserError(
            "the model's own perplexity is not finite, before anything is removed; use --dtype float32 or bfloat16, another "
            "text, or download the model again"
        )
    if job.options.sweep:
        return found
    if names := tasks(job.options):
        try:
            scored = harness.evaluate(job.model, job.tokenizer, names, limit=job.options.limit)
            found["tasks"] = {name: _kept(scored[name]) for name in names}
        except UserError as error:
            if not job.removed:
                raise
            job.notes.append(f"tasks were not scored: {error}")  # the result is there, and worth more than its scores
    if job.decoder.streamed:  # a token that is generated reads the whole model
        return found
    return found | speed(job) | {"samples": samples(job)}


def cut_alone(job: Job) -> dict:
    """The perplexity of the whole model at hand run without the layers that are to go; {} where nothing is wanted."""
    if job.options.no_evaluation:
        return {}
    with without_layers(job.model, job.removed):
        return perplexity(job, job.model, "of the cut alone")


def note_unrepaired(job: Job) -> None:
    """Measure the model without the layers that go, before any repair, and note what their removal takes with them."""
    job.cut = cut_alone(job)
    if said := massive_activation(job):
        job.notes.append(said)


def massive_activation(job: Job) -> str:
    """What is to be said where the layer goes that writes the first token's massive activation; '' where it stays."""
    norms = job.kept.get("norms")
    if norms is None or norms.writer not in job.removed:
        return ""
    layer, first, median = norms.writer, norms.first, norms.median
    own = job.method.paper == "refit"
    elsewhere = "" if own else "; `python -m extensions.refit` can carry over the neurons that write it"
    return (
        f"layer {layer}, which goes, writes the first token's massive activation (its norm: {first[layer]:,.0f} before it, "
        f"{first[layer + 1]:,.0f} after it, the median token's {median[layer + 1]:,.0f}); unrepaired, a "
        f"cut that takes it may cost far more than one that does not{elsewhere}"
    )


def perplexity(job: Job, model, when: str) -> dict:
    """Perplexity per token on the test windows, with its standard error, and the seconds it took."""
    started = time.perf_counter()
    windows = job.test_windows
    nlls = token_nlls(model, windows, progress=f"perplexity {when}")
    found = summarise(nlls)
    value, seconds = found["perplexity"], time.perf_counter() - started
    say(f"perplexity {when}: {shown(value)} ({plural(len(windows), 'window')} of {windows.shape[1]} tokens)")
    each = [round(loss, 6) for loss in nlls.double().mean(dim=1).tolist()]
    whole = {"perplexity": value, "perplexity_stderr": found["stderr"], "windows": len(windows)}
    return whole | {"window_nlls": each, "seconds": seconds}


def verdict(before: dict, after: dict) -> str:
    """What is to be said of a model that no longer works; '' of one that does, or was not measured."""
    if not before or after["perplexity"] <= BROKEN * before["perplexity"]:
        return ""
    dense, value = before["perplexity"], after["perplexity"]
    times = f"{value / dense:,.0f} times" if math.isfinite(value) else "against"
    return f"this model is broken: its perplexity is {shown(value)}, {times} the dense model's {shown(dense)}"


def against_the_cut(cut: dict, after: dict) -> dict:
    """By how many per cent what came after the layers' removal changed perplexity: change, low and high of the 95 % interval,
    paired over the windows. {} where that is not known: not measured, one window, or losses that are not finite.
    """
    if not cut or not after:
        return {}
    differences = np.subtract(after["window_nlls"], cut["window_nlls"])
    if len(differences) < 2 or not np.isfinite(differences).all():
        return {}
    ends = (differences.mean(), *significance.student(differences))
    return dict(zip(("change", "low", "high"), (100 * math.expm1(min(end, 700)) for end in ends)))


def worse_than_the_cut(against: dict) -> str | None:
    """A note where the layers' removal alone leaves a lower perplexity beyond the noise; None where it does not."""
    if not against or against["low"] <= 0:
        return None
    return (
        "by perplexity this is worse than the same layers left out and nothing else done: try more or other calibration text "
        "or training data, or another tool"
    )


def speed(job: Job) -> dict:
    """Milliseconds of a forward pass over one window, tokens a second of greedy decoding, and the peak of memory meanwhile.

    One sequence at a time; the fastest of several (`_fastest`). Memory: of the GPU what was allocated; on a CPU what the
    process held, where the system tells.
    """
    model, window = job.model, job.test_windows[:1].to(job.model.get_input_embeddings().weight.device)
    gc.collect()
    peak = _Peak(window.device)
    tokens = max(1, min(GENERATED, job.length // 2))
    prompt = window[:, : job.length - tokens][:, :PROMPT]
    settings = transformers.GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=0
    )
    with torch.inference_mode():
        mask = torch.ones_like(prompt)
        forward = _fastest(lambda: model(window, use_cache=False), window.device)
        decoding = _fastest(
            lambda: model.generate(prompt, attention_mask=mask, generation_config=settings), window.device
        )
    return {
        "forward_ms": 1000 * forward,
        "tokens_per_second": tokens / decoding,
        "peak_memory_bytes": peak.bytes(),
    }


def samples(job: Job) -> list[dict]:
    """What the model greedily writes after the beginnings of three test windows."""
    windows = job.test_windows
    chosen = sorted({0, len(windows) // 2, len(windows) - 1})
    begun = max(1, min(PROMPT, job.length // 2))
    prompts = [job.tokenizer.decode(windows[index][:begun], skip_special_tokens=True) for index in chosen]
    prompts = [prompt for prompt in prompts if open_ended(job.tokenizer)(prompt)["input_ids"]]
    tokens = max(1, min(SHOWN, job.length - begun))
    try:
        texts = complete(job.model, job.tokenizer, prompts, tokens)
    except UserError as error:  # a context of a few tokens
        say(f"no samples: {error}")
        return []
    return [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts)]


def sizes(job: Job, dtype: torch.dtype | None) -> dict:
    """Parameters and bytes of the model as it is saved, patches included; a tied head counts once."""
    own, patches = list(job.model.parameters()), hooks.patch_parameters(job.model)
    stored = sum(p.numel() * (dtype.itemsize if dtype and p.is_floating_point() else p.element_size()) for p in own)
    added = sum(p.numel() * p.element_size() for p in patches)
    return {"parameters": sum(p.numel() for p in (*own, *patches)), "bytes": stored + added}


@torch.no_grad()
def round_to(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Round weights to what they are saved as, in the dtype they are computed in: what is measured is what is saved."""
    if dtype in (None, model.dtype):
        return
    for module in (embedding(model), final_norm(model), head(model), *layer_list(model)):
        for parameter in at_hand(module).parameters():
            if parameter.is_floating_point() and not absent(parameter):
                rounded = parameter.data.to(dtype).to(parameter.dtype)
                if not torch.equal(rounded, parameter.data):  # a streamed layer that changes is written to the disk
                    parameter.data = rounded


def shown(value: float) -> str:
    """A perplexity: two decimals, or four digits of a large one."""
    return f"{value:.2f}" if value < 1e5 else f"{value:.3e}" if math.isfinite(value) else "not finite"


def highest_memory() -> int:
    """The most memory the process has held so far, in bytes; 0 where the system does not tell."""
    return max(*_SEEN, peak_memory_bytes() or 0, 0)


class _Peak:
    """The most memory taken since it was made: of the GPU, or of the process where the system lets its mark be reset."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.known = device, device.type == "cuda"
        if self.known:
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _SEEN.append(peak_memory_bytes() or 0)
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
                self.known = True

    def bytes(self) -> int | None:
        """None where the system does not tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):
            match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()) if self.known else None
            return int(match[1]) * 1024 if match else None
        return None


def _fastest(work, device: torch.device) -> float:
    """Seconds of the fastest of three to `REPEATS` runs; the first, which allocates and compiles, does not count."""
    taken: list[float] = []
    while len(taken) <= min(3, REPEATS) or (len(taken) <= REPEATS and sum(taken[1:]) < ENOUGH):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return min(taken[1:])


def _kept(scores: dict) -> dict:
    """A task's scores without what it does not have."""
    return {name: value for name, value in scores.items() if value is not None}
