"""lm-eval's Hugging Face model, scoring each item's shared text once instead of once per choice.

lm-eval asks for log p(choice | context), one request per choice, and its `HFLM` runs context and choice through the
model for each. Here the requests that begin alike become one prefix tree: every distinct prefix is one token of one
packed sequence, placed at its depth (`position_ids`) and attending to its ancestors alone (a four-dimensional mask).
Causal attention makes a token's output a function of its prefix, so the log-likelihoods are `HFLM`'s up to rounding, at
the cost of the distinct prefixes only: four choices share their context, items of one few-shot prompt share the prompt,
choices of one token cost nothing, and contexts that differ at the end (WinoGrande) share their beginning.

Deviations from `HFLM`: log-probabilities are formed in float32 whatever the model's dtype;
responses are never cached, as lm-eval's cache key ignores changed weights.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import psutil
import torch
from lm_eval.models import huggingface
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from common.console.progress import track
from common.evaluation.generation import one_at_a_time
from common.evaluation.prefix_trees import Tree, grow
from common.forward import prefix_cache
from common.forward.parallel_batches import side_by_side
from common.forward.token_log_probs import target_scores
from common.models.decoder import SLIDING, Decoder, rope_switch
from common.utils import cache
from common.utils.errors import UserError, errors_only
from common.utils.token_ids import open_ended

log = logging.getLogger(__name__)

# Tokens of one forward pass, padding included: bounds the logits at this many times the vocabulary. On a CPU small
# passes are faster: activations stay in its cache, and less is padded.
MAX_TOKENS = {"cpu": 768, "other": 4096}

Request = tuple[tuple[str, str], list[int], list[int]]


GENERATION_SHARE = 0.5  # of the free memory, for keys and values; the rest is for a pass over the prompts


def generated_together(config, itemsize: int, longest: int, free: int, most: int) -> int:
    """Return the number of sequences of ``longest`` tokens whose keys and values fit into the free bytes; at least one."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * heads * width * itemsize
    return max(1, min(most, int(GENERATION_SHARE * free / (token * longest))))


