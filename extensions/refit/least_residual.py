"""Select the layers for which a least-squares repair has the smallest residual error (extension).

UIDL, LLM-Streamline and LinearPatch select the block after which the residual stream is most similar to the one before
it. A linear repair corrects much of the change, but not equally for all blocks. So here every block is scored by its
residual error after the repair. For a run [a, b) of layers and the original residual stream X it is

    error(a, b) = min over D of |X[a] + X[a] D - X[b]|^2 / |X[b]|^2     (ridge on D)

by a map of the residual stream, as of Ghosted Layers. It takes one pass over the calibration tokens and sums alone; no
model is repaired. A block is the run of smallest error. A set is the runs, with kept layers in between, whose errors
have the smallest sum, found by dynamic programming over all runs. Adding the errors of several runs assumes that
earlier repairs are exact. `residual_errors_assuming_graft` gives the error of runs that begin with the layer which
writes the massive activation, as if grafting its neurons restored it (`extensions.refit.graft`). NBL (arXiv 2505.21077)
ranks single attentions similarly, by a bound on the error of a linear map in their place.

Memory: X[a]'X[a] [channels, channels] for every first layer and X[a]'(X[b] - X[a]) [channels, channels] for every run,
in float64. If that exceeds MOMENT_BYTES it is split into several passes, each over fewer first layers.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.calibration.block_boundaries import Crossing, Run, crossings
from common.calibration.least_squares import Regression
from common.models.decoder import Decoder
from common.models.removal import check_count
from common.pruning.pipeline import Context
from common.pruning.recipe import Pruning, Selection, register
from common.utils.errors import unknown
from extensions import refit
from extensions.refit.graft import Observed
from extensions.refit.method import check_architecture

SHAPES = ("window", "set")
RIDGE = 1e-3
MOMENT_BYTES = 4 * 2**30


@register("least-left")
@dataclass(frozen=True)
class LeastResidual(Selection):
    """Select the block, or the set of layers, with the smallest residual error after a linear repair.

    shape: ``window`` (one block) or ``set``. inputs: of the linear map, only ``stream``. carried: for runs that begin
    with the layer that writes the massive activation, take `residual_errors_assuming_graft`. ridge: see
    `residual_errors`.
    """

    count: int
    shape: str = "window"
    inputs: str = "stream"
    ridge: float = RIDGE
    carried: bool | None = None

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        layers = context.decoder.num_layers
        if self.shape not in SHAPES:
            raise unknown("shape", self.shape, SHAPES)
        check_count(self.count, layers)
        # One pass for both shapes and every count up to the papers' largest share, as `Context.statistics` does.
        longest = max(self.count, layers // 3)
        errors = self._errors(context, longest)
        if self.carried:
            check_architecture(context.decoder.architecture)  # the graft changes its output matrices
            errors |= self._errors(context, longest, assuming_graft=True)
        if self.shape == "window":
            chosen_runs = [min((run for run in errors if run[1] - run[0] == self.count), key=errors.__getitem__)]
        else:
            chosen_runs = least_set(errors, self.count)
        context.details["left"] = [[*run, round(errors[run], 6)] for run in chosen_runs]
        return [layer for run in chosen_runs for layer in range(*run)]

    def _errors(self, context: Context, longest: int, assuming_graft: bool = False) -> dict[Run, float]:
        lengths, options = range(1, longest + 1), {"ridge": self.ridge} | context.pass_options

        def search() -> list[list]:
            decoder, ids = context.decoder, context.sequences()
            if assuming_graft:
                errors = residual_errors_assuming_graft(
                    decoder, ids, lengths, Observed(decoder, ids).graftable_writer, **options
                )
            else:
                errors = residual_errors(decoder, ids, lengths, **options)
            return [[*run, share] for run, share in errors.items()]

        facts = {"calibration": context.recipe.calibration, "ridge": self.ridge, "longest": longest}
        rows = context.searched("leftovers-carried" if assuming_graft else "leftovers", facts, search)
        return {(a, b): share for a, b, share in rows}


@torch.no_grad()
def residual_errors(
    decoder: Decoder,
    ids: Tensor,
    lengths: Sequence[int],
    *,
    ridge: float = RIDGE,
    batch_size: int = 8,
    progress: bool = False,
) -> dict[Run, float]:
    """Compute error(a, b) of every run of layers (module docstring).

    Runs that contain the first or the last layer are left out.

    Args:
        decoder: The original model.
        ids: Calibration tokens [samples, tokens].
        lengths: Numbers of layers in a run.
        ridge: Ridge as a share of the mean eigenvalue of X[a]'X[a].
        batch_size: Samples per batch.
        progress: Show a progress bar.

    Returns:
        Run -> residual error as a share of |X[b]|^2.
    """
    layers = decoder.num_layers
    runs = [(a, a + n) for a in range(1, layers - 1) for n in sorted(set(lengths)) if n > 0 and a + n < layers]
    errors: dict[Run, float] = {}
    for part in _parts(runs, decoder.hidden_size):
        sums = _ResidualSums(part)
        for crossing in crossings(decoder, ids, part, batch_size=batch_size, progress=progress):
            sums.add(crossing)
        errors |= sums.errors(ridge)
    return errors


@torch.no_grad()
def residual_errors_assuming_graft(
    decoder: Decoder,
    ids: Tensor,
    lengths: Sequence[int],
    writer: int | None,
    *,
    ridge: float = RIDGE,
    batch_size: int = 8,
    progress: bool = False,
) -> dict[Run, float]:
    """Compute error(a, b) of the runs that begin with the layer that writes the massive activation, assuming a graft.

    First tokens count as repaired by the grafted neurons: they are in |X[b]|^2, but neither in the residual error nor
    in the fit. ``writer`` is that layer, None for none; the other arguments are those of `residual_errors`.

    Returns:
        Run -> residual error as a share of |X[b]|^2; {} if there is no such layer, or if it is the first.
    """
    runs = [(writer, writer + n) for n in sorted(set(lengths)) if writer and 0 < n < decoder.num_layers - writer]
    if not runs:
        return {}
    sums = _ResidualSums(runs)
    for crossing in crossings(decoder, ids, runs, first=False, batch_size=batch_size, progress=progress):
        sums.add(crossing)
        sums.regressions[crossing.run].target += crossing.after[:, 0].double().square().sum().item()
    return sums.errors(ridge)


def least_set(errors: Mapping[Run, float], count: int) -> list[Run]:
    """Return runs of ``count`` layers in total whose residual errors have the smallest sum, in ascending order.

    At least one kept layer is between any two runs. The errors are those of `residual_errors`.
    """
    last = max(stop for _, stop in errors)
    # best[stop][n]: (sum, runs) of n layers in runs that end at `stop` or before
    best: list[dict[int, tuple[float, list[Run]]]] = [{0: (0.0, [])}]
    for stop in range(1, last + 1):
        best_here = dict(best[stop - 1])
        for (a, b), share in errors.items():
            if b != stop:
                continue
            for n, (total, runs) in best[max(a - 1, 0)].items():
                size = n + b - a
                if size <= count and total + share < best_here.get(size, (float("inf"), []))[0]:
                    best_here[size] = (total + share, [*runs, (a, b)])
        best.append(best_here)
    return best[-1][count][1]


def _parts(runs: Sequence[Run], channels: int) -> Iterator[list[Run]]:
    """Yield runs in groups whose sums fit into MOMENT_BYTES."""
    part: list[Run] = []
    used = 0
    for start in dict.fromkeys(a for a, _ in runs):
        same_start = [run for run in runs if run[0] == start]
        size = 8 * channels**2 * (1 + len(same_start))
        if part and used + size > MOMENT_BYTES:
            yield part
            part, used = [], 0
        part, used = [*part, *same_start], used + size
    yield part


class _ResidualSums:
    """One `Regression` a run; those of one first layer share their Gram matrix."""

    def __init__(self, runs: Sequence[Run]):
        self.leading = {a: (a, b) for a, b in reversed(runs)}
        self.regressions = {run: Regression(shared=run != self.leading[run[0]]) for run in runs}

    def add(self, crossing: Crossing) -> None:
        before, after = crossing.before, crossing.after
        self.regressions[crossing.run].add(before, after.double() - before.double(), after, crossing.keep)

    def errors(self, ridge: float) -> dict[Run, float]:
        for run, regression in self.regressions.items():
            regression.share(self.regressions[self.leading[run[0]]])
        return {run: regression.fitted(ridge)[1] / regression.target for run, regression in self.regressions.items()}


@register("least-left-refit")
@dataclass(frozen=True)
class LeastResidualRefit(Pruning):
    """Remove layers one by one by least residual, with a refit after each.

    Every selection is made in the repaired model, towards the original residual stream. following, ridge: of
    `extensions.refit.refit`; ridge applies to the selection, too.
    """

    count: int
    following: int = refit.FOLLOWING
    ridge: float = RIDGE

    def apply(self, context: Context) -> None:
        """Select and remove layers, and refit after each."""
        check_count(self.count, context.decoder.num_layers)
        options = self.options("count") | context.pass_options
        ids, started = context.sequences(), time.perf_counter()
        context.details |= prune(context.model, ids, self.count, **options)
        seconds = round(time.perf_counter() - started, 2)
        context.details["repair"] = {"calibration_tokens": ids.numel(), "seconds": seconds}


def prune(model: nn.Module, ids: Tensor, count: int, **options) -> dict:
    """Remove ``count`` layers by `choices` and `refit.refit` with these options in turn, in place.

    Needs memory for a second copy of the model.

    Returns:
        "removed", the layers in order; "left", the residual error of every choice; "refitted", the reports.
    """
    dense, alive = copy.deepcopy(model), list(range(Decoder(model).num_layers))
    removed, removed_errors, reports = [], [], []
    shared = {name: options[name] for name in ("ridge", "batch_size") if name in options}
    for _ in range(count):
        errors = choices(model, dense, alive, ids, **shared)
        place = min(errors, key=errors.__getitem__)
        layer, matrices = alive[place], refit.refit(model, ids, [place], dense=dense, alive=alive, **options)
        removed_errors.append(round(errors[place], 6))
        reports += [{"removed": layer} | matrix for matrix in matrices]
        removed.append(layer)
        alive.remove(layer)
    return {"removed": removed, "left": removed_errors, "refitted": reports}


@torch.no_grad()
def choices(
    model: nn.Module,
    dense: nn.Module,
    alive: Sequence[int],
    ids: Tensor,
    *,
    ridge: float = RIDGE,
    batch_size: int = 8,
) -> dict[int, float]:
    """Compute the residual error without each layer of ``model``, with a fitted linear map in its place.

    The first and the last layer are left out. The residual stream S before a layer is mapped towards that of ``dense``,
    X, after it: min |S (I + D) - X|^2 / |X|^2. ``alive`` are the layers of ``dense`` that ``model`` has.
    """
    current, original = Decoder(model), Decoder(dense)
    sums = {place: Regression() for place in range(1, current.num_layers - 1)}
    for batch in ids.split(batch_size):
        targets, hidden = {}, original.embed_tokens(batch)
        for layer in range(alive[-1]):
            hidden = original.run(hidden, layer, layer + 1)
            targets[layer + 1] = hidden
        hidden = current.embed_tokens(batch)
        for place, regression in sums.items():
            hidden = current.run(hidden, place - 1, place)
            target = targets[alive[place + 1]]
            regression.add(hidden, target.double() - hidden.double(), target)
    return {place: regression.fitted(ridge)[1] / regression.target for place, regression in sums.items()}
