"""LinearPatch: what its tables are, and sentences of the paper and of its blog summary held against them."""

from collections.abc import Iterator, Mapping

from reproductions.audit.engine import (
    DEFINITION,
    LM_EVAL,
    MMLU,
    PERPLEXITIES,
    SLIP,
    Computed,
    Finding,
    Paper,
    Row,
    Rule,
)
from reproductions.audit.scores import mean, weighted
from reproductions.spec import reported
from reproductions.spec.reported import Number

# Rows of one configuration under several names: (table, method, variant) -> (method, variant).
ALIASES = {
    ("5", "Vanilla", ""): ("LLM-Streamline(None)", ""),
    ("5", "+A", ""): ("LinearPatch", "S/L"),
    ("5", "+FT", ""): ("LinearPatch", "L +FT, logits, KL"),
    ("10", "LinearPatch", "128 samples"): ("LinearPatch", "S/L"),
    ("summary1", "LLM-Streamline", ""): ("LLM-Streamline(None)", ""),
    ("summary1", "LinearPatch", ""): ("LinearPatch", "L"),
    ("summary1", "LinearPatch", "+Distillation"): ("LinearPatch", "L +FT"),
    ("summary2", "Channel scaling only", ""): ("+d", ""),
    ("summary2", "LinearPatch (both fused)", ""): ("LinearPatch", "S/L"),
    ("summary2", "LinearPatch", "+Distillation"): ("LinearPatch", "L +FT, logits, KL"),
    ("summary2", "No patch (direct pruning)", ""): ("LLM-Streamline(None)", ""),
}


def alias(number: Number) -> tuple[str, str, str, str]:
    """Return (sparsity, method, variant, column) under the names of Tables 1, 2 and 11."""
    method, variant = ALIASES.get((number.table, number.method, number.variant), (number.method, number.variant))
    column = "PPL AVG" if (number.table, number.column) == ("3", "AVG") else number.column
    return number.sparsity, method, variant, column


def _mean_of_ratios(row: Row, dense: Row) -> Computed:
    """Compute LinearPatch's RP: the mean of the tasks' ratios to the dense model."""
    pairs = [(row[c], dense[c]) for c in LM_EVAL]
    value = 100 * sum(a.value / b.value for a, b in pairs) / len(pairs)
    slack = 100 * sum((a.half_unit + a.value / b.value * b.half_unit) / b.value for a, b in pairs) / len(pairs)
    return value, slack, "mean over the nine tasks of pruned / dense", [a for a, _ in pairs]


PAPER = Paper(
    "linearpatch",
    rules=(
        Rule(("1", "2", "5", "14"), "AVG", mean(LM_EVAL)),
        Rule(("1", "2", "5", "14"), "RP", _mean_of_ratios),
        Rule(("4", "5", "11", "13"), "PPL AVG", mean(PERPLEXITIES)),
        Rule(("3",), "AVG", mean(PERPLEXITIES)),
        Rule(("12", "15"), "Weighted AVG", weighted),
    ),
    questions=((("1", "2", "5", "14"), LM_EVAL), (("12", "15"), MMLU)),
    summaries={
        ("1", "2", "14"): ("RP", False),
        ("3",): ("AVG", True),
        ("11", "13"): ("PPL AVG", True),
        ("12", "15"): ("Weighted AVG", False),
    },
    alias=alias,
)


def findings() -> Iterator[Finding]:
    """Yield claims whose numbers do not follow from the tables."""
    yield from _times_and_gaps()
    yield from _mmlu()
    yield from _summary()


def get(paper: str, table: str, model: str, sparsity: str, name: str, column: str) -> Number:
    """Return the printed number of a cell."""
    return reported.cells(paper, table)[model, sparsity, name, column]


