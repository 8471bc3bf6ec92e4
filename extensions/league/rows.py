"""The rows of the league: selection x repair x number of layers; also sub-layers, and trained rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import (
    CALIBRATION,
    DISTILLING,
    PATCH,
    contiguous_block,
    least_squares,
    lowest_bi,
    pruner_can,
    without_training,
)
from reproductions.spec.subjects import Subject, recipe

SHARES = ((3, 30), (5, 30), (7, 32), (7, 30), (9, 30))  # 7/32 and 7/30 are both 7 of 30 layers
TOY_COUNTS = (2, 3, 4, 5)
# One budget for choice and repair alike. The toy model's is that of LinearPatch's tables, whose records it shares.
BUDGET = {"paper": CALIBRATION["paper"] | {"length": 512}, "standin": CALIBRATION["standin"]}
HELD_OUT = 16  # sequences of the 128

NONE = "none"
GHOSTED, REPLACEME, FACTOR = "ghosted", "replaceme", "factor"
REPLACEME_BIAS, REPLACEME_COSINE, REPLACEME_STREAM = "replaceme-bias", "replaceme-cosine", "replaceme-stream-cosine"
PATCHED = "linearpatch"
REFIT_FIXED_RIDGE, REFIT = "refit-fixed-ridge", "refit"
SEPARATE_HELD_OUT = "refit-apart"  # as the tool draws it
BIAS, LEAST_SQUARES, BEFORE_INTERFACE = "bias", "least-squares", "refit-before-cut"
ATTENTION, SHARED = "refit-attention", "refit-attention-shared"
REPAIRS: dict[str, dict | None] = {
    NONE: None,
    FACTOR: {"method": "magnitude-factor", "window_factor": "product"},
    PATCHED: PATCH,
    GHOSTED: {"method": "ghosted-layers", "eps": 1e-6},
    REPLACEME: {"method": "replaceme", "objective": "least-squares"},
    REPLACEME_BIAS: {"method": "replaceme", "objective": "least-squares", "bias": True},
    REPLACEME_COSINE: {"method": "replaceme", "objective": "cosine"},
    REPLACEME_STREAM: {"method": "replaceme", "objective": "cosine-stream"},
    BIAS: {"method": "replaceme", "objective": "bias"},
    LEAST_SQUARES: least_squares("matrix"),
    BEFORE_INTERFACE: {"method": "refit", "following": 0, "ridge": 1e-3},
    REFIT_FIXED_RIDGE: {"method": "refit", "following": 3, "ridge": 1e-3},
    ATTENTION: {"method": "refit", "following": 3, "ridge": 1e-3, "matrices": "attention"},
    SHARED: {"method": "refit", "following": 3, "ridge": 1e-3, "matrices": "attention", "share": 0.5},
    REFIT: {"method": "refit", "following": 3, "ridge": 1e-3, "held_out": HELD_OUT},
    SEPARATE_HELD_OUT: {"method": "refit", "following": 3, "ridge": 1e-3, "held_out": HELD_OUT, "apart": True},
}
# Of August 2026 and later; after some selections alone, at the larger numbers of layers.
SHIFT, SHIFT_RANK, RANK = "shift-llm", "shift-llm-rank", 64
RECENT = {SHIFT: {"method": "shift-llm"}, SHIFT_RANK: {"method": "shift-llm", "rank": RANK}}
# The repairs of papers.
RIVALS = (FACTOR, PATCHED, GHOSTED, REPLACEME, REPLACEME_BIAS, REPLACEME_COSINE, REPLACEME_STREAM, *RECENT)
# Where the layer is removed that writes the massive activation, its neurons are carried over; after [L] in `league-graft`.
GRAFT, GRAFT_REFIT = "graft", "graft-refit"
DISTILLED, DISTILLED_REFIT = "distilled", "refit-distilled"  # in `league-distilled`
GRAFTS = {GRAFT: {"method": "graft"}, GRAFT_REFIT: REPAIRS[REFIT] | {"graft": True}}
# From the regression of CoMe's public code to the refit, one option at a time; the last two are rows of the league.
_COME_CODE = {
    "method": "refit",
    "following": 1,
    "ridge": 1e-2,
    "target": "branches",
    "towards": "zero",
    "before": False,
}
ABLATION = {
    "ablation-branches": ("one following layer, sum of branches, ridge towards 0", _COME_CODE),
    "ablation-stream": ("+ gap of the residual stream as target", _COME_CODE | {"target": "stream"}),
    "ablation-old": ("+ ridge towards the old weights", _COME_CODE | {"target": "stream", "towards": "old"}),
    "ablation-before": ("+ down_proj before the interface", {"method": "refit", "following": 1, "ridge": 1e-2}),
    "ablation-three": ("+ three following layers", {"method": "refit", "following": 3, "ridge": 1e-2}),
    REFIT_FIXED_RIDGE: ("+ a ridge of 0.001 in place of 0.01", REPAIRS[REFIT_FIXED_RIDGE]),
    REFIT: ("+ a ridge chosen on held-out text", REPAIRS[REFIT]),
}
# Each differs from the league's refit in one way.
VARIANTS = {
    "ablation-rotated": ("rotations in place of a ridge", REPAIRS[REFIT_FIXED_RIDGE] | {"form": "rotation"}),
    "ablation-half": ("half of each change", REPAIRS[REFIT] | {"strength": 0.5}),
}
# Two remedies where removed layers create massive activations; the toy model has none. After [L], patches that leave
# massive tokens as they are; after two selections, least squares without samples' first tokens, mostly the massive ones.
SPARE = "{}-spared"
SPARED = {SPARE.format(repair): REPAIRS[repair] | {"acts_on": "ordinary"} for repair in (PATCHED, LEAST_SQUARES)}
WITHOUT = "{}-without-first"
FITTED_WITHOUT = (GHOSTED, REPLACEME, SHIFT)  # and the refit
WITHOUT_FIRST = {
    WITHOUT.format(repair): (REPAIRS | RECENT)[repair] | {"first": False} for repair in (*FITTED_WITHOUT, REFIT)
}
OURS = (GRAFT_REFIT, REFIT, REFIT_FIXED_RIDGE, ATTENTION, SHARED)

LOWEST_BI, BLOCK, UIDL, LORP, SLEB = "s", "l", "uidl", "lorp", "sleb"
WITHOUT_AFTER = (LOWEST_BI, BLOCK)
LEAST_RESIDUAL, LEAST_RESIDUAL_BLOCK, LEAST_LOSS_BLOCK = "least-left", "least-left-window", "least-loss-window"
LEAST_RESIDUAL_GRAFTED = "least-left-with-them"  # with the grafted neurons
ONE_BY_ONE = "one-by-one"
WRP = "wrp"
TRAINED_PATCH, TRAINED_LAYER, OVERREP = "linearpatch-trained", "streamline-layer-trained", "overrep"
DROP, ENTRODROP, BLOCKPRUNER, FINERCUT = "llm-drop", "entrodrop", "blockpruner", "finercut"
SUBLAYERS = "halves"  # in the place of a repair
TRIED = 8  # sequences on which every block of layers is tried, and CoMe-P's shares
SEARCHED = 4  # sequences that a search by removing reads: about as many tokens as SLEB's lines of small models

# What takes no whole layers: as many parameters out of layers that stay, and attentions that become linear maps.
SLICES, MAPS = "slices", "attentions"
PRUNER, SLICEGPT, NBL = "llm-pruner", "slicegpt", "nbl"
PAIRS, COME, COME_P = "pairs", "come", "come-p"  # two neighbouring layers become one
BATCH = 10  # samples of LLM-Pruner's one batch, as in its paper
FIRST, OTHER = "first-text", "other-text"  # that `seeds` are drawn from
ITEMS, BOTH, QUESTIONS = "items", "both-texts", "questions"  # what else a repair is calibrated on
ARC, ARC_ANSWERS = "arc", "arc-answers"

# What people read in the place of an id.
SELECTIONS = {
    LOWEST_BI: "lowest BI",
    BLOCK: "contiguous block",
    UIDL: "UIDL",
    LORP: "LoRP",
    SLEB: "SLEB",
    LEAST_RESIDUAL: "least-residual set (extension)",
    LEAST_RESIDUAL_BLOCK: "least-residual block (extension)",
    LEAST_LOSS_BLOCK: "least-loss block (extension)",
    LEAST_RESIDUAL_GRAFTED: "least-residual set with grafting (extension)",
    WRP: "WRP",
    PAIRS: "pairs of adjacent layers",
    SLICES: "slices of layers",
    MAPS: "twice as many attentions",
    DROP: "LLM-Drop",
    ENTRODROP: "EntroDrop",
    BLOCKPRUNER: "BlockPruner",
    FINERCUT: "FinerCut",
}
_OF_PAPERS = {
    NONE: "no repair",
    FACTOR: "Prune&Comp's factor",
    PATCHED: "LinearPatch's A",
    GHOSTED: "Ghosted Layers",
    REPLACEME: "ReplaceMe, least squares",
    REPLACEME_BIAS: "ReplaceMe, least squares with a bias",
    REPLACEME_COSINE: "ReplaceMe, cosine",
    REPLACEME_STREAM: "ReplaceMe, cosine of the residual stream",
    SHIFT: "SHIFT-LLM",
    SHIFT_RANK: f"SHIFT-LLM, rank {RANK}",
    COME: "CoMe",
    COME_P: "CoMe-P",
    TRAINED_PATCH: "LinearPatch +FT (trained)",
    TRAINED_LAYER: "LLM-Streamline(layer) +FT (trained)",
    OVERREP: "OverRep (trained)",
    SUBLAYERS: "twice as many sublayers",
    PRUNER: "LLM-Pruner",
    SLICEGPT: "SliceGPT",
    NBL: "NBL",
}
_WITHOUT_LABEL = "fitted without first tokens (extension)"
_OF_OURS = {
    BIAS: "bias alone (extension)",
    LEAST_SQUARES: "least-squares matrix, weighted tokens (extension)",
    BEFORE_INTERFACE: "refit, down_proj before the interface (extension)",
    REFIT_FIXED_RIDGE: "refit, 3 layers (extension)",
    ATTENTION: "refit, o_proj of 3 layers (extension)",
    SHARED: "refit, o_proj of 3 layers and before the interface (extension)",
    REFIT: "refit, 3 layers, ridge chosen on held-out text (extension)",
    SEPARATE_HELD_OUT: "refit, 3 layers, ridge chosen on separate held-out text (extension)",
    GRAFT: "neuron grafting (extension)",
    GRAFT_REFIT: "neuron grafting, refit, 3 layers, ridge chosen on held-out text (extension)",
    SPARE.format(PATCHED): "LinearPatch's A, massive tokens unchanged (extension)",
    SPARE.format(LEAST_SQUARES): "least-squares matrix, massive tokens unchanged (extension)",
    **{WITHOUT.format(repair): f"{_OF_PAPERS[repair]}, {_WITHOUT_LABEL}" for repair in FITTED_WITHOUT},
    WITHOUT.format(REFIT): f"refit, 3 layers, ridge chosen on held-out text, {_WITHOUT_LABEL}",
    WITHOUT.format(GRAFT_REFIT): f"neuron grafting, refit, 3 layers, ridge chosen on held-out text, {_WITHOUT_LABEL}",
    DISTILLED: "distilled shortly (extension, trained)",
    DISTILLED_REFIT: "refit, 3 layers, ridge chosen on held-out text, distilled shortly (extension, trained)",
    ONE_BY_ONE: "sequential, refit after each layer (extension)",
    **{name: f"{label} (extension)" for name, (label, _) in ABLATION.items() if name not in REPAIRS},
    **{name: f"refit, 3 layers, {label} (extension)" for name, (label, _) in VARIANTS.items()},
    # in `league-graft`: rivals by what the model shows that has the neurons in their new place
    **{f"graft-{rival}": f"neuron grafting, {_OF_PAPERS[rival]} (extension)" for rival in RIVALS},
}
LABELS = _OF_PAPERS | _OF_OURS  # of repairs
TEXTS = {
    FIRST: "first text",
    OTHER: "other text",
    ITEMS: "from other items of HellaSwag",
    BOTH: "from both texts",
    QUESTIONS: "from plain text and MMLU's examples",
    ARC: "from plain text and ARC's questions in MMLU's form",
    ARC_ANSWERS: "from plain text and ARC's questions with their right options alone",
}


@dataclass(frozen=True)
class LeagueSpec:
    """Specification of a row: its selection of layers (one of SELECTIONS) and its repair (one of LABELS).

    If a table varies them, also its calibration text (one of TEXTS) and the seed of the draw.
    """

    selection: str
    repair: str
    text: str = ""
    seed: int | None = None

    @property
    def method(self) -> str:
        """Return the row's id."""
        seed = [] if self.seed is None else [str(self.seed)]
        return "/".join([*filter(None, (self.selection, self.repair, self.text)), *seed])

    @property
    def selected(self) -> str:
        """Return the label of the selection of layers (default: its id)."""
        return SELECTIONS.get(self.selection, self.selection)

    @property
    def repaired(self) -> str:
        """Return the label of the repair (default: its id)."""
        return LABELS.get(self.repair, self.repair)

    @property
    def label(self) -> str:
        """Return the row's label; in `seeds`, its repair and its draw."""
        parts = [self.repaired, TEXTS.get(self.text, "")]
        parts = [self.selected, *parts] if self.seed is None else [*parts, f"seed {self.seed}"]
        return ", ".join(filter(None, parts))

    @property
    def own_repair(self) -> bool:
        """Return whether the repair is an extension."""
        return self.repair in _OF_OURS

    @property
    def extension(self) -> bool:
        """Return whether the repair or the selection of layers is an extension."""
        return self.own_repair or self.selection in (
            LEAST_RESIDUAL,
            LEAST_RESIDUAL_BLOCK,
            LEAST_LOSS_BLOCK,
            LEAST_RESIDUAL_GRAFTED,
        )

    @property
    def trained(self) -> bool:
        """Return whether the repair is trained."""
        return self.repair in (TRAINED_PATCH, TRAINED_LAYER, OVERREP, DISTILLED, DISTILLED_REFIT)


