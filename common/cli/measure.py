"""Measure a model before and after: perplexity, tasks, speed, memory, and three texts to look at."""

import gc
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from common import hooks
from common.calibration import massive_activations
from common.cli.job import Job
from common.cli.options import tasks
from common.console import threads
from common.console.progress import clock, say
from common.evaluation import harness, significance
from common.evaluation.divergence import from_original
from common.evaluation.generation import complete
from common.evaluation.windowed_perplexity import summarise, token_nlls
from common.models.architectures import absent, at_hand, embedding, final_norm, head, layer_list
from common.models.surgery import without_layers
from common.utils.errors import UserError, plural
from common.utils.token_ids import open_ended

BROKEN = 10.0  # times the dense model's perplexity
UNTRAINED = 0.5  # of the vocabulary's size: a perplexity from which on a model predicts no better than chance
REPEATS = 3  # of what is timed
BATCHES, TIMED_PROMPT, GENERATED = (1, 16), 512, 128  # sizes and tokens of what is timed
PATIENCE = 300.0  # seconds that the times of one batch size may take
STEPS = 20  # times as long as a token of a long sequence a token is expected to take that is generated alone
TOLERATED = 0.25  # cores that others may take while times are measured
COMPARED = 8  # test sequences over which the two models' probabilities are compared
PROMPT, SHOWN = 24, 40  # tokens of a sample: of its prompt, generated


def original(job: Job) -> dict:
    """Measure the original model's perplexity, and note the norms of its first tokens; {} if nothing is to be measured.

    Raises:
        UserError: the perplexity is not finite, so that nothing can be compared with it.
    """
    if job.options.no_evaluation:
        return {}
    with massive_activations.watched(job.model) as norms:
        scores = perplexity(job, job.model, "of the original model")
    job.shared.setdefault("norms", norms)
    if not math.isfinite(scores["perplexity"]):
        raise UserError(
            "the model's own perplexity is not finite, before anything is removed; use --dtype float32 or bfloat16, another "
            "text, or download the model again"
        )
    if scores["perplexity"] > UNTRAINED * job.config.vocab_size:
        job.notes.append(
            f"the original model's perplexity is {perplexity_text(scores['perplexity'])}, near its vocabulary of "
            f"{job.config.vocab_size:,} tokens: it predicts no better than chance. Its weights are random, or the tokenizer "
            "is another model's. Check both before you use any number here"
        )
        say(f"warning: {job.notes[-1]}")
    return scores


def without_repair(job: Job, removed: Sequence[int]) -> None:
    """Note the layers to remove while the model has all of them, and a massive activation; measure it without them."""
    job.removed, job.unrepaired = [int(layer) for layer in removed], {}
    if not job.options.no_evaluation:
        with without_layers(job.model, job.removed):
            job.unrepaired = perplexity(job, job.model, "without a repair")
    if note := massive_activation(job):
        job.notes.append(note)


def massive_activation(job: Job) -> str:
    """Return a note if the layer that writes the first token's massive activation is removed.

    '' if it stays.
    """
    norms = job.shared.get("norms")
    if norms is None or norms.writer not in job.removed:
        return ""
    layer, first, median = norms.writer, norms.first, norms.median
    own = job.method.paper == "refit"
    elsewhere = "" if own else ". `python -m extensions.refit` can graft the neurons that write it"
    return (
        f"layer {layer}, which is removed, writes the first token's massive activation (its norm is {first[layer]:,.0f} "
        f"before the layer and {first[layer + 1]:,.0f} after it, the median token's {median[layer + 1]:,.0f}). Without a "
        f"repair, removing such a layer may cost far more than keeping it{elsewhere}"
    )


def perplexity(job: Job, model, when: str) -> dict:
    """Measure perplexity per token on the test sequences.

    Returns:
        The perplexity with its standard error, the number of sequences, each sequence's mean loss in nats, and the
        seconds taken.
    """
    started = time.perf_counter()
    sequences = job.test_sequences
    nlls = token_nlls(model, sequences, progress=f"perplexity {when}")
    summary = summarise(nlls)
    value, seconds = summary["perplexity"], time.perf_counter() - started
    say(
        f"perplexity {when}: {perplexity_text(value)} ({plural(len(sequences), 'sequence')} of {sequences.shape[1]} tokens)"
    )
    sequence_nlls = [round(loss, 6) for loss in nlls.double().mean(dim=1).tolist()]
    whole = {"perplexity": value, "perplexity_stderr": summary["stderr"], "windows": len(sequences)}
    return whole | {"window_nlls": sequence_nlls, "seconds": seconds}


def verdict(before: dict, after: dict) -> str:
    """Return a note on a model that no longer works; '' for one that does, or was not measured."""
    if not before or after["perplexity"] <= BROKEN * before["perplexity"]:
        return ""
    dense, value = before["perplexity"], after["perplexity"]
    times = f"{value / dense:,.0f} times" if math.isfinite(value) else "against"
    broken, original = perplexity_text(value), perplexity_text(dense)
    return f"this model is broken: its perplexity is {broken}, {times} the original model's {original}"


