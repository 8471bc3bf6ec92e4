"""Scoring real tasks: against a bare forward pass, against lm-eval's own HFLM, and after another model.

    LAYERLAB_HUB=DIR python benchmarks/scoring.py

scoring   what `SharedContextLM` takes from tokenised requests to log-likelihoods; tokens: distinct prefixes, no padding
bare      body and head, no softmax, over as many tokens: random ids in sequences of the trees' mean length, without padding
          or mask, in the same sizes of batch and on the same cores; body: the same without the head
HFLM      lm-eval's own way through the same requests, the better of its batches of 4 and 16 on the first 64 of them
states    layer calls that a pruned and a patched model are spared after the whole one, by `common.forward.prefix_cache`

The first items of a task differ more in length than all of them: a full test set is padded by
1 to 4 %. The model is SmolLM2-135M-Instruct in bfloat16 with real tasks where it was fetched and LAYERLAB_HUB has the tasks,
else the toy model in float32 with its own.
"""

import copy
import logging

import torch
from lm_eval.models.huggingface import HFLM

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
from common.toy.tasks import COLUMNS as TOY_TASKS
from common.utils.ratios import Ratio, hand_over, in_turns

REAL = "smollm2-135m-instruct"
ITEMS, REPEATS = 40, 2
TASKS = ("arc_easy", "piqa", "hellaswag")
TOKENS = multiple_choice.MAX_TOKENS["cpu"]


class Recorder(SharedContextLM):
    """Recorder of the tokenised requests of a task; it answers none."""

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, override_bs=None):
        self.requests = list(requests)
        return [(0.0, False)] * len(requests)


def subject():
    """Return model, tokenizer, dtype and tasks: of the real LLM if it is available, else of the toy model."""
    real_is_here = gguf_wheels.folder(registry.get(REAL)).is_dir() and hub.mirror("datasets", "allenai/ai2_arc")
    name, dtype, tasks = (REAL, "bfloat16", TASKS) if real_is_here else (loading.TOY_ID, "float32", list(TOY_TASKS)[:3])
    return *loading.load(name, dtype=dtype), dtype, tasks