# What a repair is measured against: as many parameters removed, no training.
TRAINING_FREE = (*RIVALS, SUBLAYERS, PRUNER, SLICEGPT, COME, COME_P)

AFTER_LEAST_LOSS = (NONE, PATCHED, GHOSTED, REPLACEME, REFIT)
AFTER_WRP = (NONE, GHOSTED, REFIT)

# What else repairs calibrate on: other draws of the text, and draws of another text.
OTHER_TEXT = {"paper": "ptb-validation", "standin": "standin-valid"}
SEEDS = tuple(range(5))
FROM_BOTH = (GHOSTED, REPLACEME, FACTOR, REFIT)
FROM_FIRST = (PATCHED, SHIFT, COME, OVERREP)


def selections(count: int) -> dict[str, dict]:
    """Return the selections of layers by id."""
    residual = {"method": "least-left", "count": count, "inputs": "stream", "ridge": 1e-3}
    return {
        LOWEST_BI: lowest_bi(count),
        BLOCK: contiguous_block(count),
        UIDL: contiguous_block(count, "last-token-angle"),
        LORP: {"method": "lorp", "count": count},
        LEAST_RESIDUAL_BLOCK: residual | {"shape": "window"},
        LEAST_RESIDUAL: residual | {"shape": "set"},
        LEAST_LOSS_BLOCK: {"method": "window-loss", "count": count, "samples": TRIED},
    }


