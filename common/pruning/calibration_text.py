"""Draw token ids for a calibration entry: samplers by the name that entries give."""

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from common import calibration
from common.calibration import corpora
from common.evaluation.windowed_perplexity import split_into_sequences
from common.pruning.recipe import Calibration


@lru_cache(maxsize=2)
def _ids(tokenizer, corpus: str) -> Tensor:
    return corpora.joined_ids(tokenizer, corpus)


# How a calibration entry becomes token ids: name -> f(pipeline.Context, entry) -> [samples, tokens]. A paper adds its own.
SAMPLERS: dict[str, Callable[..., Tensor]] = {}


def sampler(*names: str):
    """Register a function as a sampler under the names that calibration entries give (decorator)."""

    def registered(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        SAMPLERS.update(dict.fromkeys(names, draw))
        return draw

    return registered


def crops(context, entry: Calibration, **usual) -> Tensor:
    """Draw random crops of the joined text [count, length], see `common.calibration.sample_crops`.

    The options are the entry's; ``usual`` holds those that the entry leaves open.
    """
    return calibration.sample_crops(_ids(context.tokenizer, entry.corpus), **usual | entry.drawing())


@sampler("windows")
def first_sequences(context, entry: Calibration) -> Tensor:
    """Return the first ``count`` sequences (None: all) of the joined text, which do not overlap."""
    return split_into_sequences(_ids(context.tokenizer, entry.corpus), entry.length)[: entry.count]


@sampler("lines")
def lines(context, entry: Calibration) -> Tensor:
    """Draw SLEB's shuffled lines [samples, tokens], see `common.calibration.sample_lines`."""
    return calibration.sample_lines(context.tokenizer, corpora.texts(entry.corpus), **entry.drawing())
