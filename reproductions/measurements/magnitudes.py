"""Measure for LinearPatch's figures: the residual stream around a block, and the pruned model as the patch varies.

The layers before a block are run once; every patch tried continues from there. The
recipe's selection is ``observed-window``.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from common.calibration.statistics import Statistics
from common.console.progress import track
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.forward.losses import next_token_loss
from common.hadamard import hadamard_transform
from common.pruning.pipeline import Context
from papers.linearpatch import LinearPatch, evaluation_texts, patch_values  # noqa: F401 - its protocols
from reproductions.measurements import benchmark

# The text that perplexities of figures are measured on: protocols, and the sequences taken from each.
TEXTS = {
    "standin": (("standin-standard-library", "standin-numerical", "standin-learning"), 8),
    "paper": (("linearpatch-wikitext2",), 12),
}
READS = tuple(PROTOCOLS[name].corpus for name in TEXTS["paper"][0])
ALPHAS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7)
# One factor at every interface is looked for on a grid, each STEP times the last, then half-way to the neighbours of the best
# one.
# Perplexity may have several minima: SmolLM2's without layers 21 to 28 has one at 0.65, and is a thousand times less at 6.5.
STEP = 1.4
FACTORS = tuple(STEP**k for k in range(-3, 8))
# What an interface's states are compared on with the dense model's, and what perplexity is measured on of wide models.
END_TOKENS, FEW_WINDOWS = 4096, 4
PREDICTIONS = ("ratio", "least_squares", "alike_at_end")
# In models with more channels, all interfaces take hours on a CPU: a few are measured. Above WIDE channels, C x C moments of
# a few interfaces are held at a time.
MOST_CHANNELS, FEW_INTERFACES = 512, 8
WIDE, INTERFACES_AT_A_TIME = 1024, 4


def _text(context: Context, limit: int | None = None) -> Tensor:
    """Return sequences of the texts, at most ``limit`` of each; None: as TEXTS says."""
    names, count = TEXTS[context.recipe.profile]
    protocols = [PROTOCOLS[name] for name in names]
    return torch.cat([p.sequences(p, context.tokenizer)[: context.recipe.limit or limit or count] for p in protocols])


class _Interface:
    """The model without the layers ``[start, stop)``, as a function of the patch at the pruning interface."""

    def __init__(self, context: Context, ids: Tensor, start: int, stop: int):
        self.decoder, self.start, self.stop = context.decoder, start, stop
        self.batches = [(batch, self.before(batch)) for batch in ids.split(context.batch_size)]

    def before(self, batch: Tensor) -> Tensor:
        """Return the residual stream at the pruning interface, of token ids [batch, tokens]."""
        return self.decoder.run(self.decoder.embed_tokens(batch), 0, self.start)

    def factor(self, factor: float) -> float:
        """Return the perplexity with the residual stream at the pruning interface multiplied by ``factor``."""
        return self.perplexity(lambda hidden: hidden * factor)

    def perplexity(self, change: Callable[[Tensor], Tensor]) -> float:
        """Return the perplexity with ``change`` at the pruning interface (mean loss over sequences of equal length)."""
        losses = [
            next_token_loss(self.decoder, self.decoder.run(change(hidden), self.stop), batch)
            for batch, hidden in self.batches
        ]
        return math.exp(min(torch.cat(losses).mean().item(), 700.0))


@benchmark("magnitudes")
@torch.inference_mode()
def magnitudes(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure magnitudes on calibration text: per layer, per channel around the block, and per token, plain and rotated.

    Returns:
        Values: the block, the mean ratio of magnitudes across it, sigma_d (Eq. 5) and the largest over the median |X|
        of a token. Details: the lists behind them; per token they are of the first calibration sample.
    """
    start, stop = context.details["window"]
    statistics = context.statistics(stop - start, elementwise=[(start, stop)])
    layers = [statistics.magnitude(b).mean().item() for b in range(statistics.layers + 1)]
    details: dict = {"layers": layers, "channels": {}, "tokens": {}}
    values: dict = {"start": start, "end": stop}
    hidden = context.decoder.run(context.decoder.embed_tokens(context.sequences()[:1]), 0, start)[0].float()
    for rotated in (False, True):
        name = "rotated" if rotated else "plain"
        d = statistics.ratio(start, stop, rotated=rotated)
        before, after = (statistics.magnitude(boundary, rotated) for boundary in (start, stop))
        details["channels"][name] = {
            "before": before.tolist(),
            "after": after.tolist(),
            "scaled": (before * d).tolist(),
        }
        largest = (hadamard_transform(hidden) if rotated else hidden).abs().amax(-1)  # [tokens]
        details["tokens"][name] = largest.tolist()
        values |= {
            f"ratio_{name}": d.mean().item(),
            f"sigma_{name}": statistics.spread(start, stop, rotated),
            f"peak_{name}": (largest.max() / largest.median()).item(),
        }
    return values, {}, details


