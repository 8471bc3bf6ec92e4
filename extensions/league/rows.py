"""The rows of the league: selection x repair x number of layers; beside them halves of layers, and trained rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import (
    CALIBRATION,
    DISTILLING,
    PATCH,
    least_squares,
    lowest_bi,
    pruner_can,
    window,
    without_training,
)
from reproductions.spec.subjects import Subject, recipe

SHARES = ((3, 30), (5, 30), (7, 30), (9, 30))
STANDIN_COUNTS = (2, 3, 4, 5)
# One budget for choice and repair alike. The stand-in's is that of LinearPatch's tables, whose records it shares.
BUDGET = {"paper": CALIBRATION["paper"] | {"length": 512}, "standin": CALIBRATION["standin"]}
HELD_OUT = 16  # windows of the 128

NONE = "none"
GHOSTED, REPLACEME, FACTOR = "Ghosted Layers", "ReplaceMe, least squares", "Prune&Comp's factor"
PATCHED = "LinearPatch's A"
REFIT, REFIT_LONG = "refitted, 3 layers (ours)", "refitted, 3 layers, ridge from held-out text (ours)"
APART = "refitted, 3 layers, ridge from held-out text apart (ours)"  # as the tool draws it
WEIGHTED = "least-squares matrix, tokens weighted (ours)"
ATTENTION, SHARED = "refitted, o_proj of 3 layers (ours)", "refitted, o_proj of 3 layers and before the cut (ours)"
REPAIRS: dict[str, dict | None] = {
    NONE: None,
    FACTOR: {"method": "magnitude-factor", "window_factor": "product"},
    PATCHED: PATCH,
    GHOSTED: {"method": "ghosted-layers", "eps": 1e-6},
    REPLACEME: {"method": "replaceme", "objective": "least-squares"},
    "ReplaceMe, least squares with a bias": {"method": "replaceme", "objective": "least-squares", "bias": True},
    "ReplaceMe, cosine": {"method": "replaceme", "objective": "cosine"},
    "ReplaceMe, cosine of the stream": {"method": "replaceme", "objective": "cosine-stream"},
    "bias alone (ours)": {"method": "replaceme", "objective": "bias"},
    WEIGHTED: least_squares("matrix"),
    "refitted, down_proj before the cut (ours)": {"method": "refit", "following": 0, "ridge": 1e-3},
    REFIT: {"method": "refit", "following": 3, "ridge": 1e-3},
    ATTENTION: {"method": "refit", "following": 3, "ridge": 1e-3, "matrices": "attention"},
    SHARED: {"method": "refit", "following": 3, "ridge": 1e-3, "matrices": "attention", "share": 0.5},
    REFIT_LONG: {"method": "refit", "following": 3, "ridge": 1e-3, "held_out": HELD_OUT},
    APART: {"method": "refit", "following": 3, "ridge": 1e-3, "held_out": HELD_OUT, "apart": True},
}
# Those that go into the weights; what makes them better than no repair shows in plain checkpoints.
RIVALS = tuple(name for name in REPAIRS if "(ours)" not in name and name != NONE)
# Where the layer goes that writes the massive activation, its neurons are carried over; after [L] in `league-graft`.
CARRIED = "neurons carried over (ours)"
CARRIED_REFIT = f"neurons carried over, {REFIT_LONG}"
GRAFTS = {CARRIED: {"method": "graft"}, CARRIED_REFIT: REPAIRS[REFIT_LONG] | {"graft": True}}
# After [L]: patches that leave massive tokens as they are; the stand-in has none.
SPARED = {
    "LinearPatch's A, massive tokens as they are (ours)": PATCH | {"acts_on": "ordinary"},
    "least-squares matrix, massive tokens as they are (ours)": REPAIRS[WEIGHTED] | {"acts_on": "ordinary"},
}
OURS = (CARRIED_REFIT, REFIT_LONG, REFIT, ATTENTION, SHARED)

LEAST_LEFT, LEAST_LEFT_WINDOW = "set of least left (ours)", "window of least left (ours)"
LEAST_LOSS = "window of least loss (ours)"
WITH_THEM = "set of least left with them (ours)"  # with the neurons that are carried over
ONE_BY_ONE = "one by one, refitted after each (ours)"
TRAINED_PATCH, TRAINED_LAYER = "LinearPatch +FT (trained)", "LLM-Streamline(layer) +FT (trained)"
HALVES = "twice as many halves of layers"  # in the place of a repair's name
TRIED = 8  # windows on which every window of layers is tried
SEARCHED = 4  # windows that a search by removing reads: about as many tokens as SLEB's lines of small models

# What takes no whole layers: as many parameters out of layers that stay, and attentions that become linear maps.
SLICES, MAPS = "slices of layers", "twice as many attentions"
PRUNER, SLICEGPT, NBL = "LLM-Pruner", "SliceGPT", "NBL"
BATCH = 10  # samples of LLM-Pruner's one batch, as in its paper
# What a repair is measured against: as many parameters gone, no training.
TRAINING_FREE = (*RIVALS, HALVES, PRUNER, SLICEGPT)

AFTER_LEAST_LOSS = (NONE, PATCHED, GHOSTED, REPLACEME, REFIT_LONG)

# What else the leaders calibrate on: another text, and other draws from both.
OTHER_TEXT = {"paper": "ptb-validation", "standin": "standin-valid"}
SEEDS = tuple(range(5))
LEADERS = (GHOSTED, REPLACEME, FACTOR, REFIT_LONG)


def selections(count: int) -> dict[str, dict]:
    """How a row's layers are chosen: by name, as a recipe's selection."""
    left = {"method": "least-left", "count": count, "inputs": "stream", "ridge": 1e-3}
    return {
        "[S]": lowest_bi(count),
        "[L]": window(count),
        "UIDL": window(count, "last-token-angle"),
        "LoRP": {"method": "lorp", "count": count},
        LEAST_LEFT_WINDOW: left | {"shape": "window"},
        LEAST_LEFT: left | {"shape": "set"},
        LEAST_LOSS: {"method": "window-loss", "count": count, "samples": TRIED},
    }


def with_them(count: int) -> dict:
    """The selection WITH_THEM."""
    return selections(count)[LEAST_LEFT] | {"carried": True}


def name(selection: str, repair: str) -> str:
    """How a row is called."""
    return f"{selection}, {repair}"


def halves(count: int, calibration: dict) -> dict[str, dict]:
    """Attentions and MLPs in one ranking, as many of them as ``count`` layers have: by name, as a recipe's selection.

    What tries every half at every step reads the first windows of the budget, as SLEB does with its lines.
    """
    twice, search = {"count": 2 * count}, {"calibration": calibration | {"count": SEARCHED}}
    return {
        "LLM-Drop": {"method": "llm-drop", "kind": "both"} | twice,
        "EntroDrop": {"method": "entrodrop", "kind": "both"} | twice,
        "BlockPruner": {"method": "blockpruner"} | twice | search,
        "FinerCut": {"method": "finercut"} | twice | search,
    }


def others(count: int, layers: int, profile: str) -> dict[str, dict]:
    """SLEB, on its own lines as in LinearPatch's tables, and pruning that takes no whole layers: name -> fields."""
    calibration = BUDGET[profile]
    found = {
        name("SLEB", NONE): without_training("SLEB", count, profile) | {"calibration": None},
        name(SLICES, SLICEGPT): {"selection": {"method": "slicegpt", "layers": count}, "calibration": calibration},
        name(MAPS, NBL): {"selection": {"method": "nbl", "count": 2 * count}, "calibration": calibration},
    }
    if pruner_can(count, layers):
        sliced = {"selection": {"method": "llm-pruner", "layers": count}, "calibration": calibration | {"count": BATCH}}
        found[name(SLICES, PRUNER)] = sliced
    return found


