"""The tables of Prune&Comp, declared: rows, recipes, columns, and the claims the paper draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.results import Recipe
from reproductions import declare, reported, shapes
from reproductions.linearpatch import STANDIN_MODELS
from reproductions.linearpatch import recipe as make_recipe
from reproductions.linearpatch.columns import RATIO, mmlu, tasks
from reproductions.registry import Claim, Column, Lookup, Row, Table

# What the paper calls a metric -> its name in recipes.
METRICS = {"CosSim(BI)": "bi", "CosSim(CL)": "cl", "PPL": "ppl", "Taylor+": "taylor+", "Mag+": "mag+"}
# What a row adds to its metric -> (chosen anew after every removal, compensated).
VARIANTS = {
    "": (False, False),
    "+IterPrune": (True, False),
    "+MagComp": (False, True),
    "+MagComp +IterPrune": (True, True),
    "+Prune&Comp": (True, True),
}
# "128 sequences with a length of 2048 tokens from the WikiText-2 dataset are randomly selected", by the official code's
# sampler. The stand-in, a thousandth of the size, gets 32 sequences of its context.
CROPS = {
    "paper": {"corpus": "wikitext2-train", "sampler": "prunecomp-train", "length": 2048, "count": 128, "seed": 0},
    "standin": {"corpus": "standin-calibration", "sampler": "prunecomp-train", "length": 256, "count": 32, "seed": 0},
}
# The official code's own: factors from twice as many crops, SLEB's lines for PPL, ten C4 crops for Taylor+.
CODE_LINES = {
    "paper": {"corpus": "wikitext2-train", "sampler": "lines", "length": 2048, "count": 128, "seed": 0},
    "standin": {"corpus": "standin-calibration", "sampler": "lines", "length": 256, "count": 48, "seed": 0},
}
CODE_TAYLOR = {
    "paper": {"corpus": "c4-train", "sampler": "documents", "length": 2048, "count": 10, "seed": 2},
    "standin": CROPS["standin"] | {"count": 10, "seed": 2},
}
_PERPLEXITY = {
    "paper": ("linearpatch-wikitext2", "linearpatch-c4", "linearpatch-ptb"),
    "standin": ("standin-standard-library-thin", "standin-numerical-thin", "standin-learning-thin"),
}
PERPLEXITY_LABELS = {"paper": ("WIKI-2", "C4", "PTB"), "standin": ("StdLib", "Numeric", "Learning")}


def selection(profile: str, metric: str, count: int, variant: str, fidelity: str = "paper") -> dict:
    """A recipe's selection. CL removes one window at once, so it is never iterated."""
    iterative, compensate = VARIANTS[variant]
    chosen = {"method": "prunecomp", "metric": METRICS[metric], "count": count}
    chosen |= {"iterative": iterative and metric != "CosSim(CL)", "compensate": compensate}
    if fidelity == "code":
        own = {"PPL": CODE_LINES[profile], "Taylor+": CODE_TAYLOR[profile]}.get(metric)
        if own or metric.startswith("CosSim"):
            chosen["calibration"] = own or CROPS[profile]
    return chosen


def recipe(
    model: str,
    profile: str,
    limit: int | None,
    method: str,
    count: int,
    fidelity: str = "paper",
    samples: int | None = None,
) -> Recipe:
    """The recipe of a row: ``CosSim(BI) +Prune&Comp`` or another metric and variant; ``Dense`` for count 0."""
    if not count:
        return make_recipe(model, profile, limit)
    metric, _, variant = method.partition(" ")
    calibration = dict(CROPS[profile])
    if fidelity == "code":
        calibration["count"] *= 2
    if samples:
        calibration["count"] = samples
    chosen = selection(profile, metric, count, variant, fidelity)
    return make_recipe(model, profile, limit, selection=chosen, calibration=calibration, fidelity=fidelity)


def _shape(model: str, number: reported.Number) -> Recipe | None:
    """Compensation is fused into the weights: it adds no parameters."""
    count = declare.removed_layers(number)
    return shapes.recipe(model, count) if count else None


