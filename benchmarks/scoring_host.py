"""What scoring multiple-choice tasks takes beside the forward passes, against lm-eval's own HFLM.

    LAYERLAB_HUB=DIR python benchmarks/scoring_host.py

Both models answer the same requests with forward passes that return zeros at once. What is left is the host's part:
tokenising, packing into batches, masks, and the answers' sums. On a GPU it takes longer than the passes of a small model.
Times are processor time, so other processes change little. Batches are those for a GPU.

first   a process's first model
again   the next model that is asked the same: tokens and batches are remembered

The tokenizer is SmolLM2's with real tasks, or the toy model's with its own, as in `scoring.py`.
"""

import logging
import time

import torch
from lm_eval.models.huggingface import HFLM
from scoring import subject

from common.evaluation import harness, multiple_choice
from common.evaluation.multiple_choice import SharedContextLM
from common.utils.ratios import Ratio, hand_over, in_turns

ITEMS, REPEATS = 3000, 2
TASKS = ("hellaswag", "piqa", "winogrande")
BATCH = 256
WORDS = 64  # logits of a pass that computes none


class Recorder(SharedContextLM):
    """Recorder of a task's requests; it answers none."""

    def loglikelihood(self, requests, disable_tqdm=False):
        """Keep the requests."""
        self.requests = requests
        return [(0.0, False)] * len(requests)


class Passes:
    """Replacement of the model's body that returns hidden states at once."""

    layers_saved = layers_run = 0

    def __init__(self, *_, **__):
        pass

    def ahead(self, *_) -> None:
        """Do nothing."""

    def __call__(self, ids, *_):
        """Return zeros for every token."""
        return torch.zeros(1, 1, 1).expand(*ids.shape, 1)


class Theirs(HFLM):
    """HFLM whose passes return at once."""

    def _model_call(self, inps, attn_mask=None, labels=None):
        return torch.zeros(1, 1, 1).expand(*inps.shape, WORDS)


def without_passes() -> None:
    """Replace the computation on the model by code that returns at once, with a GPU's batch sizes."""
    gather = torch.gather
    torch.gather = lambda values, dim, index: gather(values, dim, index.clamp(max=values.shape[dim] - 1))
    multiple_choice.prefix_cache.Body = Passes
    multiple_choice.target_scores = lambda decoder, hidden, places, *_: (
        torch.zeros(len(places)),
        torch.ones(len(places), dtype=torch.bool),
    )
    for bound in (multiple_choice.MAX_TOKENS, multiple_choice.PASS):
        bound["cpu"] = bound["other"]


def measure(model, tokenizer, task: str) -> None:
    """Measure one task's ratios."""
    recorder = Recorder(model, tokenizer)
    harness.evaluate(model, tokenizer, [task], limit=ITEMS, lm=recorder)
    own_model = SharedContextLM(model, tokenizer, batch_size=BATCH)
    hflm = Theirs(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=BATCH)

    def first():
        multiple_choice._remembered.clear()
        multiple_choice._planned.clear()
        own_model.loglikelihood(recorder.requests, disable_tqdm=True)

    ways = {
        "first": first,
        "again": lambda: own_model.loglikelihood(recorder.requests, disable_tqdm=True),
        "hflm": lambda: hflm.loglikelihood(recorder.requests, disable_tqdm=True),
    }
    seconds, _ = in_turns(ways, REPEATS, time.process_time)
    for name in ("first", "again"):
        measured = f"{len(recorder.requests)} requests, {seconds[name]:.2f} s; HFLM {seconds['hflm']:.2f} s"
        hand_over(Ratio(f"{task}, {name}: time", measured, seconds[name] / seconds["hflm"], "lm-eval's HFLM", dtype=""))


def main() -> None:
    """Print the ratios."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    model, tokenizer, dtype, tasks = subject()
    without_passes()
    for task in tasks if dtype == "float32" else TASKS:
        measure(model, tokenizer, task)


if __name__ == "__main__":
    main()
