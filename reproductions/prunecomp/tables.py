"""The tables of Prune&Comp, declared."""

from collections.abc import Callable

from reproductions.prunecomp.claims import abstracts, consistent, each_part_helps, sizes_agree
from reproductions.prunecomp.columns import order_columns, perplexity_columns, qa_columns
from reproductions.prunecomp.recipes import APPENDIX_SHARES, PAIRS, PARTS, SHARES, order_rows, rows, shape, size_rows
from reproductions.spec.columns import MMLU_NOTE, mmlu
from reproductions.spec.registry import Claim, Table


def _table(number: str, title: str, declared: Callable, columns: Callable, claims=(), note: str = "") -> Table:
    name = f"{number} (appendix {number[1:]})" if number.startswith("A") else number
    full = f"Prune&Comp, Table {name}: {title}"
    return Table(f"table{number}-prunecomp", "prunecomp", number, full, declared, columns, claims, note)


def _perplexity_table(number: str, title: str, shares=SHARES, also: tuple[Claim, ...] = ()) -> Table:
    declared, claims = rows(number, PAIRS, shares=shares), (*consistent("AVG", True), *also)
    return _table(number, title, declared, perplexity_columns, claims, _PPL_NOTE)


def _qa_table(number: str, title: str, shares=SHARES, also: tuple[Claim, ...] = ()) -> Table:
    declared, claims = rows(number, PAIRS, shape=shape, shares=shares), (*consistent("RP"), *also)
    return _table(number, title, declared, qa_columns, claims, _RP_NOTE)


def _order_table(number: str, models: str) -> Table:
    declared, columns = order_rows(number), order_columns(number)
    return _table(number, f"layers removed from {models}", declared, columns, note=_ORDER_NOTE)


_PPL_NOTE = "Perplexity per token in sequences of 2048 (toy model: 256, every eighth sequence of the held-out text)."
_RP_NOTE = "RP is the ratio of the averages, as the paper forms it (LinearPatch: the average of ratios)."
_ORDER_NOTE = (
    "Original 0-based indices in order of removal. The printed rows follow the official code's settings. Rows marked as "
    "extensions follow the paper's text: all metrics read the same sequences, and PPL protects no layer."
)
_ABLATION_CLAIM = "iterative pruning and compensation each help alone, and together most"

TABLES = [
    _perplexity_table(
        "1", "perplexity", also=(abstracts("nearly half the perplexity: 45 % off or more", "AVG", 45, lower=True),)
    ),
    _qa_table("2", "question answering", also=(abstracts("4.01 points ahead", "RP", 4.005),)),
    _table(
        "3",
        "MMLU",
        rows("3", PAIRS, (5,), dense=False),
        mmlu,
        consistent("Weighted AVG"),
        f"The caption names CosSim(BI); the rows are five metrics. {MMLU_NOTE}",
    ),
    _table(
        "4",
        "iterative pruning and compensation, apart and together",
        rows("4", PARTS, (5,)),
        perplexity_columns,
        (Claim("each-part-helps", _ABLATION_CLAIM, each_part_helps("AVG", True)),),
        _PPL_NOTE,
    ),
    _perplexity_table("A1", "perplexity of LLaMA-2-13B and Qwen3-8B", APPENDIX_SHARES),
    _qa_table("A2", "question answering, LLaMA-2", APPENDIX_SHARES),
    _order_table("A3", "LLaMA-2-7B and LLaMA-3-8B"),
    _order_table("A4", "LLaMA-2-13B and Qwen3-8B"),
    _table(
        "A5",
        "question answering of the ablation",
        rows("A5", PARTS, (5,)),
        qa_columns,
        (Claim("each-part-helps", _ABLATION_CLAIM, each_part_helps("AVG", False)),),
        "The caption says 7 layers, but the first and the last row are Table 2's with 5 removed, in every cell "
        "(PC-13, PC-14): its numbers are probably of 5. Measured: 7.",
    ),
    _table(
        "A6",
        "number of calibration samples",
        size_rows,
        perplexity_columns,
        (
            Claim(
                "samples-agree",
                "extension: 64, 128 and 256 samples (other models: 16, 32, 64) are within 2 % of one another",
                sizes_agree,
            ),
        ),
        _PPL_NOTE,
    ),
]
