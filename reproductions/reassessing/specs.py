"""Specify the rows of Reassessing's tables: the selection of layers and the fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from reproductions.spec.reported import row_name


@dataclass(frozen=True)
class Arm:
    """A way to fine-tune.

    kind: ``lora``, ``qlora``, ``full``, or ``partial``: the head and a number of layers, the `last` ones or, with
    `at_interface`, those after the first interface. faster: at ten times the learning rate. again: in another order of rows
    and with other adapters. extension: whether the paper does not have it in the table.
    """

    kind: str
    last: int = 0
    at_interface: bool = False
    faster: bool = False
    again: bool = False
    extension: bool = False

    def _name(self, place: str) -> str:
        if self.kind == "partial":
            layers = f" & {self.last} at the {place}" if self.at_interface else f" & last {self.last}" * bool(self.last)
            return f"+lm_head{layers}"
        return {"lora": "+LoRA", "qlora": "+QLoRA", "full": "+full fine-tuning"}[self.kind]

    @property
    def id(self) -> str:
        """Return the arm's part of a row's method, as the paper prints it; extensions follow a slash."""
        return self._name("cut") + "/faster" * self.faster + "/again" * self.again

    @property
    def label(self) -> str:
        """Return the label for people."""
        extensions = " at ten times the rate (extension)" * self.faster + " in another order (extension)" * self.again
        return self._name("interface") + " (extension)" * self.extension + extensions


@dataclass(frozen=True)
class ArmSpec:
    """A row: the metric that selects layers, and the way to fine-tune (None: none).

    samples: for calibration. share: of the instructions. schedule: iterative pruning, (layers per cycle, layers in
    total). one_shot: the row's name says that it is not iterative. plain_text: trains on text instead of instructions.
    quantized: to 4 bits afterwards.
    """

    metric: str
    arm: Arm | None = None
    samples: int | None = None
    share: float | None = None
    schedule: tuple[int, int] | None = None
    one_shot: bool = False
    plain_text: bool = False
    quantized: bool = False

    def _variant(self, arm: str, plain_text: str) -> str:
        parts = ["one-shot"] if self.one_shot else []
        parts += [f"1:{self.schedule[0]}:{self.schedule[1]}"] if self.schedule else []
        parts += [f"{self.samples} sample{'s' * (self.samples > 1)}"] if self.samples else []
        parts += [f"{self.share:.1f}"] if self.share else []
        parts += [plain_text] if self.plain_text else []
        return " ".join([*parts, *([arm] if arm else []), *(["+GPTQ"] if self.quantized else [])])

    @property
    def variant(self) -> str:
        """Return everything but the metric, as the paper prints it if it does."""
        return self._variant(self.arm.id if self.arm else "", "plain-text") or "untrained"

    @property
    def method(self) -> str:
        """Return the row's id: ``Taylor[1:1:8 +LoRA]``."""
        return row_name(self.metric, self.variant)

    @property
    def label(self) -> str:
        """Return the label for people."""
        variant = self._variant(self.arm.label if self.arm else "", "plain text (extension)")
        return row_name(self.metric, variant) if variant else f"{self.metric}, no fine-tuning (extension)"

    @property
    def extension(self) -> bool:
        """Return whether the row is an extension."""
        arm = self.arm
        by_arm = arm is not None and (arm.extension or arm.at_interface or arm.faster or arm.again)
        return by_arm or self.plain_text or self.variant == "untrained"

    def scaled(self, layers: int, of: int) -> ArmSpec:
        """Return the same specification with ``layers`` instead of ``of`` layers removed, also at the end of its schedule."""
        if self.schedule is None:
            return self
        step = self.schedule[0]
        return replace(self, schedule=(step if step == 1 else max(1, round(step * layers / of)), layers))


LORA, QLORA, FULL, HEAD = Arm("lora"), Arm("qlora"), Arm("full"), Arm("partial")
LAST1, LAST2, LAST3, LAST10 = (Arm("partial", last) for last in (1, 2, 3, 10))
AT_INTERFACE = Arm("partial", 3, at_interface=True, extension=True)


def faster(arm: Arm) -> Arm:
    """Return the arm at ten times the learning rate."""
    return replace(arm, faster=True)


def again(arm: Arm) -> Arm:
    """Return the arm in another order of rows."""
    return replace(arm, again=True)


def method(metric: str, arm: Arm | None = None, **options) -> str:
    """Return a row's id; ``options`` are fields of `ArmSpec`."""
    return ArmSpec(metric, arm, **options).method


def _spelled() -> Iterable[ArmSpec]:
    arms = (LORA, QLORA, FULL, HEAD, *(Arm("partial", last) for last in range(1, 11)))
    options = [{}, {"one_shot": True}, {"quantized": True}]
    options += [{"schedule": schedule} for schedule in ((1, 8), (4, 8), (1, 16), (8, 16))]
    options += [{"samples": samples} for samples in (1, 5, 10, 30, 50)]
    options += [{"share": tenths / 10} for tenths in range(2, 11, 2)]
    return (ArmSpec("", arm, **more) for arm in arms for more in options)


# A variant in papers/reassessing/reported -> what it stands for.
_PRINTED = {spec.variant: spec for spec in _spelled()} | {
    "": ArmSpec(""),
    "no fine-tuning": ArmSpec(""),
    "Alpaca-cleaned +lm_head & last 3": ArmSpec("", LAST3),
}


def of_printed(metric: str, variant: str) -> ArmSpec:
    """Return the specification of a printed row, from its metric and its variant in the CSV files."""
    return replace(_PRINTED[variant], metric=metric)