@benchmark("alpha", reads=READS)
@torch.inference_mode()
def alpha(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure section 3.2: perplexity without the block, with alpha X, alpha X d or alpha X A at the interface."""
    start, stop = context.details["window"]
    statistics = context.statistics(stop - start, (context.recipe.selection["cosine"],))
    interface = _Interface(context, _text(context), start, stop)
    patches: dict[str, Callable] = {"none": lambda hidden: hidden}
    for name, kind in (("d", "diagonal"), ("A", "hadamard")):
        values = patch_values(statistics, start, stop, kind=kind)
        patches[name] = LinearPatch(values, kind).to(context.decoder.device)
    curves, values = {}, {}
    for name, patch in patches.items():
        curve = {a: interface.perplexity(lambda hidden, a=a, p=patch: a * p(hidden)) for a in ALPHAS}
        values |= {f"perplexity_{name}": curve[1.0], f"best_alpha_{name}": optimum(curve)}
        curves[name] = list(curve.values())
    return values, {}, {"alphas": list(ALPHAS), "curves": curves}


def optimum(curve: Mapping[float, float]) -> float:
    """Return the minimum of a parabola through the lowest point and its neighbours, in log factor and log loss.

    ``curve`` maps factors, ascending, to losses. If the lowest point is an end of the range, it is returned.
    """
    factors, losses = list(curve), list(curve.values())
    lowest = min(range(len(factors)), key=losses.__getitem__)
    if lowest in (0, len(factors) - 1):
        return factors[lowest]
    (a, b, c), (u, v, w) = (
        [math.log(values[i]) for i in (lowest - 1, lowest, lowest + 1)] for values in (factors, losses)
    )
    left, right = (b - a) * (v - w), (b - c) * (v - u)
    return math.exp(b - 0.5 * ((b - a) * left - (b - c) * right) / (left - right))


def searched(loss: Callable[[float], float]) -> dict[float, float]:
    """Return the losses at FACTORS, and half-way from the best one to both neighbours, by factor in ascending order."""
    losses = {factor: loss(factor) for factor in FACTORS}
    lowest = min(losses, key=losses.get)
    if lowest not in (FACTORS[0], FACTORS[-1]):
        losses |= {factor: loss(factor) for factor in (lowest / STEP**0.5, lowest * STEP**0.5)}
    return dict(sorted(losses.items()))


class _End:
    """Distance of the last states of the model without the layers ``[start, stop)`` from the dense model's."""

    def __init__(self, context: Context):
        ids = context.sequences()
        self.decoder, self.batches = context.decoder, []
        for batch in ids[: max(1, END_TOKENS // ids.shape[1])].split(context.batch_size):
            hidden = self.decoder.run(self.decoder.embed_tokens(batch), 0)
            self.batches.append((batch, self._last(hidden)))

    def _last(self, hidden: Tensor) -> Tensor:
        return self.decoder.norm(hidden).float()

    def unlike(self, interface: _Interface) -> Callable[[float], float]:
        """Return 1 less the mean cosine of states after the final norm, for a factor at the interface."""
        befores = [interface.before(batch) for batch, _ in self.batches]

        def measured(factor: float) -> float:
            cosines = [
                torch.cosine_similarity(self._last(self.decoder.run(before * factor, interface.stop)), dense, dim=-1)
                for before, (_, dense) in zip(befores, self.batches, strict=True)
            ]
            return 1 - torch.cat(cosines).mean().item()

        return measured


def _look(interface: _Interface, end: _End, statistics: Statistics, start: int, stop: int) -> dict:
    """Return one interface: the best factor and what predicts it, and perplexity by every repair."""
    moments = statistics.least_squares(start, stop)
    curve, unlike = searched(interface.factor), searched(end.unlike(interface))
    row = {
        "window": [start, stop],
        "cosine": statistics.cosine("token", start, stop),
        "best_factor": optimum(curve),
        "ratio": statistics.ratio(start, stop).mean().item(),
        "least_squares": moments.scalar(),
        "alike_at_end": optimum(unlike),
        "perplexities": {"none": curve[1.0]},
        "unexplained": {},
        "curve": list(map(list, curve.items())),
        "unlike": list(map(list, unlike.items())),
    }
    row["perplexities"]["alike at the end"] = interface.factor(row["alike_at_end"])
    ways = {
        "ratio": ("hadamard", "ratio-of-means"),
        "least-squares": ("hadamard", "least-squares"),
        "matrix": ("matrix", "least-squares"),
    }
    for name, (kind, estimator) in ways.items():
        values = patch_values(statistics, start, stop, kind=kind, estimator=estimator)
        row["perplexities"][name] = interface.perplexity(LinearPatch(values, kind).to(interface.decoder.device))
        row["unexplained"][name] = moments.unexplained(values, rotated=kind == "hadamard")
    return row


@benchmark("cut-factors", reads=READS)
@torch.inference_mode()
def interface_factors(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Compare the best factor with each estimator's prediction at every block of the recipe's length (extension).

    With more than MOST_CHANNELS channels only FEW_INTERFACES blocks, evenly spread, and FEW_WINDOWS of the text are measured.

    Returns:
        Values: errors of predictions as mean |log(prediction / best)|, for the ratio of magnitudes, least squares at
        the pruning interface, and the factor whose last states are most like the original model's on calibration text
        (`_End`). Also shares of interfaces: those at which matching magnitudes (A), that factor and the least-squares
        matrix lower perplexity, and those at which A's residual error, compared with no repair, predicts whether A
        helps. Outcomes: the errors at each interface. Details: a row per interface.
    """
    count, layers = context.recipe.selection["count"], context.decoder.num_layers
    starts = list(range(1, layers - count))
    wide = context.decoder.hidden_size > MOST_CHANNELS
    if wide:
        starts = sorted({starts[round(i * (len(starts) - 1) / (FEW_INTERFACES - 1))] for i in range(FEW_INTERFACES)})
    blocks = [(start, start + count) for start in starts]
    ids, end, rows = _text(context, FEW_WINDOWS if wide else None), _End(context), []
    at_a_time = INTERFACES_AT_A_TIME if context.decoder.hidden_size > WIDE else len(blocks)
    for i in range(0, len(blocks), at_a_time):
        part = blocks[i : i + at_a_time]
        statistics = context.statistics(count, matrices=part)
        title = f"blocks {i + 1} to {i + len(part)} of {len(blocks)}"
        for block in track(part, title, unit="interface", each=True):
            rows.append(_look(_Interface(context, ids, *block), end, statistics, *block))

    errors = {
        f"off_{name}": np.array([abs(math.log(row[name] / row["best_factor"])) for row in rows]) for name in PREDICTIONS
    }

    def helps(name: str) -> float:
        return sum(row["perplexities"][name] < row["perplexities"]["none"] for row in rows) / len(rows)

    values = {"cuts": len(rows)} | {name: float(error.mean()) for name, error in errors.items()}
    values |= {f"helps_{name}": helps(name) for name in rows[0]["unexplained"]}
    values["helps_alike_at_end"] = helps("alike at the end")
    agrees = [
        (row["unexplained"]["ratio"] < 1) == (row["perplexities"]["ratio"] < row["perplexities"]["none"])
        for row in rows
    ]
    values["told"] = sum(agrees) / len(agrees)
    values["matrix_best"] = sum(min(r["perplexities"], key=r["perplexities"].get) == "matrix" for r in rows) / len(rows)
    stderr = {name: float(error.std(ddof=1)) / len(rows) ** 0.5 for name, error in errors.items() if len(rows) > 1}
    return values, stderr, {"rows": rows, "factors": list(FACTORS)}, errors
