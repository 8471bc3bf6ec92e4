"""Small pictures drawn as SVG in the page: they take the page's colours, and every one says in words what it shows."""

import math
from collections.abc import Sequence
from html import escape

from markupsafe import Markup

CELL, GAP, HEIGHT = 16, 3, 26
MANY_TIMES = 10  # the largest value over the least, from which on an axis is logarithmic


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


def dots(entries: Sequence[tuple[str, float, float | None, bool]], chance_level: float | None = None) -> Markup:
    """Draw values as dots on one axis, with lines of two standard errors.

    The axis has its numbers below; it is logarithmic where the largest value is many times the least. The style sheet
    places everything, so that words keep their size in a narrow window.

    Args:
        entries: (label, value, standard error, is the reference) each. The reference, the original model, is also a
            dashed line through all rows.
        chance_level: Chance level, a dotted line; None for none.
    """
    lows = [value - 2 * (error or 0) for _, value, error, _ in entries]
    highs = [value + 2 * (error or 0) for _, value, error, _ in entries]
    levels = [] if chance_level is None else [chance_level]
    low, high = min(lows + levels), max(highs + levels)
    log = low > 0 and high > MANY_TIMES * low
    scale = math.log if log else float
    span = (scale(high) - scale(low)) or 1.0

    def share(value: float) -> float:
        return 100 * (scale(value) - scale(low)) / span

    def place(value: float) -> str:
        return f"{share(value):.1f}%"

    reference = next((place(value) for _, value, _, is_reference in entries if is_reference), "")
    line = f'<i class="reference" style="left:{reference}"></i>' if reference else ""
    line += f'<i class="guess" style="left:{place(chance_level)}"></i>' if levels else ""
    rows = []
    for name, value, error, is_reference in entries:
        ends = [value - 2 * error, value + 2 * error] if error else []
        reach = (
            f'<i class="error" style="left:{place(ends[0])};width:{share(ends[1]) - share(ends[0]):.1f}%"></i>'
            if ends
            else ""
        )
        dot = f'<i class="{"dot dense" if is_reference else "dot"}" style="left:{place(value)}"></i>'
        words = f'<span class="vh">{f" ± {error:.2f}" if error else ""}</span>'
        rows.append(f'<li><span class="name">{escape(name)}</span><span class="axis">{line}{reach}{dot}</span>')
        rows.append(f'<span class="value">{value:.2f}{words}</span></li>')
    numbers = "".join(f'<b style="left:{place(tick)}">{tick:g}</b>' for tick in _ticks(low, high, log))
    about = [f"dotted: chance level, {level:.2f}" for level in levels] + ["log scale"] * log
    rows.append(f'<li class="scale"><span class="name">{escape("; ".join(about))}</span>')
    rows.append(f'<span class="axis" aria-hidden="true">{numbers}</span></li>')
    return Markup(f'<ul class="dots">{"".join(rows)}</ul>')  # noqa: S704


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Return three to six round numbers of an axis.

    Powers of ten, with 2 and 5 where these are few, on a logarithmic one.
    """
    if log:
        for bases in ((1,), (1, 3), (1, 2, 5)):
            candidates = [base * 10.0**power for power in range(-3, 10) for base in bases]
            if len(ticks := [tick for tick in candidates if low <= tick <= high]) >= 3:
                return ticks
    step = next(s for p in range(-4, 10) for b in (1, 2, 5) if (high - low) / (s := b * 10.0**p) <= 5)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
