"""What a model is measured by before and after: perplexity, tasks, speed, memory, and three texts to look at."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable

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
from common.utils import threads
from common.utils.errors import UserError, plural
from common.utils.progress import say
from common.utils.token_ids import open_ended

BROKEN = 10.0  # times the dense model's perplexity
UNTRAINED = 0.5  # of the vocabulary's size: a perplexity from which on a model predicts no better than chance
REPEATS = 5  # of what is timed
TOLERATED = 0.25  # cores that others may take while times are measured
GENERATED, PROMPT, SHOWN = 16, 24, 40  # tokens: timed, of a prompt, of a sample


def original(job: Job) -> dict:
    """Measure the original model's perplexity, and note the norms of its first tokens; {} where nothing is wanted.

    Raises:
        UserError: the perplexity is no number, so that nothing can be compared with it.
    """
    if job.options.no_evaluation:
        return {}
    with massive_activations.watched(job.model) as norms:
        found = perplexity(job, job.model, "of the original model")
    job.kept.setdefault("norms", norms)
    if not math.isfinite(found["perplexity"]):
        raise UserError(
            "the model's own perplexity is not finite, before anything is removed; use --dtype float32 or bfloat16, another "
            "text, or download the model again"
        )
    if found["perplexity"] > UNTRAINED * job.config.vocab_size:
        job.notes.append(
            f"the original model's perplexity is {shown(found['perplexity'])}, near its vocabulary of "
            f"{job.config.vocab_size:,} tokens: it predicts no better than chance. Its weights are random, or the tokenizer "
            "is another model's. Check both before you use any number here"
        )
        say(f"warning: {job.notes[-1]}")
    return found


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
    return f"this model is broken: its perplexity is {shown(value)}, {times} the original model's {shown(dense)}"


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


def answers(job: Job, model: nn.Module, whose: str) -> dict:
    """Score the tasks that were asked for, and let the model write three texts."""
    found = {}
    if names := tasks(job.options):
        say(f"tasks of {whose}: {', '.join(names)}")
        try:
            scored = harness.evaluate(model, job.tokenizer, names, limit=job.options.limit)
            found["tasks"] = {name: _kept(scored[name]) for name in names}
        except UserError as error:  # the checkpoint is there, and worth more than its scores
            job.notes.append(f"tasks of {whose} were not scored: {error}")
    say(f"texts of {whose}: {SHOWN} tokens after each of three prompts")
    return found | {"samples": samples(job, model)}


def times(job: Job, models: dict[str, nn.Module]) -> dict:
    """Time a forward pass over one sequence and greedy decoding, the models in turn, each `REPEATS` times after a warm-up.

    Returns:
        {model's name: {"forward_ms": [seconds, least, most], "tokens_per_second": likewise}}, each the median and the range;
        or {"left_out": reason} where other processes take the cores.
    """
    say(f"times of both models, in turn, {REPEATS} times each")
    device = job.test_windows[:1].to(next(iter(models.values())).get_input_embeddings().weight.device).device
    taken: dict[str, dict[str, list[float]]] = {name: {"forward": [], "decoding": []} for name in models}
    gc.collect()
    reason = _loaded(device)
    for _ in range(0 if reason else REPEATS + 1):
        for name, model in models.items():
            for what, work in _works(job, model, device):
                started = time.perf_counter()
                with torch.inference_mode():
                    work()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                taken[name][what].append(time.perf_counter() - started)
    if reason := reason or _loaded(device):
        return {"left_out": reason}
    tokens = _timed_tokens(job)
    return {
        name: {
            "forward_ms": _spread([1000 * seconds for seconds in found["forward"][1:]]),
            "tokens_per_second": _spread([tokens / seconds for seconds in found["decoding"][1:]]),
        }
        for name, found in taken.items()
    }


def _loaded(device: torch.device) -> str:
    """Return why times would say little; '' where the machine is free for them."""
    idle, needed = threads.idle(), torch.get_num_threads()
    if device.type != "cpu" or idle > needed - TOLERATED:
        return ""
    return f"other processes kept the cores busy: {idle:.1f} were free, {needed} are computed on"


def _timed_tokens(job: Job) -> int:
    return max(1, min(GENERATED, job.length // 2))


def _works(job: Job, model: nn.Module, device: torch.device) -> list[tuple[str, Callable]]:
    window, tokens = job.test_windows[:1].to(device), _timed_tokens(job)
    prompt = window[:, : job.length - tokens][:, :PROMPT]
    settings = transformers.GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=0
    )
    mask = torch.ones_like(prompt)
    return [
        ("forward", lambda: model(window, use_cache=False)),
        ("decoding", lambda: model.generate(prompt, attention_mask=mask, generation_config=settings)),
    ]


def _spread(values: list[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)]


def samples(job: Job, model: nn.Module) -> list[dict]:
    """What the model greedily writes after the beginnings of three test windows."""
    windows = job.test_windows
    chosen = sorted({0, len(windows) // 2, len(windows) - 1})
    begun = max(1, min(PROMPT, job.length // 2))
    prompts = [job.tokenizer.decode(windows[index][:begun], skip_special_tokens=True) for index in chosen]
    prompts = [prompt for prompt in prompts if open_ended(job.tokenizer)(prompt)["input_ids"]]
    tokens = max(1, min(SHOWN, job.length - begun))
    try:
        texts = complete(model, job.tokenizer, prompts, tokens)
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


def _kept(scores: dict) -> dict:
    """A task's scores without what it does not have."""
    return {name: value for name, value in scores.items() if value is not None}