def _standin_rows(methods: list[str], limit: int | None, counts: tuple[int, ...], dense: bool = True) -> list[Row]:
    rows = []
    for model, (label, layers, _) in STANDIN_MODELS.items():
        if dense:
            rows.append(Row(model, label, f"0/{layers}", "Dense", make_recipe(model, "standin", limit), dense=True))
        for count in counts:
            for method in methods:
                made = recipe(model, "standin", limit, method, count)
                rows.append(Row(model, label, f"{count}/{layers}", method, made))
    return rows


def _printed_rows(number: str, limit: int | None, shape=None, fidelity: str = "paper") -> list[Row]:
    """Every printed row with its recipe."""
    rows = []
    for row in declare.rows("prunecomp", number, shape=shape):
        count = int(row.sparsity.partition("/")[0])
        made = recipe(row.model, "paper", limit, row.method, count, fidelity)
        rows.append(replace(row, recipe=made))
    return rows


PAIRS = [method for metric in METRICS for method in (metric, f"{metric} +Prune&Comp")]
ABLATION = ["CosSim(BI)", "CosSim(BI) +IterPrune", "CosSim(BI) +MagComp", "CosSim(BI) +MagComp +IterPrune"]


def rows(number: str, methods: list[str], counts: tuple[int, ...] = (5, 4), shape=None, dense: bool = True) -> Callable:
    """Rows of a table: as printed, or the same methods on the stand-in (5 and 4 of 16 layers)."""

    def made(profile: str, limit: int | None) -> list[Row]:
        if profile == "standin":
            return _standin_rows(methods, limit, counts, dense)
        return _printed_rows(number, limit, shape)

    return made


def order_rows(number: str) -> Callable:
    """The lists of Tables A3 and A4, by the official code's settings; below them by the paper's text."""

    def made(profile: str, limit: int | None) -> list[Row]:
        printed = rows(number, PAIRS, dense=False)(profile, limit)
        found = []
        for row in printed:
            count = int(row.sparsity.partition("/")[0])
            code = recipe(row.model, profile, limit, row.method, count, "code")
            found.append(replace(row, recipe=code))
            found.append(replace(row, method=f"{row.method} (by the paper's text; ours)", shapes=None))
        return found

    return made


def size_rows(profile: str, limit: int | None) -> list[Row]:
    """Table A6: BI with Prune&Comp, by the number of calibration samples."""
    found = []
    for row in _standin_rows(["CosSim(BI) +Prune&Comp"], limit, (5,)) if profile == "standin" else []:
        if row.dense:
            found.append(row)
            continue
        for samples in (16, 32, 64):
            made = recipe(row.model, profile, limit, row.method, 5, samples=samples)
            found.append(replace(row, method=f"{row.method} {samples} samples", recipe=made))
    for row in declare.rows("prunecomp", "A6") if profile == "paper" else []:
        method, _, samples = row.method.removesuffix(" samples").rpartition(" ")
        made = recipe(row.model, profile, limit, method, int(row.sparsity.partition("/")[0]), samples=int(samples))
        found.append(replace(row, recipe=made))
    return found


def perplexity_columns(profile: str) -> list[Column]:
    """Three texts and their plain average."""
    labels = PERPLEXITY_LABELS[profile]
    texts = [
        Column(label, f"perplexity@{protocol}", "perplexity", compare="perplexity")
        for label, protocol in zip(labels, _PERPLEXITY[profile])
    ]
    return [*texts, Column("AVG", derived="average", of=labels, compare="perplexity")]


def qa_columns(profile: str) -> list[Column]:
    """Ratio, the nine tasks, their average, and RP: here the ratio of averages."""
    return [RATIO, *tasks(profile), Column("AVG", derived="average"), Column("RP", derived="retained-average")]


def order_columns(number: str) -> Callable:
    """The list in one cell; for the paper's models also each place against the printed one."""

    def made(profile: str) -> list[Column]:
        text = Column("removed layers", "removed", "removed", text=True)
        if profile == "standin":
            return [text]
        places = range(1, 1 + max(int(label.split()[1]) for label in reported.columns("prunecomp", number)))
        return [text, *(Column(f"removed {i}", "removed-order", str(i), compare="exact") for i in places)]

    return made


