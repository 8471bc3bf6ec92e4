"""Train the toy model from scratch: ``python -m common.toy.train --out runs/standin``.

Text -> byte-level BPE -> shuffled 256-token sequences -> AdamW with a warm-up, a flat stretch and a linear decay to zero.
Everything follows from the seed and the step number, so a run that is killed and started again with the same ``--out``
continues from its last checkpoint with the batches an uninterrupted run would have seen. ``--export`` copies the
finished weights (bfloat16 safetensors), tokenizer and log to ``common/toy/weights``.
"""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from common.console import command_line, startup
from common.console.command_line import option


@dataclass(frozen=True, kw_only=True)
class TrainingCommand:
    """The command line."""

    out: Path = option(help="write tokenizer, checkpoint and log of the run to this folder")
    export: bool = option(False, "only write the checkpoint to common/toy/weights")


@command_line.answering
def main(arguments: list[str] | None = None) -> int:
    """Run the command: train or resume, or export with ``--export``. Return the exit status."""
    options = command_line.parse(TrainingCommand, arguments, description=__doc__)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with startup.nothing_begun():  # torch and transformers, which --help does without
        from common.toy import training
    if options.export:
        training.export(options.out)
    else:
        training.train(training.Setting(), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
