"""Multiple-choice scoring with shared contexts against lm-eval's own HFLM: `python benchmarks/multiple_choice.py`.

Same items, same model, same run, the two taking turns; times are medians. Prints items per second, their ratio, tokens
through the model and the largest difference of a log-likelihood; then the same items on a model cut in the middle, after
the whole model was scored, with its states (`common.forward.prefix_cache`) and without. `--json` prints the rows for
machines. The model is the toy model when its weights are there (or `--model`), else a random Llama of 16 layers x 192; the
items have four choices and a context of about 59 tokens.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import statistics
import time
from dataclasses import dataclass

import torch
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM

from common.console.command_line import option, parse
from common.evaluation.multiple_choice import SharedContextLM
from common.forward import prefix_cache
from common.forward.hidden_state_files import LIMIT, StateFiles
from common.models import loading
from common.models.surgery import remove_layers
from common.utils.errors import UserError
from common.utils.ratios import Ratio, hand_over, in_turns

CONTEXT, SPREAD, CHOICE, CHOICES = 59, 25, (4, 20), 4


def build_model(name: str | None):
    """Return the named model, else the toy model, else a random one of a similar shape; and its name."""
    try:
        return loading.load(name or loading.STANDIN)[0], name or loading.STANDIN
    except UserError:
        if name:
            raise
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=16,
        num_attention_heads=6,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config).eval(), "random Llama 16 x 192"


def build_items(vocabulary: int, count: int) -> list[tuple[tuple[str, str], list[int], list[int]]]:
    """Tokenised requests, four to an item; contexts of 59 +- 25 tokens, choices of 4 to 20."""
    rng = random.Random(0)
    found = []
    for item in range(count):
        context = [rng.randrange(3, vocabulary) for _ in range(rng.randint(CONTEXT - SPREAD, CONTEXT + SPREAD))]
        for choice in range(CHOICES):
            tokens = [rng.randrange(3, vocabulary) for _ in range(rng.randint(*CHOICE))]
            found.append(((str(item), str(choice)), context, tokens))
    return found


class Counter:
    """Counts the positions a model runs, padding included."""

    def __init__(self, model):
        self.tokens = 0
        self.handle = model.model.embed_tokens.register_forward_pre_hook(self._count)

    def _count(self, module, args) -> None:
        self.tokens += args[0].numel()


def answered(lm, items) -> tuple[list, int]:
    """Return the answers, and the positions that went through the model."""
    counter = Counter(lm.model)
    answers = lm._loglikelihood_tokens(items, disable_tqdm=True)
    counter.handle.remove()
    return answers, counter.tokens


def compare(model, items, batch_size: int, hflm_batch_size: int, repeats: int) -> dict:
    """Return both scorers on the same items."""
    # the scorers get token ids; the tokenizer is only asked for its special tokens
    tokenizer = tokenizer_stub()
    shared = SharedContextLM(model, tokenizer, batch_size=batch_size)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=hflm_batch_size)
    ways = {"hflm": lambda: answered(theirs, items), "shared": lambda: answered(shared, items)}
    seconds, returned = in_turns(ways, repeats)
    (their, their_positions), (ours, our_positions) = returned["hflm"], returned["shared"]

    def row(name: str) -> dict:
        rate = len(items) / CHOICES / seconds[name]
        return {"items_per_s": round(rate, 2), "seconds": round(seconds[name], 3), "positions": returned[name][1]}

    return {
        "hflm": row("hflm"),
        "shared": {**row("shared"), "distinct_prefixes": shared.forward_tokens // (repeats + 1)},
        "speedup": round(seconds["hflm"] / seconds["shared"], 2),
        "fewer_positions": round(their_positions / our_positions, 2),
        "largest_difference": max(abs(a[0] - b[0]) for a, b in zip(ours, their, strict=True)),
        "greedy_equal": [a[1] for a in ours] == [b[1] for b in their],
    }


def share_states(model, items, batch_size: int, repeats: int) -> dict:
    """Return the seconds for a model without a third of its layers behind its middle-left one, with the whole model's
    states or not.
    """
    layers = len(model.model.layers)
    cut = copy.deepcopy(model)
    remove_layers(cut, range(3 * layers // 8, 3 * layers // 8 + layers // 3))
    answers, times = {}, {"alone": [], "shared": []}
    for _ in range(repeats):
        for label, limit in (("alone", 0), ("shared", LIMIT)):
            prefix_cache.STORE = StateFiles(limit)
            for scored in (model, cut):
                lm = SharedContextLM(scored, tokenizer_stub(), batch_size=batch_size)
                start = time.perf_counter()
                answers[label] = lm._loglikelihood_tokens(items, disable_tqdm=True)
                took = time.perf_counter() - start
            times[label].append(took)
    alone, shared = (statistics.median(times[label]) for label in ("alone", "shared"))
    return {
        "alone_s": round(alone, 3),
        "shared_s": round(shared, 3),
        "speedup": round(alone / shared, 2),
        "state_bytes": prefix_cache.STORE.bytes,
        "equal": answers["alone"] == answers["shared"],
    }


def tokenizer_stub():
    """Return a tokenizer with the two special tokens that lm-eval asks for."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = Tokenizer(WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2}, unk_token="</s>"))
    return PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@dataclass(kw_only=True)
class Options:
    """The command line."""

    items: int = 60
    repeats: int = 3
    threads: int = 1
    batch_size: int = option(16, "most items in one pass, shared contexts")
    hflm_batch_size: int = option(16, "requests in one forward pass, lm-eval's HFLM")
    model: str | None = option(None, "a registered model or a checkpoint; default: the toy model")
    json: bool = False


def main() -> None:
    """Print the ratios."""
    arguments = parse(Options, description=__doc__.splitlines()[0])
    torch.set_num_threads(arguments.threads)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    model, name = build_model(arguments.model)
    items = build_items(model.config.vocab_size, arguments.items)
    prefix_cache.STORE = StateFiles(0)  # else a repeat would begin where the one before ended
    found = compare(model, items, arguments.batch_size, arguments.hflm_batch_size, arguments.repeats)
    found["states"] = share_states(model, items, arguments.batch_size, arguments.repeats)
    rate = f"{found['shared']['items_per_s']:.1f} items/s"
    seconds = f"{found['states']['shared_s']:.1f} s"
    hand_over(
        Ratio("items of four choices, shared contexts: speed", rate, found["speedup"], "lm-eval's HFLM", least=3),
        Ratio(
            "a cut model after the whole one, with its states: speed", seconds, found["states"]["speedup"], "without"
        ),
    )
    if arguments.json:
        print(json.dumps({"model": name, "items": arguments.items, "threads": arguments.threads, **found}, indent=1))
        return
    print(f"{name}: {arguments.items} items of {CHOICES} choices, {arguments.threads} thread(s)")
    for label, row in (("lm-eval HFLM", found["hflm"]), ("shared context", found["shared"])):
        print(f"{label:>15} {row['items_per_s']:>8.1f} items/s {row['positions']:>9} positions")
    print(
        f"{'':>15} {found['speedup']:>8.2f} x       {found['fewer_positions']:>9.2f} x fewer, "
        f"largest difference {found['largest_difference']:.1e}"
    )
    states = found["states"]
    print(
        f"cut model after the whole one: {states['alone_s']} s alone, {states['shared_s']} s from its states "
        f"({states['speedup']} x, {states['state_bytes'] / 1e6:.0f} MB), answers "
        f"{'equal to the bit' if states['equal'] else 'DIFFER'}"
    )


if __name__ == "__main__":
    main()