# Bytes of batches that a process remembers, most of them masks: the next model is asked the same questions. On a GPU building
# them anew took longer than the forward passes.
REMEMBERED_BYTES = min(2**32, psutil.virtual_memory().available // 16)
_planned: dict[tuple, list[list[Batch]]] = {}


@dataclass
class Batch:
    """The trees of one forward pass, with everything about the pass that does not depend on the model.

    Attributes:
        trees: Requests packed into sequences.
        endings: Request index -> the tokens to score; the last one is not in the tree.
    """

    trees: list[Tree]
    endings: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.trees)

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes of `tensors`."""
        return len(self) * len(self.trees[0]) * (len(self.trees[0]) + 16)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return token ids and depths [trees, nodes], and the attention mask [trees, nodes, nodes]; None for plain sequences.

        Trees are padded on the right with copies of their last node, because some code compares the tokens of a
        sequence (`common.calibration.massive_activations`) and must see only its tokens. Plain padding would be many
        first tokens.
        """
        length = len(self.trees[0])
        ids = _padded([tree.tokens for tree in self.trees], length)
        if all(tree.chain for tree in self.trees):  # causal attention never looks at padding behind a plain sequence
            return ids, None, None
        allowed = torch.eye(length, dtype=torch.bool).repeat(len(self), 1, 1)
        for row, tree in enumerate(self.trees):
            size, ancestry = len(tree), tree.ancestry()
            allowed[row, :size, :size] = ancestry
            if size < length:
                allowed[row, size:, : size - 1] = ancestry[-1, :-1]
        return ids, _padded([tree.depths for tree in self.trees], length), allowed

    @cached_property
    def requests(self) -> tuple[list[int], list[int]]:
        """Return the requests of the pass with the number of tokens to score of each."""
        indices = [index for tree in self.trees for index in tree.paths]
        return indices, [len(self.endings[index]) for index in indices]

    @cached_property
    def scored_tokens(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the positions whose logits are needed, and for each token to score its place, its id and its order.

        A position is needed once, even if several choices are predicted there. The place is an index into the
        positions, by which the tokens are sorted; order [tokens] is the index of each token in the order of `requests`.
        """
        length = len(self.trees[0])
        flat = [
            row * length + node
            for row, tree in enumerate(self.trees)
            for index, path in tree.paths.items()
            for node in path[-len(self.endings[index]) :]
        ]
        needed, places = torch.from_numpy(np.array(flat)).unique(return_inverse=True)
        targets = torch.from_numpy(np.array([token for index in self.requests[0] for token in self.endings[index]]))
        order = places.argsort(stable=True)
        return needed, places[order], targets[order], order


def _padded(rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return [rows, length] integers: each row followed by copies of its last one."""
    padded = np.empty((len(rows), length), np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
        row[len(values) :] = values[-1]
    return torch.from_numpy(padded)


def _nbytes(groups: list[list[Batch]]) -> int:
    return sum(batch.nbytes for group in groups for batch in group)


class SharedContextLM(HFLM):
    """An lm-eval model around a plain, pruned or patched model object: `SharedContextLM(model, tokenizer)`.

    Requests that begin alike share their first tokens' computation. Linear attention takes no custom mask: such models
    are scored in `HFLM`'s way.

    ``batch_size`` is the number of trees (usually: items) in one forward pass, at most; `MAX_TOKENS` bounds it as well.
    ``options`` are those of lm-eval's `HFLM`.

    Attributes:
        forward_tokens: Tokens computed, each distinct prefix once.
        layers_run: Layer calls.
        layers_saved: Layer calls saved by states of an earlier evaluation (`common.forward.prefix_cache`: on the CPU).

    Raises:
        UserError: an architecture that `common.models.architectures` does not know.
    """

    def __init__(self, model, tokenizer, *, batch_size: int = 16, **options):
        self.decoder, tokenizer = Decoder(model), open_ended(tokenizer)
        if tokenizer.pad_token is None:
            tokenizer = copy.deepcopy(tokenizer)  # lm-eval gives it one
        # It warns that a model object makes it ignore its options about loading one.
        with errors_only("lm_eval.models.huggingface"):
            super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, **options)
        self._max_length = self.max_length  # else looked for in the configuration at each use, twice a request
        self.forward_tokens = self.layers_run = self.layers_saved = 0
        self._encodings: dict[str, list[int]] = {}
        self._shown = False

    def loglikelihood(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return, as in lm-eval, (log-likelihood, whether greedy decoding would give it) of each request's continuation."""
        self._encodings = self._encoded([request.args for request in requests])
        self._shown = not disable_tqdm  # lm-eval's own bar, while it tokenises, is for terminals alone
        try:
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm or _no_terminal())
        finally:
            self._encodings, self._shown = {}, False

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
        """Return the token ids of every text that lm-eval encodes for pairs of context and continuation, each once.

        One call for all of them is several times faster than a call for each, and choices share their context.
        """
        if self.prefix_token_id is None:
            raise UserError(
                "the tokenizer has neither a start nor an end token, and lm-eval needs one of them. Name one in "
                "tokenizer_config.json"
            )
        first = self.tokenizer.decode(self.prefix_token_id)  # lm-eval gives a text that has it no second one
        texts = {text for context, rest in pairs if context for text in (context.rstrip(), context + rest)}
        plain = sorted(text for text in texts if not text.startswith(first))
        options = {} if self.add_bos_token is None else {"add_special_tokens": self.add_bos_token}
        return dict(zip(plain, self._token_ids(plain, **options), strict=True)) if plain else {}

    def _token_ids(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Return the ids of each text; without offsets and masks, which take most of the time on a machine of many cores."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or backend.truncation or backend.padding:
            return self.tokenizer(texts, verbose=False, add_special_tokens=add_special_tokens)["input_ids"]
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, *args, **options) -> list[int]:
        """Encode a text as lm-eval does."""
        if add_special_tokens is None and not args and not options and string in self._encodings:
            return self._encodings[string]
        return super().tok_encode(string, add_special_tokens, *args, **options)

    def sequence_nll(self, requests) -> list[float]:
        """Return the mean negative log-likelihood per token, in nats, of each request's text.

        As OpenCompass scores an option, the first token counts in the number of tokens but is not predicted. The arguments
        of a request are a text and its largest number of tokens; a longer text loses its end.
        """
        texts = []
        for text, limit in (request.args for request in requests):
            tokens = self.tokenizer(text, verbose=False)["input_ids"][: min(limit, self.max_length)]
            texts.append((("", text), tokens[:1], tokens[1:]))
        answers = self._loglikelihood_tokens(texts, disable_tqdm=False)
        return [-total / (1 + len(rest)) for (total, _), (_, _, rest) in zip(answers, texts, strict=True)]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        """Return, as in lm-eval, each request's greedy or sampled continuation, truncated at its stop strings.

        On a GPU the number of parallel requests is limited by the memory for the keys and values of the longest.
        """
        most, bar = self.batch_size_per_gpu, huggingface.tqdm
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            lengths = (
                len(self.tok_encode(prompt)) + next(iter(options), {}).get("max_gen_toks", self.max_gen_toks)
                for prompt, *options in (request.args for request in requests)
            )
            longest = min(max(lengths, default=1), self.max_length)
            self.batch_size_per_gpu = generated_together(
                self.decoder.config, self.model.dtype.itemsize, longest, free, most
            )
        if one_at_a_time(self.decoder.model):
            self.batch_size_per_gpu = 1
        if _no_terminal():
            huggingface.tqdm = _logged_progress
        try:
            return super().generate_until(requests, disable_tqdm=disable_tqdm)
        finally:
            self.batch_size_per_gpu, huggingface.tqdm = most, bar

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        if not self.decoder.attends:
            log.warning("linear attention takes no custom mask: contexts are not shared")
            return super()._loglikelihood_tokens(requests, disable_tqdm or _no_terminal(), override_bs)
        groups = self._plan(requests)
        self._body = prefix_cache.Body(self.decoder)
        answers: list[tuple[float, bool] | None] = [None] * len(requests)
        with track(None, "scoring", total=len(requests), unit="choice", shown=self._shown or not disable_tqdm) as bar:
            for batches in groups:
                self._body.ahead(batches, self._body_arguments)
                with side_by_side(self._score, batches, self.device) as results:
                    for batch, batch_answers in zip(batches, results, strict=True):
                        for index, answer in zip(batch.requests[0], batch_answers, strict=True):
                            answers[index] = answer
                        self.forward_tokens += sum(map(len, batch.trees))
                        bar.update(len(batch_answers))
        self.layers_saved += self._body.layers_saved
        self.layers_run += self._body.layers_run
        return answers

    def _plan(self, requests: list[Request]) -> list[list[Batch]]:
        """Return the batches of all requests; those of the same requests as before, where they are remembered."""
        inputs, endings = [self._input(request) for request in requests], [request[2] for request in requests]
        tokens = np.fromiter(chain.from_iterable(chain(inputs, endings)), np.int64)
        lengths = np.fromiter(map(len, chain(inputs, endings)), np.int64)
        digest = hashlib.blake2b(tokens.tobytes() + lengths.tobytes(), digest_size=16).digest()
        switch = rope_switch(self.decoder.config)
        key = (digest, self._max_tokens, int(self.batch_size), switch)
        if key not in _planned:
            groups = [
                [Batch(part, {i: endings[i] for tree in part for i in tree.paths}) for part in self._batches(trees)]
                for trees in self._trees(inputs)
            ]
            if _nbytes(groups) > REMEMBERED_BYTES:
                return groups
            _planned[key] = groups
            cache.forget(_planned, _nbytes, REMEMBERED_BYTES)
        return _planned[key]

    def _trees(self, inputs: list[list[int]]) -> list[list[Tree]]:
        """Return trees over all inputs; in two groups where a model reads long sequences with other rotary frequencies.

        Those frequencies are one set for a batch, chosen by its longest sequence (`rope_switch`).
        """
        switch = rope_switch(self.decoder.config)
        long = [switch is not None and len(tokens) > switch for tokens in inputs]
        groups = []
        for read_as_long in sorted(set(long)):
            indices = [index for index, is_long in enumerate(long) if is_long is read_as_long]
            trees = grow([inputs[index] for index in indices])
            for tree in trees:
                tree.paths = {indices[place]: path for place, path in tree.paths.items()}
            groups.append(trees)
        return groups

    def _input(self, request: Request) -> list[int]:
        """Return the model's input: context and continuation without its last token, truncated on the left as in `HFLM`."""
        (context, continuation), context_ids, continuation_ids = request if request[0] else (("", ""), *request[1:])
        if not context_ids or not continuation_ids:
            raise UserError(f"cannot score {continuation!r} after {context!r}: one of them has no tokens")
        if len(continuation_ids) > self.max_length:
            raise UserError(
                f"cannot score a continuation of {len(continuation_ids)} tokens: the model reads {self.max_length}"
            )
        return [*context_ids, *continuation_ids][-(self.max_length + 1) :][:-1]

    @property
    def _max_tokens(self) -> int:
        """Return the tokens of one pass at most, padding included."""
        return MAX_TOKENS[self.device.type if self.device.type in MAX_TOKENS else "other"]

    def _batches(self, trees: list[Tree]) -> list[list[Tree]]:
        """Group trees of similar length; the longest first, so that running out of memory happens at once."""
        batches, start = [], 0
        while start < len(trees):
            stop = start + max(1, min(int(self.batch_size), self._max_tokens // len(trees[start])))
            batches.append(trees[start:stop])
            start = stop
        return batches

    @torch.inference_mode()
    def _score(self, batch: Batch) -> list[tuple[float, bool]]:
        """Return the answers to the requests of one batch."""
        needed, places, targets, order = batch.scored_tokens
        hidden = self._body(*self._body_arguments(batch)).flatten(0, 1)
        hidden = hidden[needed.to(hidden.device)]
        nll, best = target_scores(self.decoder, hidden, places, targets)
        if not nll.isfinite().all():  # argmax of such scores is the first answer, whatever that is
            remedy = "" if hidden.dtype == torch.float32 else "; try --dtype bfloat16 or float32 (make: DTYPE=)"
            kind = str(hidden.dtype).removeprefix("torch.")
            raise UserError(f"the model's output is not finite in {kind}, so answers cannot be compared{remedy}")
        likely, greedy = torch.empty_like(nll), torch.empty_like(best)
        likely[order], greedy[order] = -nll, best
        parts = (values.split(batch.requests[1]) for values in (likely, greedy))
        return [(float(ll.sum()), bool(best.all())) for ll, best in zip(*parts, strict=True)]

    def _body_arguments(self, batch: Batch) -> tuple:
        """Return what the body is called with for a batch."""
        ids, depths, allowed = batch.tensors
        return (ids, None, None) if depths is None else (ids, depths, self._masks(allowed[:, None], depths), allowed)

    def _masks(self, allowed: Tensor, depths: Tensor) -> dict[str, Tensor]:
        """Return what is added to the scores [trees, 1, nodes, nodes], for each kind of layer.

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


def _no_terminal() -> bool:
    return not sys.stderr.isatty()


def _logged_progress(total: int, disable: bool, **_) -> track:
    """Return progress lines for a log, in place of lm-eval's bar."""
    return track(None, "generating", total=total, unit="answer", shown=not disable)
