"""Decide when a training is to write a checkpoint by time, besides its numbers of steps: steps can take minutes each."""

import time

PATIENCE = 600.0  # seconds of work that an interruption may cost
SPARING = 20  # times as long as writing takes is what is trained between two of these checkpoints


class CheckpointClock:
    """Time since the last checkpoint.

    Attributes:
        saved: When the last checkpoint was complete, or the training began.
        pause: Seconds from then until the next one is due.
    """

    def __init__(self) -> None:
        self.saved, self.pause = time.monotonic(), PATIENCE

    def due(self) -> bool:
        """Return whether a checkpoint is due."""
        return time.monotonic() - self.saved >= self.pause

    def complete(self, begun: float) -> None:
        """Note that a checkpoint is complete whose writing began at ``begun`` (`time.monotonic`)."""
        self.saved = time.monotonic()
        self.pause = max(PATIENCE, SPARING * (self.saved - begun))
