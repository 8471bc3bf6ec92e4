"""Offline knowledge distillation of the patch (LinearPatch, section 3.4, Eq. 9), before the model's layers are removed.

    min over A of E_X KL(z(o_t^K), z(o_s^K))

o_t^K are the K largest logits of the original model per token, o_s^K the pruned and patched model's at the same
indices, z the softmax. Only the patch is trained; nothing keeps A symmetric. The paper (4.2): AdamW, rate 1e-4, one
epoch. The official scripts add: cosine to a twentieth of the rate, weight decay 1e-4, batch 1, no clipping.

Deviations from the official code: K = 100 as in Table 7 (the code keeps 50). Training the diagonal trains only d (the
code's diagonal mode trains a dense matrix that starts diagonal, here `matrix-from-diagonal`). `settings_of("code")`
reverts these two. The target "output" of the replaced layers, which the code lacks. Products with A in float32 (under
the code's autocast, float16).
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from common.calibration import Statistics
from common.models.decoder import Decoder
from common.models.surgery import replace_runs
from common.training.distillation import Distillation, train
from common.training.fitting import Fitting
from common.training.teacher_store import TeacherStore
from common.utils.errors import UserValueError, unknown
from papers.linearpatch.method import check_model
from papers.linearpatch.patch import LinearPatch, check_fit, make_patches

# Section 4.2: 5,000 sequences of 2048 tokens, one epoch.
SAMPLES, LENGTH = 5000, 2048
# What trains -> the kinds of patch it may start from, the usual one first.
TRAINABLE = {
    "matrix": ("hadamard", "matrix"),
    "diagonal": ("rotated",),
    "plain-diagonal": ("diagonal",),
    "matrix-from-diagonal": ("diagonal",),
}
TOP_K = {"paper": 100, "code": 50}


@dataclass(frozen=True)
class DistillationSettings:
    """Settings of a patch's distillation.

    Attributes:
        trainable: ``matrix``, all of A; ``diagonal``, d in A = H diag(d) H^T; ``plain-diagonal``, d in diag(d), the
            "+d" of Table 5; ``matrix-from-diagonal``, a dense matrix that starts as diag(d).
        target: ``logits``, KL divergence over `top_k` tokens; or ``output``, X^(l+n), with the mean squared error
            (Table 4).
        top_k: K, the number of the teacher's tokens per position.
        fitting: Settings of the optimizer.
    """

    trainable: str = "matrix"
    target: str = "logits"
    top_k: int = TOP_K["paper"]
    fitting: Fitting = Fitting()

    def __post_init__(self) -> None:
        if self.trainable not in TRAINABLE:
            raise unknown("trainable part of the patch", self.trainable, TRAINABLE)


def settings_of(fidelity: str = "paper", **changes) -> DistillationSettings:
    """Return the settings of the paper, or of the official code (K is 50; 'diagonal' trains a matrix from diag(d))."""
    if fidelity not in TOP_K:
        raise unknown("fidelity", fidelity, TOP_K)
    if fidelity == "code" and changes.get("trainable") == "diagonal":
        changes["trainable"] = "matrix-from-diagonal"
    return DistillationSettings(**{"top_k": TOP_K[fidelity]} | changes)


def distill(
    model: nn.Module,
    patches: Mapping[tuple[int, int], LinearPatch],
    sequences: Tensor,
    settings: DistillationSettings = DistillationSettings(),
    *,
    store: str | os.PathLike | None = None,
    folder: str | os.PathLike | None = None,
    start: Mapping | None = None,
    progress: bool = False,
) -> dict:
    """Train patches in place, towards the original `model` that still has all its layers (section 3.4, Eq. 9).

    Args:
        model: The original model.
        patches: Patch by the block ``[start, stop)`` that it replaces (`make_patches` makes them; `replace_runs` inserts
            them afterwards).
        sequences: Token ids [samples, tokens]; the paper's are `SAMPLES` x `LENGTH`.
        settings: Target, loss, trainable part and schedule.
        store: Folder for the teacher's logits, created or continued (`TeacherStore`); None computes them as needed.
        folder: Folder for checkpoints. An unfinished training with the same settings continues there, a finished one is
            loaded.
        start: JSON-able origin of the patches' initial values. With `acts_on`, it is part of a training's identity.
        progress: Show a progress bar.

    Returns:
        The report of `common.training.fitting.fit`, with target, loss, trainable part, its number of parameters, and
        the store's bytes per token. The status 'diverged' is a result: the patches are then the last whose loss was
        finite.

    Raises:
        UserError: a model of mixed dtypes, patches that do not fit it or the trainable part, or an error of store,
            checkpoint or target.
    """
    check_model(model)
    decoder = Decoder(model)
    for run, patch in patches.items():
        _prepare(decoder, run, patch, settings.trainable)
    teacher = None
    if store is not None:
        teacher = TeacherStore(store, decoder, sequences, settings.top_k)
        teacher.fill(progress)
    task = Distillation(decoder, patches, sequences, target=settings.target, k=settings.top_k, store=teacher)
    parameters = {f"{a}-{b}": patch.weight for (a, b), patch in patches.items()}
    spared = {f"{a}-{b}": patch.options["acts_on"] for (a, b), patch in patches.items() if "acts_on" in patch.options}
    identity = {"trainable": settings.trainable} | ({"acts_on": spared} if spared else {}) | dict(start or {})
    report = train(task, parameters, settings.fitting, identity=identity, folder=folder, progress=progress)
    for patch in patches.values():
        if patch.options["kind"] == "rotated":  # scales trained in the rotated basis become section 3.4's one dense A
            patch.weight = nn.Parameter(LinearPatch(patch.weight).weight, requires_grad=False)
            patch.options["kind"] = "hadamard"
    report["trainable"] = settings.trainable
    return report | ({"store_bytes_per_token": teacher.bytes_per_token()} if teacher else {})


def distill_interfaces(
    model: nn.Module,
    statistics: Statistics,
    removed: Collection[int],
    sequences: Tensor,
    settings: DistillationSettings = DistillationSettings(),
    *,
    kind: str | None = None,
    estimator: str = "ratio-of-means",
    acts_on: str = "all",
    **options,
) -> dict:
    """Distil the patches of every interface, then remove the layers and insert the patches, in place.

    Args:
        model: The original model; it is changed.
        statistics: Its statistics, for the initial patches.
        removed: Layers to remove.
        sequences: Token ids [samples, tokens] to train on.
        settings: Settings of the distillation.
        kind: Kind of the initial patches (`make_patches`); None: the usual one for the trainable part.
        estimator: Estimator of the initial patches.
        acts_on: Tokens that are patched, see `LinearPatch`.
        options: Further options of `distill`.

    Returns:
        The report of `distill`, with the runs and the patches' positions in the pruned model.
    """
    usual = {"kind": TRAINABLE[settings.trainable][0], "estimator": "ratio-of-means"}
    kind = kind or usual["kind"]
    start = {name: value for name, value in {"kind": kind, "estimator": estimator}.items() if value != usual[name]}
    patches = make_patches(statistics, removed, kind=kind, estimator=estimator, acts_on=acts_on)
    report = distill(model, patches, sequences, settings, start=start, **options)
    positions = replace_runs(model, patches, "linearpatch")
    return report | {"patches": [{"run": list(run), "position": p} for run, p in zip(patches, positions)]}


def _prepare(decoder: Decoder, run: tuple[int, int], patch: LinearPatch, part: str) -> None:
    """Check a patch, move it to where its interface is, and make its weight the very thing that trains."""
    kind = patch.options["kind"]
    check_fit(patch, decoder)
    if kind not in TRAINABLE[part]:
        startable = " or ".join(map(repr, TRAINABLE[part]))
        raise UserValueError(f"training {part!r} starts from a patch of kind {startable}, not {kind!r}")
    if part == "matrix-from-diagonal":
        patch.weight = nn.Parameter(patch.matrix(), requires_grad=False)
    if part in ("matrix", "matrix-from-diagonal"):
        patch.options["kind"] = "matrix"  # nothing keeps it symmetric
    patch.to(next(decoder.layers[run[1] - 1].parameters()).device)