def grafted_selection(count: int) -> dict:
    """Return the selection LEAST_RESIDUAL_GRAFTED."""
    return selections(count)[LEAST_RESIDUAL] | {"carried": True}


def name(selection: str, repair: str, text: str = "", seed: int | None = None) -> str:
    """Return a row's id, from its selection of layers, its repair, the repair's calibration text and the draw's seed."""
    return LeagueSpec(selection, repair, text, seed).method


def sublayers(count: int, calibration: dict) -> dict[str, dict]:
    """Return selections of sub-layers by id: attentions and MLPs in one ranking, or attentions alone (EntroDrop).

    ``count`` layers stand for 2 ``count`` sub-layers. Methods that try every sub-layer at every step read only the
    first sequences of the calibration budget, as SLEB reads its lines.
    """
    twice, search = {"count": 2 * count}, {"calibration": calibration | {"count": SEARCHED}}
    return {
        DROP: {"method": "llm-drop", "kind": "both"} | twice,
        ENTRODROP: {"method": "entrodrop", "kept": "ends"} | twice,  # attentions, as in its code
        BLOCKPRUNER: {"method": "blockpruner"} | twice | search,
        FINERCUT: {"method": "finercut"} | twice | search,
    }


def others(count: int, layers: int, profile: str) -> dict[LeagueSpec, dict]:
    """Return the fields of rows for SLEB, and for pruning that removes no entire layers.

    SLEB reads its own lines, as in LinearPatch's tables.
    """
    fields = {
        LeagueSpec(SLEB, NONE): without_training("SLEB", count, profile) | {"calibration": None},
        LeagueSpec(SLICES, SLICEGPT): {"selection": {"method": "slicegpt", "layers": count}},
        LeagueSpec(MAPS, NBL): {"selection": {"method": "nbl", "count": 2 * count}},
    }
    if pruner_can(count, layers):
        calibration = BUDGET[profile] | {"count": BATCH}
        selection = {"method": "llm-pruner", "layers": count}
        fields[LeagueSpec(SLICES, PRUNER)] = {"selection": selection, "calibration": calibration}
    return fields