def _times_of_products(times: Mapping[str, Number]) -> Iterator[Finding]:
    """Check Table 6's times on 16 x 2048 tokens (Section 4.4): with one product a parameter and token they give a rate."""
    parameters = {name: get("linearpatch", "6", "LLaMA-2-7B", "", name, "Parameters (M)") for name in times}
    rate = {name: 2 * 16 * 2048 * parameters[name].value / time.value / 1e6 for name, time in times.items()}  # TFLOP/s
    patch_rate, network_rate = rate["LinearPatch"], rate["LLM-Streamline(FFN)"]
    fewer = parameters["LLM-Streamline(FFN)"].value / parameters["LinearPatch"].value
    if patch_rate > 2 * network_rate:
        patch, network = times["LinearPatch"], times["LLM-Streamline(FFN)"]
        quotient = f"2 * 16 * 2048 * {parameters['LinearPatch'].text} M / {patch.text} s = {patch_rate:.0f} TFLOP/s"
        seconds = network.value / fewer
        yield PAPER.claim(
            "Table 6, seconds of LinearPatch",
            f"{patch.text} s",
            f"{seconds:.4f} s",
            f"{quotient}; the FFN's are {network_rate:.0f}, at which the patch, {fewer:.2f} times smaller, takes "
            f"{seconds:.4f} s",
            SLIP,
            f"Cite {fewer:.0f} times, as many as it is smaller; a GPU's calls return before their work is done, and a clock "
            "that does not wait for it measures the calls.",
            used=(patch,),
            headline=f"Table 6's seconds of the patch would be {patch_rate:.0f} TFLOP/s where the FFN's are "
            f"{network_rate:.0f}: it is no {network.value / patch.value:.0f} times faster, but {fewer:.0f}.",
        )


def _times_and_gaps() -> Iterator[Finding]:
    patched = get("linearpatch", "1", "LLaMA-3-8B", "5/32", "LinearPatch[L]", "RP")
    unpatched = get("linearpatch", "1", "LLaMA-3-8B", "5/32", "LLM-Streamline(None)", "RP")
    gap, relative = patched.value - unpatched.value, 100 * (patched.value / unpatched.value - 1)
    if round(gap) != 4:
        yield PAPER.claim(
            "Abstract",
            "ahead by 4 %",
            f"{gap:.2f}",
            f"{patched.text} - {unpatched.text} = {gap:.2f} points of RP; {relative:.2f} % relative",
            DEFINITION,
            "Cite the points of RP.",
            headline=f"The abstract's lead of 4 % on LLaMA-3-8B is {gap:.2f} points of RP ({relative:.2f} % of the rival's).",
        )
    times = {
        name: get("linearpatch", "6", "LLaMA-2-7B", "", name, "Time cost (s)")
        for name in ("LinearPatch", "LLM-Streamline(FFN)")
    }
    factor = times["LLM-Streamline(FFN)"].value / times["LinearPatch"].value
    if abs(factor - 190) > 10:
        words = f"{times['LLM-Streamline(FFN)'].text} / {times['LinearPatch'].text} = {factor:.1f}"
        yield PAPER.claim(
            "Section 4.4, seconds",
            "about 190 times faster",
            f"{factor:.0f} times",
            words,
            SLIP,
            "Cite Table 6.",
        )
    yield from _times_of_products(times)
    average = {k[2]: number for k, number in reported.cells("linearpatch", "4").items() if k[3] == "QA AVG"}
    top = max(average, key=lambda k: average[k].value if k.startswith("LinearPatch") else 0)
    for name, number in average.items():
        gap = average[top].value - number.value
        if name.startswith("LLM-Streamline") and abs(gap - 2.13) > 0.01:
            twin = [k for k, n in average.items() if abs(average[top].value - n.value - 2.13) < 0.005]
            words = f"{average[top].text} - {number.text} = {gap:.2f}; 2.13 is the gap to {', '.join(twin) or 'no row'}"
            yield PAPER.claim(
                "Section 4.4, distillation",
                "2.13 over LLM-Streamline",
                f"{gap:.2f}",
                words,
                SLIP,
                "",
                [number],
            )
    yield from _relative()


