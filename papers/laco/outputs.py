"""Output representations of calibration sentences, and the similarity of two models' (LaCo, Algorithm 1, line 11).

A sentence's representation is the state after the final norm, `[tokens, channels]`, as in the official notebooks
(`hidden_states[-1]`). Each sentence runs alone, without padding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from common.calibration import COSINES
from common.utils.errors import UserValueError, unknown
from common.utils.token_ids import open_ended

DEFAULT_COSINE = "flat-sentence"


def tokenise(tokenizer, sentences: Sequence[str]) -> list[Tensor]:
    """Return the token ids `[1, tokens]` of each sentence, with the special tokens that the tokenizer adds.

    Raises:
        UserError: there are no sentences, or a sentence has no token besides the special ones.
    """
    if not sentences:
        raise UserValueError("no calibration sentences; LaCo needs at least one (the paper takes ten)")
    for number, sentence in enumerate(sentences, 1):
        if not len(tokenizer(sentence, add_special_tokens=False)["input_ids"]):
            raise UserValueError(f"calibration sentence {number} ({sentence!r}) has no tokens; leave it out")
    return [torch.tensor([open_ended(tokenizer)(sentence)["input_ids"]]) for sentence in sentences]


def output_similarity(ours: Sequence[Tensor], theirs: Sequence[Tensor], cosine: str = DEFAULT_COSINE) -> float:
    """Compute Avg_Cos_Sim, the similarity of two models' states on the same sentences (section 2.2).

    Args:
        ours: States of one model by sentence, each [tokens, channels].
        theirs: States of the other model.
        cosine: ``flat-sentence``: one cosine of all numbers of a sentence, mean over sentences (the notebooks; the
            paper's text says "for every sentence"). ``token``: per token, mean over all tokens. ``channel``: along
            tokens, per channel, mean over channels and sentences. ``flat-batch``: one cosine over all sentences.
            ``last-token-angle``: 1 minus the angle between the last tokens' states over pi, mean over sentences.

    Returns:
        The similarity, -1 to 1; NaN when a state is not finite.

    Raises:
        UserError: an unknown cosine.
    """
    if cosine not in COSINES:
        raise unknown("cosine", cosine, COSINES)
    pairs = [(a.double(), b.double()) for a, b in zip(ours, theirs, strict=True)]
    if cosine == "flat-batch":
        a, b = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
        return F.cosine_similarity(a, b, dim=0).item()
    if cosine == "token":
        return torch.cat([F.cosine_similarity(a, b, dim=-1) for a, b in pairs]).mean().item()
    if cosine == "last-token-angle":
        angles = [F.cosine_similarity(a[-1], b[-1], dim=-1).clamp(-1, 1).arccos() for a, b in pairs]
        return 1 - torch.stack(angles).mean().item() / torch.pi
    if cosine == "channel":
        return torch.stack([F.cosine_similarity(a, b, dim=0).mean() for a, b in pairs]).mean().item()
    return torch.stack([F.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in pairs]).mean().item()
