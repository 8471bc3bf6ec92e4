"""The tables of LinearPatch, declared: rows, columns, and the claims the paper draws."""

from functools import partial

from reproductions.linearpatch import columns, rows, trained
from reproductions.linearpatch.recipes import training_free
from reproductions.spec import comparisons, printed_rows
from reproductions.spec.columns import MMLU_NOTE, ratio_and_mmlu
from reproductions.spec.registry import Claim, Table
from reproductions.spec.shared_recipes import DISTILLING

_RATIO_NOTE = "Ratio counts removed parameters less those of what is put in their place."
_PERPLEXITY_NOTE = (
    f"{_RATIO_NOTE} Perplexity per token over sequences of 2048 tokens (toy model: 256), each read alone; the "
    "average is the mean over texts."
)
_FEW_NOTE = "The toy model's columns are four of its nine tasks."
_TRAINED_NOTE = (
    "Trained, in the paper: once over 5,000 sequences of 2,048 tokens at 1e-4; on a model that is neither the paper's "
    "nor the toy model over {samples} of {length} at {learning_rate:g}. So few tokens, an eightieth, are a greater "
    "disadvantage for a network that begins at random than for a patch."
).format(**DISTILLING["small"])
# Read whole of any model; the rows of Tables 13 and 14 are then those of 11 and 1.
_FULL = ("1", "11", "13", "14")
_BAICHUAN_NOTE = "On the toy model, of which there is one, the rows are those of Table {}."
_PATCHED_PAIRS = {"s": ("LinearPatch[S]", "ShortGPT"), "l": ("LinearPatch[L]", "LLM-Streamline(None)")}
_OTHERS = ("SLEB", "LLM-Pruner")
_VARIANTS = ("LinearPatch[S]", "LinearPatch[L]")


def _table(number: str, *declaration, **more) -> Table:
    return printed_rows.declare("linearpatch", number, *declaration, full=number in _FULL, **more)


def _repairs(column: str, lower: bool, verb: str) -> tuple[Claim, ...]:
    """Return both variants against the same layers left unpatched."""
    return tuple(
        Claim(
            f"patch-{variant}-beats-cut",
            f"{patched} {verb} {unpatched}, the same layers without a patch",
            comparisons.beats(patched, unpatched, column=column, lower=lower),
        )
        for variant, (patched, unpatched) in _PATCHED_PAIRS.items()
    )


def _retains(*variants: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"patch-{v.lower()}-beats-sleb-and-llm-pruner",
            f"LinearPatch[{v}] retains more than SLEB and LLM-Pruner",
            comparisons.beats(f"LinearPatch[{v}]", *_OTHERS),
        )
        for v in variants
    )


def _among_cosines(column: str) -> Claim:
    """Return appendix E.1's claim: the better variant is the best of the methods with a cosine metric."""
    check = comparisons.best_of(_VARIANTS, ("ShortGPT", "LLM-Streamline(None)"), column, lower=True)
    return Claim(
        "patch-beats-cosine-methods",
        "a LinearPatch has the lowest perplexity among the methods with a cosine metric",
        check,
    )


_MMLU = "Weighted AVG"
_ABOVE_SLEB = Claim(
    "patch-beats-sleb",
    "a LinearPatch scores above SLEB in every setting",
    comparisons.best_of(_VARIANTS, ("SLEB",), _MMLU),
)
_SLEB_TEXT = Claim(
    "sleb-lowest-perplexity", "SLEB, which selects by perplexity, has the lowest perplexity of all in most settings",
    comparisons.beats("SLEB", "LLM-Pruner", "ShortGPT", "LLM-Streamline(None)", "LinearPatch[S]", "LinearPatch[L]",
                 column="PPL AVG", lower=True),
    enough=comparisons.in_most,
)  # fmt: skip


