"""Reassessing Layer Pruning: what its tables are; margins, gains, citations, rates and sizes against them."""

import re
from collections.abc import Iterator

from common.models import registry
from reproductions.audit import repeats
from reproductions.audit.engine import (
    DEFINITION,
    SLIP,
    Finding,
    Paper,
    Rule,
    about,
    agrees,
    group,
    shown,
)
from reproductions.audit.scores import mean
from reproductions.audit.tables import compare_share
from reproductions.spec import printed_rows, reported
from reproductions.spec.registry import PAPERS
from reproductions.spec.reported import Number, row_name

QUESTIONS = {"PIQA": 1838, "HellaSwag": 10042, "OpenbookQA": 500, "ARC-e": 2376, "ARC-c": 1172, "WinoGrande": 1267}
QUESTIONS |= {"MMLU": 14042, "CMMLU": 11582, "HumanEval(Pass@1)": 164}
TASKS = ("PIQA", "HellaSwag", "OpenbookQA", "ARC-e", "ARC-c", "MMLU", "CMMLU", "WinoGrande")
MIB = 2**20
# Reassessing names its own model, and rows measured with its own code, differently in Tables 4 and P.
METHODS = {
    "Llama-3.1-6.3B-It-Alpaca": ("Reverse-order", "+lm_head & last 3"),
    "Llama-3-6.3B-It-Alpaca": ("Reverse-order", "+lm_head & last 3"),
    "Llama-3-6.3B-Alpaca": ("Reverse-order", "+lm_head & last 3"),
    "ShortGPT (BI)": ("BI", "+LoRA"),
    "Shortened LLaMA (PPL)": ("PPL", "+LoRA"),
    "Shortened LLaMA (Taylor)": ("Taylor", "+LoRA"),
}
# What its other tables call the standard setting: all of Alpaca-cleaned, one shot, ten calibration samples.
STANDARD = ("one-shot ", "Alpaca-cleaned ", "1.0 ", "10 samples ")


def alias(number: Number) -> tuple[str, str, str, str]:
    """Return (sparsity, method, variant, column) under the names of Tables 1, 2 and L."""
    method, variant = number.method, number.variant
    if variant in ("", "+lm_head & last 3"):
        method, variant = METHODS.get(method, (method, variant))
    for words in STANDARD:
        variant = variant.removeprefix(words)
    return {"25%": "8/32", "0%": "0/32"}.get(number.sparsity, number.sparsity), method, variant, number.column


PAPER = Paper(
    "reassessing",
    rules=(
        Rule(tuple("124567ABCEFKLMNOP"), "Avg.", mean(TASKS)),
        Rule(("H",), "Avg.", mean(("MMLU", "PIQA", "OpenbookQA", "WinoGrande", "HellaSwag", "ARC-c"))),
    ),
    questions=((tuple("124567ABCEFHIKLMNOP"), QUESTIONS),),
    summaries={("6",): ("Avg.", False)},
    lists={"O": ("O",)},
    alias=alias,
    calibrated="O",
)


def findings() -> Iterator[Finding]:
    """Yield claims, rates and sizes that do not follow from the tables and the models' shapes."""
    for table in ("4", "5"):
        yield from _margins(table)
    yield from _borrowed()
    yield from _less_data()
    yield from _citations()
    yield from _caption()
    yield from _layers_for_parameters()
    yield from _memory()
    yield from _sizes()


def _mean(row: dict[str, Number], tasks: list[str]) -> float:
    return sum(row[c].value for c in tasks) / len(tasks)


def margins(table: str) -> dict[str, list[tuple[str, dict[str, Number], dict[str, Number], float, float]]]:
    """Compute the margins of the paper's row over each baseline in a table, by model.

    Rows of original models are left out.

    Returns:
        Model -> tuples (baseline, its row, the paper's row, printed margin, margin over the tasks that both rows have).
    """
    rows = group(reported.numbers("reassessing", table))
    margins_by_model: dict[str, list] = {}
    for (model, _, method, variant), row in rows.items():
        own_row = next(r for k, r in rows.items() if k[0] == model and ("Alpaca" in k[2] or k[2] == "Our"))
        if row is own_row or method == "Dense":
            continue
        tasks = [c for c in row if c != "Avg."]
        true = _mean(own_row, tasks) - _mean(row, tasks)
        printed = own_row["Avg."].value - row["Avg."].value
        margins_by_model.setdefault(model, []).append((row_name(method, variant), row, own_row, printed, true))
    return margins_by_model