def trained(count: int, samples: int, learning_rate: float) -> dict[str, dict]:
    """LinearPatch's and LLM-Streamline's training on the budget's windows alone: name -> selection and repair."""
    training = {"samples": samples, "learning_rate": learning_rate}
    patch = {"method": "linearpatch-distilled", "trainable": "matrix", "target": "logits", "top_k": 100} | training
    layer = {"method": "streamline-layer", "target": "output"} | training
    return {
        name("[L]", TRAINED_PATCH): {"selection": window(count), "repair": patch},
        name("[L]", TRAINED_LAYER): {"selection": window(count + 1), "repair": layer},
    }


def _fields(subject: Subject, count: int) -> Iterator[tuple[str, dict]]:
    for selection, chosen in selections(count).items():
        for repair in AFTER_LEAST_LOSS if selection == LEAST_LOSS else REPAIRS:
            yield name(selection, repair), {"selection": chosen, "repair": REPAIRS[repair]}
    for repair, step in () if subject.standin else SPARED.items():
        yield name("[L]", repair), {"selection": selections(count)["[L]"], "repair": step}
    for repair, step in GRAFTS.items():
        yield name(WITH_THEM, repair), {"selection": with_them(count), "repair": step}
    for selection, chosen in halves(count, BUDGET[subject.profile]).items():
        yield name(selection, HALVES), {"selection": chosen}
    yield from others(count, subject.layers, subject.profile).items()
    one_by_one = {"method": "least-left-refit", "count": count, "following": 3, "ridge": 1e-3}
    yield ONE_BY_ONE, {"selection": one_by_one}
    rate = DISTILLING[subject.size]["learning_rate"]  # as in LinearPatch's tables
    yield from trained(count, BUDGET[subject.profile]["count"], rate).items()