def _compensated_is_better(column: str, lower: bool, metric: str):
    """In every setting with numbers, the metric with Prune&Comp is better than the metric alone."""

    def check(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
        pairs = [(cell(*s, metric, column), cell(*s, f"{metric} +Prune&Comp", column)) for s in settings]
        pairs = [(plain, better) for plain, better in pairs if plain is not None and better is not None]
        return all((better < plain) == lower and better != plain for plain, better in pairs) if pairs else None

    return check


def _consistent(column: str, lower: bool = False) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"{metric}: better with Prune&Comp in every setting", _compensated_is_better(column, lower, metric))
        for metric in METRICS
    )


def _each_part_helps(column: str, lower: bool):
    """Each ingredient alone beats neither, and both together beat each alone."""

    def check(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
        verdicts = []
        for setting in settings:
            values = [cell(*setting, method, column) for method in ABLATION]
            if None not in values:
                none, iterated, compensated, both = (value if lower else -value for value in values)
                verdicts.append(both < min(iterated, compensated) and max(iterated, compensated) < none)
        return all(verdicts) if verdicts else None

    return check


def _sizes_agree(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
    """Within 2 % of one another."""
    verdicts = []
    for setting in settings:
        names = [f"CosSim(BI) +Prune&Comp {n} samples" for n in (16, 32, 64, 128, 256)]
        for column in (*PERPLEXITY_LABELS["paper"], "AVG"):
            values = [v for name in names if (v := cell(*setting, name, column)) is not None]
            if len(values) > 1:
                verdicts.append(max(values) <= 1.02 * min(values))
    return all(verdicts) if verdicts else None


def _table(number: str, title: str, made: Callable, columns: Callable, claims=(), note: str = "") -> Table:
    name = f"{number} (appendix {number[1:]})" if number.startswith("A") else number
    full = f"Prune&Comp, Table {name}: {title}"
    return Table(f"table{number}-prunecomp", "prunecomp", number, full, made, columns, claims, note)


def _perplexity_table(number: str, title: str) -> Table:
    return _table(number, title, rows(number, PAIRS), perplexity_columns, _consistent("AVG", True), _PPL_NOTE)


def _qa_table(number: str, title: str) -> Table:
    return _table(number, title, rows(number, PAIRS, shape=_shape), qa_columns, _consistent("RP"), _RP_NOTE)


def _order_table(number: str, models: str) -> Table:
    made, columns = order_rows(number), order_columns(number)
    return _table(number, f"layers removed from {models}", made, columns, note=_ORDER_NOTE)


_PPL_NOTE = "Perplexity per token in windows of 2048 (stand-in: 256, every fourth window of the held-out text)."
_RP_NOTE = "RP is the ratio of the averages, as the paper forms it (LinearPatch: the average of ratios)."
_ORDER_NOTE = (
    "Original 0-based indices in order of removal. Rows as printed follow the official code's settings, rows marked ours the "
    "paper's text: all metrics on the same 128 crops, first and last layer not protected for PPL."
)
_ABLATION_CLAIM = "iterative pruning and compensation each help alone, and together most"

TABLES = [
    _perplexity_table("1", "perplexity"),
    _qa_table("2", "question answering"),
    _table(
        "3",
        "MMLU",
        rows("3", PAIRS, (5,), dense=False),
        lambda profile: mmlu(profile)[1:],
        _consistent("Weighted AVG"),
        "The caption names CosSim(BI); the rows are five metrics.",
    ),
    _table(
        "4",
        "iterative pruning and compensation, apart and together",
        rows("4", ABLATION, (5,)),
        perplexity_columns,
        (Claim(_ABLATION_CLAIM, _each_part_helps("AVG", True)),),
        _PPL_NOTE,
    ),
    _perplexity_table("A1", "perplexity of LLaMA-2-13B and Qwen3-8B"),
    _qa_table("A2", "question answering, LLaMA-2"),
    _order_table("A3", "LLaMA-2-7B and LLaMA-3-8B"),
    _order_table("A4", "LLaMA-2-13B and Qwen3-8B"),
    _table(
        "A5",
        "question answering of the ablation",
        rows("A5", ABLATION, (5,)),
        qa_columns,
        (Claim(_ABLATION_CLAIM, _each_part_helps("AVG", False)),),
    ),
    _table(
        "A6",
        "number of calibration samples",
        size_rows,
        perplexity_columns,
        (Claim("64, 128 and 256 samples (stand-in: 16, 32, 64) are within 2 % of one another", _sizes_agree),),
        _PPL_NOTE,
    ),
]
