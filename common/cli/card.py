"""The model card of a pruned checkpoint: the method, the numbers before and after, and how to load it."""

import json
import math
import re
import shlex
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub
import yaml
from huggingface_hub import EvalResult, ModelCardData

from common.cli import printable
from common.cli.measure import REPEATS, perplexity_text
from common.console.command_line import typed
from common.console.progress import clock
from common.console.text_tables import markdown
from common.models import loading
from common.pruning.selection import runs
from common.utils.errors import plural
from common.utils.signs import signed

if TYPE_CHECKING:
    from jinja2 import Template

REPORT = "pruning.json"  # the facts of a result, beside its weights
MERGEKIT = "mergekit.yaml"  # beside them, where layers were removed and nothing else
STAGE_NAMES = {
    "search": "searching for the number of layers",
    "read": "reading the model",
    "original": "measuring it",
    "prune": "choosing, removing and repairing",
    "sweep": "all numbers of layers",
    "save": "saving",
    "result": "measuring the result",
    "compare": "comparing both",
}
LAYOUT = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}  # of card.md.j2
STAGES = (("before", "original"), ("cut", "no repair"), ("after", "repaired"))


def card(method, report: dict) -> str:
    """Render README.md of the saved directory, with the hub's front matter.

    Every number comes from ``report``.
    """
    evaluation, removed = report["evaluation"], report["facts"].get("removed", [])
    pairs = zip(evaluation["before"].get("samples", []), evaluation["after"].get("samples", []))
    return _template().render(
        method=method,
        report=report,
        evaluation=evaluation,
        layers=report["layers"],
        text=report["text"],
        front=_front_matter(report),
        few=_quick_run_size(report),
        removed=removed,
        rows=_rows(evaluation),
        repeats=REPEATS,
        against=evaluation["against_cut"],
        times=evaluation.get("times", {}),
        divergence=evaluation.get("divergence", {}),
        samples=list(pairs),
        same_model=f"With `{MERGEKIT}`, mergekit makes these weights. `config.json` must come from here.",
        prune_layers=prune_layers(removed),
        mergekit=mergekit(report) if removed else "",
        command=command(report),
    )


@cache
def _template() -> "Template":
    """Return the card's template, compiled once: a run writes several cards."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not needed before there is a result

    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, **LAYOUT)
    environment.filters["one_line"] = lambda text: " ".join(text.split())
    environment.globals |= {
        "change": _change,
        "markdown": markdown,
        "plural": plural,
        "quoted": _quoted,
        "signed": signed,
    }
    return environment.get_template("card.md.j2")


def summary(report: dict) -> str:
    """Return the result in a few lines for the terminal: sizes, numbers, and the card's notes."""
    layers, parameters = report["layers"], report["parameters"]
    lines = [
        f"{layers['before']} -> {layers['after']} layers, {parameters['before']:,} -> {parameters['after']:,} parameters, "
        f"{report['bytes']['before'] / 1e6:,.1f} -> {report['bytes']['after'] / 1e6:,.1f} MB"
    ]
    if report["quick"]:
        lines.append(f"quick run: {_quick_run_size(report)}; the numbers are rough")
    for label, *cells in _rows(report["evaluation"]):
        stages = (f"{name} {cell}" for (_, name), cell in zip(STAGES, cells) if cell)
        lines.append(f"{label}: {', '.join(stages)}")
    if report["unmeasured"]:
        lines.append(f"not measured: {report['unmeasured']}")
    if removed := report["facts"].get("removed"):
        lines.append(f"the same layers removed, without repair, in llama.cpp: --prune-layers {prune_layers(removed)}")
    return "\n".join([*lines, *report["notes"], *([report["broken"]] if report["broken"] else [])])


def _quick_run_size(report: dict) -> str:
    """Return how little a quick run has read."""
    options, length = report["options"], report["text"]["window"]
    calibration = plural(options["samples"], "calibration sample")
    return f"{calibration} and {plural(options['test_samples'], 'test sequence')} of {length} tokens"


def source_facts(name: str, source: Path) -> dict:
    """Return the facts of the base model's card that the new card repeats: its licence, and its hub id if it has one."""
    facts = {}
    spec = loading.REGISTRY.get(name)
    hub_id = spec.hub_id if spec else name if name.count("/") == 1 and not Path(name).exists() else ""
    if spec and spec.wheels:
        hub_id, facts["license"] = spec.wheels.hub_id, spec.wheels.license
    if re.fullmatch(r"[\w.-]+/[\w.-]+", hub_id):
        facts["base_model"] = hub_id
    try:
        own = huggingface_hub.metadata_load(source / "README.md") or {}
    except (OSError, ValueError, yaml.YAMLError):
        return facts
    for key in ("license", "license_name", "license_link"):
        if isinstance(own.get(key), str):
            facts[key] = own[key]
    return facts


