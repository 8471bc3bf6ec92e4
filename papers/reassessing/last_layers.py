"""The paper's recipe (section 5): prune the last layers, then fine-tune head and last three remaining layers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from common.pruning import importance
from common.pruning.selection import one_shot
from common.training.finetuning import Settings, finetune


def reverse_order(layers: int, count: int) -> list[int]:
    """Return the layers that reverse-order pruning removes of so many, deepest first (section 3.4).

    >>> reverse_order(32, 3)
    [31, 30, 29]
    """
    return one_shot(importance.reverse_order(layers), count)


def partial_finetune(
    model: nn.Module,
    tokenizer,
    train: Sequence[Mapping],
    valid: Sequence[Mapping] = (),
    *,
    last: int = 3,
    folder: Path | str | None = None,
    progress: bool = False,
    **settings,
) -> tuple[nn.Module, dict]:
    """Fine-tune ``lm_head``, the final norm and the last ``last`` layers, in place (section 5).

    All other parameters keep every bit.

    Args:
        model: The pruned model; it is changed.
        tokenizer: The model's tokenizer.
        train: Rows of input_ids and labels (`common.training.instructions`).
        valid: Held-out rows.
        last: Number of layers to train.
        folder: Folder for checkpoints, see `common.training.finetuning.finetune`.
        progress: Show a progress bar.
        settings: Fields of `common.training.finetuning.Settings`; the defaults are the paper's.

    Returns:
        The model and the report of `common.training.finetuning.finetune`.

    Raises:
        UserError: more layers than remain, or bad rows.
    """
    partial = Settings.of({**settings, "method": "partial", "last": last})
    return finetune(model, tokenizer, train, valid, partial, folder, progress)
