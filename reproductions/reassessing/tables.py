"""The tables of Reassessing, declared: rows, columns, and the claims the paper draws."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.reassessing import claims, columns, rows
from reproductions.reassessing.columns import AVERAGE, STANDIN_TEXT, accuracies, with_more
from reproductions.reassessing.recipes import FASTER
from reproductions.reassessing.rows import METRICS, printed, standin
from reproductions.registry import Claim, Column, Row, Table

REVERSE, NONE, LORA, HEAD, LAST3 = "Reverse-order", "no fine-tuning (ours)", "+LoRA", "+lm_head", "+lm_head & last 3"
SEVEN = tuple(metric for metric in METRICS if metric != "SLEB")
OURS = (REVERSE, 4, LAST3)
_SAME = "On the stand-in, of which there is one, the rows are those of Table {}."
_SIZES = (
    "Fine-tuning on the stand-in: 96 instructions made of its own training docstrings, 24 steps of 8, at 1e-4 (the paper: "
    "49,760, 1,555 steps of 64, at 1e-5). Of the printed arms it has those that the claims need; its tasks are four of nine."
)


def _table(
    number: str,
    title: str,
    on_standin: list[tuple[str, int, str]],
    columns_of: Callable[[str], list[Column]] | None = None,
    claims: tuple[Claim, ...] = (),
    note: str = "",
    shape: Callable | None = None,
    dense: bool = True,
) -> Table:
    return Table(
        target=f"table{number}-reassessing",
        paper="reassessing",
        number=number,
        title=f"Reassessing, Table {number}: {title}",
        rows=rows.by_profile(printed(number, shape), standin(on_standin, dense=dense)),
        columns=columns_of or accuracies(number),
        claims=claims,
        note=note,
    )


def _named(metric: str, variant: str) -> str:
    return f"{metric} {variant}" if variant.startswith("+") else f"{metric}[{variant}]"


def _metrics_claims(number: str) -> tuple[Claim, ...]:
    """Insight 1 where the paper has it (with LoRA), and without training."""
    others = [metric for metric in SEVEN if metric != REVERSE]
    return (
        Claim(
            "Reverse-order has the highest average of the metrics, fine-tuned with LoRA (insight 1)",
            claims.highest(_named(REVERSE, LORA), [_named(metric, LORA) for metric in others]),
        ),
        Claim(
            "the same without fine-tuning (ours)",
            claims.highest(_named(REVERSE, NONE), [_named(metric, NONE) for metric in others]),
        ),
    )


def _arms_claims(metric: str) -> tuple[Claim, ...]:
    """Insight 2, and with the learning rates the paper did not try."""
    lora, faster = _named(metric, LORA), _named(metric, LORA + FASTER)
    partial = [_named(metric, arm) for arm in (HEAD, "+lm_head & last 1", "+lm_head & last 2", LAST3)]
    return (
        Claim(
            "every partial-layer fine-tuning is above LoRA (insight 2)",
            claims.somewhere(*(claims.highest(arm, [lora, _named(metric, "+QLoRA")]) for arm in partial)),
        ),
        Claim("QLoRA is below LoRA", claims.highest(lora, [_named(metric, "+QLoRA")])),
        Claim("lm_head & last 3 is above LoRA at ten times the rate (ours)", claims.highest(partial[-1], [faster])),
        Claim(
            "lm_head & last 3 is above LoRA, both at ten times the rate (ours)",
            claims.highest(partial[-1] + FASTER, [faster]),
        ),
        Claim(
            "by perplexity: lm_head & last 3 is below LoRA, both at ten times the rate (ours)",
            claims.highest(partial[-1] + FASTER, [faster], STANDIN_TEXT, lower=True),
        ),
    )


def _iterative_claims(step_of: dict[str, tuple[str, ...]]) -> tuple[Claim, ...]:
    """Section B: iterative pruning has no benefit."""
    checks = [
        claims.highest(_named(metric, f"one-shot {arm}"), [_named(metric, f"{head} {arm}") for head in heads])
        for metric in (REVERSE, "Taylor")
        for arm, heads in step_of.items()
    ]
    return (
        Claim("one-shot is above iterative pruning for every metric and way to fine-tune", claims.somewhere(*checks)),
    )


_COST = [
    Column("GPU memory GB", "training-cost", "peak_gib", compare="exact"),
    Column("training time s", "training-cost", "seconds", compare="exact"),
]
_COST_STANDIN = [
    Column("trainable", "training-cost", "trainable", compare="exact"),
    Column("peak memory of the process GiB", "training-cost", "peak_gib", compare="exact"),
    Column("training time s", "training-cost", "seconds", compare="exact"),
    Column("layer executions", "training-cost", "layer_executions", compare="exact"),
]
_ARMS = (LORA, LORA + FASTER, "+QLoRA", HEAD, "+lm_head & last 1", "+lm_head & last 2", LAST3, LAST3 + FASTER)
_GENERATION = Column("ROUGE-L of summaries (stand-in)", "docstring_generation@1", "rouge_l", scale=100)


def _cost(profile: str) -> list[Column]:
    return _COST_STANDIN if profile == "standin" else [columns.TRAINABLE, *_COST]


def _calibration(table: str) -> Callable[[str], list[Column]]:
    """Tables J and O: what was chosen, and what it costs, without fine-tuning on the stand-in."""

    def chosen(profile: str) -> list[Column]:
        if profile == "standin":
            return [
                Column(STANDIN_TEXT, "perplexity@standin-learning-thin", "perplexity", compare="perplexity"),
                columns.REMOVED,
            ]
        found = {f"removed {n}": Column(f"removed {n}", "removed-each", str(n), compare="exact") for n in range(1, 9)}
        for label, corpus in (("PPL on WikiText2", "wikitext2"), ("PPL on PTB", "ptb")):
            protocol = f"perplexity@reassessing-{corpus}"
            found[label] = Column(label, protocol, "perplexity", compare="perplexity")
        from reproductions import reported

        labels = reported.columns("reassessing", table)
        tasks = [columns.task_column(label) for label in columns.TASKS]
        hidden = [] if "PIQA" in labels else [_hidden(column) for column in tasks]
        average = Column(AVERAGE, derived="average", of=tuple(columns.TASKS))
        shown = [found.get(label) or columns.task_column(label) or average for label in labels]
        return [*hidden, *shown]

    return chosen


def _hidden(column: Column) -> Column:
    import dataclasses

    return dataclasses.replace(column, hidden=True)


def _single(label: str, benchmark: str, key: str, compare: str = "accuracy", scale: float = 100):
    """A table of one number: the paper's benchmark, or the stand-in's generation."""
    paper = [Column(label, benchmark, key, compare=compare, scale=scale)]
    return lambda profile: [_GENERATION] if profile == "standin" else paper


_SAMPLES = [(metric, 4, f"{n} sample{'s' * (n > 1)}") for metric in ("BI", "Taylor") for n in (1, 5, 10, 30, 50)]
_BASIC = [(REVERSE, 4, NONE), OURS]

TABLES = [
    _table(
        "1",
        "seven metrics, 25 %",
        [*((metric, 4, NONE) for metric in SEVEN), *((metric, 4, LORA) for metric in ("PPL", "Taylor", REVERSE))],
        with_more("1", [columns.REMOVED]),
        (
            *_metrics_claims("1"),
            Claim(
                "on average over the models it is 6.04 points above PPL (section 3.3)",
                claims.mean_gain(_named(REVERSE, LORA), _named("PPL", LORA), 6.04),
            ),
        ),
        _SIZES,
    ),
    _table(
        "2",
        "four ways to fine-tune, 25 %",
        [(REVERSE, 4, NONE), *((REVERSE, 4, arm) for arm in _ARMS)],
        claims=_arms_claims(REVERSE),
        note=_SIZES,
    ),
    _table(
        "3",
        "cost of fine-tuning",
        [(REVERSE, 4, arm) for arm in _ARMS if FASTER not in arm],
        _cost,
        (
            Claim(
                "partial-layer fine-tuning takes less time than LoRA, and LoRA less than QLoRA",
                claims.somewhere(
                    claims.highest(_named(REVERSE, LAST3), [_named(REVERSE, LORA)], "training time s", lower=True),
                    claims.highest(_named(REVERSE, LORA), [_named(REVERSE, "+QLoRA")], "training time s", lower=True),
                ),
            ),
        ),
        "The partial arm trains the final norm too, as the official code does; the outputs of its frozen layers are kept "
        "after the first epoch, which the official code does not do. Memory of the process on a CPU includes all that ran "
        "before; it says nothing here. Other work ran on the machine: layer executions compare better than seconds.",
        shape=rows.trained_shape,
        dense=False,
    ),
    _table(
        "4",
        "against other pruning methods",
        [("BI", 4, NONE), ("PPL", 4, LORA), ("Taylor", 4, LORA), ("SLEB", 4, NONE), OURS],
        claims=(
            Claim(
                "the paper's recipe is above every other method",
                claims.somewhere(
                    *(
                        claims.highest(
                            ours,
                            [
                                "ShortGPT (BI)",
                                "Shortened LLaMA (PPL)",
                                "Shortened LLaMA (Taylor)",
                                "SLEB +LoRA",
                                "LLM-Pruner*",
                                "SliceGPT*",
                                "LaCo*",
                                "LLM-Streamline*",
                                "GRASP*",
                                "LLM-Pruner†",
                                "SliceGPT†",
                                "PIP†",
                                "DeeperLayers‡",
                                "FINERCUT‡",
                                _named("BI", NONE),
                                _named("SLEB", NONE),
                                "PPL +LoRA",
                                "Taylor +LoRA",
                            ],
                        )
                        for ours in (
                            f"Llama-3.1-6.3B-It-Alpaca {LAST3}",
                            f"Llama-3-6.3B-It-Alpaca {LAST3}",
                            _named(REVERSE, LAST3),
                        )
                    )
                ),
            ),
        ),
        note=f"{_SIZES} ShortGPT and Shortened LLaMA are Table 1's BI, PPL and Taylor. Starred rows were taken over by the "
        "paper, with normalised accuracies and averages over fewer tasks.",
    ),
    _table(
        "5",
        "Llama-3-70B, 20 %",
        [("SLEB", 4, NONE), OURS],
        note=f"{_SAME.format(4)} How SLEB was trained here is not said; taken as in Table 4.",
    ),
    _table(
        "6",
        "different pruning rates",
        [(REVERSE, 2, NONE), (REVERSE, 4, NONE), OURS, (REVERSE, 8, NONE)],
        with_more("6", paper_more={column.label: column for column in columns.PRUNING_RATES}),
        note="PR % is recomputed as a share of the parameters, which is what the rates of ShortGPT and LaCo are. Those of "
        "the paper's own rows are shares of the layers, which are higher: embedding and head are forgotten. How many "
        f"layers a row lacks is inferred from its printed rate. {_SIZES}",
        shape=rows.rate_shape,
    ),
    _table(
        "7",
        "pruning and quantization",
        [OURS, (REVERSE, 4, f"{LAST3} +GPTQ")],
        with_more("7", [columns.HELD], {"memory MB": columns.ALLOCATED}),
        note="MB are MiB. At 16 bits: the weights (11,988.383) and one block of 512 bytes, the allocator's smallest, for "
        "each layer's and the model's table of rotary frequencies, as transformers kept them up to 4.47 (inferred: it "
        "accounts for the last 0.012). At 4 bits the least: layers' matrices without scales, embedding and head at 16; the "
        "printed 1326.93 is below it. GPTQ needs `make setup-quantization`.",
        shape=rows.quantized_shape,
    ),
    _table(
        "8",
        "GSM8K",
        _BASIC,
        _single("GSM8K Acc %", "gsm8k", "strict"),
        note="The other rows are Kwek and Yin's. On the stand-in: ROUGE-L of the summaries it writes.",
    ),
    _table(
        "A",
        "one-shot and iterative, 25 %",
        [
            *((m, 4, f"one-shot {arm}") for m in (REVERSE, "Taylor") for arm in (LORA, LAST3)),
            *((m, 4, f"1:2:4 {LORA}") for m in (REVERSE, "Taylor")),
            *((m, 4, f"1:1:4 {LAST3}") for m in (REVERSE, "Taylor")),
        ],
        claims=_iterative_claims({LORA: ("1:1:8", "1:4:8", "1:2:4"), LAST3: ("1:1:8", "1:1:4")}),
        note=_SIZES,
    ),
    _table(
        "B",
        "data for fine-tuning",
        [OURS],
        note="The official code takes the 512 positions of a sequence for MMLU's choices, so the printed collapse is not the "
        "data's; that row is not repeated. The stand-in has one set of instructions.",
    ),
    _table(
        "C",
        "amount of data for fine-tuning",
        [(REVERSE, 4, f"0.2 {LAST3}"), OURS],
        claims=(
            Claim(
                "a fifth of the data leads to a substantial decline (at least 5 points)",
                claims.somewhere(
                    *(
                        claims.mean_gain(full, f"{REVERSE}[0.2 {LAST3}]", 5)
                        for full in (f"{REVERSE}[1.0 {LAST3}]", _named(REVERSE, LAST3))
                    )
                ),
            ),
        ),
        note=f"The printed average at 0.2 is a slip: its cells average to .5645, 1.6 points below. {_SIZES}",
    ),
    _table(
        "D",
        "statistics of the pruned model",
        [OURS],
        lambda profile: (
            [
                Column("parameters M", "statistics", "parameters", scale=1e-6, compare="exact"),
                Column("MACs M (64 tokens)", "statistics", "multiply_adds", scale=1e-6, compare="exact"),
                Column("memory MiB", "statistics", "memory_mib", compare="exact"),
                Column("CPU seconds (32 windows)", "statistics", "latency_seconds", compare="exact"),
            ]
            if profile == "standin"
            else [
                Column("parameters B", **columns.PARAMETERS),
                columns.MACS,
                Column("memory MiB", "statistics", "memory_mib", compare="exact"),
                Column("latency s"),
            ]
        ),
        note="MACs for 64 tokens: weight matrices once per token (head included), two per element of each norm; the products "
        "inside attention are left out. The printed memory is that of 32-bit weights. Latency is one A100's over "
        "WikiText-2, in a way that is not described; the stand-in's is the process's CPU time over 32 windows of 256 tokens.",
        shape=rows.pruned_shape,
    ),
    _table(
        "E",
        "number of last layers trained",
        [(REVERSE, 4, f"+lm_head & last {k}") for k in (3, 10)],
        with_more("E", _COST_STANDIN[2:3], {column.label: column for column in _COST}),
        (
            Claim(
                "ten layers in place of three gain less than a point",
                claims.within(_named(REVERSE, "+lm_head & last 10"), _named(REVERSE, LAST3), 1),
            ),
        ),
        _SIZES,
        dense=False,
    ),
    _table(
        "F",
        "full fine-tuning",
        [OURS, (REVERSE, 4, "+full fine-tuning")],
        claims=(
            Claim(
                "three layers reach full fine-tuning within a point",
                claims.within(_named(REVERSE, LAST3), _named(REVERSE, "+full fine-tuning"), 1),
            ),
        ),
        note="The paper calls it training from scratch; the pruned model is fine-tuned.",
    ),
    _table(
        "G",
        "perplexity",
        [("BI", 4, NONE), OURS],
        lambda profile: (
            [columns.standin()[-1]]
            if profile == "standin"
            else [Column("PPL on WikiText2", "perplexity@reassessing-wikitext2", "perplexity", compare="perplexity")]
        ),
        note="Neither the window nor the number of layers (20 % of 32) is given; here 7 layers and 128 tokens.",
    ),
    _table(
        "H",
        "Mixtral",
        _BASIC,
        accuracies("H", "acc_norm"),
        note=f"Only the normalised accuracy fits the printed HellaSwag. {_SAME.format(2)}",
    ),
    _table(
        "I",
        "HumanEval",
        _BASIC,
        _single("HumanEval(Pass@1)", "humaneval", "pass_at_1"),
        note="Runs code that a model wrote: only with LAYERLAB_RUN_CODE=1. 20 % of 32 layers is taken as 7.",
    ),
    _table(
        "J",
        "number of calibration samples",
        _SAMPLES,
        _calibration("J"),
        note="On the stand-in without fine-tuning. The printed rows of Taylor with 1, 5 and 10 samples are those of a model "
        "with half its layers removed.",
    ),
    _table(
        "K",
        "without fine-tuning",
        [("SLEB", 4, NONE), (REVERSE, 4, NONE)],
        claims=(
            Claim(
                "Reverse-order is above SLEB and LLM-Pruner without fine-tuning",
                claims.somewhere(
                    *(
                        claims.highest(_named(REVERSE, head), [_named(m, head) for m in ("SLEB", "LLM-Pruner")])
                        for head in ("no fine-tuning", NONE)
                    )
                ),
            ),
        ),
    ),
    _table(
        "L",
        "seven metrics, 50 %",
        [(metric, 8, NONE) for metric in ("PPL", "BI", "Taylor", REVERSE)],
        claims=_metrics_claims("L"),
        note=_SIZES,
    ),
    _table(
        "M",
        "four ways to fine-tune, Taylor",
        [("Taylor", 4, arm) for arm in (NONE, LORA, LAST3)],
        claims=_arms_claims("Taylor"),
        note=_SIZES,
    ),
    _table(
        "N",
        "one-shot and iterative, 50 %",
        [
            ("Taylor", 8, f"one-shot {LAST3}"),
            ("Taylor", 8, f"1:4:8 {LAST3}"),
            ("Taylor", 8, f"1:1:8 {LAST3}"),
        ],
        claims=_iterative_claims({LORA: ("1:1:16", "1:8:16", "1:4:8", "1:1:8"), LAST3: ("1:1:16", "1:4:8", "1:1:8")}),
        note=_SIZES,
    ),
    _table(
        "O",
        "number of calibration samples, in full",
        _SAMPLES,
        _calibration("O"),
        note="On the stand-in without fine-tuning.",
    ),
    _table(
        "P",
        "against models of similar size",
        [OURS],
        with_more("P", paper_more={"# Parameters B": Column("# Parameters B", **columns.PARAMETERS)}),
        note=f"The community models are measured as they are. {_SAME.format(2)}",
        shape=rows.pruned_shape,
    ),
]


def generations(profile: str, limit: int | None) -> list[Row]:
    """Table Q: the recipe's model and the dense one."""
    if profile == "standin":
        return standin([OURS])(limit)
    return [
        row for row in printed("4")(limit) if row.label == "LLaMA-3.1-8B-It" and (row.dense or "6.3B" in row.method)
    ]


def _texts(profile: str) -> list[Column]:
    benchmark = "generations@standin-1" if profile == "standin" else "generations@reassessing-q"
    return [Column(f"text {n}", benchmark, f"text-{n}", text=True) for n in (1, 2, 3)]


TABLES.append(
    Table(
        target="tableQ-reassessing",
        paper="reassessing",
        number="Q",
        title="Reassessing, Table Q: generated text",
        rows=generations,
        columns=_texts,
        note="Greedy; how the paper's text was sampled is not said.",
    )
)
