"""Build one of Reassessing's tables, with the notes that several share."""

from collections.abc import Callable, Iterable

from reproductions.reassessing import recipes, rows
from reproductions.reassessing.columns import accuracies
from reproductions.reassessing.specs import ArmSpec
from reproductions.spec import printed_rows
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject

SAME = "On the toy model, of which there is one, the rows are those of Table {}."


def _training(size: str) -> str:
    """Return how many instructions a size learns from, and in how many steps."""
    settings, count = recipes.SETTINGS[size], recipes.DATA[size]["count"]
    steps = settings["epochs"] * count // settings["batch"]
    rate = f"{settings['learning_rate']:.0e}".replace("e-0", "e-")
    return f"{count} instructions, {steps} steps of {settings['batch']}, at {rate}"


SIZES = (
    f"Fine-tuning, in the paper: {recipes.PAPER_ROWS:,} instructions, 1,555 steps of 64, at 1e-5; here, of a model that is "
    f"not the paper's: {_training('small')}; of the toy model: {_training('standin')}. SmolLM2 and the toy model "
    "learn from docstrings, which are at hand everywhere. Of the fine-tuned rows they have only those that the claims need. "
    "The toy model's tasks are four of nine."
)
# Of tables that prune in cycles.
CYCLES = (
    f"In the paper a cycle trains on all of the data. Here it trains on {recipes.CYCLE_ROWS['small']} of "
    f"{recipes.DATA['small']['count']} instructions (toy model: {recipes.CYCLE_ROWS['standin']} of "
    f"{recipes.DATA['standin']['count']}). So two cycles have half the training steps of one shot, and eight cycles twice as "
    "many. Differences may be due to this."
)


def table(
    number: str,
    title: str,
    on_toy: Iterable[tuple[ArmSpec, int]],
    columns: Callable[[str], list[Column]] | None = None,
    claims: tuple[Claim, ...] = (),
    note: str = "",
    *,
    shape: Callable | None = None,
    dense: bool = True,
    on_paper: Callable[[int | None], list[Row]] | None = None,
    full: bool = False,
) -> Table:
    """Return a table whose rows are the printed ones (or ``on_paper``'s), or those of one model.

    on_toy: specification and number of removed layers of each row on the toy model; any other model loses the same shares.
    columns: None: the accuracies that the table prints. shape: function to the shape recipe of a printed row, for columns
    that need no weights. dense: whether the original comes first. full: see `registry.Table`.
    """
    printed, on_one = on_paper or rows.printed(number, shape), rows.one_model(on_toy, dense=dense)

    def declared(subject: Subject, limit: int | None) -> Iterable[Row]:
        return printed(limit) if subject.printed else on_one(subject, limit)

    columns = columns or accuracies(number)
    return printed_rows.declare("reassessing", number, title, declared, columns, claims, note, full=full)
