"""Scoring real tasks: against a bare forward pass over the same tokens, against lm-eval's own HFLM, and after another model.

    LAYERLAB_HUB=../shared/hub python benchmarks/scoring.py [--items 40] [--repeats 2] [--tasks arc_easy,piqa] [--json]

scoring   what `SharedContextLM` takes from tokenised requests to log-likelihoods; tokens: distinct prefixes, no padding
bare      body and head, no softmax, over as many tokens: random ids in sequences of the trees' mean length, without padding
          or mask, in the same sizes of batch and on the same cores; body: the same without the head
HFLM      lm-eval's own way through the same requests, the better of its batches of 4 and 16 on the first 64 of them
around    what lm-eval does before and after: read, build requests, tokenise, count
states    layer calls that a pruned and a patched model are spared after the whole one, by `common.forward.prefix_cache`

All are measured in one run, taking turns; medians of `--repeats`. Beside other processes use `--threads 1`, which counts
processor time: HFLM's threads would wait for one another after each operation, most of the time. The first items of a
task differ more in length than all of them: a full test set is padded by 1 to 4 %. The model is SmolLM2-135M-Instruct in
bfloat16 with real tasks where it was fetched and LAYERLAB_HUB has the tasks, else the toy model in float32 with its own.
"""

from __future__ import annotations

import copy
import json
import logging
import statistics
import time
from dataclasses import dataclass

import torch
from lm_eval.models.huggingface import HFLM

from common.console.command_line import option, parse
from common.evaluation import harness, multiple_choice, prefix_trees
from common.evaluation.multiple_choice import SharedContextLM
from common.forward import prefix_cache
from common.forward.hidden_state_files import StateFiles
from common.forward.parallel_batches import side_by_side
from common.forward.token_log_probs import HEAD_ROWS
from common.hooks import attach_patch
from common.models import loading, registry
from common.models.decoder import Decoder
from common.models.files import gguf_wheels, hub
from common.models.surgery import remove_layers
from common.toy.tasks import COLUMNS as STANDIN_TASKS
from common.utils.ratios import Ratio, hand_over

REAL = "smollm2-135m-instruct"
TASKS = ("arc_easy", "piqa", "hellaswag")
TOKENS = multiple_choice.MAX_TOKENS["cpu"]


class Recorder(SharedContextLM):
    """Keeps the tokenised requests of a task and answers none."""

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, override_bs=None):
        self.requests = list(requests)
        return [(0.0, False)] * len(requests)


def subject(name: str | None, tasks: str | None):
    """Model, tokenizer, name and tasks: what was asked for, else the real LLM if it is here, else the toy model."""
    here = gguf_wheels.folder(registry.get(REAL)).is_dir() and hub.mirror("datasets", "allenai/ai2_arc")
    name = name or (REAL if here else loading.STANDIN)
    dtype = "float32" if name == loading.STANDIN else "bfloat16"
    chosen = tasks.split(",") if tasks else list(STANDIN_TASKS)[:3] if name == loading.STANDIN else TASKS
    return *loading.load(name, dtype=dtype), f"{name} in {dtype}", chosen


def timed(work) -> float:
    """Return the seconds that `work` takes; of one thread those it computed, which other processes change little."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def bare(decoder: Decoder, tokens: int, length: int, head: bool) -> None:
    """Body, and head or not, over `tokens` random tokens in sequences of `length`."""
    ids = torch.randint(3, decoder.config.vocab_size, (-(-tokens // length), length))

    @torch.inference_mode()
    def run(batch: torch.Tensor) -> None:
        hidden = decoder.model.model(batch.to(decoder.device), use_cache=False).last_hidden_state.flatten(0, 1)
        for part in hidden.split(HEAD_ROWS) if head else ():
            decoder.head(part)

    with side_by_side(run, ids.split(max(1, TOKENS // length)), decoder.device) as results:
        list(results)


def peak(decoder: Decoder) -> float:
    """GFLOP/s of the model's own matrices on `TOKENS` rows: the best of them, on the same cores."""
    layer = decoder.layers[decoder.num_layers // 2]
    matrices = [part for part in layer.modules() if isinstance(part, torch.nn.Linear)]
    rates = []
    for matrix in matrices:
        rows = torch.randn(TOKENS, matrix.in_features, dtype=matrix.weight.dtype)

        @torch.inference_mode()
        def run(_, matrix=matrix, rows=rows) -> None:
            for _ in range(5):
                matrix(rows)

        def work(run=run) -> None:
            with side_by_side(run, range(4), decoder.device) as results:
                list(results)

        work()
        rates.append(20 * 2 * TOKENS * matrix.weight.numel() / min(timed(work) for _ in range(3)) / 1e9)
    return max(rates)


def hflm(model, tokenizer, batch_size: int, **options) -> HFLM:
    """Return lm-eval's own model."""
    return HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, **options)


