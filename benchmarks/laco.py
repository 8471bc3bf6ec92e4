"""LaCo's search with one model and suffix runs against the notebooks' way: `python benchmarks/laco.py`.

The notebooks' way, written out here: the model is copied for every attempt, and both the copy and the original run every
sentence from the embedding. Settings of the paper's kind (C = 4, I = 2) on the toy model. Memory is that of a run of its own.
"""

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import torch

from common.models import loading
from common.utils.ratios import Ratio, hand_over, race
from papers.laco import collapse, merge_layers, output_similarity
from papers.laco.algorithm import pointer
from papers.laco.outputs import tokenise
from papers.laco.sentences import calibration_sentences

C, I, T, MERGE, SENTENCES = 4, 2, 0.65, "code", 10


@torch.no_grad()
def notebooks_way(model, tokenizer, sentences) -> tuple[list, int]:
    """Return verdicts (l, K, accepted) and layer executions of a copy per attempt and two full forwards per sentence."""
    ids = tokenise(tokenizer, sentences)
    current, trace, executions = copy.deepcopy(model), [], 0

    def outputs(net):
        nonlocal executions
        executions += len(ids) * net.config.num_hidden_layers
        return [net(i, output_hidden_states=True).hidden_states[-1][0] for i in ids]

    moves = pointer(model.config.num_hidden_layers, C, 1, model.config.num_hidden_layers, I)
    l, K = next(moves)
    while current.config.num_hidden_layers - 2 >= K:
        trial = copy.deepcopy(current)
        merge_layers(trial, l - 1, K, MERGE)
        accepted = output_similarity(outputs(trial), outputs(model)) > T
        current = trial if accepted else current
        trace.append((l, K, accepted))
        try:
            l, K = moves.send(accepted)
        except StopIteration:
            break
    return trace, executions


def one_model(model, tokenizer, sentences) -> tuple[list, int]:
    """Return the same of `papers.laco.collapse`; the model is changed."""
    result = collapse(model, tokenizer, sentences, C=C, I=I, T=T, merge=MERGE)
    return [(a.l, a.K, a.accepted) for a in result.trace if a.similarity is not None], result.layer_executions


def _resident(name: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(name))


def peak_mib(work: Callable[[], object]) -> float:
    """Return the growth of peak resident memory during `work`, in MiB (Linux)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # start the peak anew
    before = _resident("VmRSS")
    work()
    return (_resident("VmHWM") - before) / 2**10


def main() -> None:
    """Print the ratios."""
    torch.set_flush_denormal(True)
    sentences = calibration_sentences("standin-calibration", SENTENCES)
    model, tokenizer = loading.load("standin")
    subject, baseline = "LaCo's search", "the notebooks' way"
    race(
        subject,
        baseline,
        lambda: notebooks_way(model, tokenizer, sentences),
        lambda: one_model(copy.deepcopy(model), tokenizer, sentences),
    )
    mib = [peak_mib(lambda way=way: way(model, tokenizer, sentences)) for way in (notebooks_way, one_model)]
    hand_over(Ratio(f"{subject}: memory beyond the model", f"{mib[1]:.1f} MiB", mib[1] / mib[0], baseline))


if __name__ == "__main__":
    main()
