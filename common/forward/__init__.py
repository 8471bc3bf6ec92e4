"""Forward passes that begin where an earlier one left off: caches of hidden states, and losses without all logits."""
