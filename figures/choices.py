"""Choose the best of a repair's rows, one after each selection of layers, for the league's table and its picture.

An entry is what `reproductions.render.show.entries` gives of a row.
"""

COLUMN = "PPL AVG"


def before(entry: dict, rival: dict) -> bool:
    """Return whether a row represents a repair better than another: its average perplexity is lower.

    If both remove the same layers, and perplexities differ by rounding between machines, the row with more measurements
    represents it.
    """
    if (layers := removed(entry)) is not None and layers == removed(rival):
        return len(entry["scores"]) > len(rival["scores"])
    return entry["scores"][COLUMN] < rival["scores"][COLUMN]


def removed(entry: dict) -> tuple[list[int], list] | None:
    """Return the removed layers, and the sub-layers; None if no result states them."""
    details = (record["details"] for record in entry["records"].values())
    return next(((sorted(d["removed"]), sorted(d.get("halves", ()))) for d in details if "removed" in d), None)
