"""Describe a tool's method: its checks, its work, and its cost."""

from collections.abc import Callable
from dataclasses import dataclass

from common.cli.options import ToolOptions

OWN_TEXT = "--text FILE (of which the last tenth is measured on, or --test FILE)"


@dataclass(frozen=True)
class Method:
    """One method as a tool.

    Attributes:
        options: its command line.
        apply: changes `job.model` in place and returns JSON-able facts, among them `removed` (original indices). It calls
            `job.chosen(removed)` while the model is still whole.
        check: refuses, before the weights are read, what does not fit the job, and reads what the method needs.
        text: the calibration text of every model but the toy model.
        loader: the import without which a saved model is not whole (patches), else ''.
        passes: how often the calibration tokens run through the model.
        beside: the float64 operations and the bytes of memory that it takes beside those passes.
        own_text: how text of one's own is given, said where a corpus cannot be had.
        architectures: those it can prune, by the config's model_type; (): all that are supported.
        refuse: raises UserError for a number of layers, given as the job and it, that the method cannot remove.
        work: what `tokens` returns, where that is not the passes over the calibration sequences and a training.
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

    @property
    def description(self) -> str:
        """Return the help text of the tool."""
        return " ".join(self.options.__doc__.split())

    def tokens(self, job) -> float:
        """Return the tokens that a run calibrates and trains on, each once through the whole model forward."""
        if self.work is not None:
            return self.work(job)
        return self.passes(job) * job.options.samples * job.length + job.kept.get("training_passes", 0)
