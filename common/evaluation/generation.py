"""Greedy generation: texts to look at (LaCo, Table 8; Reassessing, Table Q) and a small benchmark for the toy model.

Decoding is greedy and cached; prompts of similar length form a batch, padded on the left. Sampling settings that a model
brings along are not used.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import stdev

import numpy as np
import torch

from common.hooks import compares_tokens
from common.models.decoder import rope_switch
from common.utils.errors import UserError
from common.utils.token_ids import open_ended

BATCH = 16


def one_at_a_time(model) -> bool:
    """Return whether an answer would depend on the longest prompt beside it in a batch.

    It would with two sets of rotary frequencies (`rope_switch`), and with a patch that takes padding for tokens.
    """
    return rope_switch(model.config) is not None or compares_tokens(model)


@torch.inference_mode()
def complete(model, tokenizer, prompts: Sequence[str], tokens: int) -> list[str]:
    """Generate each prompt's greedy continuation, at most `tokens` tokens, without special tokens.

    A prompt too long for the model's context is truncated on the left.

    Raises:
        UserError: no room for a prompt.
    """
    import transformers

    batch_size = 1 if one_at_a_time(model) else BATCH
    room = getattr(model.config, "max_position_embeddings", None)
    if room is not None and room <= tokens:
        raise UserError(f"cannot generate {tokens} tokens after a prompt: the model reads {room} in all")
    opened = open_ended(tokenizer)
    encoded = [opened(prompt, verbose=False)["input_ids"][-(room - tokens) if room else 0 :] for prompt in prompts]
    stop = tokenizer.eos_token_id
    pad = next(token for token in (tokenizer.pad_token_id, stop, 0) if token is not None)
    settings = transformers.GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=stop, pad_token_id=pad, use_cache=True
    )
    device = model.get_input_embeddings().weight.device
    order = sorted(range(len(prompts)), key=lambda index: len(encoded[index]))
    texts = [""] * len(prompts)
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        width = max(len(encoded[index]) for index in batch)
        ids = torch.tensor([[pad] * (width - len(encoded[index])) + encoded[index] for index in batch])
        mask = torch.tensor([[0] * (width - len(encoded[index])) + [1] * len(encoded[index]) for index in batch])
        with _without_own_settings(model):
            out = model.generate(ids.to(device), attention_mask=mask.to(device), generation_config=settings)
        for index, generated in zip(batch, out[:, width:], strict=True):
            texts[index] = tokenizer.decode(generated, skip_special_tokens=True)
    return texts


@contextmanager
def _without_own_settings(model) -> Iterator[None]:
    """Leave out a model's own generation settings: transformers fills with them what a caller's leave open."""
    import transformers

    own, model.generation_config = model.generation_config, transformers.GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def distinct_bigrams(text: str) -> float | None:
    """Return the share of distinct pairs of neighbouring words among all pairs; None without a pair.

    It is near 0 for a text that repeats itself.
    """
    words = text.split()
    pairs = list(zip(words, words[1:], strict=False))
    return len(set(pairs)) / len(pairs) if pairs else None


@dataclass(frozen=True)
class PromptSet:
    """Prompts whose continuations, of so many ``tokens``, a table prints."""

    prompts: Callable[[], list[str]]
    tokens: int
    source: str


def _toy_prompts() -> list[str]:
    """Return the header and first twelve words of one held-out function docstring of each domain."""
    from common.toy import corpus

    prompts = []
    for domain in corpus.DOMAINS:
        documents = (d for d in corpus.split_documents("test", domain) if d.kind == "function")
        long_enough = [d for d in documents if len(d.text.split()) >= 60 and len(d.header) <= 60]
        chosen = min(long_enough, key=lambda d: hashlib.sha256(d.text.encode()).digest())
        prompts.append(f"{chosen.header}\n\n{' '.join(chosen.text.split()[:12])}")
    return prompts


# A paper's come with its package.
PROMPT_SETS: dict[str, PromptSet] = {"standin-1": PromptSet(_toy_prompts, 48, "this repository; held-out docstrings")}


def generations(model, tokenizer, name: str) -> tuple[dict, dict, dict]:
    """Generate continuations of a prompt set.

    Returns:
        Values, standard errors and details. Values: 'distinct_2', the mean share of distinct bigrams, and 'words', the
        mean length. There are no standard errors. Details: 'text-1', 'text-2', ..., the continuations; 'prompts', their
        prompts; 'source' and 'tokens' of the prompt set.
    """
    prompt_set = PROMPT_SETS[name]
    prompts = prompt_set.prompts()
    texts = complete(model, tokenizer, prompts, prompt_set.tokens)
    shares = [distinct_bigrams(text) or 0.0 for text in texts]
    values = {"distinct_2": sum(shares) / len(shares), "words": sum(len(text.split()) for text in texts) / len(texts)}
    details = {f"text-{number}": text for number, text in enumerate(texts, 1)}
    return values, {}, details | {"prompts": prompts, "source": prompt_set.source, "tokens": prompt_set.tokens}


LINES, ENDINGS_PER_SUBJECT = 40, 3
# Tasks whose answer is a line of its own: what stands between question and answer, and the most tokens of an answer.
_LINES = {"docstring_parameter_type": ("", 12), "docstring_section": ("\n\n", 6)}


def docstring_generation(model, tokenizer, *, limit: int | None = None) -> tuple[dict, dict, dict]:
    """Measure the toy model's generation benchmark on the first ``limit`` items of each part; None: on all.

    Returns:
        Values, standard errors and details. 'exact_match': share of generated lines that equal the docstring's, a
        parameter's type or the title of the next section. 'rouge_1', 'rouge_l': F of eight generated words that
        continue a summary's first half against its real continuation.
    """
    from rouge_score.rouge_scorer import RougeScorer

    from common.toy import exam, tasks

    generated, expected = [], []
    for name, (delimiter, tokens) in _LINES.items():
        rows = list(tasks.build(name, LINES))[:limit]
        texts = complete(model, tokenizer, [row["question"] + delimiter for row in rows], tokens)
        generated += [text.strip().split("\n")[0] for text in texts]
        expected += [row["choices"][row["answer"]].split("\n")[0] for row in rows]
    outcomes = {"exact_match": [float(a == b) for a, b in zip(generated, expected, strict=True)]}

    subjects = [subject for group in exam.CATEGORIES.values() for subject in group]
    questions = [row for subject in subjects for row in exam.questions(subject)[:ENDINGS_PER_SUBJECT]][:limit]
    endings = [row["choices"][row["answer"]] for row in questions]
    continued = complete(model, tokenizer, [row["question"] for row in questions], 24)
    continued = [" ".join(text.split("\n\n")[0].split()[:8]) for text in continued]
    scorer = RougeScorer(["rouge1", "rougeL"])
    scored = [scorer.score(right, text) for right, text in zip(endings, continued, strict=True)]
    outcomes |= {
        key: [item[n].fmeasure for item in scored] for key, n in (("rouge_1", "rouge1"), ("rouge_l", "rougeL"))
    }
    values = {key: sum(scores) / len(scores) for key, scores in outcomes.items()}
    errors = {key: stdev(scores) / len(scores) ** 0.5 for key, scores in outcomes.items() if len(scores) > 1}
    examples = [
        {"prompt": row["question"], "text": text, "reference": right}
        for row, text, right in zip(questions[:10], continued, endings, strict=False)
    ]
    details = {"texts": examples, "lines": [generated[:10], expected[:10]], "items": [len(generated), len(questions)]}
    return values, errors, details | {"outcomes": {key: np.float32(scores) for key, scores in outcomes.items()}}
