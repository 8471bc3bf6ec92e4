"""LaCo as a tool: merge layers of a model into earlier ones."""

from dataclasses import asdict
from functools import partial

from common.cli import Job, Method, measure
from common.models import admission
from common.models.architectures import layer_list
from common.pruning.selection import runs
from common.utils.errors import UserError
from papers.laco import merge_layers
from papers.laco.algorithm import CollapseSettings, reachable
from papers.laco.merge import check_alike
from papers.laco.options import LacoOptions
from papers.laco.sentences import draw
from papers.laco.steps import LayerCollapse


def check(job: Job) -> None:
    """Refuse options that Algorithm 1 cannot run with, and draw the sentences.

    Raises:
        UserError: C below 2 or above the number of layers to remove plus 1; a number of layers that no merges add up
            to; layer 0 among the given layers, which has no layer before it; layers of several kinds or shapes that
            would be merged; too few sentences; or a model with patches.
    """
    options = job.options
    options.merge = options.merge or options.fidelity
    most = min(job.counts, default=job.layers - 1) + 1
    if options.combine is not None and not 2 <= options.combine <= most:
        raise UserError(f"--combine {options.combine}: use 2 to {most}, one more than --remove")
    if job.named_layers is not None and 0 in job.named_layers:
        raise UserError("--layers names layer 0, but LaCo merges layers into the one before: keep layer 0")
    _refuse_unlike(job)
    job.refuse_patches("no merged layer could keep them: collapse first and patch afterwards")
    if job.named_layers is None:
        for count in job.counts or [None]:
            refuse(job, count)
        job.shared["sentences"] = draw(job.documents(options.samples), options.samples, options.seed)


def _refuse_unlike(job: Job) -> None:
    """Refuse merges of layers of several kinds or shapes before any weight is read: a search tries all of them."""
    kinds = getattr(job.config, "layer_types", None) or [""] * job.layers
    given = [range(start - 1, stop) for start, stop in runs(sorted(job.named_layers or ()))]
    modules = layer_list(admission.built(job.config, job.source))
    for layers in given or [range(job.layers)]:
        linear = [layer for layer in layers if kinds[layer] == "linear_attention"]
        if 0 < len(linear) < len(layers):
            raise UserError(
                f"LaCo merges layers of one kind, and of these some have linear attention ({linear}), the others full "
                "attention. Name runs of one kind (--layers), each without its first layer, or use another method"
            )
        check_alike([modules[layer] for layer in layers])


def refuse(job: Job, count: int | None) -> None:
    """Refuse a number of layers that no merges add up to; with None, refuse merges that do not fit the model."""
    C, interval = combined(job, count), job.options.interval
    CollapseSettings(C=C, I=interval).within(job.layers)
    if count not in (None, *(removable := takes(C, interval, job.layers))):
        raise UserError(
            f"--remove {count}: merges of C = {C} layers at an interval of {interval} can take "
            f"{', '.join(map(str, removable))} of {job.layers}; choose one of these, or another --combine or --interval"
        )


def combined(job: Job, remove: int | None) -> int:
    """Return --combine, or the paper's C for a number of layers to remove.

    That is the largest of 2..6 whose merges add up (9 layers: 4, 10 layers: 6) and fit the model, or else any that
    fits; 4 with a given threshold.
    """
    if job.options.combine is not None or remove is None:
        return job.options.combine or 4
    fit = [C for C in range(6, 1, -1) if remove in takes(C, job.options.interval, job.layers)]
    return next((C for C in fit if remove % (C - 1) == 0), fit[0] if fit else 2)


def takes(C: int, interval: int, layers: int) -> list[int]:
    """Return the numbers of layers that merges of C layers can remove, ascending, whatever the model's weights."""
    return [layers - left for left in reversed(reachable(layers, C, interval)) if left < layers]


def apply(job: Job) -> dict:
    """Collapse the model to the requested number of layers.

    Returns:
        The facts for the report: those of the collapse, with every attempt, and the sentences.

    Raises:
        UserError: no merge is above ``--threshold``.
    """
    options = job.options
    if job.named_layers is not None:
        return _given(job)
    sentences = job.shared["sentences"]
    left = None if job.count is None else job.layers - job.count
    step = LayerCollapse(
        C=combined(job, job.count), I=options.interval, merge=options.merge, T=options.threshold, layers=left
    )
    collapsed = step.collapse(
        job.model,
        job.tokenizer,
        sentences,
        chosen=partial(measure.without_repair, job),
        progress=True,
        remembered=partial(job.remembered, "attempts"),
    )
    if not collapsed.removed:
        best = max((a.similarity for a in collapsed.trace if a.similarity is not None), default=None)
        reason = "none was a number" if best is None else f"the most similar was {best:.4f}"
        raise UserError(f"--threshold {options.threshold}: no merge is so similar ({reason}); lower it")
    job.notes.append(
        f"up to {step.C} layers at a time became one (C), merges {step.I} layers apart at least (I), where the outputs "
        f"stayed more alike than {collapsed.threshold:.4f}; merged as the {step.merge} does"
    )
    return asdict(collapsed) | {"sentences": sentences}


def _given(job: Job) -> dict:
    """Return the layers of one's own choice: each run of them is merged into the layer before it."""
    removed = sorted(job.named_layers)
    measure.without_repair(job, removed)
    for start, stop in reversed(runs(removed)):
        merge_layers(job.model, start - 1, stop - start, job.options.merge)
    job.notes.append(f"each run of these layers is merged into the one before it, as {job.options.merge}")
    return {"removed": removed}


def _work(job: Job) -> float:
    """Return the tokens through the whole model: one pass, and half a pass for each layer's attempt.

    That is for one threshold. A search for a number of layers tries many, and how many depends on the weights. It took 0.3 to
    1.3 times as many attempts per layer as layers were removed, of three pretrained models and the toy model.
    """
    if job.named_layers is not None:
        return 0.0
    tokens = sum(len(job.tokenizer(sentence)["input_ids"]) for sentence in job.shared["sentences"])
    return tokens * (1 + (job.count or 1) * job.layers / 2)


METHOD = Method(LacoOptions, apply, check, refuse=refuse, work=_work)
