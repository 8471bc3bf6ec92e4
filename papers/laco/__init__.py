"""LaCo: rear layers collapse into a prior one, as long as the model's outputs stay alike."""

from papers.laco.collapse import Attempt, Collapse, collapse, collapse_to
from papers.laco.merge import merge_layers
from papers.laco.outputs import output_similarity

__all__ = ["Attempt", "Collapse", "collapse", "collapse_to", "merge_layers", "output_similarity"]
