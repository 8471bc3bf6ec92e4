"""ReplaceMe (Shopkhoev et al., arXiv 2505.02819): removed layers replaced by a matrix on the last kept MLP's output.

Layers [a, b) are removed. Layer a - 1 writes m, its MLP's output, into the residual stream r: X[a] = r + m. Section 2
looks for T with r + m T near X[b] and multiplies it into ``down_proj``, so that nothing is added to the model:

    least-squares   T = argmin |m T - (X[b] - r)|^2 + alpha |T|^2 = (m'm + alpha I)^-1 m'(X[b] - r)
    cosine          T = argmax of the mean cosine of m T and X[b] - r, by Adam from the identity
    cosine-stream   the same of r + m T and X[b]

Adam: 10 epochs, 1024 tokens a step, rate 1e-4, as in its code (github.com/mts-ai/ReplaceMe at 5bb71d9). So the text
decides the number of steps: the code's 8,000 samples make up to 80,000, and 65,536 tokens make 640. On SmolLM2 a longer
training lowers no perplexity: the cosine rises from 0.28 to 0.78, and the norm, which it ignores, stays at a third of
the target's (8 sequences; tried once, without records). Several interfaces: one T for each, all from the original model
(the code does so for least squares; by cosine it fits each T on the model without the layers removed before).

Extensions: an intercept (``bias``), which goes into the bias of ``down_proj`` if the architecture's config knows one
(``mlp_bias``: Llama; all its MLPs then have biases, mostly zeros), and the objective ``bias``, that intercept alone.

Deviations: states are those of the weights that are changed (the code runs a 4-bit model and changes another); samples
have no padding (it enters the code's sums); layers are renumbered. For adjacent interfaces the code regresses the
residual stream; here every interface regresses the MLP's output, as in the formula.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.calibration.block_boundaries import Crossing, Run, crossings
from common.calibration.least_squares import Regression, counted_rows
from common.models.decoder import Decoder
from common.models.removal import check_layers
from common.models.surgery import add_biases, check_unpatched, remove_layers
from common.pruning.pipeline import Context
from common.pruning.recipe import Repair, register
from common.pruning.selection import runs
from common.utils.errors import UserError, unknown

OBJECTIVES = ("least-squares", "cosine", "cosine-stream", "bias")
EPOCHS, RATE, STEP_TOKENS = 10, 1e-4, 1024


@register("replaceme")
@dataclass(frozen=True)
class ReplaceMe(Repair):
    """Fuse a matrix into the last kept layer's down_proj, which gives a plain checkpoint; options: see `replace_me`."""

    objective: str = "least-squares"
    bias: bool | None = None
    first: bool | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        options = self.options() | context.pass_options
        context.details["fused"] = replace_me(context.model, context.sequences(), context.removed, **options)


@dataclass
class _RunSums:
    """Sums over the tokens of one pruning interface. error: |X[b] - X[a]|^2. shift: the sum of X[b] - X[a], [channels]."""

    regression: Regression
    error: float = 0.0
    shift: Tensor | float = 0.0
    stored: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, crossing: Crossing, store: bool) -> None:
        m, gap = crossing.watched.double(), crossing.after.double() - crossing.before.double()
        self.regression.add(m, gap + m, crossing.after, crossing.keep)
        gap_rows = counted_rows(gap, crossing.keep)
        self.error += gap_rows.square().sum().item()
        self.shift = self.shift + gap_rows.sum(0)
        if store:
            states = (crossing.watched, crossing.before - crossing.watched, crossing.after)
            self.stored.append(tuple(counted_rows(state, crossing.keep).cpu() for state in states))