def bare(decoder: Decoder, tokens: int, length: int, head: bool) -> None:
    """Run the body, and optionally the head, over `tokens` random tokens in sequences of `length`."""
    ids = torch.randint(3, decoder.config.vocab_size, (-(-tokens // length), length))

    @torch.inference_mode()
    def run(batch: torch.Tensor) -> None:
        hidden = decoder.model.model(batch.to(decoder.device), use_cache=False).last_hidden_state.flatten(0, 1)
        for part in hidden.split(HEAD_ROWS) if head else ():
            decoder.head(part)

    with side_by_side(run, ids.split(max(1, TOKENS // length)), decoder.device) as results:
        list(results)


def peak(decoder: Decoder) -> float:
    """Return the GFLOP/s of the model's matrices on `TOKENS` rows: the best of them, on the same cores."""
    rates = []
    for matrix in decoder.layers[decoder.num_layers // 2].modules():
        if isinstance(matrix, torch.nn.Linear):
            rows = torch.randn(TOKENS, matrix.in_features, dtype=matrix.weight.dtype)

            @torch.inference_mode()
            def run(_, matrix=matrix, rows=rows) -> None:
                for _ in range(5):
                    matrix(rows)

            def work(run=run) -> None:
                with side_by_side(run, range(4), decoder.device) as results:
                    list(results)

            seconds = in_turns({"products": work})[0]["products"]
            rates.append(20 * 2 * TOKENS * matrix.weight.numel() / seconds / 1e9)
    return max(rates)


def answered(lm, requests) -> list:
    """Return the answers to requests."""
    return lm._loglikelihood_tokens(requests, disable_tqdm=True)


def measure(model, tokenizer, task: str, dtype: str, gflops: float) -> list:
    """Measure one task's ratios; return its requests."""
    recorder, decoder, lm = Recorder(model, tokenizer), Decoder(model), SharedContextLM(model, tokenizer)
    harness.evaluate(model, tokenizer, [task], limit=ITEMS, lm=recorder)
    requests = recorder.requests
    trees = prefix_trees.grow([lm._input(request) for request in requests])
    tokens = sum(map(len, trees))
    length = round(tokens / len(trees))
    sizes = {size: HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=size) for size in (4, 16)}
    tried, _ = in_turns({size: lambda lm=lm: answered(lm, requests[:64]) for size, lm in sizes.items()}, 1)
    ways = {
        "scoring": lambda: answered(SharedContextLM(model, tokenizer), requests),
        "bare": lambda: bare(decoder, tokens, length, head=True),
        "body": lambda: bare(decoder, tokens, length, head=False),
        "hflm": lambda: answered(sizes[min(tried, key=tried.get)], requests),
    }
    seconds, _ = in_turns(ways, REPEATS)
    scoring_seconds = seconds["scoring"]
    speed, body = f"{tokens / scoring_seconds:.0f} tokens/s", f"{tokens / seconds['body']:.0f} tokens/s"
    least, unpadded = 3 if len(requests) / ITEMS > 3 else 2, sum(len(c) + len(e) - 1 for _, c, e in requests)
    rate = 2e-9 * sum(p.numel() for p in decoder.layers.parameters() if p.ndim == 2) * tokens / seconds["body"]
    title, hflm = f"scoring {task}", "lm-eval's HFLM"
    hand_over(
        Ratio(f"{title}: time", speed, scoring_seconds / seconds["bare"], "bare forward pass", most=1.15, dtype=dtype),
        Ratio(f"{title}: speed", speed, seconds["hflm"] / scoring_seconds, hflm, least=least, dtype=dtype),
        Ratio(f"{title}: tokens", str(tokens), tokens / unpadded, hflm, dtype=""),
        Ratio(f"body alone, {task}: rate", body, rate / gflops, "its matrices alone", least=0.5, dtype=dtype),
    )
    return requests


class Halve(torch.nn.Module):
    """A module that halves its input."""

    kind = "halve"

    def forward(self, hidden):
        """Halve the hidden states."""
        return hidden / 2


def states(model, tokenizer, requests) -> None:
    """Measure the layer calls of a pruned and a patched model after the original one, with its states."""
    layers = len(model.model.layers)
    first = 3 * layers // 5
    pruned = copy.deepcopy(model)
    remove_layers(pruned, range(first, first + layers // 4))
    patched = copy.deepcopy(pruned)
    attach_patch(patched, first, Halve())
    models = {"whole": model, "pruned": pruned, "patched": patched}
    alone = [answered(SharedContextLM(variant, tokenizer), requests) for variant in models.values()]
    prefix_cache.STORE = StateFiles()
    for (name, variant), expected in zip(models.items(), alone):
        lm = SharedContextLM(variant, tokenizer)
        if answered(lm, requests) != expected:
            raise SystemExit(f"the {name} model's answers from kept states differ from those without")
        calls, title = lm.layers_saved + lm.layers_run, f"the {name} model after the whole one: layer calls"
        if name != "whole":
            measured = f"{lm.layers_run} of {calls}"
            hand_over(Ratio(title, measured, lm.layers_run / calls, "without kept states", dtype=""))
    prefix_cache.STORE = StateFiles(0)


def main() -> None:
    """Print the ratios."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.set_flush_denormal(True)
    prefix_cache.STORE = StateFiles(0)  # else a repeat would begin where the one before ended
    model, tokenizer, dtype, tasks = subject()
    gflops = peak(Decoder(model))
    for number, task in enumerate(tasks):
        requests = measure(model, tokenizer, task, dtype, gflops)
        if not number:
            states(model, tokenizer, requests)


if __name__ == "__main__":
    main()