def trained(count: int, samples: int, learning_rate: float) -> dict[LeagueSpec, dict]:
    """Return selection and repair of LinearPatch's and LLM-Streamline's trained rows.

    Both train on the budget's sequences alone.
    """
    training = {"samples": samples, "learning_rate": learning_rate}
    patch = {"method": "linearpatch-distilled", "trainable": "matrix", "target": "logits", "top_k": 100} | training
    layer = {"method": "streamline-layer", "target": "output"} | training
    return {
        LeagueSpec(BLOCK, TRAINED_PATCH): {"selection": contiguous_block(count), "repair": patch},
        LeagueSpec(BLOCK, TRAINED_LAYER): {"selection": contiguous_block(count + 1), "repair": layer},
    }


def recent(count: int, samples: int) -> dict[LeagueSpec, dict]:
    """Return selection and repair of rows for methods of 2026, and for CoMe and CoMe-P.

    OverRep has the text and the steps of the other trained rows, and its own rate, decay and clipping.
    """
    block, wrp = contiguous_block(count), {"method": "wrp", "count": count}
    fields = {
        LeagueSpec(name, repair): {"selection": selection, "repair": step}
        for name, selection in ((LOWEST_BI, lowest_bi(count)), (BLOCK, block))
        for repair, step in RECENT.items()
    }
    pairs = {"method": "come", "count": count}
    fields[LeagueSpec(PAIRS, COME)] = {"selection": pairs}
    fields[LeagueSpec(PAIRS, COME_P)] = {"selection": pairs | {"tried": TRIED}}
    fields |= {LeagueSpec(WRP, repair): {"selection": wrp, "repair": REPAIRS[repair]} for repair in AFTER_WRP}
    overrep = {"method": "overrep", "samples": samples, "batch_size": 1, "epochs": 1}
    return fields | {LeagueSpec(BLOCK, OVERREP): {"selection": block, "repair": overrep}}


