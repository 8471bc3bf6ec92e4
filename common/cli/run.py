"""From the command line to a saved checkpoint: measure, prune, measure, write."""

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from common.cli import bounded, card, checks, forecast, measure, printable, push, read_back, sweep
from common.cli.command import failed
from common.cli.job import Job, resume_folder
from common.cli.method import Method
from common.cli.options import SWEEP, ToolOptions
from common.console.progress import clock, say
from common.models import checkpoint
from common.models.architectures import absent
from common.models.files import hub
from common.records import results
from common.utils import atomic_files
from common.utils.errors import NoData, UserError, first_of, is_full_disk, is_out_of_memory, one_line, quiet_logging
from common.utils.peak_memory import peak_memory_bytes

TERMS = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
PENDING = "this checkpoint was saved before its measurements, which did not finish"
MEMORY = "out of memory; use a larger --device, --dtype bfloat16 or fewer --samples"


def main(method: Method, options: ToolOptions) -> int:
    """Run a tool with its options; return the exit status."""
    with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
        report, status = _answered(method, options)
    try:
        if options.json and report is not None:
            out = None if options.out is None else str(options.out)
            whole = card.finite(report) | {"out": out, "status": status}
            print(json.dumps(whole, indent=1, allow_nan=False))
        sys.stdout.flush()
    except BrokenPipeError:  # all is done, and nobody reads what it says
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _answered(method: Method, options: ToolOptions) -> tuple[dict | None, int]:
    """Return the report, None where there is none, and the exit status."""
    earlier = _result_at(options.out)
    quiet_logging()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        report = prune(method, options)
    except NoData as error:
        return None, failed(
            f"{hub.cause(error)}. Use a text of yours with {method.own_text}, a mirror of the hub named in LAYERLAB_HUB, or "
            "a machine with network"
        )
    except UserError as error:
        return None, failed(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, failed(MEMORY)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return None, 0 if _is_complete(options, earlier) else 130
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError) and not is_full_disk(error):
            raise
        return None, failed(f"{error}; {_left_behind(options, earlier)}")
    except KeyboardInterrupt:
        print(f"interrupted; {_left_behind(options, earlier)}", file=sys.stderr)
        if (work := resume_folder(options.out)).is_dir():
            state = (
                "has the last checkpoint of the training or search: the same command continues from there"
                if _continues(work)
                else "has no checkpoint yet: the same command begins again, or delete the folder"
            )
            print(f"{work} {state}", file=sys.stderr)
        return None, 130
    if report.get("broken"):
        return report, 3
    if options.push_to_hub is None:
        return report, 0
    if options.plan:
        print(f"--push-to-hub would upload the result to {options.push_to_hub}, a private repository if it is new")
        return report, 0
    try:
        report["pushed_to"] = push.push(options.push_to_hub, options.out)
        print(f"pushed to {report['pushed_to']}")
    except UserError as error:
        failed(error)
        return report, 1
    return report, 0


def _result_at(out: Path | None) -> tuple | None:
    """Return what tells a finished result at ``out`` from another one; None where there is none."""
    with contextlib.suppress(OSError):
        status = (out / atomic_files.MARKER).stat() if out else None
        return status and (str(out), status.st_ino, status.st_mtime_ns)
    return None


def _continues(work: Path) -> bool:
    """Return whether a stopped training or search left more in its folder than it starts from."""
    begun = ("plan.json", "start-0")  # of `common.training.finetuning.state`
    return any(path.name not in begun for path in work.glob("*/*"))


