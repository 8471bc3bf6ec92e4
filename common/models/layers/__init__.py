"""Layers that differ from the config: without a sub-layer, or of another width."""
