"""lm-eval's Hugging Face model, scoring each item's shared text once instead of once per choice.

lm-eval asks for log p(choice | context), one request per choice, and its `HFLM` runs context and choice through the
model for each. Here the requests that begin alike become one prefix tree: every distinct prefix is one token of one
packed sequence, placed at its depth (`position_ids`) and attending to its ancestors alone (a four-dimensional mask).
Causal attention makes a token's output a function of its prefix, so the log-likelihoods are `HFLM`'s up to rounding, at
the cost of the distinct prefixes only: four choices share their context, items of one few-shot prompt share the prompt,
choices of one token cost nothing, and contexts that differ at the end (WinoGrande) share their beginning.

Deviations from `HFLM`: log-probabilities are formed in float32 (or `softmax_dtype`) whatever the model's dtype;
responses are never cached, as lm-eval's cache key ignores changed weights.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm

from common.decoder import SLIDING, Decoder
from common.errors import UserError
from common.evaluation import prefix_store
from common.evaluation.targets import target_scores
from common.evaluation.workers import side_by_side

log = logging.getLogger(__name__)

# A request joins the tree of its neighbour when they share at least this part of it: below, a longer packed sequence
# (whose attention is quadratic in its length) costs more than the few shared tokens save.
MIN_SHARED = 0.2
# Longest tree, in tokens, that still takes on another request. Its mask has the square of this many entries.
MAX_TREE = 1024
# Tokens of one forward pass, padding included: bounds the logits at this many times the vocabulary. On a CPU small
# passes are faster: activations stay in its cache, and less is padded.
MAX_TOKENS = {"cpu": 768, "other": 4096}
_MASKED_ATTENTION = {"sdpa", "eager"}

Request = tuple[tuple[str, str], list[int], list[int]]


@dataclass
class Tree:
    """Requests packed into one sequence.

    tokens, depths: one entry per node, in the order they are fed; parents come first.
    paths: request index -> its nodes from the root on, as many as its input has tokens.
    """

    tokens: list[int]
    depths: list[int]
    paths: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def chain(self) -> bool:
        """Whether no two requests part: a plain sequence."""
        return self.depths[-1] == len(self) - 1

    def attach(self, request: int, sequence: Sequence[int], stem: Sequence[int]) -> list[int]:
        """Add a request whose input is `sequence` and begins along the nodes `stem`; returns its path."""
        fresh = range(len(self.tokens), len(self.tokens) + len(sequence) - len(stem))
        self.tokens.extend(sequence[len(stem) :])
        self.depths.extend(range(len(stem), len(sequence)))
        self.paths[request] = [*stem, *fresh]
        return self.paths[request]

    def ancestry(self) -> Tensor:
        """[nodes, nodes] bool: row `i` marks the ancestors of node `i` and itself."""
        allowed = torch.eye(len(self), dtype=torch.bool)
        done: set[int] = set()
        for path in self.paths.values():
            nodes = torch.tensor(path)
            fresh = [depth for depth, node in enumerate(path) if node not in done]
            done.update(path)
            if fresh:
                # the new nodes of a path are its end, so their rows are the last ones of a triangle
                triangle = torch.ones(len(fresh), len(path), dtype=torch.bool).tril(len(path) - len(fresh))
                allowed[nodes[fresh[0] :, None], nodes] = triangle
        return allowed


def grow(sequences: Sequence[Sequence[int]], *, min_shared: float = MIN_SHARED, max_tree: int = MAX_TREE) -> list[Tree]:
    """Pack token sequences into prefix trees, the longest tree first.

    Sorted lexicographically, the longest prefix a sequence shares with any earlier one is the one it shares with its
    neighbour, so one pass over neighbours builds the trees.
    """
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    trees: list[Tree] = []
    before: Sequence[int] = ()
    path: list[int] = []
    for index in order:
        sequence = sequences[index]
        shared = _common_prefix(before, sequence)
        fits = trees and len(trees[-1]) + len(sequence) - shared <= max_tree
        if not (fits and shared >= max(1, min_shared * len(sequence))) and shared < len(sequence):
            trees.append(Tree([], [], {}))
            shared = 0
        path = trees[-1].attach(index, sequence, path[:shared])
        before = sequence
    return sorted(trees, key=len, reverse=True)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class SharedContextLM(HFLM):
    """An lm-eval model around a model object: `SharedContextLM(model, tokenizer)`; plain, pruned or patched alike.

    batch_size: the most trees (usually: items) in one forward pass; `MAX_TOKENS` bounds it as well. min_shared: see
    `MIN_SHARED`. `forward_tokens` and `padded_tokens` count what went through the model: distinct prefixes, and all
    positions with the padding; `head_rows` the positions whose logits were made; `layers_run` the layer calls and
    `layers_saved` those that states of an earlier evaluation made unnecessary (`common.evaluation.prefix_store`: on the
    CPU).
    Attention implementations that take no mask of one's own (flash attention) fall back to `HFLM`'s way. Raises
    UserError for an architecture `common.decoder` does not know.
    """

    def __init__(self, model, tokenizer, *, batch_size: int = 16, min_shared: float = MIN_SHARED, **options):
        self.decoder = Decoder(model)
        with _quiet():  # it warns that a model object makes it ignore its options about loading one
            super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, **options)
        self.min_shared = min_shared
        self.forward_tokens = 0
        self.padded_tokens = 0
        self.head_rows = 0
        self.layers_saved = 0
        self.layers_run = 0
        self._encodings: dict[str, list[int]] = {}

    def loglikelihood(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """As in lm-eval: (log-likelihood, whether greedy decoding would say it) of each request's continuation."""
        self._encodings = self._encoded([request.args for request in requests])
        try:
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm or _silent())
        finally:
            self._encodings = {}

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
        """The token ids of every text that lm-eval encodes for pairs of context and continuation, each once.

        One call for all of them is several times faster than a call for each, and choices share their context.
        """
        first = self.tokenizer.decode(self.prefix_token_id)  # lm-eval gives a text that has it no second one
        texts = {text for context, rest in pairs if context for text in (context.rstrip(), context + rest)}
        plain = [text for text in texts if not text.startswith(first)]
        options = {} if self.add_bos_token is None else {"add_special_tokens": self.add_bos_token}
        return (
            dict(zip(plain, self.tokenizer(plain, verbose=False, **options)["input_ids"], strict=True)) if plain else {}
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, *args, **options) -> list[int]:
        """As in lm-eval."""
        if add_special_tokens is None and not args and not options and string in self._encodings:
            return self._encodings[string]
        return super().tok_encode(string, add_special_tokens, *args, **options)

    def sequence_nll(self, requests) -> list[float]:
        """For requests of (text, most tokens): the text's negative log-likelihood, in nats, over its number of tokens.

        As OpenCompass scores an option: the first token is counted but not predicted; a longer text loses its end.
        """
        texts = []
        for text, limit in (request.args for request in requests):
            tokens = self.tokenizer(text, verbose=False)["input_ids"][: min(limit, self.max_length)]
            texts.append((("", text), tokens[:1], tokens[1:]))
        answers = self._loglikelihood_tokens(texts, disable_tqdm=False)
        return [-total / (1 + len(rest)) for (total, _), (_, _, rest) in zip(answers, texts, strict=True)]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        """As in lm-eval: each request's greedy or sampled continuation, cut at its stop strings."""
        return super().generate_until(requests, disable_tqdm=disable_tqdm or _silent())

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        implementation = self.decoder.config._attn_implementation
        if implementation not in _MASKED_ATTENTION:
            log.warning("attention %r takes no custom mask: contexts are not shared", implementation)
            return super()._loglikelihood_tokens(requests, disable_tqdm or _silent(), override_bs)
        trees = grow([self._input(request) for request in requests], min_shared=self.min_shared)
        self._body = prefix_store.Body(self.decoder, shared=not self.mixed_precision_dtype)
        answers: list[tuple[float, bool] | None] = [None] * len(requests)
        batches = list(self._batches(trees))
        with (
            tqdm(total=len(requests), desc="scoring choices", disable=disable_tqdm or _silent()) as bar,
            side_by_side(lambda batch: self._score(batch, requests), batches, self.device) as results,
        ):
            for batch, (found, head_rows) in zip(batches, results, strict=True):
                for index, answer in found:
                    answers[index] = answer
                self.forward_tokens += sum(map(len, batch))
                self.padded_tokens += len(batch) * len(batch[0])
                self.head_rows += head_rows
                bar.update(sum(len(tree.paths) for tree in batch))
        self.layers_saved += self._body.layers_saved
        self.layers_run += self._body.layers_run
        return answers

    def _input(self, request: Request) -> list[int]:
        """What the model reads: context and continuation without its last token, cut from the left as `HFLM` does."""
        (context, continuation), context_ids, continuation_ids = request if request[0] else (("", ""), *request[1:])
        if not context_ids or not continuation_ids:
            raise UserError(f"cannot score {continuation!r} after {context!r}: one of them has no tokens")
        if len(continuation_ids) > self.max_length:
            raise UserError(
                f"cannot score a continuation of {len(continuation_ids)} tokens: the model reads {self.max_length}"
            )
        return [*context_ids, *continuation_ids][-(self.max_length + 1) :][:-1]

    def _batches(self, trees: list[Tree]) -> Iterator[list[Tree]]:
        """Trees of similar length together; the longest first, so that running out of memory happens at once."""
        start = 0
        budget = MAX_TOKENS.get(self.device.type, MAX_TOKENS["other"])
        while start < len(trees):
            count = max(1, min(int(self.batch_size), budget // len(trees[start])))
            yield trees[start : start + count]
            start += count

    @torch.inference_mode()
    def _score(self, batch: list[Tree], requests: list[Request]) -> tuple[list[tuple[int, tuple[float, bool]]], int]:
        """(request, answer) for the requests of one batch, and the number of positions whose logits were made."""
        spans = []  # (request, row, the nodes whose logits predict the continuation)
        for row, tree in enumerate(batch):
            spans += [(index, row, path[-len(requests[index][2]) :]) for index, path in tree.paths.items()]
        # each (row, node) whose logits are needed, once: several choices may be predicted at one node
        length = len(batch[0])
        flat = torch.tensor([row * length + node for _, row, nodes in spans for node in nodes])
        needed, rows = flat.unique(return_inverse=True)
        targets = torch.tensor([token for index, _, _ in spans for token in requests[index][2]])
        by_row = rows.argsort(stable=True)
        with self._autocast():
            hidden = self._hidden(batch).flatten(0, 1)
            hidden = hidden[needed.to(hidden.device)]
            nll, best = target_scores(
                self.decoder, hidden, rows[by_row], targets[by_row], self.softmax_dtype or torch.float32
            )
        likely, greedy = torch.empty_like(nll), torch.empty_like(best)
        likely[by_row], greedy[by_row] = -nll, best
        sizes = [len(nodes) for _, _, nodes in spans]
        parts = zip(spans, likely.split(sizes), greedy.split(sizes), strict=True)
        return [(index, (float(ll.sum()), bool(best.all()))) for (index, _, _), ll, best in parts], len(needed)

    def _autocast(self) -> torch.autocast:
        dtype = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _hidden(self, batch: list[Tree]) -> Tensor:
        """Run trees, padded on the right; what the final norm returns [trees, nodes, channels]."""
        length = len(batch[0])
        ids = torch.zeros(len(batch), length, dtype=torch.long)
        for row, tree in enumerate(batch):
            ids[row, : len(tree)] = torch.tensor(tree.tokens)
        if all(tree.chain for tree in batch):  # causal attention never looks at the padding behind a plain sequence
            return self._body(ids)
        depths = torch.zeros_like(ids)
        allowed = torch.eye(length, dtype=torch.bool).repeat(len(batch), 1, 1)  # padding sees itself, or it is NaN
        for row, tree in enumerate(batch):
            depths[row, : len(tree)] = torch.tensor(tree.depths)
            allowed[row, : len(tree), : len(tree)] = tree.ancestry()
        return self._body(ids, depths, self._masks(allowed.unsqueeze(1), depths), allowed)

    def _masks(self, allowed: Tensor, depths: Tensor) -> dict[str, Tensor]:
        """What is added to the scores [trees, 1, nodes, nodes], for each kind of layer.

        sdpa would make the same from a boolean mask, but once for each layer.
        """
        masks, dtype = {}, self.decoder.embed.weight.dtype
        for kind in {self.decoder.layer_type(layer) for layer in range(self.decoder.num_layers)}:
            mask = allowed
            if kind == SLIDING:
                # a sliding window sees `sliding_window` positions, its own included; an ancestor is that far up
                distance = depths[:, None, :, None] - depths[:, None, None, :]
                mask = allowed & (distance < self.decoder.config.sliding_window)
            mask = mask.to(self.device)
            masks[kind] = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
        return masks


def _silent() -> bool:
    return not sys.stderr.isatty()


class _quiet:
    """Keeps lm-eval's model log at errors while its constructor runs."""

    logger = logging.getLogger("lm_eval.models.huggingface")

    def __enter__(self) -> None:
        self.level = self.logger.level
        self.logger.setLevel(logging.ERROR)

    def __exit__(self, *_) -> None:
        self.logger.setLevel(self.level)
