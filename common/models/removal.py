"""Check without a model which numbers of layers, and which layers, can be removed."""

from collections.abc import Sequence

from common.utils.errors import UserValueError, first_of


def check_count(count: int, layers: int) -> None:
    """Refuse a number of layers to remove outside 1..N-2."""
    if not 1 <= count <= layers - 2:
        range_ = f"choose 1..{layers - 2}: at least two have to stay" if layers > 2 else "two have to stay"
        raise UserValueError(
            f"cannot remove {count} of {layers} layers; {range_}, since most methods keep the first and the last"
        )


def check_layers(removed: Sequence[int], layers: int, count: int | None = None) -> None:
    """Refuse given layers that are not different ones of a model of ``layers``, or not ``count`` of them."""
    if outside := sorted(layer for layer in removed if not 0 <= layer < layers):
        raise UserValueError(f"cannot remove layers [{first_of(outside, 5)}]: the model has layers 0 to {layers - 1}")
    if repeated := sorted({layer for layer in removed if removed.count(layer) > 1}):
        raise UserValueError(f"cannot remove layers {repeated} more than once; list each once")
    if count not in (None, len(removed)):
        raise UserValueError(f"{len(removed)} different layers are given, but {count} are to be removed")
