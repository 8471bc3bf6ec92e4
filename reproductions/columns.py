"""Columns that several papers' tables share: the Ratio, nine tasks, MMLU by category, LaCo's suite."""

from __future__ import annotations

from common import suites
from common.standin.tasks import VERSION as TASKS_VERSION
from reproductions.registry import Column

RATIO = Column("Ratio", "parameters", "ratio", scale=100, compare="exact", weight_free=True)
# The stand-in's tasks where questions are not what a table is about.
FEW = ("Continue", "ParName", "ParType", "Section")
# Labels are those of the papers' tables; (label, key) or (label, benchmark, key).
_MMLU = {
    "paper": ("mmlu@hendrycks", {"STEM": "stem", "Humanities": "humanities", "Social": "social", "Other": "other"}),
    "standin": (
        "mmlu@standin-options-1",
        {"StdLib": "standard_library", "Numeric": "numerical", "Learning": "learning", "Tools": "tools"},
    ),
}
_LACO = {
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
_STANDIN_LACO = {
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


def mmlu(profile: str) -> list[Column]:
    """The categories and 'Weighted AVG' (by questions) of LinearPatch's and Prune&Comp's MMLU tables."""
    benchmark, keys = _MMLU[profile]
    return [Column(label, benchmark, key, scale=100) for label, key in {**keys, "Weighted AVG": "weighted"}.items()]


def laco(profile: str, hidden: bool = False) -> list[Column]:
    """LaCo's scores in the order of its Table 1; on the stand-in its nine tasks, the examination and two generated ones.

    hidden: measured, for the averages of `laco_averages`, but not shown.
    """
    if profile == "paper":
        return [Column(label, task, "score", scale=100, hidden=hidden) for label, task in _LACO.items()]
    entries = {label: (f"{task}@{TASKS_VERSION}", key) for label, (task, key) in _STANDIN_LACO.items()}
    entries["Exam"] = ("mmlu@standin-options-1", "weighted")
    entries["Lines_G"] = ("docstring_generation@1", "exact_match")
    entries["Sum_G"] = ("docstring_generation@1", "rouge_1")
    order = [label for labels in LACO_CATEGORIES[profile].values() for label in labels]
    return [Column(label, *entries[label], scale=100, hidden=hidden) for label in order]


def laco_averages(profile: str) -> list[Column]:
    """Avg., Per. and the five categories of LaCo's Table 2, from the columns of `laco`, which a table needs as well."""
    labels = tuple(label for group in LACO_CATEGORIES[profile].values() for label in group)
    averages = [Column("Avg.", derived="average", of=labels), Column("Per.", derived="retained", of=labels)]
    return averages + [
        Column(label, derived="average", of=members) for label, members in LACO_CATEGORIES[profile].items()
    ]


def tasks(profile: str, *, few: bool = False, hidden: bool = False) -> list[Column]:
    """The nine tasks. few: on the stand-in only the four FEW."""
    suite = suites.get("standin-qa" if profile == "standin" else "linearpatch-qa")
    # A stand-in task is ours and may change: its version is part of the benchmark's name.
    version = f"@{TASKS_VERSION}" if profile == "standin" else ""
    chosen = [task for task in suite.columns if not (few and profile == "standin") or task.label in FEW]
    return [Column(task.label, task.task + version, task.metric, scale=100, hidden=hidden) for task in chosen]


def ratio_and_mmlu(profile: str) -> list[Column]:
    """Ratio, the four categories of MMLU and their question-weighted mean."""
    return [RATIO, *mmlu(profile)]
