"""Describe a tool's method: its checks, its work, and its cost."""

from collections.abc import Callable
from dataclasses import dataclass

from common.cli.options import ToolOptions

OWN_TEXT = "--text FILE (of which the last tenth is measured on, or --test FILE)"


@dataclass(frozen=True)
class Method:
    """One method as a tool.

    Attributes:
        options: Its command line.
        apply: Changes `job.model` in place and returns JSON-able facts, among them `removed` (original indices). It
            calls `measure.without_repair(job, removed)` while the model has all its layers.
        check: Refuses, before the weights are read, options that do not fit the job, and reads the data that the method
            needs.
        text: Calibration text of every model but the toy model.
        loader: Import that a saved model needs for its patches, else ''.
        passes: Number of passes of the calibration tokens through the model.
        beside: Float64 operations and bytes of memory besides those passes.
        own_text: How to give one's own text, for the message that a corpus is not available.
        architectures: Supported architectures, by the config's model_type; () for all.
        refuse: Raises UserError for a number of layers, given as the job and it, that the method cannot remove.
        work: Replaces `tokens`, if the work is not the passes over the calibration sequences and a training.
    """

    options: type[ToolOptions]
    apply: Callable[..., dict]
    check: Callable[..., None] = lambda job: None
    text: str = "wikitext2-train"
    loader: str = ""
    passes: Callable[..., float] = lambda job: 1.0
    beside: Callable[..., tuple[float, int]] = lambda job: (0.0, 0)
    own_text: str = OWN_TEXT
    architectures: tuple[str, ...] = ()
    refuse: Callable[..., None] = lambda job, count: None
    work: Callable[..., float] | None = None

    @property
    def package(self) -> str:
        """Return the tool's package."""
        return self.options.TOOL.rpartition(".")[0]

    @property
    def paper(self) -> str:
        """Return the last name of the tool's package."""
        return self.options.TOOL.rpartition(".")[2]

    @property
    def title(self) -> str:
        """Return the method's title."""
        return self.options.TITLE

    def tokens(self, job) -> float:
        """Return the number of tokens of calibration and training, each counted once per forward pass through all layers."""
        if self.work is not None:
            return self.work(job)
        return self.passes(job) * job.options.samples * job.length + job.shared.get("training_passes", 0)