@torch.no_grad()
def replace_me(
    model: nn.Module,
    ids: Tensor,
    removed: Collection[int],
    *,
    objective: str = "least-squares",
    alpha: float = 0.0,
    bias: bool = False,
    first: bool = True,
    batch_size: int = 8,
    progress: bool = False,
) -> list[dict]:
    """Remove layers of ``model`` and fuse a matrix into the MLP before every maximal run of them, in place.

    Least squares keeps sums alone. Adam needs all tokens' states, three vectors per token in the model's type, in host
    memory.

    ``ids`` are calibration tokens [samples, tokens], ``objective`` one of `OBJECTIVES` (module docstring). ``alpha`` is
    an absolute ridge; the paper's is 0, which needs at least as many tokens as channels. ``bias``: least squares with
    an intercept. ``first`` (False: extension) says whether the fit counts a sample's first token.

    Returns:
        An entry per interface: {"run", "layer" whose MLP was changed, "error" before and "left" after, as shares of
        |X[b]|^2}.

    Raises:
        UserError: an architecture that normalises its MLP's output (Gemma 2) or whose experts have biases, a pruning
            interface without a layer before it, ``bias`` where the config has none, too few tokens, or unknown options.
            The model is unchanged then.
    """
    decoder, removed = Decoder(model), sorted(map(int, removed))
    check_layers(removed, decoder.num_layers)
    check_unpatched(model, runs(removed))
    _check(decoder, objective, bias)
    blocks, adam = runs(removed), objective.startswith("cosine")
    sums = {run: _RunSums(Regression(intercept=bias)) for run in blocks}
    for crossing in crossings(decoder, ids, blocks, first=first, watch=True, batch_size=batch_size, progress=progress):
        sums[crossing.run].add(crossing, adam)
    solutions: dict[Run, tuple[Tensor, Tensor | None]] = {}
    for run, run_sums in sums.items():
        if adam:
            stream = objective == "cosine-stream"
            solutions[run] = _adam(run_sums.stored, stream=stream, device=decoder.device).double(), None
        elif objective == "bias":
            eye = torch.eye(decoder.hidden_size, dtype=torch.float64, device=run_sums.shift.device)
            solutions[run] = eye, run_sums.shift / run_sums.regression.tokens
        else:
            solved = run_sums.regression.solved(alpha, absolute=True)
            solutions[run] = (solved[:-1], solved[-1]) if bias else (solved, None)
    if bias or objective == "bias":
        add_biases(model, "mlp_bias")
    reports = [_report(run, sums[run], *solutions[run]) for run in blocks]
    for (start, _), (matrix, shift) in solutions.items():
        fuse(decoder, start - 1, matrix, shift)
    remove_layers(model, removed)
    return reports


def fuse(decoder: Decoder, layer: int, matrix: Tensor, shift: Tensor | None = None) -> None:
    """Replace the contribution m of the MLP of ``layer`` by m T + s, in place.

    T is ``matrix`` [channels, channels] and s is ``shift``. Computed in float64, rounded once. It is exact for a
    mixture of experts, too, because each expert's output is a summand of m.
    """
    for writer in _writers(decoder, layer):
        tensor = writer.tensor
        wide, mapping = tensor.double(), matrix.to(tensor.device)
        changed = wide @ mapping if wide.ndim == 1 else mapping.T @ wide  # [..., channels, features]; a bias is a row
        if wide.ndim == 1 and shift is not None:
            changed = changed + shift.to(tensor.device) / decoder.multiplier
        tensor.copy_(changed)


def _writers(decoder: Decoder, layer: int) -> list:
    inside = f"{decoder.spec.mlp.module}."
    return [writer for writer in decoder.residual_writers(layer) if writer.name.startswith(inside)]


def _check(decoder: Decoder, objective: str, bias: bool) -> None:
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if not _writers(decoder, 0):
        raise UserError(
            f"architecture {decoder.architecture!r} normalises what its MLP writes into the residual stream, so no "
            "matrix can be fused there; use the repair ghosted-layers"
        )
    if any(writer.name.endswith("bias") and writer.tensor.ndim > 1 for writer in _writers(decoder, 0)):
        raise UserError(
            f"architecture {decoder.architecture!r} has experts with biases of their own, into which no matrix is fused; use "
            "the repair ghosted-layers"
        )
    if (bias or objective == "bias") and not hasattr(decoder.config, "mlp_bias"):
        raise UserError(
            f"architecture {decoder.architecture!r} has no mlp_bias in its config, so an intercept cannot be saved; leave "
            "bias out"
        )
    if bias and objective != "least-squares":
        raise UserError(f"bias goes with the objective least-squares, not {objective}; leave it out")


def _adam(stored: Iterable[tuple[Tensor, Tensor, Tensor]], *, stream: bool, device: torch.device) -> Tensor:
    """Return T [channels, channels] by Adam, from all tokens' m, r and X[b], each [tokens, channels]."""
    m, r, y = (torch.cat(parts) for parts in zip(*stored, strict=True))
    generator = torch.Generator().manual_seed(0)
    matrix = torch.eye(m.shape[1], device=device).requires_grad_()
    optimizer = torch.optim.Adam([matrix], lr=RATE)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(m), generator=generator).split(STEP_TOKENS):
            inputs, rest, targets = (states[chosen].to(device, torch.float32) for states in (m, r, y))
            with torch.enable_grad():
                mapped = inputs @ matrix
                estimate, target = (rest + mapped, targets) if stream else (mapped, targets - rest)
                loss = -F.cosine_similarity(estimate, target, dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return matrix.detach()


def _report(run: Run, sums: _RunSums, matrix: Tensor, shift: Tensor | None) -> dict:
    """Return the errors without and with the matrix, as shares of the squared residual stream after the interface."""
    regression = sums.regression
    if regression.intercept:
        matrix = torch.cat([matrix, shift[None]])
        residual = regression.residual(matrix)
    else:
        residual = regression.residual(matrix.to(regression.gram))
        if shift is not None:  # the mean of the gap and nothing else
            residual = sums.error - regression.tokens * shift.square().sum().item()
    return {
        "run": list(run),
        "layer": run[0] - 1,
        "error": sums.error / regression.target,
        "left": max(residual, 0.0) / regression.target,
    }