def _fields(subject: Subject, count: int) -> Iterator[tuple[LeagueSpec, dict]]:
    for name, selection in selections(count).items():
        for repair in AFTER_LEAST_LOSS if name == LEAST_LOSS_BLOCK else REPAIRS:
            yield LeagueSpec(name, repair), {"selection": selection, "repair": REPAIRS[repair]}
    for repair, step in () if subject.toy else SPARED.items():
        yield LeagueSpec(BLOCK, repair), {"selection": selections(count)[BLOCK], "repair": step}
    larger = count in larger_counts(subject)
    for name, (repair, step) in product(WITHOUT_AFTER, WITHOUT_FIRST.items()) if larger and not subject.toy else ():
        yield LeagueSpec(name, repair), {"selection": selections(count)[name], "repair": step}
    for repair, step in GRAFTS.items():
        yield LeagueSpec(LEAST_RESIDUAL_GRAFTED, repair), {"selection": grafted_selection(count), "repair": step}
    for name, selection in sublayers(count, BUDGET[subject.profile]).items():
        yield LeagueSpec(name, SUBLAYERS), {"selection": selection}
    yield from others(count, subject.layers, subject.profile).items()
    one_by_one = {"method": "least-left-refit", "count": count, "following": 3, "ridge": 1e-3}
    yield LeagueSpec("", ONE_BY_ONE), {"selection": one_by_one}
    rate = DISTILLING[subject.size]["learning_rate"]  # as in LinearPatch's tables
    samples = BUDGET[subject.profile]["count"]
    yield from trained(count, samples, rate).items()
    if larger:
        yield from recent(count, samples).items()


