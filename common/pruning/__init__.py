"""From a recipe to a pruned model: its typed steps, the pipeline that runs them, importance and selection."""
