"""Reassessing Layer Pruning in LLMs: seven metrics, four ways to fine-tune, and the recipe they lead to."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "papers.reassessing.iterative": ("prune_iteratively", "schedule"),
        "papers.reassessing.metrics": ("sample_line_crops", "scores", "select"),
        "papers.reassessing.last_layers": ("partial_finetune", "reverse_order"),
        "papers.reassessing.options": ("METRICS", "SEED"),
    },
)
