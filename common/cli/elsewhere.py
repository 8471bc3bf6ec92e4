"""List the layers for other programs, for those who want the selection alone."""

from collections.abc import Collection


def prune_layers(removed: Collection[int]) -> str:
    """Return what llama.cpp's ``llama-quantize --prune-layers`` takes: layers by number, from 0, separated by commas."""
    return ",".join(map(str, sorted(removed)))


def mergekit(model: str, layers: int, removed: Collection[int], dtype: str) -> str:
    """Return a mergekit configuration (YAML) that keeps the other layers of ``model`` by a passthrough merge."""
    gone = set(removed)
    lines, start = ["merge_method: passthrough", f"dtype: {dtype}", "slices:"], None
    for layer in range(layers + 1):
        if layer < layers and layer not in gone:
            start = layer if start is None else start
        elif start is not None:
            lines += ["- sources:", f"  - model: {model}", f"    layer_range: [{start}, {layer}]"]
            start = None
    return "\n".join(lines) + "\n"