def answered(lm, requests) -> list[float]:
    """Return the log-likelihoods of requests."""
    return [answer for answer, _ in lm._loglikelihood_tokens(requests, disable_tqdm=True)]


def differences(model, tokenizer, requests) -> dict[str, tuple[float, float]]:
    """Mean and largest difference of a log-likelihood from that of HFLM in float32: ours and HFLM's."""
    exact = answered(hflm(copy.deepcopy(model).float(), tokenizer, 4), requests)
    found = {}
    for name, lm in (("ours", SharedContextLM(model, tokenizer)), ("HFLM's", hflm(model, tokenizer, 4))):
        apart = [abs(a - b) for a, b in zip(answered(lm, requests), exact, strict=True)]
        found[name] = statistics.fmean(apart), max(apart)
    return found


def measure(model, tokenizer, task: str, items: int, repeats: int) -> tuple[dict, list]:
    """Return one task's row, and its requests."""
    recorder, decoder = Recorder(model, tokenizer), Decoder(model)
    around = timed(lambda: harness.evaluate(model, tokenizer, [task], limit=items, lm=recorder))
    requests = recorder.requests
    first = requests[:64]
    lm = SharedContextLM(model, tokenizer)
    grown = prefix_trees.grow([lm._input(request) for request in requests])
    tokens = sum(map(len, grown))
    length = round(tokens / len(grown))
    theirs = min((hflm(model, tokenizer, size) for size in (4, 16)), key=lambda lm: timed(lambda: answered(lm, first)))
    answered(lm, requests)
    turns = {
        "scoring": lambda: answered(SharedContextLM(model, tokenizer), requests),
        "bare": lambda: bare(decoder, tokens, length, head=True),
        "body": lambda: bare(decoder, tokens, length, head=False),
        "hflm": lambda: answered(theirs, requests),
    }
    seconds = [{name: timed(work) for name, work in turns.items()} for _ in range(repeats)]
    median = {name: statistics.median(turn[name] for turn in seconds) for name in turns}
    return {
        "task": task,
        "items": items,
        "requests": len(requests),
        "tokens": tokens,
        "padded": lm.padded_tokens,
        "head_rows": lm.head_rows,
        "length": length,
        "hflm_tokens": sum(len(context) + len(choice) - 1 for _, context, choice in requests),
        "hflm_batch": theirs.batch_size,
        "around_s": around,
        "seconds": median,
        "ratios": {name: median[name] / median["scoring"] for name in ("bare", "body", "hflm")},
        "differences": differences(model, tokenizer, first),
    }, requests


class Halve(torch.nn.Module):
    """A module that halves what it receives."""

    kind = "halve"

    def forward(self, hidden):
        """Halve the hidden states."""
        return hidden / 2


