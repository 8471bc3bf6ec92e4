"""The embedded toy model: its corpus, tokenizer, training recipe, held-out tasks and weights.

The toy model is a small language model of the LLaMA architecture, trained from scratch by ``common.toy.train`` on the
docstrings of the pinned packages. It is no paper's model and is never shown as one.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
