"""Choose the best of a repair's rows, one after each selection of layers, for the league's table and its picture.

An entry is what `reproductions.render.show.entries` gives of a row.
"""

COLUMN = "PPL AVG"


def before(entry: dict, known: dict) -> bool:
    """Return whether a row represents a repair better than another: its average perplexity is lower.

    If both remove the same layers, and perplexities differ by rounding between machines, the row with more measurements
    represents it.
    """
    if (layers := removed(entry)) is not None and layers == removed(known):
        return len(entry["scores"]) > len(known["scores"])
    return entry["scores"][COLUMN] < known["scores"][COLUMN]


def removed(entry: dict) -> tuple[list[int], list] | None:
    """Return the removed layers, and the sub-layers; None if no result states them."""
    found = (record["details"] for record in entry["records"].values())
    return next(((sorted(one["removed"]), sorted(one.get("halves", ()))) for one in found if "removed" in one), None)