def _is_complete(options: ToolOptions, earlier: tuple | None) -> bool:
    """Return whether this run has done all it was to do; ``earlier`` is `_result_at` from before the run."""
    if options.plan:
        return True
    if _result_at(options.out) in (None, earlier):
        return False
    try:
        report = json.loads((options.out / (SWEEP if options.sweep else card.REPORT)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not report.get("missing") and not report.get("unmeasured")


def _left_behind(options: ToolOptions, earlier: tuple | None) -> str:
    """Return what a run that ended early leaves at --out; ``earlier`` is `_result_at` from before the run."""
    result = _result_at(options.out)
    if result is None:
        return "nothing was saved"
    if result == earlier:
        return f"{options.out} is as it was"
    if options.sweep:
        command = "The same command without --force" if options.force else "The same command"
        return f"{options.out} has the numbers that were measured. {command} measures the others"
    return f"{options.out} holds the whole new checkpoint. Its card says what was not measured"


def prune(method: Method, options: ToolOptions) -> dict:
    """Prune and save; return the report that is saved beside the model.

    Raises:
        UserError: the request cannot be met; `--out` is unchanged then.
    """
    started = time.perf_counter()
    job = checks.checked(method, options)
    torch.set_flush_denormal(True)
    torch.manual_seed(options.seed)
    if note := job.read_over():
        say(f"warning: {note}")
    expected = _forecast(job)
    if options.plan and not options.measure and options.stream is None:
        print(card.forecast(job, expected))
        return {"forecast": expected and asdict(expected)}
    stages = forecast.Stages(expected)
    if options.max_perplexity_increase is not None:
        stages.begin("search", "searching for the number of layers")
        bounded.search(job)
    stages.begin("read", f"reading {options.model}")
    if options.sweep:
        return sweep.run(job, stages)
    dtype = checks.stored_dtype(job.source)
    job.load()
    checks.check_finite(job.model)
    if job.decoder.streamed:
        expected = forecast.streamed(job)
        say(expected.line())
        if options.plan and not options.measure:
            print(f"plan: {expected.line()}\nnothing was written; the layers are known after the calibration pass")
            return {"forecast": asdict(expected)}
    if dtype is not None and torch.finfo(dtype).bits > torch.finfo(job.model.dtype).bits:
        kind = str(job.model.dtype).removeprefix("torch.")
        job.notes.append(f"computed in {kind}: all weights were rounded to it, and stored as before")
    sizes = measure.sizes(job, dtype)
    if not options.no_evaluation:
        stages.begin("original", "measuring the original model")
    before = measure.original(job)
    aim = f"removing {job.count} of {job.layers} layers" if job.count else f"shortening {job.layers} layers"
    stages.begin("prune", f"{method.title}: {aim}")
    facts = method.apply(job)
    made_from = card.lineage(job.source)
    of_source = (card.already_pruned(made_from), card.tokenizer_note(job.tokenizer), checks.rounded(job.source, dtype))
    for note in (bounded.note(job), job.read_over(), job.shifted_attention(), *of_source):
        if note:
            job.notes.append(note)
    measure.round_to(job.model, dtype)
    bad = checks.not_finite(job.model)
    broken = f"it holds NaN or infinite weights in {first_of(bad, 3)}" if bad else ""
    evaluation = {"before": before, "cut": job.unrepaired, "after": {}, "against_cut": {}}
    evaluation |= {"times": {}, "changes": {}, "divergence": {}}
    report = _report(job, facts, dtype, evaluation)
    report |= {"made_from": made_from, "broken": broken, "seconds": round(time.perf_counter() - started, 1)}
    report["unmeasured"] = "" if options.no_evaluation else PENDING
    for key, value in measure.sizes(job, dtype).items():
        report[key] = {"before": sizes[key], "after": value}
    if report["bytes"]["after"] >= sizes["bytes"]:
        job.notes.append("the result is NOT smaller than the model it was made from")
    if not options.plan:
        stages.begin("save", f"saving to {options.out}, and reading it back in a new process")
        _save(job, report, dtype)
        _read_back(job, report)
    if not options.no_evaluation:
        stages.begin("result", "measuring the result" if options.plan else f"saved to {options.out}; measuring it")
        _measure(job, report, stages)
    report["seconds"] = round(time.perf_counter() - started, 1)
    if options.plan:
        print(plan(report, job))
        return report
    _complete(job, report)
    print(card.summary(report))
    print(f"saved to {options.out} (card: README.md, facts: {card.REPORT})")
    if report["broken"]:
        say(f"warning: {report['broken']}")
    return report


def _read_back(job: Job, report: dict) -> None:
    """Compare what was saved with the model in memory; a difference makes the result a broken one."""
    try:
        report["broken"] = report["broken"] or read_back.difference(job.model, job.options.out)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        job.notes.append("the saved checkpoint was not read back: there was no memory for it")


def _measure(job: Job, report: dict, stages: forecast.Stages) -> None:
    """Measure the result and the original; what is known stands in the card at once. No failure here loses the result."""
    evaluation = report["evaluation"]
    try:
        after = evaluation["after"] = measure.perplexity(job, job.model, "of the result")
        report["unmeasured"] = ""
        report["broken"] = measure.verdict(evaluation["before"], after) or report["broken"]
        against = evaluation["against_cut"] = measure.change_by_repair(job.unrepaired, after)
        if not report["broken"] and (note := measure.worse_than_no_repair(against)):
            job.notes.append(note)
        if not job.options.plan:
            _complete(job, report)
        if not job.decoder.streamed:  # a token that is generated reads the whole model
            stages.begin("compare", "comparing with the original model")
            _compare(job, evaluation)
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        reason = MEMORY if is_out_of_memory(error) else one_line(error)
        job.notes.append(f"not all was measured: {reason}")
        say(f"warning: {job.notes[-1]}")


def _compare(job: Job, evaluation: dict) -> None:
    """Read the original again; score tasks, texts and times of both. Without room for two models, one after the other."""
    model = job.model
    after, items = measure.answers(job, model, "the result")
    apart = checks.no_room_for_both(job)
    if apart:
        job.model = model = None
        job.__dict__.pop("decoder", None)
    original = job.read()
    before, own_items = measure.answers(job, original, "the original model")
    evaluation["before"] |= before
    evaluation["after"] |= after
    evaluation["changes"] = measure.changes(own_items, items)
    if apart:
        evaluation["times"] = evaluation["divergence"] = {"left_out": apart}
        return
    evaluation["divergence"] = measure.divergence(job, original, model)
    if job.options.quick:
        evaluation["times"] = {"left_out": "a quick run measures none"}
        return
    rate = evaluation["after"]["seconds"] / job.test_sequences.numel()
    evaluation["times"] = measure.times(job, {"before": original, "after": model}, rate)


def _forecast(job: Job) -> forecast.Forecast | None:
    """Return the forecast, said.

    None of a streamed model, whose forecast comes later, or where a layer cannot be tried.
    """
    if job.options.stream is not None:
        return None
    try:
        expected = forecast.forecast(job)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        say(f"no forecast of the time: {one_line(error)}")
        return None
    say(expected.line())
    return expected


def plan(report: dict, job: Job) -> str:
    """Return the plan of a run with these options, from the report of one that did everything but train and write."""
    removed = ", ".join(map(str, sorted(report["facts"]["removed"])))
    peak = peak_memory_bytes()
    lines = [
        f"plan: {card.command(report, printable.result_options(vars(job.options)))}",
        f"layers to remove: {removed}",
        card.summary(report),
    ]
    if peak:
        lines.append(f"memory: {peak / 1e9:.1f} GB at most so far")
    passes, before = job.shared.get("training_passes"), report["evaluation"]["before"]
    training = "; training and its effect come on top" if passes else ""
    if passes and before:
        seconds = passes * before["seconds"] / (before["windows"] * job.length)
        training = f", and about {clock(seconds)} of training, whose effect is not in these numbers"
    lines.append(f"time: {clock(report['seconds'])}, as much again for the run itself{training}")
    return "\n".join([*lines, "nothing was written"])


def _report(job: Job, facts: dict, dtype: torch.dtype | None, evaluation: dict) -> dict:
    options = job.options
    return {
        "package": job.method.package,
        "paper": job.method.paper,
        "model": printable.public(options.model),
        "source": card.source_facts(options.model, job.source),
        "options": printable.plain(vars(options)),
        "quick": options.quick,
        "layers": {"before": job.layers, "after": job.decoder.num_layers},
        "dtype": str(dtype or job.model.dtype).removeprefix("torch."),
        "computed_in": str(job.model.dtype).removeprefix("torch."),
        "text": {
            "calibration": printable.public(job.text),
            "test": printable.public(job.test),
            "held_out": ", ".join(map(printable.public, job.shared_texts)),
            "window": job.length,
        },
        "facts": facts,
        "bound": job.shared.get("bound"),
        "only_removed": job.only_removed,
        "evaluation": evaluation,
        "notes": job.notes,
        "environment": results.environment() | {"device": options.device, "written_at": results.now()},
    }


def _save(job: Job, report: dict, dtype: torch.dtype | None) -> None:
    """Save the model in `dtype`; afterwards it is in the dtype that it is computed in again, with the same numbers."""
    computed = job.model.dtype
    _cast(job.model, dtype)
    texts = _terms(job.source) | _texts(job, report)
    checkpoint.save(job.model, job.tokenizer, job.place(replace=job.options.force), texts, job.source)
    _cast(job.model, None if dtype is None else computed)
    job.clear()


def _cast(model: nn.Module, dtype: torch.dtype | None) -> None:
    for parameter in model.parameters():
        if dtype is not None and parameter.is_floating_point() and not absent(parameter):
            parameter.data = parameter.data.to(dtype)


def _complete(job: Job, report: dict) -> None:
    """Write card and facts again with all that is known by now, unless another run's result has come there meanwhile.

    A disk that is full or failing costs the card, which a warning says, and neither the checkpoint nor the numbers.
    """
    out = job.options.out.resolve()
    try:
        environment = json.loads((out / card.REPORT).read_text(encoding="utf-8"))["environment"]
    except (OSError, ValueError, LookupError):
        environment = None
    if environment != json.loads(json.dumps(report["environment"])):
        say(f"warning: {job.options.out} is not what was saved here any more; its card is left as it is")
        return
    try:
        atomic_files.rewrite(out, _texts(job, report))
    except OSError as error:
        say(
            f"warning: the checkpoint in {job.options.out} is whole, but its card could not be completed "
            f"({error.strerror or error}). Keep the numbers printed here, or run again with --force"
        )


def _texts(job: Job, report: dict) -> dict[str, str]:
    """Return the card and the facts."""
    content = json.dumps(card.finite(report), indent=1, allow_nan=False)
    texts = {"README.md": card.card(job.method, report), card.REPORT: content + "\n"}
    if report["only_removed"]:
        texts[card.MERGEKIT] = card.mergekit(report)
    return texts


def _terms(source: Path) -> dict[str, str]:
    """Return the texts under whose terms the weights are, by file name: they go with what is made of them."""
    files = [file for kind in TERMS for file in sorted(source.glob(kind)) if file.is_file()]
    return {file.name: file.read_text(encoding="utf-8", errors="replace") for file in files}
