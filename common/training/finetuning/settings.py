"""Specify a fine-tuning: one frozen, JSON-able value with the paper's numbers as defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.utils.errors import UserValueError, unknown

METHODS = ("lora", "qlora", "partial", "full")
AT_INTERFACE = "cut"  # the word in recipes
CHOICES = {
    "method": METHODS,
    "schedule": ("linear", "cosine", "constant_with_warmup", "constant"),
    "optimizer": ("adamw", "paged-adamw-8bit"),
    "autocast": ("float16", "bfloat16", "float32"),
    "compute": ("float16", "bfloat16", "float32"),
    "keep": ("best", "last"),
    "store": ("auto", "off"),
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Settings:
    """Settings of one fine-tuning; the defaults are Reassessing's (section 3.3 and official code).

    Attributes:
        method: See `common.training.finetuning.methods`.
        last: Number of layers that `partial` trains besides head and final norm.
        first: First of these, in the pruned model; None: they are its last ones; AT_INTERFACE: those after the first
            interface (see `at`).
        rank, alpha, dropout, targets: LoRA's and QLoRA's; the targets are the linear layers that they adapt.
        max_steps: Number of optimizer steps, instead of epochs.
        batch: Rows per optimizer step; the loss is the mean over the step's predicted tokens (the official code's
            Trainer averaged the micro-batches' means).
        warmup_steps: Steps of linear warm-up.
        clip: Largest norm of gradients.
        optimizer: None: AdamW, for QLoRA the paged 8-bit AdamW (which on a CPU is not paged).
        autocast: Precision of matrix products on a GPU, None for none. A CPU always computes in float32 (QLoRA's 4-bit
            products: see ``compute``). Under autocast frozen weights stay in the precision they were loaded in (the
            official code loads float32).
        compute: Precision of QLoRA's products.
        checkpointing: Recompute activations in the backward pass (None: for QLoRA on a GPU, and above 3 B parameters,
            where ``micro_batch`` is then 1: `common.training.finetuning.memory`).
        evaluate_every: Optimizer steps between validations; the last step is always validated.
        save_every: Optimizer steps between checkpoints; long steps have more of them, which ``keep`` does not consider.
        keep: 'best' keeps the state with the lowest validation loss among those at multiples of ``save_every`` and the
            last, 'last' the last; None: 'best', for QLoRA 'last'.
        store: 'auto' keeps the outputs of the layers that `partial` leaves frozen in memory, between epochs, if they
            fit; 'off' computes them again.
        seed: Seed of the order of rows and of initial adapters.
        untie: `partial` gives a tied head a separate copy of the embedding and trains it. False: such a head stays tied
            and frozen, and the model does not grow.
    """

    method: str = "lora"
    last: int = 3
    first: str | int | None = None
    rank: int = 8
    alpha: int = 16
    dropout: float = 0.05
    targets: tuple[str, ...] = PROJECTIONS
    epochs: float = 2
    max_steps: int | None = None
    batch: int = 64
    micro_batch: int = 4
    learning_rate: float = 1e-5
    warmup_steps: int = 100
    schedule: str = "linear"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 1.0
    optimizer: str | None = None
    autocast: str | None = "float16"
    compute: str = "bfloat16"
    checkpointing: bool | None = None
    evaluate_every: int = 100
    save_every: int = 200
    keep: str | None = None
    store: str = "auto"
    seed: int = 42
    untie: bool = True

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices and (value is not None or name not in ("optimizer", "autocast", "keep")):
                raise unknown(f"fine-tuning {name}", value, choices)
        for name in ("epochs", "batch", "micro_batch", "rank", "learning_rate", "evaluate_every", "save_every"):
            if not getattr(self, name) > 0:
                raise UserValueError(f"fine-tuning with {name} {getattr(self, name)}: it must be above 0")
        if self.batch % self.micro_batch:
            raise UserValueError(
                f"a batch of {self.batch} rows cannot be made of micro-batches of {self.micro_batch}; use a divisor"
            )
        for name in ("targets", "betas"):  # JSON knows no tuples
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def of(cls, mapping: Mapping) -> Settings:
        """Return settings from a mapping, such as a recipe's.

        Raises:
            UserError: an unknown name, or an impossible value.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        for name in mapping:
            if name not in names:
                raise unknown("fine-tuning setting", name, names)
        return cls(**mapping)

    def at(self, removed: Sequence[int]) -> Settings:
        """Return these settings with `first` as a layer's number, for a model that has lost the layers ``removed``."""
        # no layer before the first removed one is missing: the next that is left has its number
        return dataclasses.replace(self, first=min(removed)) if self.first == AT_INTERFACE and removed else self

    @property
    def quantised(self) -> bool:
        """Return whether the base weights are in 4 bits."""
        return self.method == "qlora"

    @property
    def optimizer_used(self) -> str:
        """The named optimizer, or the method's default."""
        return self.optimizer or ("paged-adamw-8bit" if self.quantised else "adamw")

    @property
    def keeps_best(self) -> bool:
        """Return whether the weights of the best validation are kept."""
        return (self.keep or ("last" if self.quantised else "best")) == "best"
