"""Reassessing in recipes: its metrics, one-shot and iterative pruning, fine-tuning, quantization.

Calibration of taylor and bi: sampler ``line-crops``; of ppl: ``windows``. The reports of all trainings go into the
records' details.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from common.calibration import corpora
from common.models.decoder import Decoder
from common.pruning.calibration_text import sampler
from common.pruning.pipeline import Context
from common.pruning.recipe import Calibration, Options, Pruning, Selection, Training, register
from common.training import instructions
from common.training.finetuning import Settings, finetune
from papers.reassessing import quantization
from papers.reassessing.cycles import Cycles
from papers.reassessing.iterative import prune_iteratively, schedule
from papers.reassessing.metrics import sample_line_crops, select
from papers.reassessing.options import SEED

GPTQ_CHARACTERS = 400  # of a text at least


@lru_cache(maxsize=4)
def _line_crops(tokenizer, corpus: str, **options) -> Tensor:
    return sample_line_crops(tokenizer, corpora.texts(corpus), **options)


@sampler("line-crops")
def line_crops(context: Context, entry: Calibration) -> Tensor:
    """Draw crops of single lines (section D)."""
    return _line_crops(context.tokenizer, entry.corpus, **entry.drawing())


def _choose(context: Context, metric: str, decoder: Decoder, count: int, seed: int = SEED) -> list[int]:
    """Present positions of the layers that a metric removes from the model at hand."""
    ids = context.sequences() if context.calibrated else None
    return select(metric, decoder, count, ids, fidelity=context.recipe.fidelity, seed=seed, progress=context.progress)


@register("metric")
@dataclass(frozen=True)
class Metric(Selection):
    """Score the layers once and remove the lowest (one-shot). seed: of the metric ``random``."""

    searches = True
    metric: str
    count: int
    seed: int | None = None

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        return _choose(context, self.metric, context.decoder, self.count, **self.options("metric", "count"))


@dataclass(frozen=True)
class Data(Options):
    """Choose the training data: instructions (`common.training.instructions.load`), or blocks of a corpus."""

    source: str | None = None
    corpus: str | None = None
    length: int | None = None
    count: int | None = None
    held_out: int | None = None
    seed: int | None = None
    cutoff: int | None = None

    def reads(self) -> Iterator[tuple[str, str]]:
        """Yield the kind and the name of each data set that training reads."""
        if self.source is not None:
            yield "instructions", self.source
        if self.corpus is not None:
            yield "corpus", self.corpus

    def rows(self, tokenizer) -> tuple[list[dict], list[dict]]:
        """Return (training rows, validation rows)."""
        options = self.to_json()
        if self.source is not None:
            return instructions.load(tokenizer, **options)
        held_out = options.pop("held_out", 0)
        options["count"] += held_out
        blocks = instructions.blocks(tokenizer, corpora.texts(options.pop("corpus")), **options)
        return blocks[held_out:], blocks[:held_out]


@dataclass(frozen=True)
class Tuning(Options):
    """Settings of a fine-tuning, as differences from `common.training.finetuning.Settings`, and its data."""

    settings: Mapping
    data: Data

    def run(self, context: Context, folder: Path) -> dict:
        """Fine-tune the context's model; return the report, with the data that it was trained on."""
        train, valid = self.data.rows(context.tokenizer)
        settings = Settings.of(self.settings).at(context.details.get("removed", ()))
        _, report = finetune(context.model, context.tokenizer, train, valid, settings, folder, context.progress)
        data = {"data": self.data.to_json(), "rows": len(train), "validation_rows": len(valid)}
        return report | data | {"data_sha256": instructions.digest(train)}


@register("finetune")
@dataclass(frozen=True)
class FineTuning(Tuning, Training):
    """Fine-tune the pruned model by LoRA, QLoRA, partial or full training."""

    def apply(self, context: Context) -> None:
        """Train the model."""
        context.details["training"] = self.run(context, context.folder / "finetune")


@register("iterative")
@dataclass(frozen=True)
class Iterative(Pruning):
    """Score, prune, fine-tune and merge the adapters, until all layers of a schedule ``1:b:c`` are removed."""

    metric: str
    schedule: str
    tune: Tuning

    def apply(self, context: Context) -> None:
        """Run all cycles; an interrupted run continues after its last complete cycle."""
        cycles = Cycles(context.model, context.folder)
        removed, reports = prune_iteratively(
            context.model,
            *schedule(self.schedule),
            lambda decoder, count: _choose(context, self.metric, decoder, count),
            lambda model, cycle: self.tune.run(context, context.folder / f"cycle-{cycle}"),
            cycles.restored(),
            cycles.done,
        )
        context.details |= {"removed": removed, "cycles": reports}


@register("gptq")
@dataclass(frozen=True)
class Gptq(Training):
    """Quantize with GPTQ, after an optional training, on the first texts of a corpus that are long enough."""

    bits: int
    group_size: int
    texts: int
    tokens: int
    corpus: str
    after: Training | None = None

    def reads(self) -> Iterator[tuple[str, str]]:
        """Yield the kind and the name of each data set that is read."""
        yield from super().reads()
        yield "corpus", self.corpus

    def apply(self, context: Context) -> None:
        """Train and quantize; a finished training of the same recipe without quantization is loaded."""
        quantization.require()  # before a training that might take hours
        if self.after is not None:
            recipe = dataclasses.replace(context.recipe, training=self.after)
            before = dataclasses.replace(context, recipe=recipe)
            self.after.apply(before)
            context.model = before.model
        texts = [text for text in corpora.texts(self.corpus) if len(text) >= GPTQ_CHARACTERS][: self.texts]
        options = {"bits": self.bits, "group_size": self.group_size, "tokens": self.tokens}
        context.model = quantization.quantize(context.model, context.tokenizer, texts, **options)
        context.__dict__.pop("decoder", None)  # it looked at the model as it was
