"""What LinearPatch's figures show: the dense model's stream around a window, and the model without it as the patch varies.

The layers before a window are run once; every patch tried continues from there. The
recipe's selection is ``observed-window``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.context import Context
from common.evaluation.perplexity import PROTOCOLS
from common.hadamard import hadamard_transform
from common.losses import next_token_loss
from common.progress import track
from common.statistics import Statistics
from papers.linearpatch import LinearPatch, measures, patch_values  # noqa: F401 - measures: its protocols
from reproductions.benchmarks import benchmark

# The text that perplexities of figures are measured on: protocols, and the windows taken from each.
TEXTS = {
    "standin": (("standin-standard-library", "standin-numerical", "standin-learning"), 8),
    "paper": (("linearpatch-wikitext2",), 12),
}
READS = tuple(PROTOCOLS[name].corpus for name in TEXTS["paper"][0])
ALPHAS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7)
# For one factor over every cut: fewer, wider apart; the optimum is read off a parabola. Where an end is best, further ones,
# each so many times the last, within REACH.
FACTORS, FURTHER, REACH = (0.85, 1.0, 1.15, 1.3, 1.5, 1.75), 1.25, (0.2, 10.0)
# Of models wider than MANY_CUTS, whose cuts take hours on a CPU, some are looked at; wider than WIDE, C x C moments of few
# cuts are held at a time.
MANY_CUTS, FEW_CUTS = 512, 8
WIDE, CUTS_AT_A_TIME = 1024, 4


def _text(context: Context) -> Tensor:
    names, count = TEXTS[context.recipe.profile]
    protocols = [PROTOCOLS[name] for name in names]
    return torch.cat([p.windows(p, context.tokenizer)[: context.recipe.limit or count] for p in protocols])


class _Cut:
    """The model without the layers ``[start, stop)``, as a function of what is done to the stream at the cut."""

    def __init__(self, context: Context, ids: Tensor, start: int, stop: int):
        self.decoder, self.stop = context.decoder, stop
        self.batches = [(batch, self._prefix(batch, start)) for batch in ids.split(context.batch_size)]

    def _prefix(self, batch: Tensor, start: int) -> Tensor:
        return self.decoder.run(self.decoder.embed_tokens(batch), 0, start)

    def perplexity(self, change: Callable[[Tensor], Tensor]) -> float:
        """Perplexity with ``change`` at the cut (mean loss over windows of equal length)."""
        losses = [
            next_token_loss(self.decoder, self.decoder.run(change(hidden), self.stop), batch)
            for batch, hidden in self.batches
        ]
        return math.exp(min(torch.cat(losses).mean().item(), 700.0))


@benchmark("magnitudes")
@torch.inference_mode()
def magnitudes(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Magnitudes on calibration text: per layer, per channel around the window, and per token, plain and rotated.

    values: the window, the mean ratio of magnitudes across it, sigma_d (Eq. 5) and the largest over the median |X| of a
    token. details: the lists behind them; per token they are of the first calibration sample.
    """
    start, stop = context.details["window"]
    found = context.statistics(stop - start, elementwise=[(start, stop)])
    layers = [found.magnitude(b).mean().item() for b in range(found.layers + 1)]
    details: dict = {"layers": layers, "channels": {}, "tokens": {}}
    values: dict = {"start": start, "end": stop}
    hidden = context.decoder.run(context.decoder.embed_tokens(context.windows()[:1]), 0, start)[0].float()
    for rotated in (False, True):
        name = "rotated" if rotated else "plain"
        d = found.ratio(start, stop, rotated=rotated)
        before, after = (found.magnitude(boundary, rotated) for boundary in (start, stop))
        details["channels"][name] = {
            "before": before.tolist(),
            "after": after.tolist(),
            "scaled": (before * d).tolist(),
        }
        largest = (hadamard_transform(hidden) if rotated else hidden).abs().amax(-1)  # [tokens]
        details["tokens"][name] = largest.tolist()
        values |= {
            f"ratio_{name}": d.mean().item(),
            f"sigma_{name}": found.spread(start, stop, rotated),
            f"peak_{name}": (largest.max() / largest.median()).item(),
        }
    return values, {}, details


