"""The figures of Reassessing, declared: A and B of the paper, its theory, and the spread of the sets that metrics choose."""

import math

from reproductions.reassessing import appendix, body, columns
from reproductions.reassessing.recipes import fields
from reproductions.reassessing.rows import one_model, paper_row
from reproductions.reassessing.specs import LAST3, LORA, ArmSpec
from reproductions.spec import printed_rows
from reproductions.spec.comparisons import all_of, between
from reproductions.spec.registry import Claim, Column, Row, Table
from reproductions.spec.subjects import Subject, recipe

# The paper names no numbers, only that after about 16 layers the model is damaged: the first twenty are ours.
_RATES = {"paper": tuple(range(1, 21)), "standin": (2, 4, 8)}
_PAPER_MODEL = ("llama-3.1-8b-instruct", "LLaMA-3.1-8B-It", 32)


def _paper_row(spec: ArmSpec | None, removed: int, limit: int | None) -> Row:
    return paper_row(*_PAPER_MODEL, spec, removed, limit)


def _rates(subject: Subject, limit: int | None) -> list[Row]:
    """Return the rows of Figure A: reverse-order and Taylor, with LoRA; on one model without fine-tuning."""
    metrics = ("Reverse-order", "Taylor")
    if not subject.printed:
        return one_model([(ArmSpec(m), n) for m in metrics for n in _RATES["standin"]])(subject, limit)
    rows = [_paper_row(None, 0, limit)]
    return rows + [_paper_row(ArmSpec(m, LORA), n, limit) for m in metrics for n in _RATES["paper"]]


def _similarity(subject: Subject, limit: int | None) -> list[Row]:
    """Return the rows of Figure B: half of the layers removed by Taylor, at once, one by one, and in two halves.

    On one model head and last three layers are trained, which takes a fraction of LoRA's time.
    """
    if not subject.printed:
        specs = [ArmSpec("Taylor", LAST3, one_shot=True), *(ArmSpec("Taylor", LAST3, schedule=(n, 8)) for n in (1, 4))]
        return one_model([(spec, 8) for spec in specs], dense=False)(subject, limit)
    specs = [ArmSpec("Taylor", LORA, one_shot=True), *(ArmSpec("Taylor", LORA, schedule=(n, 16)) for n in (1, 8))]
    return [_paper_row(spec, 16, limit) for spec in specs]


def _dense(subject: Subject, limit: int | None) -> list[Row]:
    return [_paper_row(None, 0, limit)] if subject.printed else one_model([])(subject, limit)


# Network whose gradients are measured -> what its column calls it.
_NETWORKS = {
    "trained": "trained model",
    "random": "random weights",
    "toy-pre": "random toys, pre-LN",
    "toy-post": "random toys, post-LN",
}


def _flow(profile: str) -> list[Column]:
    deviations = [
        Column(
            f"deviation-{number}",
            "theorems",
            f"deviation_{kind}",
            scale=1e15,
            compare="exact",
            label=f"Theorem {number}, deviation x 1e15",
        )
        for number, kind in (("4.1", "rms"), ("4.2", "layer"))
    ]
    correlations = [
        Column(
            f"gradient-{network}",
            f"gradients@{network}",
            "rank_correlation",
            compare="exact",
            label=f"depth-gradient correlation, {words}",
        )
        for network, words in _NETWORKS.items()
    ]
    return [
        *deviations,
        Column(
            "counterexamples", "theorems", "counterexamples", compare="exact", label="statements with counterexamples"
        ),
        *correlations,
        Column(
            "b-above-one", "gradients@trained", "below_one", compare="exact", label="share of states with ||B|| > 1"
        ),
    ]


def _sign(column: str, positive: bool):
    return between(column, 0, math.inf, "Dense", strict=True) if positive else between(column, -math.inf, 0, "Dense")


