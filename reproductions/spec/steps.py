"""Every step that recipes name: those of `common` and the papers, and one that crosses two papers.

That one is LinearPatch's patch in Prune&Comp's loop; papers never import one another.
"""

from dataclasses import dataclass

import extensions
import papers
from common import baselines, calibration
from common.models.surgery import remove_layers
from common.pruning import steps as _shared  # noqa: F401 - registers them
from common.pruning.pipeline import Context
from common.pruning.recipe import Options, Pruning, Recipe, register
from common.pruning.trained_repair import TrainedRepair
from papers import linearpatch, prunecomp
from papers.prunecomp.steps import COSTLY, ranking, stream
from reproductions.spec import shape_recipes as _shapes  # noqa: F401 - registers those over a shape alone

baselines.load_steps()
papers.load_steps()
extensions.load_steps()


def trains(recipe: Recipe) -> bool:
    """Return whether a recipe trains weights, once or after each of several removals.

    Raises:
        UserError: an unregistered repair.
    """
    iterative = (recipe.selection or {}).get("method") == "iterative"
    return bool(recipe.training) or iterative or isinstance(recipe.step("repair"), TrainedRepair)


class _OneLayer:
    """A stream's layer as a model of one layer, for `common.calibration.collect`: X[0] is what it receives."""

    num_layers = 1
    streamed = False  # what it receives is at hand

    def __init__(self, stream: prunecomp.Stream, layer: int) -> None:
        self.decoder, self.layer = stream.decoder, layer
        self.entering = iter(stream.received(layer))

    def embed_tokens(self, ids):
        return next(self.entering).to(self.decoder.device)

    def run(self, hidden, start, stop):
        return self.decoder.run(hidden, layers=[self.layer])


@dataclass(frozen=True)
class PatchKind(Options):
    """Kind and estimator of a patch, see `papers.linearpatch.patch_interfaces`."""

    kind: str = "hadamard"
    estimator: str = "ratio-of-means"


@register("iterated-patch")
@dataclass(frozen=True)
class IteratedPatch(Pruning):
    """Run Algorithm 1 with a patch instead of the factor: each removal is patched, in the current model, before the next."""

    metric: str
    count: int
    patch: PatchKind

    def apply(self, context: Context) -> None:
        """Select and remove layers one by one, and patch after each."""
        running, removed = stream(context), []
        for _ in range(self.count):
            layer = self._next(context, running, first=not removed)
            running.remove(layer, self._values(running, layer))
            removed.append(layer)
        gains = dict(running.factors)
        remove_layers(context.model, removed)
        for receiver, values in gains.items():
            position = receiver - sum(layer < receiver for layer in removed)
            patch = linearpatch.LinearPatch(values, "matrix" if values.ndim == 2 else "diagonal")
            linearpatch.insert_patch(context.model, position, patch)
        context.details["removed"] = removed

    def _next(self, context: Context, running: prunecomp.Stream, first: bool) -> int:
        if first and self.metric in COSTLY:
            return ranking(context, self.metric, context.calibration)[0]
        return prunecomp.next_layer(running, self.metric, progress=context.progress)

    def _values(self, running: prunecomp.Stream, layer: int):
        """Return the patch at one layer as a diagonal or a matrix, in float32."""
        kind, estimator = self.patch.kind, self.patch.estimator
        named = linearpatch.named_statistics(kind, estimator, [(0, 1)])
        options = {"pairs": (), "batch_size": running.batch_size} | named
        statistics = calibration.collect(_OneLayer(running, layer), running.ids, **options)
        values = linearpatch.patch_values(statistics, 0, 1, kind=kind, estimator=estimator)
        if kind == "hadamard":
            values = linearpatch.LinearPatch(values, kind).matrix()
        return values.float()
