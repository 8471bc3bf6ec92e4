"""The command line of the tool of Reassessing layer pruning."""

from dataclasses import dataclass
from typing import Any, ClassVar

from common.cli.options import CALIBRATION, MOST, REMOVE, REPAIR, PaperOptions, needs_whole_model
from common.console.command_line import option

# Metric -> the sampler of the calibration tokens that it reads; None: it looks at the weights or at the order alone.
METRICS = dict.fromkeys(("random", "reverse-order", "magnitude-l1", "magnitude-l2"))
METRICS |= {"taylor": "line-crops", "ppl": "windows", "bi": "line-crops"}
SAMPLES, LENGTH, SEED = 10, 128, 42  # appendix D and official code: crops, tokens of each


@dataclass(kw_only=True)
class ReassessingOptions(PaperOptions):
    """Remove the last layers, and fine-tune the head, the final norm and the layers that are then last.

    An interrupted training continues with the same command.
    """

    TOOL: ClassVar[str] = "papers.reassessing"
    TITLE: ClassVar[str] = "Reassessing layer pruning"
    OWN_QUICK: ClassVar[dict[str, Any]] = {"rows": 64}
    STREAMS: ClassVar[bool] = False

    stream: float | None = needs_whole_model()
    samples: int = option(SAMPLES, "calibration sequences", group=CALIBRATION, least=1, most=MOST)
    seed: int = option(SEED, "seed of all random choices", group=CALIBRATION, least=0, most=2**32 - 1)
    metric: str = option(
        "reverse-order",
        "choose the layers (taylor and bi read lines, ppl reads sequences)",
        group=REMOVE,
        choices=tuple(METRICS),
    )
    finetune: str = option(
        "partial",
        "train head, final norm and last layers (partial), adapters, everything, or nothing",
        group=REPAIR,
        choices=("partial", "lora", "qlora", "full", "none"),
    )
    last: int = option(3, "layers that partial trains", group=REPAIR, least=0)
    train_at_interface: bool = option(
        False,
        "partial trains the layers behind the first pruning interface, not the last ones",
        group=REPAIR,
        old=("train-at",),
    )
    data: str | None = option(
        None,
        "train on alpaca-cleaned, standin, or a JSON-lines file with columns instruction, input, output, of which a tenth, "
        "2,000 at most, is kept for validation",
        group=REPAIR,
        metavar="DATA",
        usual="by model",
    )
    rows: int | None = option(None, "train on the first N examples only", group=REPAIR, least=1)
    epochs: float = option(2, "passes over the examples", group=REPAIR, least=1e-9, most=1000)
    batch: int | None = option(
        None, "examples in an optimiser step", group=REPAIR, least=1, most=65_536, usual="64; toy model: 8"
    )
    learning_rate: float | None = option(
        None, "highest learning rate", group=REPAIR, least=1e-12, most=1, usual="1e-5; toy model: 1e-4"
    )
    untie_head: bool = option(False, "train a copy of the tied head, by which the model grows", group=REPAIR)


OPTIONS = ReassessingOptions