def original(subject: Subject, limit: int | None) -> Iterator[Row]:
    """Yield the row of the original model; none for the papers' models, which the league does not cover."""
    if not subject.printed:
        untouched = recipe(subject.model, subject, limit)
        yield Row(subject.model, subject.group, f"0/{subject.layers}", "Dense", untouched, dense=True)


def larger_counts(subject: Subject) -> tuple[int, ...]:
    """Return the larger of the league's numbers of layers; none for the papers' models."""
    return () if subject.printed else subject.counts(*SHARES[2:], toy=TOY_COUNTS[2:])


def pruned(subject: Subject, limit: int | None, count: int, spec: LeagueSpec, **fields) -> Row:
    """Return a row with ``count`` layers removed.

    ``fields`` are those of its recipe; the calibration is the league's budget if they name none.
    """
    fields = {"calibration": BUDGET[subject.profile]} | fields
    pruning = recipe(subject.model, subject, limit, **{key: value for key, value in fields.items() if value})
    about = {"name": spec.label, "extension": spec.extension, "spec": spec}
    return Row(subject.model, subject.group, f"{count}/{subject.layers}", spec.method, pruning, **about)


def league(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield the league's rows: the original model, then by number of layers every repair after every selection."""
    if subject.printed:
        return
    yield from original(subject, limit)
    for count in subject.counts(*SHARES, toy=TOY_COUNTS):
        for spec, fields in _fields(subject, count):
            yield pruned(subject, limit, count, spec, **fields)


def seeds(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield repairs after the contiguous block, and CoMe, from five draws of the text; some from another text, too.

    CoMe reads the draw for its choice of pairs, too.
    """
    budget = BUDGET[subject.profile]
    texts = ((FIRST, budget["corpus"]), (OTHER, OTHER_TEXT[subject.profile]))
    yield from original(subject, limit)
    for count in larger_counts(subject):
        for repair, (text, corpus), seed in product(FROM_BOTH, texts, SEEDS):
            spec = LeagueSpec(BLOCK, repair, text, seed)
            yield reading(subject, limit, count, spec, corpus=corpus, seed=seed)
        known = recent(count, budget["count"])
        for repair, seed in product(FROM_FIRST, SEEDS):
            if repair == COME:
                fields = known[LeagueSpec(PAIRS, COME)] | {"calibration": budget | {"seed": seed}}
                yield pruned(subject, limit, count, LeagueSpec(PAIRS, COME, FIRST, seed), **fields)
            else:
                step = known.get(LeagueSpec(BLOCK, repair), {}).get("repair")  # None: the league's own
                yield reading(subject, limit, count, LeagueSpec(BLOCK, repair, FIRST, seed), step=step, seed=seed)


def reading(
    subject: Subject, limit: int | None, count: int, spec: LeagueSpec, *, step: dict | None = None, **text
) -> Row:
    """Return a row of [L]'s block, selected on the league's budget, whose repair ``step`` reads another text or draw.

    The league's own draw gives the recipe of the league's own row, which is measured once.
    """
    budget = BUDGET[subject.profile]
    calibration, selection = budget | text, selections(count)[BLOCK]
    if calibration != budget:
        selection |= {"calibration": budget}
    fields = {"selection": selection, "repair": step or REPAIRS[spec.repair], "calibration": calibration}
    return pruned(subject, limit, count, spec, **fields)


def larger(
    subject: Subject, limit: int | None, shown: Collection[str], others: Callable[[int], Iterable[Row]]
) -> Iterator[Row]:
    """Yield the rows ``shown`` (`Row.method`) at the larger numbers of layers, and ``others`` of a number.

    The toy model has no ``others``: its calibration text is like its tasks.
    """
    yield from original(subject, limit)
    league_rows = list(league(subject, limit))
    for count in larger_counts(subject):
        sparsity = f"{count}/{subject.layers}"
        yield from (row for row in league_rows if row.method in shown and row.sparsity == sparsity)
        yield from [] if subject.toy else others(count)
