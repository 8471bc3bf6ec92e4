"""LinearPatch as a tool: remove layers of a model and patch the pruning interface."""

import torch

from common.calibration.statistics import Statistics
from common.cli import Job, Method, measure
from common.hadamard import hadamard_transform
from common.pruning.pipeline import Context, context_of
from common.pruning.selection import runs
from common.utils.errors import UserError
from papers import linearpatch
from papers.linearpatch.options import LinearPatchOptions
from papers.linearpatch.steps import DistilledPatch, LinearPatchRepair

# What a kind of patch trains when it is distilled; one factor is not trained.
TRAINED = {"hadamard": "matrix", "matrix": "matrix", "diagonal": "plain-diagonal"}


def check(job: Job) -> None:
    """Refuse options that do not go together, and draw the sequences.

    Raises:
        UserError: a patch without such an estimator or training, a width without a Hadamard matrix, or a model with
            patches.
    """
    options = job.options
    job.refuse_patches("prune the model that they were made for, all layers at once")
    if options.patch == "matrix" and options.estimator not in (None, "least-squares"):
        raise UserError(
            f"--patch matrix cannot be computed by --estimator {options.estimator}; leave the estimator out"
        )
    if options.distill is not None and options.patch not in TRAINED:
        raise UserError(f"--distill does not train a patch of kind {options.patch}; use {', '.join(TRAINED)}")
    if options.stream is not None and options.distill is not None:
        raise UserError("--distill trains with the whole model in memory; leave --stream out")
    if options.patch == "hadamard":
        try:
            hadamard_transform(torch.zeros(1, job.config.hidden_size))
        except UserError as error:
            raise UserError(f"{error} (--patch diagonal)") from error
    job.sequences  # noqa: B018 - read now
    if options.distill is not None:  # passes over a token: teacher and student forward, student backward
        job.crops(options.distill)
        job.shared["training_passes"] = 4 * options.distill * job.length


def apply(job: Job) -> dict:
    """Select, remove and patch; return the layers, the patches' places and the training's report."""
    options = job.options
    removed, statistics = _surveyed(job)
    measure.without_repair(job, removed)
    context = context_of(job.model, job.tokenizer, fidelity=options.fidelity)
    context.details["removed"] = removed
    patch = _patch(job)
    if patch.acts_on != "ordinary" and patch.kind != "scalar" and _massive_at(job, removed):
        job.notes.append(
            "the first token's massive activation crosses the pruning interface and the patch changes it, too, which "
            "cost perplexity where it was measured: compare --acts-on ordinary"
        )
    if options.distill is None or options.plan:
        patch.patch(context, statistics)
    else:
        context.details |= _distilled(job, context, statistics, patch)
    count = len(context.details["patches"])
    place = "the layer that follows the interface" if count == 1 else "each layer that follows an interface"
    job.notes.append(f"{count} patch{'' if count == 1 else 'es'}, before {place}")
    return context.details


def _massive_at(job: Job, removed: list[int]) -> bool:
    """Return whether first tokens are massive at a pruning interface, as the dense model's evaluation saw.

    False where there was none.
    """
    norms = job.shared.get("norms")
    return norms is not None and any(norms.massive_at(start) for start, _ in runs(removed))


def _surveyed(job: Job) -> tuple[list[int], Statistics]:
    """Return the layers to remove and the statistics; the runs of a sweep share the longest one's, but for a matrix."""
    options = job.options
    choice = {"variant": options.variant, "fidelity": options.fidelity, "cosine": options.cosine}
    if "statistics" in job.shared and job.named_layers is None:
        statistics = job.shared["statistics"]
        return linearpatch.select(statistics, job.count, **choice), statistics
    patch = _patch(job)
    shared = bool(options.sweep) and patch.kind != "matrix" and job.named_layers is None
    choice |= {"kind": patch.kind, "estimator": patch.estimator, "layers": job.named_layers}
    choice |= {"others": job.counts if shared else (), "batch_size": job.batch_size, "progress": True}
    removed, statistics = linearpatch.survey(job.model, job.sequences, job.count, **choice)
    if shared:
        job.shared["statistics"] = statistics
    return removed, statistics


def _patch(job: Job) -> LinearPatchRepair:
    only = {"estimator": "least-squares"} if job.options.patch == "matrix" else {}
    return LinearPatchRepair(**job.given_options("estimator", "acts_on", kind="patch") | only)


def _distilled(job: Job, context: Context, statistics: Statistics, patch: LinearPatchRepair) -> dict:
    start = {"kind": patch.kind, "estimator": patch.estimator, "acts_on": patch.acts_on}
    step = DistilledPatch(trainable=TRAINED[patch.kind], **start)
    sequences = job.crops(job.options.distill)
    report = step.distill(context, statistics, sequences, folder=job.folder("distillation"))
    losses = report["losses"]
    if report["status"] == "diverged":
        job.notes.append(f"the training diverged ({report['reason']}); the last finite state is kept")
    elif losses:
        tenth = max(1, len(losses) // 10)
        first, last = (sum(part) / len(part) for part in (losses[:tenth], losses[-tenth:]))
        steps = f"{report['steps']:,} sequences, {report['seconds']:,.0f} s"
        job.notes.append(f"distilled on {steps}: loss {first:.4f} -> {last:.4f} (means of the first and last tenth)")
    return {"patches": report.pop("patches"), "training": report}


METHOD = Method(LinearPatchOptions, apply, check, loader="papers.linearpatch")