_baichuan = partial(training_free, baichuan=True)
TABLES = [
    _table(
        "1",
        "question answering, training-free methods",
        training_free,
        columns.question_answering,
        (
            *_repairs("RP", False, "retains more than"),
            *_retains("L", "S"),
            Claim(
                "better-variant-beats-earlier-methods",
                "a LinearPatch retains more than every earlier method (the better of its two variants)",
                comparisons.best_of(_VARIANTS, (*_OTHERS, "ShortGPT", "LLM-Streamline(None)"), "RP"),
            ),
            Claim(
                "abstract-llama-3-8b",
                "LLaMA-3-8B, 5/32: ahead of the best earlier method by 4 %, rounded (abstract; RP is 94.15 against 90.84)",
                comparisons.ahead_by(
                    *(("LLaMA-3-8B", "5/32"), "LinearPatch[L]", "LLM-Streamline(None)", "RP", 3.5),
                    unit=comparisons.PERCENT,
                ),
                only_reported=True,
            ),
        ),
        "Ratio counts removed parameters less the patch. RP is the mean over tasks of the ratio to the dense model.",
    ),
    _table(
        "2",
        "question answering against LLM-Streamline with training",
        rows.post_training,
        columns.question_answering,
        (
            Claim(
                "distilled-beats-streamline-ffn",
                "LinearPatch[L] +FT retains more than LLM-Streamline(FFN) +FT",
                comparisons.beats("LinearPatch[L +FT]", "LLM-Streamline(FFN) +FT"),
            ),
            Claim(
                "distillation-helps",
                "distillation raises what LinearPatch[L] retains",
                comparisons.beats("LinearPatch[L +FT]", "LinearPatch[L]"),
            ),
            Claim(
                "spared-ffn-beats-ffn",
                "extension: LLM-Streamline(FFN) +FT retains more if it leaves massive tokens unchanged",
                comparisons.beats(trained.FFN_SPARED, "LLM-Streamline(FFN) +FT"),
            ),
            Claim(
                "distilled-beats-spared-ffn",
                "extension: LinearPatch[L +FT] retains more than an FFN that leaves massive tokens unchanged",
                comparisons.beats("LinearPatch[L +FT]", trained.FFN_SPARED),
            ),
            Claim(
                "spared-distilled-beats-distilled",
                "extension: LinearPatch[L +FT] retains more if it leaves massive tokens unchanged, too",
                comparisons.beats(trained.SPARED, "LinearPatch[L +FT]"),
            ),
        ),
        f"{_RATIO_NOTE} {_TRAINED_NOTE}",
    ),
    _table(
        "3",
        "perplexity against LLM-Streamline with training",
        rows.post_training,
        lambda profile: columns.text(profile, "AVG", "thin"),
        (
            Claim(
                "patch-matches-streamline-ffn",
                "LinearPatch[L] without training outperforms or matches (within 1 %) LLM-Streamline(FFN) +FT",
                comparisons.beats("LinearPatch[L]", "LLM-Streamline(FFN) +FT", column="AVG", lower=True, within=0.01),
            ),
            Claim(
                "distilled-beats-streamline-ffn",
                "LinearPatch[L] +FT has a lower perplexity than LLM-Streamline(FFN) +FT",
                comparisons.beats("LinearPatch[L +FT]", "LLM-Streamline(FFN) +FT", column="AVG", lower=True),
            ),
            Claim(
                "distillation-helps",
                "distillation lowers LinearPatch[L]'s perplexity",
                comparisons.beats("LinearPatch[L +FT]", "LinearPatch[L]", column="AVG", lower=True),
            ),
            Claim(
                "ffn-beats-cut",
                "extension: the baseline LLM-Streamline(FFN) +FT has a lower perplexity than no repair",
                comparisons.beats("LLM-Streamline(FFN) +FT", rows.NO_REPAIR, column="AVG", lower=True),
            ),
            Claim(
                "spared-ffn-beats-cut",
                "extension: an FFN that leaves massive tokens unchanged has a lower perplexity than no repair",
                comparisons.beats(trained.FFN_SPARED, rows.NO_REPAIR, column="AVG", lower=True),
            ),
            Claim(
                "distilled-beats-spared-ffn",
                "extension: LinearPatch[L] +FT has a lower perplexity than an FFN that leaves massive tokens unchanged",
                comparisons.beats("LinearPatch[L +FT]", trained.FFN_SPARED, column="AVG", lower=True),
            ),
            Claim(
                "spared-distilled-beats-distilled",
                "extension: LinearPatch[L +FT] has a lower perplexity if it leaves massive tokens unchanged, too",
                comparisons.beats(trained.SPARED, "LinearPatch[L +FT]", column="AVG", lower=True),
            ),
        ),
        f"{_PERPLEXITY_NOTE} {_TRAINED_NOTE}",
    ),
    _table(
        "4",
        "what is trained, towards what, by which loss",
        rows.what_is_trained,
        columns.both_averages,
        (
            Claim(
                "matrix-on-logits-lowest-perplexity",
                "the whole patch trained on logits has the lowest perplexity",
                comparisons.beats(
                    trained.FULL, trained.MSE, trained.DIAGONAL, trained.FFN_MSE, column="PPL AVG", lower=True
                ),
            ),
            Claim(
                "matrix-on-logits-retains-most",
                "the whole patch trained on logits retains most",
                comparisons.beats(trained.FULL, trained.MSE, trained.DIAGONAL, trained.FFN_MSE, column="QA RP"),
            ),
            Claim(
                "ffn-on-logits-diverges",
                "training an FFN on logits by KL diverges",
                comparisons.without_number(trained.FFN_KL, "PPL AVG", trained.FULL, run="Ratio"),
            ),
        ),
        f"{_RATIO_NOTE} {_FEW_NOTE} {_TRAINED_NOTE}",
    ),
    _table(
        "5",
        "the ingredients of LinearPatch",
        rows.ingredients,
        columns.everything,
        (
            Claim(
                "every-ingredient-lowers-perplexity",
                "every ingredient lowers perplexity",
                comparisons.ladder(rows.LADDER, "PPL AVG", lower=True),
            ),
            Claim(
                "every-ingredient-retains-more", "every ingredient retains more", comparisons.ladder(rows.LADDER, "RP")
            ),
            Claim(
                "matrix-lowest-perplexity",
                "extension: the least-squares matrix has the lowest perplexity of all repairs without training",
                comparisons.beats(rows.MATRIX, *rows.TRAINING_FREE, column="PPL AVG", lower=True),
            ),
            Claim(
                "matrix-retains-most",
                "extension: the least-squares matrix retains most of all repairs without training",
                comparisons.beats(rows.MATRIX, *rows.TRAINING_FREE),
            ),
            Claim(
                "refit-lowest-perplexity",
                "extension: the refit has the lowest perplexity of all repairs without training",
                comparisons.beats(rows.REFIT, rows.MATRIX, *rows.TRAINING_FREE, column="PPL AVG", lower=True),
            ),
            Claim(
                "refit-retains-most",
                "extension: the refit retains most of all repairs without training",
                comparisons.beats(rows.REFIT, rows.MATRIX, *rows.TRAINING_FREE),
            ),
        ),
        "Rows marked (extension) are not in the paper. Least squares, in which all tokens count alike, replaces ratios of "
        "magnitudes, from the same calibration text. The refit is that of `extensions/refit`, which inserts nothing. Models "
        "other than the paper's show both selections, the block [L] and the lowest BI [S]. " + _FEW_NOTE,
    ),
    _table(
        "6",
        "size and time of what is inserted",
        rows.inserted,
        lambda profile: columns.INSERTED,
        (
            Claim(
                "patch-8-times-smaller",
                "the patch is 8 times smaller than the FFN",
                comparisons.ratio_of("LLaMA-2-7B", "LLM-Streamline(FFN)", "LinearPatch", "Parameters (M)", 8),
            ),
            Claim(
                "patch-190-times-faster",
                "the patch is 190 times faster than the FFN",
                comparisons.ratio_of("LLaMA-2-7B", "LLM-Streamline(FFN)", "LinearPatch", "Time cost (s)", 190),
                only_reported=True,  # of other shapes, on other machines, nobody has said it
            ),
        ),
        "The inserted network alone, one batch of 16 sequences (paper: 2048 tokens in float16 on a GPU; toy model: "
        "256 tokens in float32 on a CPU); median of repeated calls. Seconds are the machine's own. The row marked "
        "(extension) gives the quotients, measured on a CPU in the paper's shape: 256 tokens, float32, random "
        "weights, least of five calls.",
    ),
    _table(
        "7",
        "offline storage for distillation",
        rows.stored,
        lambda profile: columns.STORED,
        claims=(
            Claim(
                "target-40-times-smaller",
                "the stored target is 40 times smaller than LLM-Streamline's (hidden size 4096)",
                comparisons.ratio_of("LLaMA-2-7B", "LLM-Streamline", "LinearPatch", "stored target per token", 40),
                only_reported=True,
            ),
        ),
        note="Numbers per training token. Top-K logits need their K indices too: 2 x 4096 numbers against 1 + 2 x 100 is the "
        "factor of 40 in Appendix A; without the indices it would be 81.",
    ),
    _table(
        "9",
        "pruning settings",
        rows.settings,
        columns.settings,
        claims=(
            Claim(
                "s-and-l-agree",
                "[S] and [L] remove the same layers in most settings (section 4.3)",
                comparisons.alike("LinearPatch[S]", "LinearPatch[L]", ("start", "end", "cuts")),
                enough=comparisons.in_most,
            ),
        ),
        note="Blocks are half-open: [start, end). For layers that are not one block, start and end are their outermost. "
        "Rows marked (extension) select by another cosine. The official code's is along tokens, per channel, and it keeps "
        "the first and the last layer. Cosine of the batch, of the sample: one over all numbers of a batch, or of each "
        "sequence.",
    ),
    _table(
        "10",
        "number of calibration samples",
        rows.calibration_sizes,
        lambda profile: columns.perplexities(profile, "average", label="AVG (extension)"),
        (
            Claim(
                "128-samples-suffice",
                "from 128 samples on, more change perplexity by less than 0.5 % (limit not from the paper)",
                comparisons.steady([f"LinearPatch[{n} samples]" for n in (128, 256, 512)], rows.TEXTS, 0.005),
            ),
            Claim(
                "64-samples-suffice",
                "extension: 64 samples are within 0.5 % of 128",
                comparisons.steady([f"LinearPatch[{n} samples]" for n in (128, 64)], rows.TEXTS, 0.005),
            ),
        ),
        "Selection and scales both come from the samples of the row; the paper varies those of the scales alone, so a row's "
        "layers might be others here. Rows marked (extension) go below what the paper tried.",
    ),
    _table(
        "11",
        "perplexity, training-free methods",
        training_free,
        columns.text,
        (*_repairs("PPL AVG", True, "has a lower perplexity than"), _among_cosines("PPL AVG"), _SLEB_TEXT),
        _PERPLEXITY_NOTE,
    ),
    _table(
        "12",
        "MMLU, training-free methods",
        partial(training_free, pruner=False),
        ratio_and_mmlu,
        (*_repairs(_MMLU, False, "scores above"), _ABOVE_SLEB),
        f"{_RATIO_NOTE} {MMLU_NOTE}",
    ),
    _table(
        "13",
        "perplexity of Baichuan2-7B",
        _baichuan,
        columns.text,
        (*_repairs("PPL AVG", True, "has a lower perplexity than"), _among_cosines("PPL AVG"), _SLEB_TEXT),
        f"{_PERPLEXITY_NOTE} {_BAICHUAN_NOTE.format(11)}",
    ),
    _table(
        "14",
        "question answering with Baichuan2-7B",
        _baichuan,
        columns.question_answering,
        (*_repairs("RP", False, "retains more than"), *_retains("L", "S")),
        f"{_RATIO_NOTE} {_BAICHUAN_NOTE.format(1)}",
    ),
    _table(
        "15",
        "MMLU with Baichuan2-7B",
        partial(_baichuan, pruner=False),
        ratio_and_mmlu,
        (*_repairs(_MMLU, False, "scores above"), _ABOVE_SLEB),
        f"{_RATIO_NOTE} {MMLU_NOTE} {_BAICHUAN_NOTE.format(12)}",
    ),
]