def dense(subject: Subject, limit: int | None) -> Row:
    """The first row: the model as it is."""
    made = recipe(subject.model, subject, limit)
    return Row(subject.model, subject.label, f"0/{subject.layers}", "Dense", made, dense=True)


def pruned(subject: Subject, limit: int | None, count: int, method: str, **fields) -> Row:
    """A row called ``method``, of so many layers less; fields: of its recipe, on the league's budget if they name none."""
    fields = {"calibration": BUDGET[subject.profile]} | fields
    made = recipe(subject.model, subject, limit, **{key: value for key, value in fields.items() if value})
    return Row(subject.model, subject.label, f"{count}/{subject.layers}", method, made)


def league(subject: Subject, limit: int | None = None) -> list[Row]:
    """Dense, then by number of layers every repair after every selection. The papers' own models are no subject of it."""
    if subject.printed:
        return []
    found = [dense(subject, limit)]
    for count in subject.counts(*SHARES, standin=STANDIN_COUNTS):
        found += [pruned(subject, limit, count, method, **fields) for method, fields in _fields(subject, count)]
    return found


def drawn(repair: str, text: str, seed: int) -> str:
    """How a row of `seeds` is called: by its repair, its calibration text and the seed that drew it."""
    return f"{repair}, {text}, seed {seed}"


def seeds(subject: Subject, limit: int | None = None) -> list[Row]:
    """The leaders after one window, [L]'s on the league's budget, repaired from two texts and five draws of each."""
    if subject.printed:
        return []
    texts = (("first text", BUDGET[subject.profile]["corpus"]), ("other text", OTHER_TEXT[subject.profile]))
    found = [dense(subject, limit)]
    for count in subject.counts(*SHARES[2:], standin=STANDIN_COUNTS[2:]):
        for repair in LEADERS:
            for text, corpus in texts:
                for seed in SEEDS:
                    method = drawn(repair, text, seed)
                    found.append(reading(subject, limit, count, repair, method, corpus=corpus, seed=seed))
    return found


def reading(subject: Subject, limit: int | None, count: int, repair: str, method: str, **text) -> Row:
    """A row called ``method``: [L]'s window on the league's own budget, whose repair alone reads another text or draw."""
    budget = BUDGET[subject.profile]
    selection = selections(count)["[L]"] | {"calibration": budget}
    fields = {"selection": selection, "repair": REPAIRS[repair], "calibration": budget | text}
    return pruned(subject, limit, count, method, **fields)


def larger(
    subject: Subject, limit: int | None, shown: Collection[str], others: Callable[[int], Iterable[Row]]
) -> list[Row]:
    """Dense, and by the league's larger numbers of layers its rows of the names ``shown`` and, but on the stand-in, whose
    calibration text is like its questions, ``others`` of a number."""
    counts = subject.counts(*SHARES[2:], standin=STANDIN_COUNTS[2:]) if not subject.printed else ()
    whole, found = league(subject, limit), []
    for count in counts:
        found += [row for row in whole if row.method in shown and row.sparsity == f"{count}/{subject.layers}"]
        found += [] if subject.standin else others(count)
    return [row for row in whole if row.dense] + found