_FLOW_CLAIMS = (
    Claim(
        "theorems-hold",
        "Theorems 4.1 and 4.2 hold for d >= 3 (relative deviation below 1e-12)",
        all_of(*(between(f"deviation-{n}", -math.inf, 1000, "Dense", strict=True) for n in ("4.1", "4.2"))),
    ),
    Claim(
        "theorems-hold-unconditionally",
        "Theorems 4.1 and 4.2 and Eqs. 6 and 14 hold as stated, without conditions",
        between("counterexamples", 0, 0, "Dense"),
    ),
    Claim(
        "b-below-one",
        "||B|| < 1 at every layer and token of a trained model (Eq. 14; the text says usually)",
        between("b-above-one", 0, 0, "Dense"),
    ),  # fmt: skip
    Claim(
        "trained-gradients-fall",
        "shallower layers have larger gradients: trained model (section 4.1)",
        _sign("gradient-trained", False),
    ),
    Claim(
        "random-gradients-fall",
        "extension: shallower layers have larger gradients: same shape, random weights",
        _sign("gradient-random", False),
    ),
    Claim(
        "toy-pre-ln-gradients-fall",
        "extension: shallower layers have larger gradients: random toys, pre-LN",
        _sign("gradient-toy-pre", False),
    ),
    Claim(
        "toy-post-ln-gradients-rise",
        "post-LN: shallower layers have smaller gradients (appendix A.4): random toys (extension)",
        _sign("gradient-toy-post", True),
    ),
)


def _fine_tuned(subject: Subject, limit: int | None) -> list[Row]:
    """Return the trained rows of Tables 2 and M, each in one order of rows, and Table F's full fine-tuning."""
    tables = [table for table in (*body.TABLES, *appendix.TABLES) if table.number in ("2", "F", "M")]
    rows = [row for table in tables for row in table.rows(subject, limit) if row.recipe and row.recipe.training]
    rows = [row for row in rows if not (row.spec and row.spec.arm and row.spec.arm.again)]
    return list({row.recipe.hash: row for row in rows}.values())


_COUNTS = (1, 5, 10, 30, 50)


def _unpruned(subject: Subject, limit: int | None) -> list[Row]:
    """Return the dense model with the calibration of Taylor and BI, of which the benchmark varies samples and seed."""
    name, group, layers = _PAPER_MODEL if subject.printed else (subject.model, subject.group, subject.layers)
    calibration = fields(ArmSpec("BI"), 1, subject.size)["calibration"]
    dense = recipe(name, subject, limit, calibration=calibration)
    return [Row(name, group, f"0/{layers}", "Dense", dense, dense=True)]


def _spread(profile: str) -> list[Column]:
    return [
        Column(
            f"{metric}-{count}",
            f"chosen-sets@{metric}",
            f"overlap_{count}",
            compare="exact",
            label=f"{label}, {count} sample" + "s" * (count > 1),
        )
        for label, metric in (("BI", "bi"), ("Taylor", "taylor"))
        for count in _COUNTS
    ]


def _figure(name: str, title: str, rows, columns, draw: str, claims: tuple[Claim, ...] = (), note: str = "") -> Table:
    draw = f"figures.reassessing:{draw}"
    return printed_rows.declare("reassessing", f"figure{name}", title, rows, columns, claims, note, draw=draw)


FIGURES = [
    _figure("A", "Figure A: different pruning rates", _rates, columns.accuracies("1"), "rates"),
    _figure(
        "B",
        "Figure B: similarity between layers",
        _similarity,
        lambda profile: [
            Column(f"mean-{kind}", f"similarity@{kind}", "mean", compare="exact", label=f"mean {kind}")
            for kind in ("cka", "cosine")
        ],
        "similarity",
        note="The paper does not say which similarity it draws; its code has linear CKA over examples, 64 crops of 128 "
        "tokens of BookCorpus, all states of a crop as one row. Here both are over tokens, 1,024 of the test text, of which "
        "massive ones decide CKA: its values are not the paper's. CKA is drawn.",
    ),
    _figure(
        "-theory",
        "section 4: gradients by depth",
        _dense,
        _flow,
        "theory",
        _FLOW_CLAIMS,
        "Depth-gradient correlation: Spearman's, of a layer's index with the norm of its weights' gradient. Below zero, "
        "shallower layers have larger gradients. Toys: mean over five seeds.",
    ),
    _figure(
        "-seeds",
        "the sets that metrics choose, by seed",
        _unpruned,
        _spread,
        "seeds",
        (
            Claim(
                "ten-samples-one-choice",
                "with the paper's ten samples every seed selects the same layers (extension)",
                all_of(*(between(f"{metric}-10", 1, 1, "Dense") for metric in ("bi", "taylor"))),
            ),
        ),
        "Mean share of the removed layers that the sets of two seeds have in common; crops of 128 tokens.",
    ),
    _figure(
        "-losses",
        "loss while the pruned model is fine-tuned (extension)",
        _fine_tuned,
        # the curve is in every record of a fine-tuned model
        lambda profile: [columns.TOY_PERPLEXITY if profile == "standin" else columns.task_column("PIQA")],
        "losses",
        note="The rows of Tables 2, F and M that are trained; training loss on the responses, by optimiser step.",
    ),
]
