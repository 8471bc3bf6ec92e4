"""How one of Reassessing's tables is put together, and what the notes of several say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reproductions.reassessing import rows
from reproductions.reassessing.columns import accuracies
from reproductions.registry import Claim, Column, Row, Table

SAME = "On the stand-in, of which there is one, the rows are those of Table {}."
SIZES = (
    "Fine-tuning on the stand-in: 96 instructions made of its own training docstrings, 24 steps of 8, at 1e-4 (the paper: "
    "49,760, 1,555 steps of 64, at 1e-5). Of the printed arms it has those that the claims need; its tasks are four of nine."
)


def table(
    number: str,
    title: str,
    on_standin: Iterable[tuple[str, int, str]],
    columns: Callable[[str], list[Column]] | None = None,
    claims: tuple[Claim, ...] = (),
    note: str = "",
    *,
    shape: Callable | None = None,
    dense: bool = True,
    on_paper: Callable[[int | None], list[Row]] | None = None,
) -> Table:
    """A table whose rows are the printed ones (or ``on_paper``'s), or those of one model; columns: the accuracies it prints.

    on_standin: (metric, layers removed, variant) of each row; any other model loses the same shares. shape: the recipe over
    a printed row's shape, for columns that need no weights. dense: whether the stand-in's dense model comes first.
    """
    printed = on_paper or rows.printed(number, shape)
    return Table(
        target=f"table{number}-reassessing",
        paper="reassessing",
        number=number,
        title=f"Reassessing, Table {number}: {title}",
        declared=rows.by_subject(printed, rows.one_model(on_standin, dense=dense)),
        columns=columns or accuracies(number),
        claims=claims,
        note=note,
    )
