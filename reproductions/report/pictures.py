"""Small pictures drawn as SVG in the page: they take the page's colours, and every one says in words what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

CELL, GAP, HEIGHT = 16, 3, 26


def strip(layers: int, removed: Sequence[int], cuts: Sequence[int] = ()) -> Markup:
    """A model's layers in a row, those that go hatched and crossed out; a triangle marks each layer behind a repaired cut."""
    gone = set(removed)
    words = f"{len(gone)} of {layers} layers removed: {', '.join(map(str, sorted(gone))) or 'none'}"
    step = CELL + GAP
    parts = []
    for layer in range(layers):
        x = layer * step
        kind = "gone" if layer in gone else "kept"
        parts.append(f'<rect class="{kind}" x="{x}" y="4" width="{CELL}" height="{HEIGHT}" rx="2"/>')
        if layer in gone:
            parts.append(f'<path class="cross" d="M{x + 4} 11l8 12m0 -12l-8 12"/>')
        if layer in cuts:
            parts.append(f'<path class="cut" d="M{x - 5} 0h7l-3.500 5z"/>')
        if layer % 5 == 0 or layer == layers - 1 and layer % 5 > 1:
            parts.append(f'<text x="{x + CELL / 2}" y="{HEIGHT + 17}">{layer}</text>')
    width = layers * step
    return Markup(  # noqa: S704 - numbers alone
        f'<svg class="strip" role="img" viewBox="-6 -1 {width + 8} {HEIGHT + 22}" style="max-width:{width + 8}px">'
        f"<title>{escape(words)}</title>{''.join(parts)}</svg>"
    )


def bar(parts: Sequence[tuple[str, int, str]], width: int = 160) -> Markup:
    """Shares of a whole as one bar: (class, count, word) each; the words and counts are its title."""
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


def dots(entries: Sequence[tuple[str, float, float | None, bool]], unit: str = "") -> Markup:
    """Values as dots on one axis: (label, value, standard error, is the reference) each; lines reach two standard errors.

    The reference, the dense model, is also a dashed line through all of them. Placed by the style sheet, so that words keep
    their size in a narrow window.
    """
    low = min(value - 2 * (error or 0) for _, value, error, _ in entries)
    high = max(value + 2 * (error or 0) for _, value, error, _ in entries)
    span = (high - low) or 1.0

    def place(value: float) -> str:
        return f"{100 * (value - low) / span:.1f}%"

    reference = next((place(value) for _, value, _, is_reference in entries if is_reference), "")
    line = f'<i class="reference" style="left:{reference}"></i>' if reference else ""
    rows = []
    for name, value, error, is_reference in entries:
        reach = (
            f'<i class="error" style="left:{place(value - 2 * error)};width:{400 * error / span:.1f}%"></i>'
            if error
            else ""
        )
        dot = f'<i class="{"dot dense" if is_reference else "dot"}" style="left:{place(value)}"></i>'
        words = f'<span class="vh">{unit}{f" ± {error:.2f}" if error else ""}</span>'
        rows.append(f'<li><span class="name">{escape(name)}</span><span class="axis">{line}{reach}{dot}</span>')
        rows.append(f'<span class="value">{value:.2f}{words}</span></li>')
    return Markup(f'<ul class="dots">{"".join(rows)}</ul>')  # noqa: S704


def effect(difference: float, low: float, high: float, kind: str) -> Markup:
    """A difference and its interval about 0, as wide as its larger end. kind: the verdict, which colours it."""
    width, middle = 96, 48
    reach = max(abs(low), abs(high), abs(difference)) or 1.0

    def place(value: float) -> float:
        return middle + 44 * value / reach

    return Markup(  # noqa: S704 - numbers alone
        f'<svg class="effect {kind}" role="img" viewBox="0 0 {width} 12" width="{width}" height="12">'
        f"<title>{difference:+.2f}, from {low:+.2f} to {high:+.2f}</title>"
        f'<path class="zero" d="M{middle} 0V12"/><path class="reach" d="M{place(low):.1f} 6H{place(high):.1f}"/>'
        f'<circle cx="{place(difference):.1f}" cy="6" r="3.5"/></svg>'
    )
