"""The seven metrics of section 3.1: which layers are dispensable. The lowest score goes first.

    random         a random order
    reverse-order  the deepest layer first
    magnitude-l1   sum over the layer's matrices of ||W||_1
    magnitude-l2   sum over the layer's matrices of ||W||_2, entry-wise (Frobenius)
    taylor         sum over the layer's matrices of |dL/dW * W|, the loss of one batch of calibration text
    ppl            loss of the model without that layer alone
    bi             1 - mean over tokens of cos(layer's input, layer's output)                       (Eq. 1)

Where the official code differs, ``fidelity="code"`` follows it:

    random         keeps N - n layers drawn by `random.sample` and removes the rest; here the removed ones are drawn
    magnitude      counts the norms' gains too; l2 is a sum of squares, of which no root is taken
    taylor         counts the norms' gains too
    ppl            the same loss, of sequences of 128 tokens of WikiText-2's test split, on which it is measured afterwards.
                   The tokens are the caller's here; the paper names no split, this repository's tables take validation
    bi             one cosine between the whole flattened batches; N - 1 scores, so the last layer never goes
"""

import math
import random
from collections.abc import Sequence

from torch import Tensor

from common.calibration import collect, sample_documents
from common.models.decoder import Decoder
from common.models.removal import check_count
from common.pruning import importance, selection
from common.pruning.recipe import check_fidelity
from common.utils.errors import UserValueError, unknown
from papers.reassessing.options import LENGTH, METRICS, SAMPLES, SEED


def sample_line_crops(
    tokenizer, lines: Sequence[str], *, count: int = SAMPLES, length: int = LENGTH, seed: int = SEED
) -> Tensor:
    """Draw calibration tokens as the official code: a line that has enough tokens and is new, then a random crop of it.

    Appendix D truncates the samples. Python's `random` is used as in LLM-Pruner's code, which the paper follows, so the
    first samples of a larger count are those of a smaller one.

    Args:
        tokenizer: The model's tokenizer.
        lines: Lines of the text; they are drawn uniformly.
        count: Crops.
        length: Tokens a crop.
        seed: Seed of the draw.

    Returns:
        Token ids [count, length].

    Raises:
        UserError: too few lines are long enough.
    """
    options = {"length": length, "count": count, "name": "calibration lines"}
    return sample_documents(tokenizer, lines, generator=random.Random(seed), **options)


def scores(
    metric: str,
    decoder: Decoder,
    ids: Tensor | None = None,
    *,
    fidelity: str = "paper",
    seed: int = SEED,
    progress: bool = False,
) -> Tensor:
    """Compute the scores of one metric (section 3.1); the lowest is removed first.

    Args:
        metric: One of `METRICS`.
        decoder: The model's decoder view, with N layers.
        ids: Calibration tokens [samples, tokens] for taylor, ppl and bi.
        fidelity: ``paper`` or ``code``, see the module's docstring.
        seed: Seed of random.
        progress: Show a progress bar.

    Returns:
        Scores, float64 [N]; infinite where the official code never prunes.

    Raises:
        UserError: an unknown metric or fidelity, or missing tokens.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    check_fidelity(fidelity)
    if METRICS[metric] and ids is None:
        raise UserValueError(f"the metric {metric!r} needs calibration tokens; a recipe draws them by its calibration")
    code = fidelity == "code"
    if metric == "random":
        return importance.random_order(decoder.num_layers, seed)
    if metric == "reverse-order":
        return importance.reverse_order(decoder.num_layers)
    if metric == "magnitude-l1":
        return importance.magnitude(decoder, 1, norms=code)
    if metric == "magnitude-l2":
        return importance.magnitude(decoder, 2, norms=code, root=not code)
    if metric == "taylor":
        return importance.taylor(decoder, ids, norms=code, micro_batch=len(ids), progress=progress)
    if metric == "ppl":  # Shortened LLaMA's, before the exponential
        every = list(range(decoder.num_layers))
        return importance.losses_without_each(decoder, ids, every, every, progress=progress)
    cosine = "flat-batch" if code else "token"
    statistics = collect(decoder, ids, kinds=(cosine,), rotate=False, batch_size=len(ids))
    influence = importance.block_influence(statistics, cosine)
    if code:
        influence[-1] = math.inf
    return influence


def select(
    metric: str,
    decoder: Decoder,
    count: int,
    ids: Tensor | None = None,
    *,
    fidelity: str = "paper",
    seed: int = SEED,
    progress: bool = False,
) -> list[int]:
    """Select the ``count`` layers to remove, as present positions in order of removal; the model is not changed.

    Arguments and errors as `scores`, and UserError for a count outside 1..N-2.
    """
    layers = decoder.num_layers
    check_count(count, layers)
    if metric == "random" and fidelity == "code":
        remaining = random.Random(seed).sample(range(layers), layers - count)
        return sorted(set(range(layers)) - set(remaining))
    return selection.one_shot(scores(metric, decoder, ids, fidelity=fidelity, seed=seed, progress=progress), count)
