"""LaCo in recipes: the collapse, the post-training, and collapsing once more."""

import copy
import dataclasses
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from common.calibration import corpora
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.pruning.recipe import MIXED, Options, Pruning, Training, register
from common.training.finetuning import finetune
from common.utils.errors import UserError
from papers.laco import algorithm, training
from papers.laco.algorithm import collapse, collapse_to
from papers.laco.sentences import calibration_sentences

VALIDATION_BLOCKS = 32


def sentences(context: Context) -> list[str]:
    """Draw the sentences of the recipe's calibration entry.

    Raises:
        UserError: the recipe has no entry with sentences.
    """
    entry = context.calibration
    if entry is None or entry.sentences is None:
        raise UserError("LaCo reads calibration sentences: give the recipe's calibration a corpus and sentences")
    return calibration_sentences(entry.corpus.split(MIXED), entry.sentences, entry.seed or 0)


@dataclass(frozen=True)
class CollapseOptions(algorithm.CollapseSettings, Options):
    """Algorithm 1's settings.

    T: the similarity threshold. layers: instead of T, the number of layers to leave; the highest threshold that leaves
    them is searched for.
    """

    T: float | None = None
    layers: int | None = None

    def run(self, context: Context) -> list[int]:
        """Collapse the context's model and return the positions of the removed layers.

        The context's details get the settings, the sentences and every attempt.
        """
        options = self.options("left_out")
        texts, before = sentences(context), context.decoder.num_layers
        result = self.collapse(context.model, context.tokenizer, texts, progress=context.progress)
        attempts = {"settings": options, "sentences": texts, "before": before} | dataclasses.asdict(result)
        context.details.setdefault("laco", []).append(attempts)
        return result.removed

    def collapse(self, model, tokenizer, texts: list[str], **more) -> algorithm.Collapse:
        """Collapse a model on the sentences ``texts``, in place.

        ``more`` are further options of `papers.laco.algorithm.collapse` or `collapse_to`.
        """
        search = collapse if self.layers is None else collapse_to
        return search(model, tokenizer, texts, **self.options("left_out"), **more)


@register("laco")
@dataclass(frozen=True)
class LayerCollapse(CollapseOptions, Pruning):
    """Merge layers into earlier ones as long as the outputs stay similar.

    left_out: merge nothing (extension). The layers that the search selects are removed, and the layers that they would
    have been merged into stay as they are. Needs memory for a second copy of the model.
    """

    left_out: bool | None = None

    def apply(self, context: Context) -> None:
        """Collapse the layers; with ``left_out``, remove the same layers without a merge."""
        if not self.left_out:
            context.details["removed"] = self.run(context)
            return
        context.details["removed"] = self.run(dataclasses.replace(context, model=copy.deepcopy(context.model)))
        remove_layers(context.model, context.removed)


@dataclass(frozen=True)
class Text(Options):
    """Training text: equal shares of one or more corpora in blocks of ``length`` tokens, and a validation corpus."""

    corpus: str
    validation: str
    tokens: int
    length: int
    seed: int = 0

    def reads(self) -> Iterator[tuple[str, str]]:
        """Yield the kind and the name of each text that training reads."""
        for name in (*self.corpus.split(MIXED), self.validation):
            yield "corpus", name


@register("laco-posttrain")
@dataclass(frozen=True)
class PostTraining(Training):
    """Train as Appendix B does, on a corpus.

    settings: differences from Appendix B. reprune: settings to collapse the trained model once more.
    """

    data: Text
    settings: Mapping
    reprune: CollapseOptions | None = None

    def apply(self, context: Context) -> None:
        """Train the model, and collapse it once more with ``reprune``.

        Recipes that differ only in the steps after training share the training.
        """
        trained = dataclasses.replace(context.recipe, training=dataclasses.replace(self, reprune=None), limit=None)
        folder = dataclasses.replace(context, recipe=trained).folder
        tokenizer, data = context.tokenizer, self.data
        shared = {"length": data.length, "seed": data.seed}
        names = data.corpus.split(MIXED)
        share = data.tokens // len(names)
        train = [b for n in names for b in training.text_blocks(tokenizer, corpora.texts(n), tokens=share, **shared)]
        if len(names) > 1:
            random.Random(data.seed).shuffle(train)
        tokens = VALIDATION_BLOCKS * data.length
        valid = training.text_blocks(tokenizer, corpora.texts(data.validation), tokens=tokens, **shared)
        settings = training.settings(**self.settings)
        _, report = finetune(context.model, tokenizer, train, valid, settings, folder, context.progress)
        context.details["training"] = report | {"tokens": len(train) * data.length, "tokens_asked": data.tokens}
        if self.reprune is not None:
            left = [layer for layer in range(context.details["layers"]) if layer not in context.removed]
            context.details["removed"] += [left[position] for position in self.reprune.run(context)]
