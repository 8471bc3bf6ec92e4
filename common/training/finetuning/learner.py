"""Rows -> batches -> loss: the module that Trainer trains.

    loss = -1/M sum over predicted tokens of log p(token | tokens before it),   M = predicted tokens of the optimiser step

Logits are formed only where a token is predicted. Rows are padded on the left, as in the official code; a row's first
token is never predicted, for nothing comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.decoder import Decoder
from common.training.finetuning.prefix import FrozenPrefix
from common.utils.errors import UserError

IGNORE = -100


class Rows(torch.utils.data.Dataset):
    """Rows of one data set with their numbers, which start at ``first``."""

    def __init__(self, rows: Sequence[Mapping], first: int = 0) -> None:
        self.rows, self.first = rows, first

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        row = self.rows[index]
        return {"input_ids": row["input_ids"], "labels": row["labels"], "row": self.first + index}


def checked(rows: Sequence[Mapping], name: str, vocabulary: int) -> Sequence[Mapping]:
    """The rows, read one at a time (they may lie on disk); UserError naming the first that cannot be learnt from."""
    if len(rows) == 0:
        raise UserError(f"the {name} data is empty; give at least one row")
    for index, row in enumerate(rows):
        missing = {"input_ids", "labels"} - set(row)
        if missing:
            raise UserError(
                f"{name} row {index} has no {' and no '.join(sorted(missing))}; see common.training.instructions"
            )
        ids, labels = row["input_ids"], row["labels"]
        if len(ids) != len(labels):
            raise UserError(f"{name} row {index} has {len(ids)} input_ids but {len(labels)} labels")
        if not any(label != IGNORE for label in labels[1:]):
            raise UserError(f"{name} row {index} has no label to learn from; drop it or raise the cutoff")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise UserError(
                f"{name} row {index} has a token outside 0..{vocabulary - 1}; use the model's own tokenizer"
            )
    return rows


def collate(rows: Sequence[Mapping], pad_id: int = 0) -> dict[str, Tensor]:
    """Rows -> input_ids, attention_mask, labels, each [rows, tokens] and left-padded, and row numbers [rows]."""
    tokens = max(len(row["input_ids"]) for row in rows)
    ids = torch.full((len(rows), tokens), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORE)
    for place, row in enumerate(rows):
        start = tokens - len(row["input_ids"])
        ids[place, start:] = torch.as_tensor(row["input_ids"])
        mask[place, start:] = 1
        labels[place, start + 1 :] = torch.as_tensor(row["labels"])[1:]
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "row": torch.tensor([row["row"] for row in rows]),
    }


class Learner(nn.Module):
    """The model with its loss. Layers before ``boundary`` are frozen: their outputs come from the store once it has them.

    executions: layer calls so far, in training and in validation.
    """

    accepts_loss_kwargs = True  # Trainer: forward takes the number of predicted tokens of the whole optimiser step

    def __init__(self, model: nn.Module, boundary: int = 0, store: FrozenPrefix | None = None) -> None:
        super().__init__()
        self.model, self.boundary, self.store = model, boundary, store
        self.decoder = Decoder(model)
        self.executions = {"train": 0, "validation": 0}
        if hasattr(model, "hf_device_map"):  # spread over devices: Trainer leaves it where it is
            self.hf_device_map, self.is_parallelizable, self.model_parallel = model.hf_device_map, True, True

    def train(self, mode: bool = True) -> Learner:
        """As usual, but frozen layers never drop anything out: their outputs must not depend on the epoch."""
        super().train(mode)
        for layer in self.decoder.layers[: self.boundary]:
            layer.eval()
        return self

    def forward(self, input_ids, labels, attention_mask=None, row=None, num_items_in_batch=None) -> dict[str, Tensor]:
        """All [rows, tokens] -> {"loss": sum of losses over the number of items (None: of this batch's predictions)}."""
        before = self.decoder.executions
        mask = None if attention_mask is None or bool(attention_mask.all()) else attention_mask
        hidden = self.decoder.run(self._prefix(input_ids, mask, row), self.boundary, attention_mask=mask)
        self.executions["train" if self.training else "validation"] += self.decoder.executions - before
        targets = labels[:, 1:].to(hidden.device)
        chosen = targets != IGNORE
        logits = self.decoder.logits(hidden[:, :-1][chosen])  # [predictions, vocabulary]
        total = F.cross_entropy(logits.float(), targets[chosen].to(logits.device), reduction="sum")
        items = chosen.sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / torch.as_tensor(items, device=total.device).clamp(min=1)}

    def _prefix(self, input_ids: Tensor, mask: Tensor | None, row: Tensor | None) -> Tensor:
        """``X[boundary]`` [rows, tokens, channels]."""
        if self.boundary == 0:
            return self.decoder.embed_tokens(input_ids)
        numbers = None if self.store is None or row is None else row.tolist()
        if numbers is not None and (found := self.store.get(numbers, input_ids.shape[1])) is not None:
            return found.to(self.decoder.device)
        with torch.no_grad():
            hidden = self.decoder.run(self.decoder.embed_tokens(input_ids), 0, self.boundary, attention_mask=mask)
        if numbers is not None:
            self.store.put(numbers, hidden)
            hidden = self.store.rounded(hidden)
        return hidden
