"""LaCo's search with one model and suffix runs against the notebooks' way: layer executions, memory, identical choices.

The notebooks' way, written out here: the model is copied for every attempt, and both the copy and the original run every
sentence from the embedding. Settings of the paper's kind (C = 4, I = 2), the same sentences. The two take turns, after one
round that warms up; times are medians, memory is that of a run of its own.

    python benchmarks/laco.py [--sentences 10] [--merge code] [--threshold 0.65] [--layers 16] [--hidden 192] [--repeats 3]

--layers and --hidden build a random model of that size in place of the toy model, to see memory at scale.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from common.console.command_line import option, parse
from common.models import loading
from common.models.decoder import Decoder
from common.toy import WEIGHTS
from common.utils.ratios import Ratio, hand_over, in_turns
from papers.laco import collapse, merge_layers, output_similarity
from papers.laco.algorithm import pointer
from papers.laco.outputs import tokenise
from papers.laco.sentences import calibration_sentences


@torch.no_grad()
def notebooks_way(model, tokenizer, sentences: Sequence[str], C: int, I: int, T: float, merge: str):
    """Verdicts (l, K, accepted) and layer executions of a copy per attempt and two full forwards per sentence."""
    ids = tokenise(tokenizer, sentences)
    current, trace, executions = copy.deepcopy(model), [], 0

    def outputs(net):
        nonlocal executions
        executions += len(ids) * net.config.num_hidden_layers
        return [net(i.to(net.device), output_hidden_states=True).hidden_states[-1][0] for i in ids]

    moves = pointer(model.config.num_hidden_layers, C, 1, model.config.num_hidden_layers, I)
    l, K = next(moves)
    while True:
        if current.config.num_hidden_layers - 2 < K:
            break
        trial = copy.deepcopy(current)
        merge_layers(trial, l - 1, K, merge)
        accepted = output_similarity(outputs(trial), outputs(model)) > T
        current = trial if accepted else current
        trace.append((l, K, accepted))
        try:
            l, K = moves.send(accepted)
        except StopIteration:
            break
    return trace, executions


def one_model(model, tokenizer, sentences: Sequence[str], C: int, I: int, T: float, merge: str):
    """Search by `papers.laco.collapse`; changes the model."""
    found = collapse(model, tokenizer, sentences, C=C, I=I, T=T, merge=merge)
    trace = [(a.l, a.K, a.accepted) for a in found.trace if a.similarity is not None]
    return trace, found.layer_executions


class Memory:
    """The most memory held inside the block beyond what was held before it, in MiB (GPU: allocated; CPU: resident)."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"

    def __enter__(self) -> Memory:
        gc.collect()
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: start the peak anew
            self.before = self._resident("VmRSS")
        return self

    def __exit__(self, *_) -> None:
        after = torch.cuda.max_memory_allocated() if self.gpu else self._resident("VmHWM")
        self.peak = (after - self.before) / 2**20

    @staticmethod
    def _resident(name: str) -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


@dataclass(kw_only=True)
class Options:
    """The command line."""

    sentences: int = 10
    merge: str = option("code", choices=("paper", "code"))
    threshold: float = 0.65
    layers: int | None = option(None, "of a random model in place of the toy model")
    hidden: int = 192
    device: str = "cpu"
    repeats: int = 3


def main() -> None:
    """Print counts, peaks and choices."""
    chosen = parse(Options, description=__doc__)
    torch.set_flush_denormal(True)
    sentences = calibration_sentences("standin-calibration", chosen.sentences)
    if chosen.layers:
        tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
        heads = max(1, chosen.hidden // 64)
        sizes = {
            "hidden_size": chosen.hidden,
            "num_attention_heads": heads,
            "intermediate_size": 8 * chosen.hidden // 3,
        }
        config = LlamaConfig(**sizes, num_hidden_layers=chosen.layers, vocab_size=len(tokenizer))
        model = LlamaForCausalLM(config).eval().to(chosen.device)
    else:
        model, tokenizer = loading.load("standin", device=chosen.device)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    layer = sum(p.numel() * p.element_size() for p in Decoder(model).layers[0].parameters()) / 2**20
    print(f"{model.config.num_hidden_layers} layers, {parameters:.0f} MiB of weights, {layer:.1f} MiB in a layer")
    setting = {"C": 4, "I": 2, "T": chosen.threshold, "merge": chosen.merge}
    ways = {
        "notebooks' way": lambda: notebooks_way(model, tokenizer, sentences, **setting),
        "one model": lambda: one_model(copy.deepcopy(model), tokenizer, sentences, **setting),
    }
    times, _ = in_turns(ways, chosen.repeats)
    found = {}
    for name, way in (("notebooks' way", notebooks_way), ("one model", one_model)):
        with Memory(model.device) as memory:
            trace, executions = way(model, tokenizer, sentences, **setting)
        seconds = times[name]
        found[name] = (trace, executions, seconds, memory.peak)
        share = executions / found["notebooks' way"][1]
        print(
            f"{name:15} {executions:6} layer executions ({share:.2f})  {memory.peak:7.1f} MiB beyond the model at the peak  "
            f"{seconds:5.1f} s  {sum(accepted for *_, accepted in trace)} of {len(trace)} attempts accepted"
        )
    same = found["one model"][0] == found["notebooks' way"][0]
    print(f"identical choices: {same}")
    if not same:
        raise SystemExit("the searches differ in what they merge")
    (_, *theirs), (_, *ours) = found["notebooks' way"], found["one model"]
    kinds = (
        ("layer executions", "{:.0f}", ""),
        ("time", "{:.1f} s", "float32"),
        ("memory beyond the model", "{:.1f} MiB", "float32"),
    )
    for (kind, form, dtype), one, other in zip(kinds, ours, theirs, strict=True):
        hand_over(Ratio(f"LaCo's search: {kind}", form.format(one), one / other, "the notebooks' way", dtype=dtype))


if __name__ == "__main__":
    main()
