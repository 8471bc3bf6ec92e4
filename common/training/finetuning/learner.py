"""Rows -> batches -> loss: the module that Trainer trains.

    loss = -1/M sum over predicted tokens of log p(token | tokens before it),   M = predicted tokens of the optimiser step

Logits are formed only where a token is predicted. Rows are padded on the left, as in the official code; a row's first
token is never predicted, for nothing comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from common.models.decoder import Decoder, ForwardContext, unpadded_positions
from common.training.finetuning.methods import Attached
from common.utils.errors import UserError

IGNORE = -100


def checked(rows: Sequence[Mapping], name: str, vocabulary: int) -> Sequence[Mapping]:
    """Return the rows after checking them one at a time (they may lie on disk).

    Raises:
        UserError: there are no rows, or a row lacks ids or labels, has nothing to learn, or a token that the model does
            not know; the message names the first such row.
    """
    if len(rows) == 0:
        raise UserError(f"the {name} data is empty; give at least one row")
    for index, row in enumerate(rows):
        ids, labels = row.get("input_ids", ()), row.get("labels", ())
        if not len(ids) == len(labels) > 0:
            raise UserError(
                f"{name} row {index} has {len(ids)} input_ids and {len(labels)} labels; give one label to each"
            )
        if not any(label != IGNORE for label in labels[1:]):
            raise UserError(f"{name} row {index} has no label to learn from; drop it or raise the cutoff")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise UserError(
                f"{name} row {index} has a token outside 0..{vocabulary - 1}; use the model's own tokenizer"
            )
    return rows


def collate(rows: Sequence[Mapping], pad_id: int = 0) -> dict[str, Tensor]:
    """Pad rows on the left to a batch.

    The batch has attention_mask and labels [rows, tokens], and input_ids [rows, tokens] or, with cached hidden states,
    hidden [rows, tokens, channels].
    """

    def padded(parts: list, value: int) -> Tensor:
        return pad_sequence(parts, batch_first=True, padding_value=value, padding_side="left")

    labels = [F.pad(torch.as_tensor(row["labels"])[1:].long(), (1, 0), value=IGNORE) for row in rows]
    batch = {"attention_mask": padded([torch.ones_like(part) for part in labels], 0), "labels": padded(labels, IGNORE)}
    if "hidden" in rows[0]:
        return batch | {"hidden": padded([row["hidden"] for row in rows], 0)}
    return batch | {"input_ids": padded([torch.as_tensor(row["input_ids"]).long() for row in rows], pad_id)}


class Learner(nn.Module):
    """The model with its loss. Its state dict has only the trained parameters, and so have Trainer's checkpoints."""

    accepts_loss_kwargs = True  # Trainer: forward takes the number of predicted tokens of the whole optimiser step

    def __init__(self, model: nn.Module, attached: Attached) -> None:
        super().__init__()
        self.model, self.trained, self.boundary = model, attached.parameters, attached.boundary
        self.decoder = Decoder(model)
        if hasattr(model, "hf_device_map"):  # spread over devices: Trainer leaves it where it is
            self.hf_device_map, self.is_parallelizable, self.model_parallel = model.hf_device_map, True, True

    def state_dict(self, *unused, **options) -> dict[str, Tensor]:
        """Return the trained parameters by their names in the model."""
        return {name: parameter.detach().contiguous() for name, parameter in self.trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> SimpleNamespace:
        """Restore the trained parameters, bit for bit."""
        for name, parameter in self.trained.items():
            parameter.copy_(state[name])
        return SimpleNamespace(missing_keys=[], unexpected_keys=[])

    def train(self, mode: bool = True) -> Learner:
        """Set training mode, except for dropout in frozen layers: their outputs must not depend on the epoch."""
        super().train(mode)
        for layer in self.decoder.layers[: self.boundary]:
            layer.eval()
        return self

    def forward(
        self, labels: Tensor, attention_mask: Tensor, input_ids=None, hidden=None, num_items_in_batch=None
    ) -> dict[str, Tensor]:
        """Return the sum of losses over the number of items as "loss".

        ``hidden``, the states ``X[boundary]`` [rows, tokens, channels], may stand in place of ``input_ids`` [rows, tokens].
        num_items_in_batch: predicted tokens of the optimizer step; None: of this batch.
        """
        mask = None if bool(attention_mask.all()) else attention_mask
        hidden = self.prefix(input_ids, mask) if hidden is None else hidden.to(self.decoder.device)
        hidden = self.decoder.run(hidden, self.boundary, context=self._context(hidden, mask))
        targets = labels[:, 1:].to(hidden.device)
        chosen = targets != IGNORE
        logits = self.decoder.logits(hidden[:, :-1][chosen])  # [predictions, vocabulary]
        total = F.cross_entropy(logits.float(), targets[chosen].to(logits.device), reduction="sum")
        items = chosen.sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / torch.as_tensor(items, device=total.device).clamp(min=1)}

    def prefix(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute ``X[boundary]`` [rows, tokens, channels], without gradients if layers before it are frozen."""
        hidden = self.decoder.embed_tokens(input_ids, None if mask is None else unpadded_positions(mask))
        if self.boundary == 0:
            return hidden
        with torch.no_grad():
            return self.decoder.run(hidden, 0, self.boundary, context=self._context(hidden, mask))

    def _context(self, hidden: Tensor, mask: Tensor | None) -> ForwardContext | None:
        return None if mask is None else self.decoder.padded(hidden, mask)
