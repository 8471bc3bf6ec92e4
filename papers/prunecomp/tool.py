"""Prune&Comp as a tool: remove layers of a model and rescale the remaining weights."""

from contextlib import ExitStack
from functools import partial

from common.cli import Job, Method, measure
from common.hooks import scale_stream
from common.models import checkpoint
from common.pruning.pipeline import context_of
from common.utils.errors import UserError
from papers.prunecomp.factor import check_architecture
from papers.prunecomp.method import repeat
from papers.prunecomp.options import PruneCompOptions
from papers.prunecomp.search import Search
from papers.prunecomp.steps import COSTLY, PruneAndComp


def check(job: Job) -> None:
    """Refuse a number of layers that the metric's protections do not allow, and a model with patches; draw the sequences."""
    for count in job.counts:
        refuse(job, count)
    job.refuse_patches("prune and compensate the model that they were made for")
    if not job.options.no_compensation:
        check_architecture(job.config.model_type)
    if job.options.stream is not None and job.options.metric in ("taylor+", "ppl"):
        raise UserError(
            f"--metric {job.options.metric} needs the whole model in memory; leave --stream out, or choose another"
        )
    job.sequences  # noqa: B018 - read now


def refuse(job: Job, count: int) -> None:
    """Refuse a number of layers that the metric's protections do not allow."""
    Search(job.options.metric, job.options.fidelity).check(job.layers, count, job.named_layers)


def apply(job: Job) -> dict:
    """Remove layers and rescale; return the report of `prune_and_compensate`."""
    options = job.options
    report = _shorter(job) or _pruned(job)
    job.only_removed = options.no_compensation
    if report["cuts"]:
        job.notes.append("the embedding and the writers before each interface are multiplied by its factor")
        if job.decoder.tied:
            job.notes.append("the head stays tied to the embedding; the final norm takes the factors back out")
    if None in report["factors"]:
        job.notes.append(
            "where the last layer was removed, nothing is rescaled: only the final norm follows, which undoes a factor"
        )
    if not job.unrepaired and not options.no_evaluation:
        job.unrepaired = _without_factors(job, report)
    job.removed = report["removed"]
    return report


def _pruned(job: Job) -> dict:
    options = job.options
    step = PruneAndComp(options.metric, job.count, not options.one_shot, not options.no_compensation)
    context = context_of(job.model, job.tokenizer, job.sequences, fidelity=options.fidelity, **_kept(job, step))
    if job.named_layers is None:
        report = step.run_recipe(context, partial(measure.without_repair, job))
    else:
        report = step.search(context, layers=job.named_layers, chosen=partial(measure.without_repair, job))
    job.shared["report"] = report
    return report


def _kept(job: Job, step: PruneAndComp) -> dict:
    """Return where the loop keeps its steps, so that a stopped run of the same command finds what it had."""
    short = step.metric not in COSTLY or not step.iterative
    if short or job.options.plan or job.named_layers is not None or job.options.fidelity == "code":
        return {}
    return {"search_folder": job.folder("search"), "weights": checkpoint.digest(job.source)}


def _shorter(job: Job) -> dict | None:
    """In a sweep, the beginning of a longer removal that was found before: the searches are greedy."""
    before, options = job.shared.get("report"), job.options
    if before is None or len(before["removed"]) < job.count or options.metric == "cl" or options.fidelity == "code":
        return None
    removed, factors = before["removed"][: job.count], before["factors"][: job.count]
    measure.without_repair(job, removed)
    return repeat(job.model, removed, factors)


def _without_factors(job: Job, report: dict) -> dict:
    """Return no repair, where weights were scaled while layers were chosen: each factor taken back at its interface."""
    with ExitStack() as stack:
        for position, factor in report["cuts"]:
            stack.enter_context(scale_stream(job.model, position, 1 / factor))
        return measure.perplexity(job, job.model, "without a repair")


def _work(job: Job) -> float:
    """Return the tokens through the whole model: ppl tries every layer at each step, taylor+ also runs backwards."""
    options = job.options
    steps = 1 if options.one_shot else max(job.counts)
    passes = {"ppl": steps * job.layers / 2, "taylor+": 3 * steps}.get(options.metric, 1 + (steps - 1) / 2)
    return passes * options.samples * job.length


METHOD = Method(
    PruneCompOptions,
    apply,
    check,
    refuse=refuse,
    work=_work,
    # the layers behind a removed one run again: half of them on average
    passes=lambda job: 1 if job.options.one_shot else 1 + job.count / 2,
)
