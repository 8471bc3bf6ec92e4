"""The refit as a tool: remove layers of a model and refit the matrices around the pruning interface."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from common.cli import Job, Method, measure
from common.console.progress import track
from common.evaluation.windowed_perplexity import summarise, token_nlls
from common.models.architectures import SUPPORTED
from common.pruning.pipeline import Context, context_of
from common.pruning.selection import runs
from common.pruning.steps import ContiguousBlock
from common.utils.errors import UserError
from extensions.refit import distill
from extensions.refit.cost import Cost
from extensions.refit.graft import Observed
from extensions.refit.least_residual import least_set, residual_errors, residual_errors_assuming_graft
from extensions.refit.method import LARGE
from extensions.refit.options import LEAST_RESIDUAL, RefitOptions
from extensions.refit.steps import Refit

HELD_OUT_OF = 8  # the league's share: 16 of 128 sequences
WORSE = 1.05  # times the perplexity at which a set chosen as if grafting had restored the massive activation is left
FEW = 16  # times as many tokens as the residual stream has channels: by what a repair leaves of these the layers are chosen
# Sets of layers: by least residual, also computed as if grafting restored the massive activation; the block whose ends
# are most similar.
PLAIN, ASSUMING_GRAFT, BLOCK = "least residual", "least residual with grafting", "contiguous block"
WIDE = 2048  # channels from which on a CPU takes hours for the sums of that


def check(job: Job) -> None:
    """Refuse impossible refits, choose how many sequences select the ridge, and draw the sequences.

    Raises:
        UserError: an unsupported architecture, patches, as many held-out sequences as there are sequences, or two ways to
            select the layers.
    """
    options = job.options
    if options.choose == LEAST_RESIDUAL and options.cosine is not None:
        raise UserError("--cosine has no effect with --choose least-residual. Remove --cosine, or use --choose cosine")
    if job.named_layers is not None and (options.choose or options.cosine):
        raise UserError("--layers selects the layers already. Remove --choose and --cosine")
    if options.held_out and options.ridge is not None:
        raise UserError("--held-out selects the ridge that --ridge sets. Remove one of the two")
    if options.choose in (LEAST_RESIDUAL, "best") and options.stream is not None:
        raise UserError(
            f"--choose {options.choose} reads the whole model for every batch. Remove --stream, or use --choose cosine"
        )
    if options.choose is None and job.named_layers is None:
        too_expensive = options.stream is not None or (options.device == "cpu" and job.config.hidden_size > WIDE)
        options.choose = "cosine" if too_expensive or options.cosine is not None else "best"
    if options.held_out is None:  # of wide models one H'H is all there is room for
        choose_ridge = options.ridge is None and job.config.intermediate_size < LARGE
        options.held_out = options.samples // HELD_OUT_OF if choose_ridge else 0
    job.refuse_patches("refit the model that they were made for")
    if (options.held_out or 0) >= options.samples:
        raise UserError(f"--held-out {options.held_out} leaves none of the {options.samples} samples; use fewer")
    if options.stream is not None and options.distill is not None:
        raise UserError(
            "--distill trains with the model in memory, and --stream reads it from disk. Leave one of them out"
        )
    job.held_out_count = options.held_out or (options.samples // HELD_OUT_OF if options.distill else 0)
    job.sequences  # noqa: B018 - read now


def apply(job: Job) -> dict:
    """Select, remove and refit; return the layers, and the residual error of each matrix."""
    if job.named_layers is not None:
        sets = {"given": job.named_layers}
    else:
        choose, sets = job.options.choose, {}
        if choose != "cosine":
            sets |= job.remembered("choices", "least residual", lambda: _least_residual_sets(job))
        if choose == "cosine" or (choose == "best" and len(job.sequences) > 1):
            block = ContiguousBlock(count=job.count, exclude_ends=True, **job.given_options("cosine"))
            sets[BLOCK] = list(block.choose(context_of(job.model, job.tokenizer, job.sequences)))
    removed, tried = _best(job, sets)
    measure.without_repair(job, removed)
    original = distill.sharing(job, removed) if job.options.distill and not job.options.plan else None
    # a distillation is judged by text that no refit has read
    sequences = job.sequences if original is None else job.sequences[: -job.held_out_count or None]
    context = _refitted(job, job.model, removed, sequences)
    if tried:
        context.details["tried"] = tried
    if "graft" in context.details:
        graft = context.details["graft"]
        job.notes.append(
            "no layer before the pruning interface can take over the neurons that write the massive activation"
            if graft is None
            else f"{len(graft['neurons'])} neurons of layer {graft['writer']}, which write the massive activation, were "
            f"grafted into layer {graft['host']}, in place of as many that it used least"
        )
    count = sum(matrix.get("ridge") != float("inf") for matrix in context.details["refitted"])
    left = len(context.details["refitted"]) - count
    stay = "stays as it is" if left == 1 else "stay as they are"
    spared = f". {left} more {stay}: on held-out text no ridge lowered the error" if left else ""
    were = "matrix was" if count == 1 else "matrices were"
    trained = "" if original is not None else " and nothing was trained"
    job.notes.append(f"{count} {were} refitted in closed form{spared}. Nothing was added{trained}")
    if original is not None:
        context.details["distilled"] = distill.distilled(job, original, removed)
    return context.details


def _refitted(job: Job, model: nn.Module, removed: list[int], sequences: Tensor) -> Context:
    """Return what becomes of a model without these layers, in place.

    Of fewer sequences than the job's, a like share is held out.
    """
    context = context_of(model, job.tokenizer, sequences)
    context.details["removed"] = removed
    carries = not job.options.no_graft and _writer(job) in removed
    options = job.given_options("following", "ridge")
    options["held_out"] = job.options.held_out * len(sequences) // len(job.sequences)
    Refit(**options, graft=carries or None).apply(context)
    return context


def _best(job: Job, sets: dict[str, list[int]]) -> tuple[list[int], list[dict]]:
    """Return the best of several sets of layers, and what each came to; nothing is tried if all are the same.

    Each set is refitted, and judged by its perplexity on held-out sequences. Copies are refitted without them, since what
    chooses a ridge is in the solution, too.

    The lowest perplexity decides. A set that differs because it assumes grafting is kept unless it is worse than the
    others by more than WORSE: where they are close by the calibration's own text, another text needs the first token's
    state more.
    """
    named: dict[tuple[int, ...], list[str]] = {}
    for name, removed in sets.items():
        named.setdefault(tuple(removed), []).append(name)
    if len(named) == 1:
        return list(next(iter(named))), []
    held_out_count = job.options.held_out or max(1, len(job.sequences) // HELD_OUT_OF)
    sequences, judges = job.sequences[:-held_out_count], job.sequences[-held_out_count:]
    tried, notes, perplexity_by_name = [], [], {}
    for layers, names in track(named.items(), "choices of layers", unit="choice", each=True):
        removed = list(layers)
        perplexity = job.remembered("choices", removed, partial(_held_out_perplexity, job, removed, sequences, judges))
        tried.append({"removed": removed, "perplexity": perplexity})
        notes.append(f"{perplexity:.4g} without {_shown(removed)} ({' and '.join(names)})")
        perplexity_by_name |= dict.fromkeys(names, perplexity)
    best = min(perplexity_by_name.keys() - {ASSUMING_GRAFT}, key=lambda name: (perplexity_by_name[name], name != PLAIN))
    if (
        sets.get(ASSUMING_GRAFT, sets[PLAIN]) != sets[PLAIN]
        and perplexity_by_name[ASSUMING_GRAFT] <= WORSE * perplexity_by_name[best]
    ):
        best = ASSUMING_GRAFT
    tolerated = (
        f", although not the lowest: with grafting up to {WORSE - 1:.0%} more is accepted here, because other texts need the "
        "grafted neurons more"
    )
    job.notes.append(
        f"perplexity on held-out calibration text, refitted: {', '.join(notes)}. The layers {_shown(sets[best])} were "
        f"removed{tolerated if perplexity_by_name[best] > min(perplexity_by_name.values()) else ''}"
    )
    return sets[best], tried


def _held_out_perplexity(job: Job, removed: list[int], sequences: Tensor, judges: Tensor) -> float:
    model = _refitted(job, distill.sharing(job, removed), removed, sequences).model
    return summarise(token_nlls(model, judges))["perplexity"]


def _shown(layers: Sequence[int]) -> str:
    return ", ".join(f"{a} to {b - 1}" if b > a + 1 else str(a) for a, b in runs(layers))


def _writer(job: Job) -> int | None:
    """Return the layer that writes the massive activation; the dense model's evaluation has seen it, if there was one."""
    if job.shared.get("norms") is None:
        job.shared["norms"] = Observed(job.decoder, job.sequences).norms
    return job.shared["norms"].writer


