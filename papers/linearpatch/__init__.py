"""LinearPatch: a Hadamard-diagonal-Hadamard matrix at the pruning interface of a layer-pruned model."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "papers.linearpatch.method": ("prune", "select", "survey"),
        "papers.linearpatch.patch": (
            "LinearPatch",
            "channel_scales",
            "insert_patch",
            "named_statistics",
            "patch_interfaces",
            "patch_values",
        ),
        "papers.linearpatch.published": ("compare_block", "published_block"),
    },
)