def _margins(table: str) -> Iterator[Finding]:
    """Yield margins over baselines that rest on other tasks or a wrong average, and the abstract's range without them."""
    for model, rows in margins(table).items():
        fewer, wrong = [], []
        for name, row, own_row, printed, true in rows:
            if abs(printed - true) >= 0.001:
                (fewer if len(row) < len(own_row) else wrong).append((name, row, own_row, printed, true))
        if fewer:
            yield PAPER.claim(
                f"Table {table}, {model}, margins over {', '.join(name for name, *_ in fewer)}",
                ", ".join(f"{100 * printed:.2f}" for *_, printed, _ in fewer),
                ", ".join(f"{100 * true:.2f}" for *_, true in fewer),
                "; ".join(_on_common(*part) for part in fewer),
                DEFINITION,
                "These averages are over fewer tasks than the paper's own: compare on the common ones.",
                [row["Avg."] for _, row, *_ in fewer],
            )
        for part in wrong:
            name, row, _, printed, true = part
            yield PAPER.claim(
                f"Table {table}, {model}, margin over {name}",
                f"{100 * printed:.2f} points",
                f"{100 * true:.2f} points",
                _on_common(*part),
                SLIP,
                "The margin rests on a wrong average.",
                [row["Avg."]],
            )
        marks = _foreign_marks(rows) if table == "4" else ()
        yield from _range(table, model, [part for part in rows if not part[0].endswith(marks)], bool(marks))


def _on_common(name: str, row: dict, own_row: dict, printed: float, true: float) -> str:
    tasks = [c for c in row if c != "Avg."]
    return f"{name}, {len(tasks)} tasks: {_mean(own_row, tasks):.4f} - {_mean(row, tasks):.4f} = {true:+.4f}"


def _range(table: str, model: str, rows: list, fewer: bool) -> Iterator[Finding]:
    """Yield the abstract's 'from a to b' over the baselines of a model.

    fewer: those that may be another model's are left out.
    """
    text = {
        n.column: n
        for n in reported.numbers("reassessing", "text")
        if n.model == model and n.column.startswith("abstract")
    }
    low, high = (next(n for c, n in text.items() if word in c) for word in ("smallest", "largest"))
    true = sorted((100 * part[-1], part[0]) for part in rows)
    (lowest, weak), (highest, strong) = true[0], true[-1]
    if abs(lowest - low.value) < 0.05 and abs(highest - high.value) < 0.05:
        return
    yield PAPER.claim(
        f"Abstract against Table {table}, {model}",
        f"ahead by {low.text} to {high.text} %",
        f"{lowest:.2f} to {highest:.2f} points",
        f"least over {weak}, most over {strong}, each on the tasks that both rows have, averages recomputed",
        SLIP
        if any(len(row) == len(own_row) and abs(shown - t) >= 0.001 for _, row, own_row, shown, t in rows)
        else DEFINITION,
        "Cite the recomputed range, in points.",
        [low, high],
        headline=f"{model}: the abstract's lead of {low.text} to {high.text} % is {lowest:.2f} to {highest:.2f} points with "
        f"averages recomputed{', ' if fewer else ' and '}the same tasks{' and no row marked as another model' * fewer}.",
    )


def _copied() -> dict:
    """Return the rows of Table 4 that repeat another paper's rows of another model: place -> repeated number."""
    return {copy["PIQA"].row: source["PIQA"] for copy, source in repeats.copies()[0] if copy["PIQA"].table == "4"}


def _foreign_marks(rows: list) -> tuple[str, ...]:
    """Return the marks of a model's baselines one of which is proved to be another model's row."""
    copied = _copied()
    return tuple({name[-1] for name, row, *_ in rows if row["PIQA"].row in copied})


