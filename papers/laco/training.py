"""Post-training a collapsed model on plain text (LaCo, section 4.1 and appendix B), by `common.training.finetuning`.

Appendix B: sequences of 4096 tokens, Adam at 2e-4 with betas .9 and .95, cosine schedule, weight decay .1, gradients
clipped at norm 1, LLaMA-Factory with DeepSpeed ZeRO-2 on four GPUs. Not stated, and how it is read here:

    "8 per GPU, total 32, accumulation 4"   contradictory: 8 x 4 GPUs is 32 without accumulation, 128 with it; 32 a step
    warm-up                                 none is named: none
    Adam                                    AdamW, LLaMA-Factory's default: the decay is apart from the gradient
    precision                               bfloat16 products over float32 weights
    the text                                "the English dataset", about 1.0 B tokens (Baichuan 2: 1.25 B, half Chinese):
                                            unnamed; a recipe says which corpus it takes
    which parameters                        all of them

`papers/laco/configs` and `papers.laco.posttrain` hold the same for four GPUs.
"""

import logging
import random
from collections.abc import Sequence

import numpy as np

from common.training.finetuning import Settings
from common.utils.errors import UserError

log = logging.getLogger(__name__)

LENGTH = 4096
SEQUENCES_PER_STEP = 32
TOKENS = {"llama-2-7b": 1_000_000_000, "baichuan2-7b": 1_250_000_000}
APPENDIX_B = {
    "method": "full",
    "epochs": 1,
    "batch": SEQUENCES_PER_STEP,
    "micro_batch": 8,
    "learning_rate": 2e-4,
    "warmup_steps": 0,
    "schedule": "cosine",
    "betas": [0.9, 0.95],
    "weight_decay": 0.1,
    "clip": 1.0,
    "autocast": "bfloat16",
    "keep": "last",
}


def settings(**changed) -> Settings:
    """Return Appendix B's settings with the fields in ``changed`` replaced."""
    return Settings.of({**APPENDIX_B, **changed})


def text_blocks(tokenizer, documents: Sequence[str], *, length: int, tokens: int, seed: int) -> list[dict]:
    """Cut the first ``tokens`` tokens of shuffled documents into training rows of exactly ``length`` tokens.

    The tokenizer's end token, if it has one, precedes each document. The last tokens, which fill no row, are dropped.
    Rows are views of one array, since Appendix B's text has a billion tokens. `common.training.instructions.blocks` says how
    its rows differ.

    Returns:
        Rows of input_ids and equal labels, so that every token counts in the loss.

    Raises:
        UserError: the documents do not fill one row, or ``length`` leaves no token to predict.
    """
    if length < 2:
        raise UserError(f"a block of {length} tokens has none to predict; use a length of 2 or more")
    documents = list(documents)
    random.Random(seed).shuffle(documents)
    end, parts, total = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id], [], 0
    for document in documents:
        ids = tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
        parts.append(np.array([*end, *ids], dtype=np.int32))
        total += len(parts[-1])
        if total >= tokens:
            total = tokens
            break
    if total < tokens:
        log.warning("the training text has %s tokens, not %s: trained on those", f"{total:,}", f"{tokens:,}")
    blocks = total // length
    if blocks < 1:
        raise UserError(f"the training text has {total} tokens, less than one block of {length}; use more text")
    stream = np.concatenate(parts)[: blocks * length].reshape(blocks, length)
    return [{"input_ids": block, "labels": block} for block in stream]
