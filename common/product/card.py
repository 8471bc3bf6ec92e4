"""The model card of a pruned checkpoint: what was done, with which numbers before and after, and how to load it."""

from __future__ import annotations

import json
import math
import shlex


def card(method, report: dict) -> str:
    """README.md of the saved directory, with the hub's front matter. Every number stands in the report."""
    layers, parameters = report["layers"], report["parameters"]
    removed = ", ".join(map(str, report["facts"].get("removed", []))) or "see pruning.json"
    share = 1 - parameters["after"] / parameters["before"]
    front = ["library_name: transformers", f"base_model: {json.dumps(report['model'])}"]
    front += ["tags:", "- layer-pruning", f"- {report['paper']}"]
    lines = [
        "---",
        *front,
        "---",
        "",
        f"# {report['model']}, {layers['before'] - layers['after']} of {layers['before']} layers removed",
        "",
        f"{method.title}: {method.description}",
        "",
        f"- Layers removed (0-based, in order of removal): {removed}",
        f"- Parameters: {parameters['before']:,} before, {parameters['after']:,} after ({share:.2%} fewer)",
        f"- Calibration text: {report['text']['calibration']}, test text: {report['text']['test']}, "
        f"windows of {report['text']['window']} tokens",
        *(f"- {note}" for note in report["notes"]),
        "",
        *_numbers(report["evaluation"]),
        "## Loading",
        "",
        *_loading(method),
        "",
        "## How it was made",
        "",
        "    " + _command(report),
        "",
        f"Facts, settings and versions: `pruning.json`. Code: commit {report['environment']['commit'] or 'unknown'}"
        f"{' with local changes' if report['environment']['dirty'] else ''}. The licence is the base model's.",
    ]
    return "\n".join(lines) + "\n"


def summary(report: dict) -> str:
    """The result in a few lines, for the terminal: sizes, numbers, and the card's notes."""
    layers, parameters = report["layers"], report["parameters"]
    lines = [
        f"{layers['before']} -> {layers['after']} layers, {parameters['before']:,} -> {parameters['after']:,} parameters"
    ]
    lines += [f"{label}: {before} -> {after}" for label, before, after in _rows(report["evaluation"])]
    return "\n".join([*lines, *report["notes"]])


def _rows(evaluation: dict) -> list[tuple[str, str, str]]:
    """(what, before, after), each with its standard error."""
    before, after = evaluation["before"], evaluation["after"]
    if not before:
        return []
    rows = [("perplexity", *(_value(side["perplexity"], side["perplexity_stderr"]) for side in (before, after)))]
    for task, scores in before.get("tasks", {}).items():
        for metric in ("acc", "acc_norm"):
            if scores.get(metric) is not None:
                sides = (scores, after["tasks"][task])
                shown = (_value(side[metric], side[f"{metric}_stderr"], 100) for side in sides)
                rows.append((f"{task}, {metric} (%)", *shown))
    return rows


def _value(value: float, stderr: float | None, scale: float = 1) -> str:
    shown = f"{value * scale:.2f}" if math.isfinite(value) else str(value)
    return shown if stderr is None else f"{shown} ± {stderr * scale:.2f}"


def _numbers(evaluation: dict) -> list[str]:
    rows = _rows(evaluation)
    if not rows:
        return ["Not evaluated.", ""]
    lines = ["| | before | after |", "| --- | ---: | ---: |"]
    lines += [f"| {label} | {before} | {after} |" for label, before, after in rows]
    note = "Perplexity is per token over disjoint windows, each read alone; ± is one standard error."
    return [*lines, "", note, ""]


def _loading(method) -> list[str]:
    plain = [
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("PATH")',
        'tokenizer = AutoTokenizer.from_pretrained("PATH")',
        "```",
    ]
    if not method.loader:
        return ["A plain Hugging Face checkpoint:", "", *plain]
    return [
        "The patches lie in `patches.safetensors`; this repository's loader puts them in place:",
        "",
        "```python",
        f"import {method.loader}  # registers the patch",
        "from common import checkpoint",
        "",
        'model, tokenizer = checkpoint.load("PATH")',
        "```",
        "",
        "Plain `AutoModelForCausalLM.from_pretrained` reads the pruned model **without** its patches.",
    ]


def _command(report: dict) -> str:
    """The command, with every option that was set."""
    parts = ["python", "-m", f"papers.{report['paper']}"]
    for name, value in report["options"].items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            parts.append(flag)
        elif value not in (None, False, ""):
            parts += [flag, str(value)]
    return shlex.join([*parts, "--out", "DIR"])