def _borrowed() -> Iterator[Finding]:
    """Yield the abstract's range in Table 4 without the marked rows, one of which is another model's."""
    copied = _copied()
    for model, rows in margins("4").items():
        marks = _foreign_marks(rows)
        if not marks:
            continue
        proved = [(name, row) for name, row, *_ in rows if row["PIQA"].row in copied]
        marked = [part for part in rows if part[0].endswith(marks)]
        unmarked = sorted((100 * true, name) for name, *_, true in rows if not name.endswith(marks))
        names = ", ".join(name for name, *_ in marked)
        first, source = proved[0][0], copied[proved[0][1]["PIQA"].row]
        lowest, highest = (pick(100 * printed for *_, printed, _ in rows) for pick in (min, max))
        yield PAPER.claim(
            f"Abstract against Table 4, {model}, rows of another model",
            f"ahead by {lowest:.2f} to {highest:.2f} points",
            f"{unmarked[0][0]:.2f} to {unmarked[-1][0]:.2f} points over the rows without that mark",
            f"{first} is {source.model}'s row; the same mark stands at {names}, whose printed margins are "
            f"{', '.join(f'{100 * printed:.2f}' for *_, printed, _ in marked)}. Without them: "
            + ", ".join(f"{name} {margin:.2f}" for margin, name in unmarked),
            SLIP,
            "Cite no margin over a row with that mark: it may compare two models.",
            [row["Avg."] for _, row, *_ in marked],
            headline=f"Table 4's row {first} for {model} is {PAPERS[source.paper]}'s row for {source.model} at "
            f"{source.sparsity}, to the digits printed; over rows without its mark the lead is {unmarked[0][0]:.2f} to "
            f"{unmarked[-1][0]:.2f} points, not {lowest:.2f} to {highest:.2f}.",
        )


def _less_data() -> Iterator[Finding]:
    """Check the decline with a fifth of the data (section E), which the printed averages show."""
    rows = {key[3].partition(" ")[0]: row for key, row in group(reported.numbers("reassessing", "C")).items()}
    full, fifth = rows["1.0"], rows["0.2"]
    tasks = [c for c in full if c != "Avg."]
    printed = 100 * (full["Avg."].value - fifth["Avg."].value)
    true = 100 * (_mean(full, tasks) - _mean(fifth, tasks))
    if abs(printed - true) > 0.5:
        yield PAPER.claim(
            "Section E against Table C",
            f"a substantial decline with 20 % of the data ({printed:.1f} points)",
            f"{true:.1f} points",
            f"mean of the eight tasks: {_mean(full, tasks):.4f} - {_mean(fifth, tasks):.4f} = {true / 100:.4f}",
            SLIP,
            "A fifth of the data costs little.",
            [fifth["Avg."]],
            headline=f"Training on a fifth of the data costs {true:.1f} points, not {printed:.1f}: Table C's last average is "
            "wrong.",
        )


def _citations() -> Iterator[Finding]:
    """Yield numbers of the text that are not in the table that the sentence points to."""
    wrong: dict[str, list[tuple[Number, list[str]]]] = {}
    for number in reported.numbers("reassessing", "text"):
        cited = re.search(r"cites: (Table (\w+)|Section \w+)", number.flag)
        if cited and (cited[2] is None or not _is_in(number, cited[2])):
            tables_with = [t for t in reported.tables("reassessing") if t != "text" and _is_in(number, t)]
            wrong.setdefault(cited[1], []).append((number, tables_with))
    for cited, parts in wrong.items():
        all_tables = list(dict.fromkeys(t for _, tables_with in parts for t in tables_with))
        yield PAPER.claim(
            f"Section E, {', '.join(n.method + ' ' + n.text for n, _ in parts)}",
            f"see {cited}",
            f"Table {' or '.join(all_tables)}",
            "; ".join(f"{n.text} is in Table {' and '.join(tables_with)}" for n, tables_with in parts),
            SLIP,
        )


def _is_in(number: Number, table: str) -> bool:
    """Return whether a row of the same model and method has the number, as printed or a hundredth of it."""
    return any(
        n.model == number.model
        and n.method.replace("-It-", "-")
        == number.method.replace("-It-", "-")  # Table 4 has its own name for one model
        and (n.value == number.value or abs(100 * n.value - number.value) < 0.005)
        for n in reported.numbers("reassessing", table)
    )


def _caption() -> Iterator[Finding]:
    """Check Table N's caption, whose example ends at another number of layers than the rows."""
    caption = next(n for n in reported.numbers("reassessing", "text") if "table N's caption" in n.column)
    counts = {printed_rows.removed_layers(n) for n in reported.numbers("reassessing", "N")}
    variants = sorted(
        {n.variant.partition(" ")[0] for n in reported.numbers("reassessing", "N") if n.variant[0].isdigit()}
    )
    if counts != {int(caption.value)}:
        yield PAPER.claim(
            "Caption of Table N",
            f"{caption.text} layers pruned by the end",
            f"{', '.join(map(str, counts))} layers",
            f"its rows are {', '.join(variants)}",
            SLIP,
        )


