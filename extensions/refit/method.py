"""Remove layers and refit the output matrices around each pruning interface, in closed form (extension).

After the layers [a, b) are removed, layer b receives X[a] instead of X[b]. The output matrices of the layers around the
pruning interface are refitted one after the other. Each is a ridge regression, on the matrix's inputs in the repaired
model, towards the original model's residual stream X:

    W <- W + D,   D = argmin |H D' - (T - S)|^2 + r |D|^2

H [tokens, features] are the inputs of the matrix in the repaired model. S is the repaired residual stream after the
matrix's sub-layer, and T the original residual stream at the same place. `down_proj` of the last layer before the
pruning interface comes first, towards X[b]; then `o_proj` and `down_proj` of the `following` kept layers, towards the
original residual stream after their attention and after their MLP. r is `ridge` times the mean eigenvalue of H'H, so
directions that calibration hardly covers stay unchanged.

Options:

    matrices     which matrices of the following layers are refitted. down_proj reads almost three times as many features as
                 o_proj; it fits the calibration text better and transfers worse to another text (`make league` shows both)
    share        refit o_proj before the pruning interface, too, and first: towards its attention's contribution plus this
                 share of X[b] - X[a]
    held_out     choose r for every matrix on sequences that its sums do not include
    first        False: no sum counts a sample's first token, which mostly is the massive one. In a fit that counts it, it
                 can outweigh all others
    graft        first graft neurons into the layer before a pruning interface (`extensions.refit.graft`)

Options of the ablation (`make ablation-league`):

    target       "branches": the first following sub-layers are fitted to the sum of their original contribution and those of
                 the removed layers' same sub-layers, instead of the gap of the entire residual stream. That is the target of
                 CoMe's public code (methods/fdd_ridge.py), which removes one layer at a time
    towards      "zero": the ridge pulls each matrix towards zero instead of its old weights
    before       False: down_proj before the pruning interface is not refitted
    form         "rotation": what a matrix writes is only rotated, W <- Q W with the orthogonal Q that leaves the smallest
                 error (orthogonal Procrustes). The paper of RCPU (2510.07782) takes rotations because plain least squares
                 overfits; only its abstract was read
    strength     share of each change D that is applied. QEP (2504.09629) damps its corrections so, by a share per layer.
                 `held_out` chooses the ridge of the entire change, and reports the error of that

No parameter is added and nothing is trained: the result is a plain checkpoint of the pruned shape. Attention and MLP of
a layer run separately. On a CPU, if half of the memory for states has room, the inputs of a refitted matrix are kept;
then only the matrix runs again. Five states of all tokens are kept at a time, in memory up to a bound, and beyond it
on disk (`common.forward.spill_buffer`). Only sums grow with the model. If a matrix has more inputs than there are
tokens, the tokens' rows replace the sums.

Sources: ReplaceMe (arXiv 2505.02819) maps the last kept MLP's output by one C x C matrix, fused into `down_proj`,
towards X[b]. Ghosted Layers (2605.15491) maps the residual stream itself, by a matrix that stays in the model. Neither
refits the entire `down_proj` (features x channels instead of channels x channels), or later layers in turn on the
repaired stream. 2606.02559 fits modules in place of removed sub-layers.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from common.calibration.layer_inputs import ATTENTION, MLP, Watched, multiplied, paths
from common.calibration.least_squares import Regression, RowRegression, counted_tokens
from common.console.progress import track
from common.forward.spill_buffer import Held
from common.hooks import refuse_patches
from common.models.architectures import SUPPORTED, at_hand
from common.models.decoder import Decoder
from common.models.removal import check_layers
from common.models.surgery import remove_layers
from common.pruning.pipeline import work_folder
from common.pruning.selection import lowest
from common.utils import cache
from common.utils.errors import UserError, UserValueError, unknown
from extensions.refit.graft import Graft

FOLLOWING = 3
RIDGE = 1e-3
# Of the following layers: name -> their matrices that are refitted, in order.
MATRICES = {"both": (ATTENTION, MLP), "attention": (ATTENTION,), "mlp": (MLP,)}
# What `held_out` chooses from; infinite: the matrix stays as it is.
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, float("inf"))
# Inputs of a matrix from which on there is room for one H'H alone: two of 8,192 x 8,192 take a GB.
LARGE = 8192
ROWS = 1024  # of a matrix that are brought to float64 at once
STREAM, BRANCHES = "stream", "branches"
OLD, ZERO = "old", "zero"
ANY, ROTATION = "any", "rotation"


@dataclass(frozen=True)
class Fit:
    """Options of `refit` that all matrices share."""

    ridge: float = RIDGE
    share: float = 0.0
    target: str = STREAM
    towards: str = OLD
    form: str = ANY
    strength: float = 1.0
    first: bool = True

    @property
    def plain(self) -> bool:
        """Whether every change is a whole solution with a ridge towards the old weights."""
        return (self.towards, self.form, self.strength) == (OLD, ANY, 1)

    def regression(self, tokens: int, features: int) -> Regression | RowRegression:
        """Return an empty regression for ``tokens`` tokens and matrices of ``features`` inputs."""
        return RowRegression() if tokens < features and self.plain else Regression()


@torch.no_grad()
def refit(
    model: nn.Module,
    ids: Tensor,
    removed: Sequence[int],
    *,
    following: int = FOLLOWING,
    ridge: float = RIDGE,
    matrices: str = "both",
    share: float = 0.0,
    held_out: int = 0,
    first: bool = True,
    target: str = STREAM,
    towards: str = OLD,
    before: bool = True,
    form: str = ANY,
    strength: float = 1.0,
    dense: nn.Module | None = None,
    alive: Sequence[int] | None = None,
    graft: Graft | None = None,
    batch_size: int = 8,
    progress: bool = False,
) -> list[dict]:
    """Remove layers of ``model`` and refit the matrices around every pruning interface, in place.

    Args:
        model: The model; it is changed.
        ids: Calibration tokens [samples, tokens].
        removed: Layers to remove.
        following: Number of kept layers after each interface that are refitted, too; 0: only the layer before it.
        ridge: Ridge, as a share of the mean eigenvalue of the inputs' covariance.
        matrices: Matrices of the following layers, a name of `MATRICES`.
        share: Share of the change across the interface that `o_proj` before it is fitted to; 0: it is not changed.
        held_out: Number of last samples that choose each matrix's ridge among RIDGES, instead of ``ridge``; the matrix
            is then solved on all samples.
        first: Whether a sample's first token counts in the fits, and in the errors that are reported.
        target: Target of the regression, ``stream`` or ``branches`` (module docstring).
        towards: Weights that the ridge pulls towards: the old ones or zero.
        before: Whether `down_proj` before each interface is refitted.
        form: Form of a change, ``any`` or ``rotation``. With rotations ``ridge`` is not used.
        strength: Share of each change that is applied, above 0 and at most 1.
        dense: Model whose residual stream is the target; None: ``model``.
        alive: Layers of ``dense`` that ``model`` has; None: all.
        graft: Neurons that are first copied into the last layer before an interface.
        batch_size: Sequences per batch.
        progress: Show a progress bar.

    Returns:
        One entry per refitted matrix, in order: {"layer" (of ``dense``), "matrix", "error", "left"}. error and left are
        those of the repaired residual stream before and after the refit, as shares of the squared target on the
        calibration tokens. With ``held_out`` also the chosen "ridge" and its residual error on the held-out samples.

    Raises:
        UserError: an architecture whose output matrices do not write into the residual stream themselves (Gemma 2
            normalises their output, Mixtral mixes experts), layers that do not exist, options out of range, or no
            tokens.
    """
    decoder = Decoder(model)
    removed = sorted(map(int, removed))
    check_layers(removed, decoder.num_layers)
    check_architecture(decoder.architecture)
    refuse_patches(model, "A refit")
    _check(decoder, ids, following, ridge, held_out)
    fit = Fit(ridge, share, target, towards, form, strength, first)
    _check_names(fit, matrices)
    _check_ablation(fit, removed, following == 1 and not (before or share), held_out)
    plan = plan_of(decoder.num_layers, removed, following, matrices, share, before)
    if target == BRANCHES:  # the residual streams are followed from where the removed layers begin
        borders = {layer - 1 for layer in removed} - {*plan, *removed}
        plan |= dict.fromkeys(borders, ())
    if graft is not None:  # its host gets the neurons even if none of its matrices is refitted
        plan.setdefault(graft.host, ())
    reports: list[dict] = []
    if plan:
        _check_at_hand(decoder, plan)
        split = len(ids) - held_out
        parts = [(ids[:split], False), (ids[split:], True)] if held_out else [(ids, False)]
        batches = [(batch, judges) for part, judges in parts for batch in part.split(batch_size)]
        origin = Decoder(dense) if dense is not None else decoder
        passed = [layer for layer in range(min(plan)) if layer not in removed]
        streams = _Streams(
            decoder, origin, alive or range(decoder.num_layers), passed, min(plan), batches, fit, progress
        )
        for layer in track(range(min(plan), max(plan) + 1), "refitting", unit="layer", shown=progress):
            if layer not in removed:
                after = next(i for i in range(layer + 1, decoder.num_layers + 1) if i not in removed)
                layer_graft = graft if graft is not None and graft.host == layer else None
                reports += streams.through(layer, after, plan.get(layer, ()), layer_graft)
    remove_layers(model, removed)
    return reports


def check_architecture(name: str) -> None:
    """Refuse a model whose output matrices do not write into the residual stream themselves.

    Raises:
        UserError: the message names the architecture.
    """
    if name in SUPPORTED and SUPPORTED[name].matrices is None:
        spec = SUPPORTED[name]
        why = spec.inseparable or (
            "its attention and MLP run side by side"
            if spec.parallel
            else "its output matrices do not write into the residual stream themselves"
        )
        raise UserError(f"architecture {name!r} cannot be refitted: {why}; use another repair")


def _check(decoder: Decoder, ids: Tensor, following: int, ridge: float, held_out: int) -> None:
    if following < 0 or not 0 < ridge < float("inf"):
        raise UserValueError(f"following must be 0 or more and ridge a positive number, not {following} and {ridge}")
    if ids.ndim != 2 or not ids.numel():
        raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
    if not 0 <= held_out < len(ids):
        raise UserValueError(f"held_out must be 0 to {len(ids) - 1} of the {len(ids)} samples, not {held_out}")


def _check_names(fit: Fit, matrices: str) -> None:
    choices = (
        ("target", fit.target, (STREAM, BRANCHES)),
        ("pull of the ridge", fit.towards, (OLD, ZERO)),
        ("form of a change", fit.form, (ANY, ROTATION)),
        ("choice of matrices", matrices, MATRICES),
    )
    for what, name, known in choices:
        if name not in known:
            raise unknown(what, name, known)


def _check_ablation(fit: Fit, removed: Sequence[int], one_after: bool, held_out: int) -> None:
    """Refuse options that only the ablation has, where they are out of range or do not go together."""
    if not 0 <= fit.share <= 1:
        raise UserValueError(f"share must be 0 to 1, not {fit.share}")
    if not 0 < fit.strength <= 1:
        raise UserValueError(f"strength must be above 0 and at most 1, not {fit.strength}")
    if fit.target == BRANCHES and (not one_after or 0 in removed):
        raise UserValueError(
            "The target branches is only defined for the one layer after removed ones. Set following to 1 and before to "
            "false, leave share out, and keep layer 0"
        )
    if fit.form == ROTATION and (held_out or fit.towards == ZERO or fit.strength < 1):
        raise UserValueError("A rotation has no ridge and no part. Leave held_out, towards and strength out")


def rotation(weight: Tensor, gram: Tensor, cross: Tensor) -> Tensor:
    """Return D' = ((Q - I) W)' [features, channels] with the orthogonal Q that minimises |H D' - E|^2.

    That is an orthogonal Procrustes problem. What the matrix writes is Y = H W'; with Z = Y + E the best Q is U V' of
    the singular value decomposition U S V' of Z'Y = W H'H W' + E'H W'. weight: W; gram: H'H; cross: H'E.
    """
    weight = weight.to(gram)
    left, _, right = torch.linalg.svd((weight @ gram + cross.T) @ weight.T)
    return (left @ right @ weight - weight).T


def _check_at_hand(decoder: Decoder, layers: Iterable[int]) -> None:
    """Refuse weights that are not in memory: what is written to them would be lost."""
    if not decoder.streamed and any(
        weight.is_meta for layer in layers for weight in decoder.layers[layer].parameters()
    ):
        raise UserError(
            "offloaded weights cannot be refitted; load the model where it fits (--device cpu), or read it layer by layer "
            "(--stream)"
        )


def plan_of(
    layers: int, removed: Sequence[int], following: int, matrices: str = "both", share: float = 0, before: bool = True
) -> dict[int, tuple[str, ...]]:
    """Return the matrices of each kept layer that are refitted, in order, for a model of ``layers`` layers.

    The options are those of `refit`. With a ``share``, the attention of the layer before an interface is refitted, too.
    """
    plan, left = {}, 0
    for layer in range(layers):
        if layer in removed:
            left = following
            continue
        refitted = MATRICES[matrices] if left else ()
        if before and layer + 1 in removed:  # whatever else, this layer makes up for the removed ones
            refitted = (ATTENTION, MLP) if share > 0 or ATTENTION in refitted else (MLP,)
        left = max(left - 1, 0)
        if refitted:
            plan[layer] = refitted
    return plan


@dataclass
class _RefitBatch:
    """One batch's streams at one place of the model, on the host.

    judges: whether it only chooses ridges. out, ahead: the dense residual stream after the layer there, and after the layers
    that are removed behind it. branches: what sub-layers of removed layers added to the dense residual stream since the layer
    before them. middle: the repaired residual stream between attention and MLP of the layer at hand. read: the inputs of its
    o_proj and down_proj in the repaired model, as far as they are kept.
    """

    ids: Tensor
    judges: bool
    dense: Tensor
    repaired: Tensor
    out: Tensor | None = None
    ahead: Tensor | None = None
    targets: dict[str, Tensor] = field(default_factory=dict)
    branches: dict[str, Tensor] = field(default_factory=dict)
    middle: Tensor | None = None
    read: dict[str, Tensor] = field(default_factory=dict)


class _Streams:
    """The dense and the repaired residual stream of all calibration tokens, batch by batch, at one place of the model."""

    def __init__(
        self,
        decoder: Decoder,
        origin: Decoder,
        alive: Sequence[int],
        before: Sequence[int],
        first: int,
        batches: Sequence[tuple[Tensor, bool]],
        fit: Fit,
        progress: bool,
    ):
        self.decoder, self.origin, self.fit, self.progress = decoder, origin, fit, progress
        self.alive = [*alive, origin.num_layers]  # the dense boundary behind the last layer
        # what a tool streams lies where all its states do
        place, limit = (cache.folder(), origin.model.streamed.states) if origin.streamed else (work_folder(), None)
        self.pool = Held(place, limit)
        self.factor = decoder.multiplier
        tokens = [ids for ids, _ in batches]
        starts = owns = self._through(origin, tokens, range(self.alive[first]))
        if origin is not decoder or len(before) < first:
            owns = self._through(decoder, tokens, before)
        self.batches = [
            _RefitBatch(ids, judges, *states) for (ids, judges), *states in zip(batches, starts, owns, strict=True)
        ]

    def _through(self, decoder: Decoder, tokens: Sequence[Tensor], layers: Sequence[int]) -> list[Tensor]:
        """Return what leaves these layers, of each batch of tokens."""
        if not decoder.streamed:
            states = []
            for ids in track(tokens, "layers before", unit="batch", shown=self.progress):
                hidden = decoder.embed_tokens(ids)
                states.append(self.pool.keep(decoder.run(hidden, layers=layers)))
            return states
        states = [self.pool.keep(decoder.embed_tokens(ids)) for ids in tokens]
        for layer in track(layers, "layers before", unit="layer", shown=self.progress):  # each is read once
            states = [self.pool.keep(decoder.run(state.to(decoder.device), layers=[layer])) for state in states]
        return states

    def through(self, layer: int, after: int, names: Sequence[str], graft: Graft | None) -> list[dict]:
        """Take both residual streams through a kept layer and refit these matrices; ``after``: the next kept layer."""
        position, ahead = self.alive[layer], self.alive[after]
        summed = self.fit.target == BRANCHES
        # up to the first repair both residual streams are one: the dense pass shows the inputs of the first matrix
        alike = bool(names) and not summed and graft is None and self.batches[0].repaired is self.batches[0].dense
        apart = ATTENTION in names or alike or (summed and bool(names))
        for batch in self.batches if apart else ():
            before = batch.dense.to(self.origin.device)
            if summed:
                batch.ahead = batch.out = self._with_branches(batch, before, position)
                batch.targets, batch.branches = batch.branches, {}
                continue
            with Watched(self.origin, position) as watched:
                out = self.origin.run(before, position, position + 1)
            batch.ahead = batch.out = self.pool.keep(out)
            if ATTENTION in names:
                batch.targets[ATTENTION] = self.pool.keep(watched.middle)
            if alike:
                batch.middle = None if names[0] == ATTENTION else self.pool.keep(watched.middle)
                self._note(batch, names[0], watched)
        for passed in range(position + apart, ahead):
            for batch in self.batches:
                before = (batch.dense if passed == position else batch.ahead).to(self.origin.device)
                if summed and passed > position:
                    batch.ahead = self._with_branches(batch, before, passed)
                else:
                    batch.ahead = self.pool.keep(self.origin.run(before, layers=[passed]))
        for batch in () if summed else self.batches:
            batch.targets[MLP] = batch.ahead
            if self.fit.share and ahead > position + 1 and ATTENTION in batch.targets:
                change = batch.ahead.float() - batch.out.float()
                batch.targets[ATTENTION] = self.pool.keep(batch.targets[ATTENTION].float() + self.fit.share * change)
        for batch in self.batches:
            batch.dense, batch.out = batch.ahead, None
        if graft is not None:
            graft.into(self.decoder.layers[layer])
        reports = [self._refit(layer, name) for name in names]
        for batch in self.batches:
            if names:
                _, out = self._half(batch, layer, MLP)
            else:
                out = self.decoder.run(batch.repaired.to(self.decoder.device), layer, layer + 1)
            batch.repaired, batch.middle, batch.targets, batch.read = self.pool.keep(out), None, {}, {}
        return reports

    def _half(self, batch: _RefitBatch, layer: int, name: str) -> tuple[Watched | None, Tensor]:
        """Run the sub-layer that ends with this matrix, in the repaired model.

        Returns what was seen of it (None if `read` has the inputs of the matrix) and the residual stream after it.
        """
        part = at_hand(self.decoder.layers[layer])
        linear = part.get_submodule(paths(self.decoder.spec)[name])
        entered = (batch.repaired if name == ATTENTION else self._middle(batch, layer)).to(linear.weight.device)
        if name in batch.read:
            written = linear(batch.read[name].to(linear.weight.device))
            return None, entered + multiplied(written, name, self.factor)
        with Watched(self.decoder, layer) as watched:
            out = entered + self.decoder.added(entered, layer, "attention" if name == ATTENTION else "mlp")
        return watched, out

    def _middle(self, batch: _RefitBatch, layer: int) -> Tensor:
        """Return the repaired residual stream between attention and MLP. Attention is not refitted after this."""
        if batch.middle is None:
            batch.middle = self.pool.keep(self._half(batch, layer, ATTENTION)[1])
            batch.read.pop(ATTENTION, None)
            batch.repaired = None
        return batch.middle

    def _note(self, batch: _RefitBatch, name: str, watched: Watched) -> None:
        """Keep the inputs of o_proj or down_proj if half of the room is free: states come first.

        A GPU computes them again in less time than it takes to copy them.
        """
        if not self.decoder.streamed and self.decoder.device.type == "cpu":
            value = watched.read[name]
            if self.pool.used + value.nbytes <= self.pool.limit // 2:
                batch.read[name] = self.pool.keep(value)

    def _with_branches(self, batch: _RefitBatch, before: Tensor, layer: int) -> Tensor:
        """Return the dense residual stream after a layer, and add what its sub-layers add to the batch's branches."""
        with Watched(self.origin, layer) as watched:
            out = self.origin.run(before, layer, layer + 1)
        middle = watched.middle.float()
        for name, added in ((ATTENTION, middle - before.float()), (MLP, out.float() - middle)):
            total = batch.branches.get(name)
            batch.branches[name] = self.pool.keep(added if total is None else added + total.to(added.device))
        return self.pool.keep(out)

    def _refit(self, layer: int, name: str) -> dict:
        """Refit a matrix, in one pass; return its report."""
        linear = self.decoder.layers[layer].get_submodule(paths(self.decoder.spec)[name])
        tokens = sum(batch.ids.numel() for batch in self.batches)
        sums = {judges: self.fit.regression(tokens, linear.in_features) for judges in {b.judges for b in self.batches}}
        # none is read ahead inside, where layers are read as they are called: sums need the room
        with self.decoder.model.streamed.alone() if self.decoder.streamed else nullcontext():
            for batch in self.batches:
                watched, out = self._half(batch, layer, name)
                target = batch.targets[name].to(out.device, torch.float32)
                if self.fit.target == BRANCHES:
                    entered = batch.repaired if name == ATTENTION else batch.middle
                    target = target + entered.to(out.device, torch.float32)
                read = (batch.read if watched is None else watched.read)[name].to(out.device)
                keep = counted_tokens(batch.ids, self.fit.first)
                sums[batch.judges].add(multiplied(read, name, self.factor), target - out.float(), target, keep)
                if watched is not None:
                    self._note(batch, name, watched)
        return self._write(layer, name, sums.pop(False), sums.get(True))

    def _write(
        self, layer: int, name: str, sums: Regression | RowRegression, held_out_sums: Regression | RowRegression | None
    ) -> dict:
        if self.decoder.streamed:  # its memory goes to the sums
            self.decoder.model.streamed.let_go()
        ridge, ridge_facts, error = self.fit.ridge, {}, sums.error
        linear = at_hand(self.decoder.layers[layer]).get_submodule(paths(self.decoder.spec)[name])
        pull = {}
        if self.fit.towards == ZERO:  # the change that leaves nothing of the old weights
            pull = {"towards": -linear.weight.T.to(sums.cross)}
        if held_out_sums is not None:
            lefts = {
                r: left / held_out_sums.target for r, left in sums.residuals(held_out_sums, RIDGES, **pull).items()
            }
            ridge = lowest(lefts)
            ridge_facts = {"ridge": ridge, "held_out": lefts[ridge]}
            sums = sums.with_(held_out_sums)
            error = sums.error
        if self.fit.form == ROTATION:
            change = rotation(linear.weight, sums.gram, sums.cross)
            left = sums.residual(change)
        elif ridge == float("inf"):
            change, left = None, error
        elif (
            self.fit.plain
            and isinstance(sums, Regression)
            and held_out_sums is None
            and name == MLP
            and len(sums.lower) >= LARGE
        ):
            change, left = sums.consumed(ridge)
        else:
            change, left = sums.fitted(ridge, **pull)
            if self.fit.strength < 1:
                change *= self.fit.strength
                left = sums.residual(change)
        if change is not None:
            for rows, part in zip(linear.weight.split(ROWS), change.split(ROWS, 1), strict=True):
                rows.copy_(rows.double() + part.T.to(rows.device))
        shares = {"error": error / sums.target, "left": left / sums.target}
        return {"layer": self.alive[layer], "matrix": name} | shares | ridge_facts
