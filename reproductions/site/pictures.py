"""Small pictures drawn as SVG in the page: they take the page's colours, and every one says in words what it shows."""

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

CELL, GAP, HEIGHT = 16, 3, 26


def strip(layers: int, removed: Sequence[int], interfaces: Sequence[int] = ()) -> Markup:
    """Draw a model's layers in a row, with the removed ones hatched and crossed out.

    A triangle marks each layer after a repaired interface.
    """
    removed_layers = set(removed)
    words = f"{len(removed_layers)} of {layers} layers removed: {', '.join(map(str, sorted(removed_layers))) or 'none'}"
    step = CELL + GAP
    parts = []
    for layer in range(layers):
        x = layer * step
        kind = "gone" if layer in removed_layers else "kept"
        parts.append(f'<rect class="{kind}" x="{x}" y="4" width="{CELL}" height="{HEIGHT}" rx="2"/>')
        if layer in removed_layers:
            parts.append(f'<path class="cross" d="M{x + 4} 11l8 12m0 -12l-8 12"/>')
        if layer in interfaces:
            parts.append(f'<path class="cut" d="M{x - 5} 0h7l-3.500 5z"/>')
        if layer % 5 == 0 or layer == layers - 1 and layer % 5 > 1:
            parts.append(f'<text x="{x + CELL / 2}" y="{HEIGHT + 17}">{layer}</text>')
    width = layers * step
    return Markup(  # noqa: S704 - numbers alone
        f'<svg class="strip" role="img" viewBox="-6 -1 {width + 8} {HEIGHT + 22}" style="max-width:{width + 8}px">'
        f"<title>{escape(words)}</title>{''.join(parts)}</svg>"
    )


def bar(parts: Sequence[tuple[str, int, str]], width: int = 160) -> Markup:
    """Draw counts as one stacked bar.

    Args:
        parts: (class, count, word) each; the words and counts are the bar's title.
        width: Width in pixels.
    """
    total = sum(count for _, count, _ in parts)
    words = ", ".join(f"{count} {word}" for _, count, word in parts if count)
    drawn, x = [], 0.0
    for kind, count, _ in parts:
        if count:
            w = width * count / total
            drawn.append(f'<rect class="{kind}" x="{x:.1f}" y="0" width="{max(w - 1, 1):.1f}" height="10"/>')
            x += w
    return Markup(  # noqa: S704
        f'<svg class="bar" role="img" viewBox="0 0 {width} 10" width="{width}" height="10">'
        f"<title>{escape(words or 'none')}</title>{''.join(drawn)}</svg>"
    )