def _layers_for_parameters() -> Iterator[Finding]:
    """Yield rates of Table 6 that are shares of the layers, beside rates that are shares of the parameters."""
    rows = [number for number in reported.numbers("reassessing", "6") if number.column == "PR %"]
    layers, parameters = {}, {}
    for number in rows:
        facts = registry.get(printed_rows.MODELS[number.model]).facts
        for count in range(1, facts["layers"]):
            share = 100 * count * facts["layer_params"] / facts["params"]
            if agrees(number, 100 * count / facts["layers"], 0):
                layers[number] = count, share
            elif number.method in ("ShortGPT", "LaCo") and agrees(number, share, number.half_unit):  # whole layers too
                parameters[number] = count
                yield from compare_share(
                    number, number, share, f"({count} * {facts['layer_params']}) / {facts['params']}"
                )
    highest, (count, share) = list(layers.items())[-1]
    most_layers = max(parameters.values())
    yield about(
        list(layers),
        "share of parameters",
        ", ".join(number.sparsity for number in layers),
        ", ".join(f"{value:.2f}%" for _, value in layers.values()),
        "; ".join(
            f"{n} layers are {k.sparsity} of the layers and {v:.2f}% of the parameters" for k, (n, v) in layers.items()
        )
        + f". The rates of ShortGPT and LaCo are shares of the parameters: {', '.join(map(str, parameters.values()))} layers",
        DEFINITION,
        f"At the highest rate the table compares {count} removed layers with {most_layers}: not the same size of model.",
        where=f"Table 6, {highest.model}, rates of {highest.method}",
        headline=f"Table 6 counts its own pruning rate in layers and the others' in parameters: its {highest.sparsity} are "
        f"{share:.2f} % of the parameters, against models that lost {max(n.value for n in parameters):g} %.",
    )


def _memory() -> Iterator[Finding]:
    """Compare the memory of the quantized model in Table 7 with the least that 4 bits can take."""
    rows = [n for n in reported.numbers("reassessing", "7") if n.column == "memory MB"]
    for number in rows:
        facts = registry.get(printed_rows.MODELS[number.model]).facts
        left = facts["layers"] - printed_rows.removed_layers(number)
        if "GPTQ" not in number.variant:
            continue
        least = left * (facts["layer_params"] - 2 * facts["hidden"]) / 2 / MIB
        if number.value >= least:
            continue
        full = next(n for n in rows if n is not number)
        rest = (2 * facts["vocab"] * facts["hidden"] + (2 * left + 1) * facts["hidden"]) * 2 / MIB
        claimed = next(n for n in reported.numbers("reassessing", "text") if "memory reduction" in n.column)
        yield about(
            [number],
            "memory",
            f"{number.text} MB, {100 * (1 - number.value / full.value):.1f} % less than {full.text} MB",
            f"at least {least:.0f} MiB for the layers alone, {least + rest:.0f} MiB with embedding and head at 16 bits",
            f"{left} layers x {facts['layer_params'] - 2 * facts['hidden']} weights x 4 bits = {least:.2f} MiB",
            SLIP,
            f"The reduction can be {100 * (1 - (least + rest) / full.value):.0f} % at most, not {claimed.text} %.",
            headline=f"The 4-bit model's {number.text} MB (and the {claimed.text} % saved) are impossible: its weights alone "
            f"need {least:.0f} MiB, {least + rest:.0f} MiB with embedding and head.",
        )


def _sizes() -> Iterator[Finding]:
    """Yield parameters in Table P that belong to a model of another name."""
    for number in reported.numbers("reassessing", "P"):
        if number.column != "# Parameters B" or number.method != "Dense" or number.model not in printed_rows.MODELS:
            continue
        name = printed_rows.MODELS[number.model]
        count = registry.get(name).facts["params"]
        generation = [re.findall(r"[\d.]*\d", label) for label in (number.model, name)]
        if agrees(number, count / 1e9, 0) and generation[0] != generation[1]:
            yield about(
                [number],
                "share of parameters",
                f"{number.model} with {number.text} B",
                f"the parameters of {name}",
                f"{name}: {count:,} = {shown(count / 1e9, number)} B",
                SLIP,
                f"The row is about {name}, whatever its label says.",
            )