def change_by_repair(unrepaired: dict, after: dict) -> dict:
    """Return the change of perplexity by a repair in percent: change, and both ends of the 95 % interval.

    Paired over sequences. {} if it is unknown: not measured, one sequence, or losses that are not finite.
    """
    if not unrepaired or not after:
        return {}
    differences = np.subtract(after["window_nlls"], unrepaired["window_nlls"])
    if len(differences) < 2 or not np.isfinite(differences).all():
        return {}
    ends = (differences.mean(), *significance.student(differences))
    return dict(zip(("change", "low", "high"), (100 * math.expm1(min(end, 700)) for end in ends)))


def worse_than_no_repair(against: dict) -> str | None:
    """Return a note if perplexity is significantly lower without the repair; None otherwise."""
    if not against or against["low"] <= 0:
        return None
    return (
        "by perplexity this is worse than the same layers left out and nothing else done: try more or other calibration text "
        "or training data, or another tool"
    )


def answers(job: Job, model: nn.Module, whose: str) -> tuple[dict, dict]:
    """Score the requested tasks, and generate three texts.

    Returns:
        The facts for the report, and {task: {metric: outcomes by item}}.
    """
    facts, items = {}, {}
    if names := tasks(job.options):
        say(f"tasks of {whose}: {', '.join(names)}")
        try:
            scored = harness.evaluate(model, job.tokenizer, names, num_fewshot=0, limit=job.options.limit)
            facts["tasks"] = {
                name: {metric: value for metric, value in scored[name].items() if value is not None} for name in names
            }
            items = _with_groups(scored.get("items", {}), names)
        except UserError as error:  # the checkpoint is there, and worth more than its scores
            job.notes.append(f"tasks of {whose} were not scored: {error}")
    say(f"texts of {whose}: {SHOWN} tokens after each of three prompts")
    return facts | {"samples": samples(job, model)}, items


def _with_groups(items: dict[str, dict], names: list[str]) -> dict[str, dict]:
    """Return {task: {metric: outcomes by item}} with those of groups such as mmlu, all items of their subjects."""
    items = dict(items)
    for group in (name for name in names if name in harness.GROUPS):
        parts = [items[name] for name in harness.members(group) if name in items]
        shared = [metric for metric in parts[0] if all(metric in part for part in parts)] if parts else []
        items[group] = {metric: np.concatenate([part[metric] for part in parts]) for metric in shared}
    return items