def _least_residual_sets(job: Job) -> dict[str, list[int]]:
    """Return the least-residual set, also computed as if grafting restored the massive activation.

    What grafting is worth to a refit is known by refitting alone: of few tokens the sums promise too much. Runs of
    a sweep share what they read.
    """
    if job.shared.get("residual_errors_up_to", 0) < job.count:
        job.shared["residual_errors_up_to"] = max(job.counts)
        few = job.sequences[: -(-FEW * job.decoder.hidden_size // job.length)]
        lengths, where = range(1, max(job.counts) + 1), {"batch_size": job.batch_size, "progress": True}
        errors = residual_errors(job.decoder, few, lengths, **where)
        writer = None if job.options.no_graft else Observed(job.decoder, few).graftable_writer
        assuming_graft = residual_errors_assuming_graft(job.decoder, few, lengths, writer, **where)
        job.shared["residual_errors"] = [errors, errors | assuming_graft]
    runs_by_set = [least_set(errors, job.count) for errors in job.shared["residual_errors"]]
    sets = [[layer for run in set_runs for layer in range(*run)] for set_runs in runs_by_set]
    return dict(zip((PLAIN, ASSUMING_GRAFT), sets[:1] if len(job.sequences) == 1 else sets, strict=False))


def _refits(job: Job) -> int:
    """Return how many refits the run makes at most: of each set of layers that is tried, and of the one that is taken."""
    tried = {LEAST_RESIDUAL: 2 - job.options.no_graft, "best": 3 - job.options.no_graft}.get(job.options.choose, 1)
    return tried + 1 if tried > 1 else 1


def _work(job: Job) -> float:
    """Return the tokens through the whole model, at most."""
    passes = (job.named_layers is None) + (job.options.choose == "best") + _refits(job) * Cost.of(job).passes
    return passes * job.options.samples * job.length + distill.cost(job)[0]


def _beside(job: Job) -> tuple[float, int]:
    """Return the float64 operations and the bytes of solving and of least-residual selection."""
    cost, count = Cost.of(job), max(job.counts)
    memory = max(cost.bytes, distill.cost(job)[1])
    if job.options.choose not in (LEAST_RESIDUAL, "best"):
        return cost.operations, memory
    tokens = min(FEW * job.config.hidden_size, job.options.samples * job.length)
    operations = job.config.hidden_size**2 * (2 * tokens + 2 * job.config.hidden_size)
    solved = 2 - job.options.no_graft  # without and with grafting
    return _refits(job) * cost.operations + solved * job.layers * (count + 1) * operations, memory


METHOD = Method(
    RefitOptions,
    apply,
    check,
    architectures=tuple(name for name, spec in SUPPORTED.items() if spec.matrices is not None),
    text="wikitext2-train+hellaswag-train",  # docs/accuracy.md, "What brings accuracy back"
    passes=lambda job: (job.named_layers is None) + Cost.of(job).passes,
    beside=_beside,
    work=_work,
)
