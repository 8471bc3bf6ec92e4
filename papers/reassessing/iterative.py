"""One-shot against iterative pruning (section B): score, prune, fine-tune, merge; then score the resulting model.

A schedule a:b:c (1:1:8, 1:4:8) prunes b layers per cycle until c are removed; a is 1 wherever the paper uses it.
"""

from collections.abc import Callable

from torch import nn

from common.models.decoder import Decoder
from common.models.removal import check_count
from common.models.surgery import remove_layers
from common.utils.errors import UserValueError


def schedule(text: str) -> tuple[int, int]:
    """Return (layers per cycle, layers in all) of a schedule ``1:b:c``.

    >>> schedule("1:4:8")
    (4, 8)

    Raises:
        UserError: another form, or a cycle that does not remove 1..c layers.
    """
    parts = text.split(":")
    step, total = map(int, parts[1:]) if len(parts) == 3 and all(map(str.isdigit, parts)) else (0, 0)
    if parts[0] != "1" or not 1 <= step <= total:
        raise UserValueError(f"a schedule is written 1:b:c (b layers a cycle until c are removed), not {text!r}")
    return step, total


def prune_iteratively(
    model: nn.Module,
    step: int,
    total: int,
    choose: Callable[[Decoder, int], list[int]],
    tune: Callable[[nn.Module, int], object],
    earlier: tuple[list[int], list] = ((), ()),
    done: Callable[[list[int], list], None] = lambda removed, reports: None,
) -> tuple[list[int], list]:
    """Prune ``total`` layers, ``step`` per cycle, in place; the last cycle removes the rest (appendix B).

    Args:
        model: The model; it is changed.
        step: Layers per cycle.
        total: Layers in total.
        choose: ``choose(decoder, count)`` returns the present positions to remove, scored on the current model.
        tune: ``tune(model, cycle)`` trains the model in place (adapters merged) and returns a report.
        earlier: Return value of earlier cycles, if `model` is their result.
        done: Called as ``done(removed, reports)`` after every cycle.

    Returns:
        The removed layers in order of removal, as original indices, and the reports of all cycles.

    Raises:
        UserError: an impossible number of layers.
    """
    decoder = Decoder(model)
    removed, reports = map(list, earlier)
    check_count(total, decoder.num_layers + len(removed))
    alive = [layer for layer in range(decoder.num_layers + len(removed)) if layer not in removed]
    while len(removed) < total:
        positions = choose(decoder, min(step, total - len(removed)))
        remove_layers(model, positions)
        cycle_layers = [alive[position] for position in positions]
        removed += cycle_layers
        alive = [layer for layer in alive if layer not in cycle_layers]
        reports.append(tune(model, len(reports)))
        done(removed, reports)
    return removed, reports
