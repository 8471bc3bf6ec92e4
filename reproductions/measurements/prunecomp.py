"""Measure for Prune&Comp's tables and figures: the order of removal, and the gains of all layers."""

from common.pruning.pipeline import Context
from common.utils.errors import UserError
from papers import prunecomp
from reproductions.measurements import benchmark
from reproductions.prunecomp.recipes import METRICS
from reproductions.spec import reported
from reproductions.spec.printed_rows import MODELS


def printed_list(table: str, label: str, sparsity: str, method: str) -> list[int]:
    """Return the removed layers that Table A3 or A4 prints for one row, in order; empty if there are none."""
    cells = reported.cells("prunecomp", table)
    layers = []
    while (number := cells.get((label, sparsity, method, f"removed {len(layers) + 1}"))) is not None:
        layers.append(int(number.value))
    return layers


@benchmark("removed-order")
def _order(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure each removed layer's place in the order, and, of a printed model, at how many places the printed list agrees.

    argument: the table that prints the lists, A3 or A4. A list longer than the row's n counts up to n.
    """
    removed, choice = context.removed, context.recipe.selection
    values = {str(place): float(layer) for place, layer in enumerate(removed, 1)}
    if not argument:
        return values, {}, {}
    labels = [label for label, name in MODELS.items() if name == context.recipe.model]
    if not labels:
        raise UserError(f"no list is printed for {context.recipe.model!r}")
    metric = next(name for name, short in METRICS.items() if short == choice["metric"])
    method = f"{metric} +Prune&Comp" if choice["compensate"] else metric
    expected = printed_list(argument, labels[0], f"{len(removed)}/{context.details['layers']}", method)
    agree = sum(a == b for a, b in zip(removed, expected))
    return values | {"agree": float(agree)}, {}, {"printed": expected}


@benchmark("magnitude-gains")
def _gains(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure every layer's magnitude gain ratio, in percent (Eq. 3): the bars of Figure 2, and the largest of them."""
    statistics = context.statistics(1, ("token",), rotate=False)
    gains = [100 * (prunecomp.magnitude_factor(statistics, layer) - 1) for layer in range(statistics.layers)]
    return {"largest": max(gains), "least": min(gains)}, {}, {"gains": gains}