def _relative() -> Iterator[Finding]:
    """Yield improvements of the ablation (Table 5) that are called relative and are differences."""
    rp = {k[2]: number for k, number in reported.cells("linearpatch", "5").items() if k[3] == "RP"}
    for column, before, after in (
        ("relative improvement over the baseline %", "Vanilla", "+A"),
        ("relative RP gain %", "+A", "+FT"),
    ):
        printed = next(n for n in reported.numbers("linearpatch", "text") if n.column == column)
        points, relative = rp[after].value - rp[before].value, 100 * (rp[after].value / rp[before].value - 1)
        if abs(printed.value - relative) > 0.05:
            words = f"{rp[after].text} - {rp[before].text} = {points:.2f}; the ratio less 1 is {relative:.2f} %"
            yield PAPER.claim(
                f"Section 4.4, {before} to {after}",
                f"a relative {printed.text} %",
                f"{points:.2f} points, {relative:.2f} % relative",
                words,
                DEFINITION,
                "The sentence gives points of RP.",
                [rp[after]],
            )


def _mmlu() -> Iterator[Finding]:
    """Check gains on MMLU (Appendix E.2): the patch is compared with the same selection without it."""
    cells = reported.cells("linearpatch", "12")
    worse, used, rows = [], [], set()
    for (model, sparsity, name, column), number in cells.items():
        unpatched = {"LinearPatch[S]": "ShortGPT", "LinearPatch[L]": "LLM-Streamline(None)"}.get(name)
        unpatched_number = cells.get((model, sparsity, unpatched, column))
        if column != "Weighted AVG" or unpatched_number is None:
            continue
        rows.add(number)
        if number.value < unpatched_number.value and number not in used:
            worse.append(f"{model} {sparsity} {number.text} < {unpatched_number.text} ({unpatched})")
            used.append(number)
    if worse:
        yield PAPER.claim(
            "Appendix E.2 against Table 12",
            "significant improvements across models and ratios",
            f"worse than the unpatched layers in {len(worse)} of {len(rows)} rows",
            "; ".join(worse),
            SLIP,
            f"On MMLU the patch wins {len(rows) - len(worse)} times and loses {len(worse)}: no gain to cite.",
            used,
            headline=f"On MMLU (Table 12) the patch is below the same layers unpatched in {len(worse)} of {len(rows)} rows; "
            "the text speaks of significant improvements.",
        )


def _summary() -> Iterator[Finding]:
    """Yield the blog summary: a rotation alone is the identity, and a value that belongs to another setting."""
    rows = {k[2]: n for k, n in reported.cells("linearpatch", "summary2").items() if k[3] == "AVG"}
    unpatched = rows["No patch (direct pruning)"]
    rotated = rows["Hadamard only"]
    if rotated.value != unpatched.value:
        yield PAPER.claim(
            "Summary, table 2, Hadamard only",
            rotated.text,
            unpatched.text,
            f"H H^T = I: rotating there and back changes nothing, so it must give the unpatched {unpatched.text}",
            SLIP,
            "The summary's ablation cannot have been measured: cite Table 5.",
            [rotated],
        )
    paper = {(t, *k): n for t in ("1", "2") for k, n in reported.cells("linearpatch", t).items() if k[3] == "AVG"}
    correct = get("linearpatch", "5", "LLaMA-2-7B", "9/32", "+FT", "AVG")
    for name, number in rows.items():
        twins = [
            k for k, n in paper.items() if n.text == number.text and k[1] == number.model and k[2] != number.sparsity
        ]
        if twins and "Distillation" in name:
            table, model, sparsity, method, _ = twins[0]
            yield PAPER.claim(
                "Summary, table 2, LinearPatch + Distillation",
                number.text,
                correct.text,
                f"{number.text} is {method} at {sparsity} in Table {table}, not distilled; "
                f"Table 5 has {correct.text} for {number.sparsity}",
                SLIP,
                "A value of another setting.",
                [number],
            )
