"""Perplexity in the way of GPTQ, which the papers use: one long token sequence, split into sequences, each read alone.

    sequences x_1 .. x_n of L tokens (the rest is dropped);  nll_i = mean over t = 2..L of -log p(x_i[t] | x_i[1..t-1])
    perplexity = exp(mean over i of nll_i)

This is perplexity per token. lm-eval's `word_perplexity` is another quantity (8.7 where this is 5.5), as is a
perplexity over overlapping sequences. No token is put before a sequence. Log-probabilities are formed in float32 whatever
the model's dtype.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.calibration import corpora
from common.console.progress import track
from common.forward import prefix_cache
from common.forward.parallel_batches import side_by_side
from common.forward.token_log_probs import target_scores
from common.models.decoder import Decoder
from common.utils.errors import UserValueError

MAX_TOKENS = 2048


def split_into_sequences(tokens: Tensor, window: int) -> Tensor:
    """Split `tokens` [T] or [1, T] into non-overlapping sequences [T // window, window]; the last tokens are dropped.

    Raises:
        UserValueError: a sequence without a prediction, or a text shorter than one sequence.
    """
    if window < 2:
        raise UserValueError(f"a window of {window} token(s) predicts nothing; use 2 or more")
    if tokens.ndim == 2 and len(tokens) == 1:
        tokens = tokens[0]
    if tokens.ndim != 1:
        raise UserValueError(f"expected one sequence of tokens, [T] or [1, T], but got shape {list(tokens.shape)}")
    if len(tokens) < window:
        raise UserValueError(f"the text is too short: {len(tokens)} tokens do not fill one sequence of {window}")
    return tokens[: len(tokens) // window * window].view(-1, window)


def token_nlls(model, sequences: Tensor, *, progress: str | None = None, max_tokens: int = MAX_TOKENS) -> Tensor:
    """Compute the negative log-likelihood of each sequence's tokens except its first, in nats.

    ``sequences`` are token ids [sequences, L]. A forward pass has ``max_tokens`` at most, or one sequence.

    Returns:
        Losses, float32 [sequences, L - 1].

    Raises:
        UserError: an architecture that `common.models.architectures` does not know.
    """
    decoder = Decoder(model)
    body = prefix_cache.Body(decoder)
    batches = sequences.cpu().split(max(1, max_tokens // sequences.shape[1]))

    @torch.inference_mode()
    def nlls_of(batch: Tensor) -> Tensor:
        hidden = body(batch)[:, :-1].flatten(0, 1)  # [batch * (L - 1), channels]
        nlls, _ = target_scores(decoder, hidden, torch.arange(len(hidden)), batch[:, 1:].flatten())
        return nlls.view(len(batch), -1)

    body.ahead(batches, lambda batch: (batch, None, None))
    with side_by_side(nlls_of, batches, decoder.device) as results:
        shown = progress is not None
        return torch.cat(list(track(results, progress or "", total=len(batches), unit="batch", shown=shown)))


def summarise(nlls: Tensor) -> dict[str, float | int | None]:
    """Compute perplexity and its standard error from the losses ``nlls`` [windows, L - 1] in nats.

    Sequences are taken as independent draws. The standard error of the mean loss is that of the sequence means, and by
    the delta method se(ppl) = ppl * se(nll). With one sequence it is None.
    """
    means = nlls.double().mean(dim=1)
    mean = float(means.mean())
    spread = float(means.std() / math.sqrt(len(means))) if len(means) > 1 else None
    value = math.exp(mean) if mean < 700 else math.inf  # beyond, exp overflows
    return {
        "perplexity": value,
        "stderr": None if spread is None else value * spread,
        "nll": mean,
        "nll_stderr": spread,
        "windows": len(means),
        "predictions": nlls.numel(),
    }


def perplexity(model, tokens: Tensor, window: int) -> float:
    """Return the perplexity per token in non-overlapping sequences; see the module's text for the definition.

    Args:
        model: A causal language model.
        tokens: Token ids [T] or [1, T].
        window: Tokens of a sequence, L.

    Raises:
        UserValueError: (a ValueError) a window below 2, or a text shorter than one sequence.
    """
    return summarise(token_nlls(model, split_into_sequences(tokens, window)))["perplexity"]


def joined_sequences(protocol: Protocol, tokenizer) -> Tensor:
    """Join the corpus, tokenise it once and split it: [sequences, L]."""
    return split_into_sequences(corpora.joined_ids(tokenizer, protocol.corpus), protocol.window)


def every_nth(step: int) -> Callable:
    """Return a function that takes sequences 0, step, 2 step, ... of `joined_sequences`.

    A quarter of the sequences take a quarter of the time, and have twice the standard error.
    """
    return lambda protocol, tokenizer: joined_sequences(protocol, tokenizer)[::step]


def evenly_spaced(count: int, length: int) -> list[int]:
    """Return ``count`` of ``length`` positions, evenly spread from the first one on; all if there are fewer."""
    count = min(count, length)
    return [i * length // count for i in range(count)]


def sequence_count(tokens: int, window: int) -> int:
    """Return the number of sequences of ``window`` tokens that hold ``tokens``, rounded down; at least one."""
    return max(1, tokens // window)


def spread(count: int, source: Callable[[Protocol, object], Tensor] = joined_sequences) -> Callable:
    """Return a function that takes ``count`` of a protocol's sequences, evenly spread over the text (all if fewer)."""

    def evenly_spread(protocol: Protocol, tokenizer) -> Tensor:
        sequences = source(protocol, tokenizer)
        return sequences[evenly_spaced(count, len(sequences))]

    return evenly_spread


def c4_crops(protocol: Protocol, tokenizer, count: int = 256, seed: int = 0) -> Tensor:
    """Draw `count` random crops [count, L], each from a random document of more than L tokens; documents may repeat.

    Source: GPTQ's C4 validation set. Python's `random` draws one document, again while it is too short, then one
    offset. Each document is tokenised by itself.
    """
    documents = corpora.texts(protocol.corpus)
    rng = random.Random(seed)
    length, crops = protocol.window, []
    encoded: dict[int, Tensor | None] = {}  # None: too short
    while len(crops) < count:
        index = rng.randint(0, len(documents) - 1)
        if index not in encoded:
            ids = corpora.encode(tokenizer, documents[index])
            encoded[index] = ids if len(ids) > length else None
        if (ids := encoded[index]) is not None:
            start = rng.randint(0, len(ids) - length - 1)
            crops.append(ids[start : start + length])
        elif len(encoded) == len(documents) and not crops:
            raise UserValueError(f"{protocol.corpus}: none of its {len(documents)} documents exceeds {length} tokens")
    return torch.stack(crops)


@dataclass(frozen=True)
class Protocol:
    """A named way to measure perplexity.

    Attributes:
        name: Name that results are stored under.
        corpus: Name of the text.
        window: L, tokens in a sequence.
        sequences: Function from the protocol and a tokenizer to sequences [sequences, L].
    """

    name: str
    corpus: str
    window: int
    sequences: Callable[[Protocol, object], Tensor] = joined_sequences

    def of_tokens(self, tokens: int) -> Protocol:
        """Return this protocol on as many sequences as hold ``tokens``, evenly spread over the text."""
        sequences = spread(sequence_count(tokens, self.window), self.sequences)
        return replace(self, name=f"{self.name}@{tokens}-tokens", sequences=sequences)

    def measured(self, model, tokenizer, *, limit: int | None = None, progress: bool = True) -> dict:
        """Measure the perplexity of a model on the first ``limit`` sequences; None: on all.

        Returns:
            Perplexity with its standard error, token counts, digests of corpus and tokens, this protocol's identity,
            and under ``window_nlls`` the mean loss of each sequence (nats, a numpy array).

        Raises:
            UserError: the corpus is not available or too short, or ``limit`` is below 1.
        """
        if limit is not None and limit < 1:
            raise UserValueError(f"a limit of {limit} sequences measures nothing; use 1 or more")
        sequences = self.sequences(self, tokenizer)[:limit]
        nlls = token_nlls(model, sequences, progress=self.name if progress else None)
        return {
            **summarise(nlls),
            "window_nlls": nlls.double().mean(dim=1).float().numpy(),
            "tokens": sequences.numel(),
            "window": self.window,
            "protocol": self.name,
            "version": 1,
            "corpus": self.corpus,
            "corpus_sha256": corpora.digest(self.corpus),
            "tokens_sha256": hashlib.sha256(sequences.contiguous().numpy().tobytes()).hexdigest(),
            "dtype": str(model.get_input_embeddings().weight.dtype).removeprefix("torch."),
            "limit": limit,
        }


PROTOCOLS: dict[str, Protocol] = {}  # a paper's come with its package


def register(*protocols: Protocol) -> None:
    """Register protocols, so that measurements can name them."""
    PROTOCOLS.update({protocol.name: protocol for protocol in protocols})


# The toy model's held-out docstrings, in sequences of the length that it was trained on; of the parts every fourth or eighth.
_PARTS = {"": joined_sequences, "-quarter": every_nth(4), "-thin": every_nth(8)}
for _domain in ("standard-library", "numerical", "learning"):
    register(
        *(Protocol(f"standin-{_domain}{part}", _domain, 256, sequences=sequences) for part, sequences in _PARTS.items())
    )
