"""Columns that several papers' tables share: the Ratio, nine tasks, MMLU by category, LaCo's suite."""

from collections.abc import Iterable, Mapping
from typing import Any

from common.toy.tasks import COLUMNS as TOY_TASKS
from common.toy.tasks import TASKS as TOY_QUESTIONS
from common.toy.tasks import VERSION as TASKS_VERSION
from reproductions.spec import subsets
from reproductions.spec.registry import Column

RATIO = Column("Ratio", "parameters", "ratio", scale=100, compare="exact", weight_free=True)
# LinearPatch's and Prune&Comp's nine tasks. The text does not say which accuracy it reports. Its dense LLaMA-2-7B row does:
# 46.25, 74.58, 75.97 and 79.11 are the length-normalised values of these four tasks (plain ARC-e is 76.35, plain PIQA
# 78.07). WSC is wsc273 (80.59 is 220 of 273). Race-h is lm-eval's `race`, which holds the high-school part alone, with the
# prompt it had in 0.4.4: our `race_v2`, since lm-eval's own has another one by now.
QUESTIONS = {
    "ARC-c": ("arc_challenge", "acc_norm"),
    "ARC-e": ("arc_easy", "acc_norm"),
    "BoolQ": ("boolq", "acc"),
    "HeSw": ("hellaswag", "acc_norm"),
    "PIQA": ("piqa", "acc_norm"),
    "WG": ("winogrande", "acc"),
    "WSC": ("wsc273", "acc"),
    "Race-h": ("race_v2", "acc"),
    "CoPa": ("copa", "acc"),
}
# The toy model's tasks where questions are not what a table is about.
FEW = ("Continue", "ParName", "ParType", "Section")
# Labels are those of the papers' tables; (label, key) or (label, benchmark, key).
_MMLU = {
    "paper": ("mmlu@hendrycks", {"STEM": "stem", "Humanities": "humanities", "Social": "social", "Other": "other"}),
    "standin": (
        "mmlu@standin-options-1",
        {"StdLib": "standard_library", "Numeric": "numerical", "Learning": "learning", "Tools": "tools"},
    ),
}
LACO_TASKS = {
    "CMNLI": "laco_cmnli",
    "HeSw": "laco_hellaswag",
    "PIQA": "laco_piqa",
    "CHID": "laco_chid",
    "WSC_P": "laco_wsc_p",
    "WSC_G": "laco_wsc_g",
    "CSQA": "laco_commonsense_qa",
    "BoolQ": "laco_boolq",
    "MMLU": "laco_mmlu",
    "CMMLU": "laco_cmmlu",
    "RaceH": "laco_race_h",
    "RaceM": "laco_race_m",
    "XSum": "laco_xsum",
    "C3": "laco_c3",
}
_TOY_LACO = {
    "Continue": ("docstring_continuation", "acc_norm"),
    "Section": ("docstring_section", "acc"),
    "Word": ("docstring_word", "acc"),
    "Form": ("docstring_agreement", "acc"),
    "Intact": ("docstring_intact", "acc"),
    "Summary": ("docstring_summary", "acc_norm"),
    "ParType": ("docstring_parameter_type", "acc_norm"),
    "ParName": ("docstring_parameter_name", "acc"),
    "ParText": ("docstring_parameter_meaning", "acc_norm"),
}
# LaCo, section 3.2: five categories; each is the mean of its scores, WSC's two modes counting as two.
LACO_CATEGORIES = {
    "paper": {
        "Reas.": ("CMNLI", "HeSw", "PIQA"),
        "Lang.": ("CHID", "WSC_P", "WSC_G"),
        "Know.": ("CSQA", "BoolQ"),
        "Exam.": ("MMLU", "CMMLU"),
        "Unde.": ("RaceH", "RaceM", "XSum", "C3"),
    },
    "standin": {
        "Reas.": ("Continue", "Section"),
        "Lang.": ("Word", "Form", "Intact"),
        "Know.": ("Summary", "ParType"),
        "Exam.": ("Exam",),
        "Unde.": ("ParName", "ParText", "Lines_G", "Sum_G"),
    },
}


# Tasks of lm-eval and of LaCo's suite by their number of choices; ARC has four but for some ten items with three or five,
# C3 two to four.
_CHOICES = {
    2: ("boolq", "copa", "laco_boolq", "laco_piqa", "laco_wsc_p", "piqa", "winogrande", "wsc273"),
    3: ("laco_cmnli",),
    4: (
        *("arc_challenge", "arc_easy", "cmmlu", "hellaswag", "mmlu", "openbookqa", "race_v2"),
        *("laco_c3", "laco_cmmlu", "laco_hellaswag", "laco_mmlu", "laco_race_h", "laco_race_m"),
    ),
    5: ("laco_commonsense_qa",),
    10: ("laco_chid",),
}
_WRITTEN = ("laco_wsc_g", "laco_xsum", "arc_easy_written", "openbookqa_written")  # answers are written, not picked