def times(job: Job, models: dict[str, nn.Module], rate: float) -> dict:
    """Time the first token and each further one, by batch size.

    The models take turns, each `REPEATS` times after a warm-up. ``rate`` is the perplexity measurement's, in seconds
    per token; batches that would take too long are left out.

    Returns:
        {"prompt", "generated": tokens, "batches": {size: {model's name: {"first_ms": [median, least, most], "token_ms":
        likewise, "bytes": of weights and cache}, or "left_out": reason}}}; or {"left_out": reason} if other processes
        use the cores.
    """
    say(f"times of both models, in turn, {REPEATS} times each")
    context = getattr(job.config, "max_position_embeddings", TIMED_PROMPT + GENERATED)
    tokens = max(1, min(GENERATED, context // 2))
    length = max(1, min(TIMED_PROMPT, context - tokens))
    device = next(iter(models.values())).get_input_embeddings().weight.device
    gc.collect()
    facts: dict = {"prompt": length, "generated": tokens, "batches": {}}
    expected = rate * (length + STEPS * tokens)
    for size in BATCHES:
        if reason := _why_busy(device):
            return {"left_out": reason}
        seconds = expected * len(models) * (REPEATS + 1)
        if seconds > PATIENCE:
            facts["batches"][size] = {"left_out": f"it would take about {clock(seconds)}"}
            continue
        prompts = _prompts(job, size, length).to(device)
        runs: dict[str, list[tuple[float, float, int]]] = {name: [] for name in models}
        for _ in range(REPEATS + 1):
            for name, model in models.items():
                runs[name].append(_timed(model, prompts, tokens))
        facts["batches"][size] = {
            name: {
                "first_ms": _median_and_range([1000 * first for first, _, _ in timings[1:]]),
                "token_ms": _median_and_range([1000 * token for _, token, _ in timings[1:]]),
                "bytes": sum(
                    p.numel() * p.element_size()
                    for p in (*models[name].parameters(), *hooks.patch_parameters(models[name]))
                )
                + timings[0][2],
            }
            for name, timings in runs.items()
        }
        first, token, _ = max(runs[name][-1] for name in models)
        expected = max(BATCHES) / size * (first + token * tokens / 4)
    return {"left_out": reason} if (reason := _why_busy(device)) else facts


def _prompts(job: Job, count: int, length: int) -> Tensor:
    """Return prompts [count, length] from the test text, from its start again where it is short."""
    ids = job.test_sequences.flatten()
    return ids.repeat(-(-count * length // len(ids)))[: count * length].view(count, length)


class _Stamps(transformers.StoppingCriteria):
    """Note when each token is there; nothing is stopped."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **unused) -> Tensor:
        if input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)
        self.at.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def _timed(model: nn.Module, prompts: Tensor, tokens: int) -> tuple[float, float, int]:
    """Return the seconds to the first token and for each further one, and the bytes of the cache afterwards."""
    stamps = _Stamps()
    settings = transformers.GenerationConfig(
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
        return_dict_in_generate=True,
    )
    started = time.perf_counter()
    written = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        generation_config=settings,
        stopping_criteria=transformers.StoppingCriteriaList([stamps]),
    )
    cache = [vars(layer).values() for layer in getattr(written.past_key_values, "layers", ())]
    size = sum(t.numel() * t.element_size() for layer in cache for t in layer if isinstance(t, Tensor))
    return stamps.at[0] - started, (stamps.at[-1] - stamps.at[0]) / max(1, len(stamps.at) - 1), size


def _why_busy(device: torch.device) -> str:
    """Return why times would say little; '' where the machine is free for them."""
    idle, needed = threads.idle(), torch.get_num_threads()
    if device.type != "cpu" or idle > needed - TOLERATED:
        return ""
    return f"other processes kept the cores busy: {idle:.1f} were free, {needed} are computed on"


def _median_and_range(values: list[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)]


def divergence(job: Job, original: nn.Module, model: nn.Module) -> dict:
    """Measure the mean KL divergence of the model's next-token probabilities from the original's, in nats per token.

    It uses the first `COMPARED` test sequences. The standard error is that of the sequences' means, None for one
    sequence.
    """
    sequences = job.test_sequences[:COMPARED]
    means = from_original(model, original, sequences, progress="KL divergence")[0].numpy()
    if not np.isfinite(means).all():
        return {"left_out": "probabilities of one of the models are no numbers"}
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else None
    return {"kl": float(np.mean(means)), "kl_stderr": error, "sequences": len(means)}


def changes(before: dict[str, dict], after: dict[str, dict]) -> dict[str, dict]:
    """Return the changes from one model's {task: {metric: outcomes}} to another's, for tasks of right or wrong items.

    Returns:
        {task: {"metric", "n", "flips": share of items that one model alone has right, "change": in accuracy, "low",
        "high": its 95 % interval, paired over the items}}.
    """
    by_task = {}
    for task in before:
        metric = next((name for name, values in before[task].items() if values.dtype == bool), None)
        if task not in after or metric is None or len(before[task][metric]) < 2:
            continue
        differences = after[task][metric].astype(int) - before[task][metric].astype(int)
        low, high = significance.student(differences)
        numbers = {
            "flips": float(np.abs(differences).mean()),
            "change": float(differences.mean()),
            "low": low,
            "high": high,
        }
        by_task[task] = {"metric": metric, "n": len(differences)} | numbers
    return by_task


def samples(job: Job, model: nn.Module) -> list[dict]:
    """Generate greedy continuations of the beginnings of three test sequences."""
    sequences = job.test_sequences
    places = sorted({0, len(sequences) // 2, len(sequences) - 1})
    prompt_tokens = max(1, min(PROMPT, job.length // 2))
    prompts = [job.tokenizer.decode(sequences[index][:prompt_tokens], skip_special_tokens=True) for index in places]
    prompts = [prompt for prompt in prompts if open_ended(job.tokenizer)(prompt)["input_ids"]]
    tokens = max(1, min(SHOWN, job.length - prompt_tokens))
    try:
        texts = complete(model, job.tokenizer, prompts, tokens)
    except UserError as error:  # a context of a few tokens
        say(f"no samples: {error}")
        return []
    return [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts)]


def sizes(job: Job, dtype: torch.dtype | None) -> dict:
    """Count the parameters and bytes of the model as it is saved, patches included; a tied head counts once."""
    own, patches = list(job.model.parameters()), hooks.patch_parameters(job.model)
    stored = sum(p.numel() * (dtype.itemsize if dtype and p.is_floating_point() else p.element_size()) for p in own)
    added = sum(p.numel() * p.element_size() for p in patches)
    return {"parameters": sum(p.numel() for p in (*own, *patches)), "bytes": stored + added}


@torch.no_grad()
def round_to(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Round weights to the dtype in which they are saved, so that the measured model is the saved one.

    The weights stay in the dtype of the computation.
    """
    if dtype in (None, model.dtype):
        return
    for module in (embedding(model), final_norm(model), head(model), *layer_list(model)):
        for parameter in at_hand(module).parameters():
            if parameter.is_floating_point() and not absent(parameter):
                rounded = parameter.data.to(dtype).to(parameter.dtype)
                if not torch.equal(rounded, parameter.data):  # a streamed layer that changes is written to the disk
                    parameter.data = rounded


def perplexity_text(value: float) -> str:
    """Format a perplexity: two decimals, or four digits if it is large."""
    return f"{value:.2f}" if value < 1e5 else f"{value:.3e}" if math.isfinite(value) else "not finite"
