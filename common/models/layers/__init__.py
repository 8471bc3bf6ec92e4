"""Layers that are not built as the config says: without a sublayer, or of a width of their own."""