def states(model, tokenizer, requests) -> dict:
    """Whole, pruned and patched model on the same requests, with states and without: seconds and layer calls."""
    layers = len(model.model.layers)
    first = 3 * layers // 5
    pruned = copy.deepcopy(model)
    remove_layers(pruned, range(first, first + layers // 4))
    patched = copy.deepcopy(pruned)
    attach_patch(patched, first, Halve())
    found, answers = [], []
    for store in (StateFiles(0), StateFiles()):
        prefix_cache.STORE = store
        for name, one in (("whole", model), ("pruned", pruned), ("patched", patched)):
            lm = SharedContextLM(one, tokenizer)
            seconds = timed(lambda lm=lm: answers.append(lm._loglikelihood_tokens(requests, disable_tqdm=True)))
            found.append({"model": name, "seconds": seconds, "run": lm.layers_run, "saved": lm.layers_saved})
    prefix_cache.STORE = StateFiles(0)
    return {
        "removed": [first, first + layers // 4],
        "alone": found[:3],
        "shared": found[3:],
        "bytes": store.bytes,
        "equal": answers[:3] == answers[3:],
    }


def show(row: dict) -> None:
    """Print a task's row."""
    second, ratio = row["seconds"], row["ratios"]
    print(
        f"{row['task']}: {row['requests']} requests, {row['tokens']} tokens, {row['padded'] / row['tokens']:.3f} x padded, "
        f"{row['length']} a tree, {row['head_rows']} through the head; {row['around_s']:.1f} s around\n"
        f"  {row['tokens'] / second['scoring']:.0f} tokens/s, {ratio['bare']:.2f} of bare "
        f"({row['tokens'] / second['bare']:.0f}), {ratio['body']:.2f} of the body alone, which has "
        f"{row['body_of_peak']:.2f} of the matrices' rate\n"
        f"  {row['requests'] / second['scoring']:.1f} requests/s, {ratio['hflm']:.2f} x HFLM "
        f"({row['requests'] / second['hflm']:.1f} in batches of {row['hflm_batch']}, {row['hflm_tokens']} tokens)"
    )
    apart = "; ".join(f"{name} {mean:.1e}, {largest:.1e}" for name, (mean, largest) in row["differences"].items())
    print(f"  log-likelihoods from HFLM's in float32, mean and largest difference: {apart}", flush=True)


def handed(found: dict) -> None:
    """Hand over the page's lines: each task against the bare pass and HFLM, the bare pass against the peak, the states."""
    dtype = found["model"].rpartition(" ")[2]
    for row in found["tasks"]:
        second, ratio, choices = row["seconds"], row["ratios"], row["requests"] / row["items"]
        speed = f"{row['tokens'] / second['scoring']:.0f} tokens/s"
        body = f"{row['tokens'] / second['body']:.0f} tokens/s"
        least, theirs = 3 if choices > 3 else 2, row["hflm_tokens"]  # without its padding
        bare_pass, matrices, goal = "bare forward pass", "its matrices alone", {"least": least, "dtype": dtype}
        hand_over(
            Ratio(f"scoring {row['task']}: time", speed, 1 / ratio["bare"], bare_pass, most=1.15, dtype=dtype),
            Ratio(f"scoring {row['task']}: speed", speed, ratio["hflm"], "lm-eval's HFLM", **goal),
            Ratio(
                f"scoring {row['task']}: tokens", str(row["tokens"]), row["tokens"] / theirs, "lm-eval's HFLM", dtype=""
            ),
            Ratio(f"body alone, {row['task']}: rate", body, row["body_of_peak"], matrices, least=0.5, dtype=dtype),
        )
    for row in found["states"]["shared"][1:]:
        calls = row["saved"] + row["run"]
        what = f"the {row['model']} model after the whole one: layer calls"
        hand_over(Ratio(what, f"{row['run']} of {calls}", row["run"] / calls, "without kept states", dtype=""))


@dataclass(kw_only=True)
class Options:
    """The command line."""

    items: int = option(40, "first items of each task")
    repeats: int = 2
    threads: int = option(torch.get_num_threads(), "of ours, bare and HFLM")
    tasks: str | None = option(None, "comma-separated")
    model: str | None = option(None, "a registered model or a checkpoint")
    json: bool = False


def main() -> None:
    """Print the ratios."""
    arguments = parse(Options, description=__doc__.splitlines()[0])
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    prefix_cache.STORE = StateFiles(0)  # else a repeat would begin where the one before ended
    model, tokenizer, name, tasks = subject(arguments.model, arguments.tasks)
    decoder = Decoder(model)
    found = {"model": name, "threads": torch.get_num_threads(), "gflops": peak(decoder), "tasks": []}
    if not arguments.json:
        print(f"{name}, {found['threads']} thread(s), matrices up to {found['gflops']:.0f} GFLOP/s", flush=True)
    for task in tasks:
        row, requests = measure(model, tokenizer, task, arguments.items, arguments.repeats)
        matrices = sum(p.numel() for p in decoder.layers.parameters() if p.ndim == 2)
        row["body_of_peak"] = 2e-9 * matrices * row["tokens"] / row["seconds"]["body"] / found["gflops"]
        found["tasks"].append(row)
        if not arguments.json:
            show(row)
        if task == tasks[0]:
            found["states"] = states(model, tokenizer, requests)
    handed(found)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    kept = found["states"]
    print(f"after the whole model, layers {kept['removed'][0]} to {kept['removed'][1] - 1} removed ({tasks[0]}):")
    for alone, shared in zip(kept["alone"], kept["shared"], strict=True):
        print(
            f"{shared['model']:>14}: {alone['seconds']:.1f} s alone, {shared['seconds']:.1f} s with states; "
            f"{shared['saved']} of {shared['saved'] + shared['run']} layer calls spared"
        )
    print(f"{kept['bytes'] / 1e6:.0f} MB of states; answers {'equal to the bit' if kept['equal'] else 'DIFFER'}")


if __name__ == "__main__":
    main()
