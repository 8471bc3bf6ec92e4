"""The model at hand, and the text it is calibrated and measured on."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from torch import Tensor, nn

from common import calibration, corpora, models
from common.decoder import Decoder
from common.errors import UserError
from common.evaluation.perplexity import cut

SHARE = 0.9  # of a text file, for calibration; the samplers' share too


@dataclass
class Job:
    """One run. work: a folder for checkpoints of long work, kept until the result is saved. sampler: see `Method`."""

    model: nn.Module
    tokenizer: object
    options: argparse.Namespace
    work: Path
    sampler: str
    notes: list[str] = field(default_factory=list)

    @cached_property
    def decoder(self) -> Decoder:
        """A view of the model; it follows surgery."""
        return Decoder(self.model)

    @property
    def standin(self) -> bool:
        return self.options.model == models.STANDIN

    @cached_property
    def length(self) -> int:
        """Tokens in a window: as asked, else 2048 or what the model can read (the stand-in: what it was trained on)."""
        context = getattr(self.model.config, "max_position_embeddings", 2048)
        if self.options.length is None:
            return 256 if self.standin else min(2048, context)
        if self.options.length > context:
            raise UserError(f"--length {self.options.length} is more than the model's context of {context} tokens")
        return self.options.length

    @property
    def text(self) -> str:
        """The calibration text's name."""
        return self.options.text or ("standin-calibration" if self.standin else "wikitext2-train")

    @property
    def test(self) -> str:
        """The test text's name; a calibration file's last tenth serves where none is named."""
        if self.options.test:
            return self.options.test
        if is_file(self.text):
            return self.text
        return "standin-test" if self.standin else "wikitext2-test"

    @cached_property
    def windows(self) -> Tensor:
        """Calibration windows [samples, length]."""
        options = {"length": self.length, "count": self.options.samples, "seed": self.options.seed}
        return calibration.sample_crops(self._ids(self.text), sampler=self.sampler, **options)

    @cached_property
    def test_windows(self) -> Tensor:
        """Held-out windows [windows, length]: disjoint, from the start of the test text (a shared file's last tenth)."""
        ids = self._ids(self.test)
        if self.test == self.text:
            ids = ids[int(len(ids) * SHARE) :]
        return cut(ids, self.length)[: self.options.windows]

    def documents(self) -> list[str]:
        """The calibration text in pieces: a corpus's documents, a file's paragraphs (those of its first nine tenths)."""
        if not is_file(self.text):
            return corpora.texts(self.text)
        text = read(self.text)
        return [piece for piece in text[: int(len(text) * SHARE)].split("\n\n") if piece.strip()]

    def _ids(self, name: str) -> Tensor:
        if is_file(name):
            return corpora.encode(self.tokenizer, read(name))
        return corpora.joined_ids(self.tokenizer, name)


def is_file(name: str) -> bool:
    """Whether a text's name means a file: corpus names win, and everything with a dot or a slash is a path."""
    return name not in corpora.CORPORA and (Path(name).exists() or "/" in name or "." in name)


@lru_cache(maxsize=2)
def read(name: str) -> str:
    """A text file's content.

    Raises:
        UserError: it cannot be read, is no UTF-8, or is empty.
    """
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the text {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read the text {name}: it is no UTF-8 text (byte {error.start})") from error
    if not text.strip():
        raise UserError(f"the text {name} is empty")
    return text


def check_texts(options: argparse.Namespace) -> None:
    """Refuse texts that are neither a corpus nor a readable file, before the model is read."""
    for name in (options.text, options.test):
        if name and is_file(name):
            read(name)
        elif name:
            corpora.get(name)