def chance(benchmarks: Iterable[str]) -> dict[str, float]:
    """Return the accuracy of chance by benchmark, where it is known.

    A benchmark may be limited to its first items, or be MMLU in a paper's form.
    """
    levels = {name: 1 / choices for choices, names in _CHOICES.items() for name in names} | dict.fromkeys(_WRITTEN, 0.0)
    levels |= {f"{name}@{TASKS_VERSION}": task.chance for name, task in TOY_QUESTIONS.items()}
    levels |= {benchmark: levels["mmlu"] for benchmark, _ in _MMLU.values()}  # the toy model's has four options, too
    return {name: levels[subsets.whole(name)] for name in benchmarks if subsets.whole(name) in levels}


def perplexity(column_id: str, protocol: str, **more: Any) -> Column:
    """Return the column of perplexity by a protocol; ``more``: other fields of `Column`."""
    return Column(column_id, f"perplexity@{protocol}", "perplexity", compare="perplexity", **more)


def perplexities(protocols: Mapping[str, str], average: str, label: str = "") -> list[Column]:
    """Return the perplexities of texts, given as id -> protocol, and their mean, with its id and label."""
    texts = [perplexity(*text) for text in protocols.items()]
    return [*texts, Column(average, derived="average", compare="perplexity", of=tuple(protocols), label=label)]


MMLU_NOTE = "A part of MMLU has equally many questions of each subject, so all subjects weigh alike in its averages."


def mmlu(profile: str) -> list[Column]:
    """Return the categories and 'Weighted AVG' (by questions) of LinearPatch's and Prune&Comp's MMLU tables."""
    benchmark, keys = _MMLU[profile]
    return [Column(label, benchmark, key, scale=100) for label, key in {**keys, "Weighted AVG": "weighted"}.items()]


def laco(profile: str, hidden: bool = False) -> list[Column]:
    """Return LaCo's scores in the order of its Table 1.

    On the toy model they are its nine tasks, the examination and two generated ones. hidden: measured for the averages
    of `laco_averages`, but not shown.
    """
    if profile == "paper":
        return [Column(label, task, "score", scale=100, hidden=hidden) for label, task in LACO_TASKS.items()]
    entries = {label: (f"{task}@{TASKS_VERSION}", key) for label, (task, key) in _TOY_LACO.items()}
    entries["Exam"] = ("mmlu@standin-options-1", "weighted")
    entries["Lines_G"] = ("docstring_generation@1", "exact_match")
    entries["Sum_G"] = ("docstring_generation@1", "rouge_1")
    order = [label for labels in LACO_CATEGORIES[profile].values() for label in labels]
    return [Column(label, *entries[label], scale=100, hidden=hidden) for label in order]


def laco_averages(profile: str) -> list[Column]:
    """Return Avg., Per. and the five categories of LaCo's Table 2, which need the columns of `laco` in the table.

    Avg. leaves out tasks on which the original model is at chance. A model that always says yes, or always no, scores
    62 or 38 % in BoolQ, and its choice would decide between models that know nothing of it.
    """
    labels = tuple(label for group in LACO_CATEGORIES[profile].values() for label in group)
    return [
        Column("Avg.", derived="average", of=labels, exclude_chance_tasks=True),
        Column("Per.", derived="retained", of=labels),
        *(Column(label, derived="average", of=members) for label, members in LACO_CATEGORIES[profile].items()),
    ]


def tasks(profile: str, *, few: bool = False, hidden: bool = False) -> list[Column]:
    """Return the nine tasks. few: on the toy model only the four of FEW."""
    chosen = QUESTIONS
    if profile == "standin":  # a task of ours may change: its version is part of the benchmark's name
        toy_tasks = {label: (f"{task}@{TASKS_VERSION}", metric) for task, (label, metric) in TOY_TASKS.items()}
        chosen = {label: toy_tasks[label] for label in toy_tasks if not few or label in FEW}
    return [Column(label, *entry, scale=100, hidden=hidden) for label, entry in chosen.items()]


def ratio_and_mmlu(profile: str) -> list[Column]:
    """Return Ratio, the four categories of MMLU and their question-weighted mean."""
    return [RATIO, *mmlu(profile)]
