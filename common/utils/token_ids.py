"""Tokenizers that do not end a text.

Some tokenizers append the end-of-sequence token to every text (``add_eos_token``, as fine-tuned models keep it). A prompt
that ends so is a finished text: its continuation is scored after the end, and the first token of a response is not learnt.
"""

import copy
from functools import lru_cache

from tokenizers.processors import TemplateProcessing

from common.utils.errors import UserError

_PROBE = "a b"


def open_ended(tokenizer):
    """Return the tokenizer, or a copy that appends no special token; tokens before a text stay.

    Raises:
        UserError: the tokenizer appends a token and is not backed by the `tokenizers` library.
    """
    if getattr(tokenizer, "eos_token_id", None) is None:
        return tokenizer
    bare = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    whole = tokenizer(_PROBE)["input_ids"]
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), len(whole))
    if start + len(bare) >= len(whole):
        return tokenizer
    if not getattr(tokenizer, "is_fast", False):
        end = tokenizer.decode(whole[start + len(bare) :])
        raise UserError(
            f"The tokenizer appends {end!r} to every text. No text could be continued or scored after it. "
            'Set "add_eos_token": false in tokenizer_config.json.'
        )
    return _copy(tokenizer, tuple(whole[:start]))


@lru_cache(maxsize=8)
def _copy(tokenizer, before: tuple[int, ...]):
    """Return a copy of the tokenizer that puts these tokens before each text, and none behind it."""
    plain = copy.deepcopy(tokenizer)
    names = [tokenizer.convert_ids_to_tokens(token) for token in before]
    plain.backend_tokenizer.post_processor = TemplateProcessing(
        single=[*names, "$A"], special_tokens=sorted(set(zip(names, before)))
    )
    return plain