@benchmark("alpha", reads=READS)
@torch.inference_mode()
def alpha(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Section 3.2: perplexity without the window when the stream at the cut is alpha X, alpha X d or alpha X A."""
    start, stop = context.details["window"]
    found = context.statistics(stop - start, (context.recipe.selection["cosine"],))
    cut = _Cut(context, _text(context), start, stop)
    patches: dict[str, Callable] = {"none": lambda hidden: hidden}
    for name, kind in (("d", "diagonal"), ("A", "hadamard")):
        values = patch_values(found, start, stop, kind=kind)
        patches[name] = LinearPatch(values, kind).to(values.device)
    curves, values = {}, {}
    for name, patch in patches.items():
        curves[name] = curve = [cut.perplexity(lambda hidden, a=a, p=patch: a * p(hidden)) for a in ALPHAS]
        values |= {f"perplexity_{name}": curve[ALPHAS.index(1.0)], f"best_alpha_{name}": optimum(ALPHAS, curve)}
    return values, {}, {"alphas": list(ALPHAS), "curves": curves}


def optimum(factors: tuple[float, ...], perplexities: list[float]) -> float:
    """Where a parabola through the lowest point and its neighbours has its minimum, in log factor and log perplexity.

    At an end of the range: that end.
    """
    lowest = min(range(len(factors)), key=perplexities.__getitem__)
    if lowest in (0, len(factors) - 1):
        return factors[lowest]
    (a, b, c), (u, v, w) = (
        [math.log(values[i]) for i in (lowest - 1, lowest, lowest + 1)] for values in (factors, perplexities)
    )
    left, right = (b - a) * (v - w), (b - c) * (v - u)
    return math.exp(b - 0.5 * ((b - a) * left - (b - c) * right) / (left - right))


def searched(perplexity: Callable[[float], float]) -> dict[float, float]:
    """Factor -> perplexity, ascending: FACTORS, and further ones while the lowest is at an end and REACH allows it."""
    found = {factor: perplexity(factor) for factor in FACTORS}
    while True:
        lowest, ends = min(found, key=found.get), (min(found), max(found))
        further = lowest / FURTHER if lowest == ends[0] else lowest * FURTHER
        if lowest not in ends or not REACH[0] <= further <= REACH[1]:
            return dict(sorted(found.items()))
        found[further] = perplexity(further)


def _look(cut: _Cut, found: Statistics, start: int, stop: int) -> dict:
    """One cut: the best factor and what predicts it, and perplexity by every repair."""
    moments = found.least_squares(start, stop)
    curve = searched(lambda factor: cut.perplexity(lambda hidden: hidden * factor))
    row = {
        "window": [start, stop],
        "cosine": found.cosine("token", start, stop),
        "best_factor": optimum(tuple(curve), list(curve.values())),
        "ratio": found.ratio(start, stop).mean().item(),
        "least_squares": moments.scalar(),
        "perplexities": {"none": curve[1.0]},
        "unexplained": {},
    }
    ways = {
        "ratio": ("hadamard", "ratio-of-means"),
        "least-squares": ("hadamard", "least-squares"),
        "matrix": ("matrix", "least-squares"),
    }
    for name, (kind, estimator) in ways.items():
        values = patch_values(found, start, stop, kind=kind, estimator=estimator)
        row["perplexities"][name] = cut.perplexity(LinearPatch(values, kind).to(values.device))
        row["unexplained"][name] = moments.unexplained(values, rotated=kind == "hadamard")
    return row


@benchmark("cuts", reads=READS)
@torch.inference_mode()
def cuts(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Ours: at every window of the recipe's length, the factor that is best against what each estimator predicts.

    values: how far predictions are off, as mean |log(prediction / best)|; the share of cuts at which matching magnitudes
    (A) and the least-squares matrix lower perplexity, and at which the error that A leaves tells whether it does (less
    than doing nothing leaves: it helps). details: a row per cut. Of models wider than MANY_CUTS only FEW_CUTS windows,
    evenly spread.
    """
    count, layers = context.recipe.selection["count"], context.decoder.num_layers
    starts = list(range(1, layers - count))
    if context.decoder.hidden_size > MANY_CUTS:
        starts = sorted({starts[round(i * (len(starts) - 1) / (FEW_CUTS - 1))] for i in range(FEW_CUTS)})
    windows = [(start, start + count) for start in starts]
    ids, rows = _text(context), []
    at_a_time = CUTS_AT_A_TIME if context.decoder.hidden_size > WIDE else len(windows)
    for i in range(0, len(windows), at_a_time):
        part = windows[i : i + at_a_time]
        found = context.statistics(count, matrices=part)
        looked = track(part, f"cuts {i + 1} to {i + len(part)} of {len(windows)}", unit="cut", each=True)
        rows += [_look(_Cut(context, ids, *window), found, *window) for window in looked]

    def off(prediction: str) -> float:
        return sum(abs(math.log(row[prediction] / row["best_factor"])) for row in rows) / len(rows)

    def helps(name: str) -> float:
        return sum(row["perplexities"][name] < row["perplexities"]["none"] for row in rows) / len(rows)

    values = {"cuts": len(rows), "off_ratio": off("ratio"), "off_least_squares": off("least_squares")}
    values |= {f"helps_{name}": helps(name) for name in ("ratio", "least-squares", "matrix")}
    told = [
        (row["unexplained"]["ratio"] < 1) == (row["perplexities"]["ratio"] < row["perplexities"]["none"])
        for row in rows
    ]
    values["told"] = sum(told) / len(told)
    values["matrix_best"] = sum(min(r["perplexities"], key=r["perplexities"].get) == "matrix" for r in rows) / len(rows)
    return values, {}, {"rows": rows, "factors": list(FACTORS)}
