"""LaCo: rear layers collapse into a prior one, as long as the model's outputs stay alike."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "papers.laco.algorithm": ("Attempt", "Collapse", "collapse", "collapse_to"),
        "papers.laco.merge": ("merge_layers",),
        "papers.laco.outputs": ("output_similarity",),
    },
)
