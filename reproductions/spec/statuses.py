"""Name the states of a cell or row without a number, and compare a number with the printed one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """A status of a cell. id: never changes. label: text for people. reason: details of one cell."""

    id: str
    label: str
    reason: str = ""

    @property
    def text(self) -> str:
        """Return the label with the reason."""
        return f"{self.label}: {self.reason}" if self.reason else self.label


MEASURED, MATCH, DIFFERS = (Status(name, name) for name in ("measured", "match", "differs"))
NONE = Status("none", "none")  # there is nothing to be measured
ABSENT = Status("absent", "absent")  # the paper has no such cell: it is left out
NOT_RUN = Status("not-run", "not run")
NO_VALUE = Status("no-value", "no value")
DIVERGED = Status("diverged", "diverged")
REPORTED = Status("reported-only", "as reported only")
GUESSES = Status("guesses", "the dense model only guesses")
DENSE_ZERO = Status("dense-zero", "the dense model scores 0")  # after a quick look, for instance
UNRECORDED = Status("no-record", "no record", "trained; its loss was not recorded")
REFUSED = Status("refused", "refused", "ALiBi positions, which transformers has in other architectures alone")
TOO_FEW = Status("too-few-layers", "too few layers", "LLM-Pruner spares six")
NOT_REPEATED = Status("not-repeated", "not repeated, see the note")

# Of several in one row the first stands for it.
_ORDER = (
    *("not-run", "no-value", "diverged", "recorded", "reported-only", "dense-zero", "guesses", "not-repeated"),
    *("too-few-layers", "refused", "no-record", "no-data", "failed"),
)


def of_record(status: str, reason: str | None) -> Status:
    """Return the status of a cell whose result, ``failed`` or ``no data``, has no values."""
    return Status(status.replace(" ", "-"), status, str(reason))


def of_details(detail: object) -> Status:
    """Return the status of a value that a result lacks, from its details (None: nothing)."""
    statuses = {None: NO_VALUE, "none": NONE, "diverged": DIVERGED}
    return statuses.get(detail) or Status("recorded", str(detail))


def of_row(statuses: Sequence[Status]) -> Status:
    """Return the status that represents a row, given those of its cells without a number.

    It is the most frequent one of the first kind in `_ORDER` that occurs.
    """
    counts = Counter(statuses)
    return min(counts, key=lambda s: (_ORDER.index(s.id), -counts[s], len(s.text)), default=MEASURED)