def lineage(source: Path) -> dict | None:
    """Return the report of the tool that made a model; None for a model that no tool of this project made."""
    try:
        report = json.loads((source / REPORT).read_text(encoding="utf-8"))
        return {
            "paper": report["paper"],
            "model": report["model"],
            "layers": report["layers"],
            "removed": report["facts"].get("removed"),
            "made_from": report.get("made_from"),
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # none there, or not ours
        return None


def tokenizer_note(tokenizer) -> str | None:
    """Return a note if AutoTokenizer's class splits text differently (`common.models.checkpoint`)."""
    if (name := getattr(tokenizer, "instead_of", None)) is None:
        return None
    return (
        f"AutoTokenizer gives a {name}, which splits text otherwise than tokenizer.json, by which all numbers here are: "
        "load it with PreTrainedTokenizerFast.from_pretrained"
    )


def already_pruned(origin: dict | None) -> str | None:
    """Return a note if the model is already pruned, from its `lineage`."""
    if origin is None:
        return None
    removed = ", ".join(map(str, origin["removed"] or ())) or "layers"
    return (
        f"the model it was made from had already lost {removed} of {origin['layers']['before']} layers of {origin['model']} "
        f"({origin['paper']}): 'original' here is that model"
    )


def _front_matter(report: dict) -> str:
    """Return the YAML that the hub reads."""
    about = {"tags": ["layer-pruning", report["paper"], *(["broken"] if report["broken"] else [])]}
    if results := _results(report):
        about["model_name"] = f"{report['model']}-{report['paper']}-{report['layers']['after']}-layers"
        about["eval_results"] = results
    card = ModelCardData(library_name="transformers", pipeline_tag="text-generation", **report["source"], **about)
    return card.to_yaml()


def _results(report: dict) -> list[EvalResult]:
    """Return the finished model's scores, numbers alone."""
    after = report["evaluation"]["after"]
    if not after:
        return []
    about = f"perplexity per token, sequences of {report['text']['window']} tokens"
    rows = [(report["text"]["test"], "perplexity", about, after["perplexity"])]
    for task, scores in after.get("tasks", {}).items():
        rows += [(task, metric, f"{metric}, zero-shot", scores[metric]) for metric in _metrics(scores)]
    return [
        EvalResult("text-generation", data, data, kind, float(f"{value:.6g}"), metric_name=name)
        for data, kind, name, value in rows
        if math.isfinite(value)
    ]


def _metrics(scores: dict) -> list[str]:
    return [name for name in scores if name != "n" and not name.endswith("_stderr")]


def _rows(evaluation: dict) -> list[tuple[str, str, str, str]]:
    """Return (what, dense, of no repair, repaired), each with its standard error; '' for what was not measured."""
    sides = [evaluation[stage] for stage, _ in STAGES]
    before, _, after = sides
    if not before or not after:
        return []
    rows = [("perplexity", *(_value(side, "perplexity") for side in sides))]
    for task, scores in after.get("tasks", {}).items():
        for metric in _metrics(scores):
            original, repaired = (_value(side.get("tasks", {}).get(task, {}), metric, 100) for side in (before, after))
            rows.append((f"{task}, {metric} (%)", original, "", repaired))
    return rows + _compared(evaluation) + _times(evaluation.get("times", {}))


def _compared(evaluation: dict) -> list[tuple[str, str, str, str]]:
    """Return the rows of how far the model is from the original: its probabilities, its answers."""
    divergence = evaluation.get("divergence", {})
    rows = []
    if "kl" in divergence:
        error = f" ± {divergence['kl_stderr']:.4f}" if divergence["kl_stderr"] is not None else ""
        rows.append(("KL divergence from the original (nats per token)", "", "", f"{divergence['kl']:.4f}{error}"))
    for task, changes in evaluation.get("changes", {}).items():
        if task not in evaluation["after"].get("tasks", {}):  # a subject of a group, in the report alone
            continue
        rows.append((f"{task}, flips (%)", "", "", f"{100 * changes['flips']:.1f}"))
        change, low, high = (signed(100 * changes[key], "+.1f") for key in ("change", "low", "high"))
        rows.append((f"{task}, change in {changes['metric']} (points)", "", "", f"{change} [{low}, {high}]"))
    return rows


def _times(times: dict) -> list[tuple[str, str, str, str]]:
    """Return the rows of what was timed, with the median and, in brackets, the range; and of memory."""
    rows = []
    for size, sides in times.get("batches", {}).items():
        if "left_out" in sides:
            continue
        for key, label in (("first_ms", "time to first token"), ("token_ms", "time per further token")):
            before, after = ("{:,.1f} [{:,.1f}, {:,.1f}]".format(*sides[side][key]) for side in ("before", "after"))
            rows.append((f"{label}, batch {size} (ms)", before, "", after))
        before, after = (f"{sides[side]['bytes'] / 1e6:,.1f}" for side in ("before", "after"))
        rows.append((f"memory of weights and cache, batch {size} (MB)", before, "", after))
    return rows


def _value(side: dict, key: str, scale: float = 1) -> str:
    if key not in side:
        return ""
    value, stderr = side[key] * scale, side.get(f"{key}_stderr")
    small = stderr is not None and math.isfinite(stderr) and abs(value) < 1e5
    return f"{perplexity_text(value)} ± {stderr * scale:.2f}" if small else perplexity_text(value)


def prune_layers(removed: Collection[int]) -> str:
    """Return the argument of llama.cpp's ``llama-quantize --prune-layers``: layers from 0, separated by commas."""
    return ",".join(map(str, sorted(removed)))


def mergekit(report: dict) -> str:
    """Return the mergekit configuration (YAML) that makes the same weights from the original, by a passthrough merge.

    mergekit writes the new number of layers into the config, and leaves lists with one entry per layer as they were.
    """
    model = report["source"].get("base_model", report["model"])
    lines = ["merge_method: passthrough", f"dtype: {report['dtype']}", "slices:"]
    for start, stop in runs(set(range(report["layers"]["before"])).difference(report["facts"]["removed"])):
        lines += ["- sources:", f"  - model: {model}", f"    layer_range: [{start}, {stop}]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text as one line of Markdown code."""
    line = " ".join(text.split()).replace("`", "'")
    line = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return f"`{line}`" if line else "(nothing)"


def _change(pair: dict, unit: str = "", size: float = 1) -> str:
    before, after = pair["before"], pair["after"]
    sizes = [f"{value:,}" if size == 1 else f"{value / size:,.1f}{unit}" for value in (before, after)]
    share = 1 - after / before
    return f"{sizes[0]} before, {sizes[1]} after ({abs(share):.2%} {'less' if share >= 0 else 'MORE'})"


def command(report: dict, options: dict | None = None) -> str:
    """Return the command with every option that was set.

    ``options`` are the options as typed, for the terminal. None: the report's, whose paths are shortened to their last
    part.
    """
    tool, values = f"{report['package']}.{report['paper']}", dict(options or report["options"])
    for name in ("target_ratio", "max_perplexity_increase"):
        if values.get(name) is not None:  # 100 % and more is only read with the sign
            values[name] = f"{100 * values[name]:.12g}%"
    return shlex.join(["python", "-m", tool, *typed(values), "--out", "DIR"])


def finite(report: dict) -> dict:
    """Return a report as JSON can hold it: numbers that are not finite become null."""
    return json.loads(json.dumps(report), parse_constant=lambda word: None)


def forecast(job, expected) -> str:
    """Return the lines of --plan; ``expected`` is the forecast, None if there is none."""
    options = job.options
    report = {"package": job.method.package, "paper": job.method.paper}
    lines = [f"plan: {command(report, printable.result_options(vars(options)))}"]
    if expected is not None:
        stages = {STAGE_NAMES[name]: seconds for name, seconds in expected.parts}
        whole = {"starting": expected.seconds - sum(stages.values())} | stages
        whole = {name: round(seconds) for name, seconds in whole.items()}  # what is shown adds up
        parts = ", ".join(f"{name} {clock(seconds)}" for name, seconds in whole.items())
        lines.append(f"time: about {clock(sum(whole.values()))} ({parts})")
        if options.tasks:
            lines.append(f"  the tasks {options.tasks} come on top")
        lines.append(f"memory: about {expected.peak_bytes / 1e9:.2f} GB at most")
        lines.append(f"disk: {expected.disk} for the checkpoint")
    return "\n".join([*lines, "nothing was written; --plan --measure names the layers and measures the effect"])
