"""Measure the perplexity without each block of layers, plain and with the first token's state restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from extensions.league import rows
from extensions.league.answers import TEXTS
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import Subject

SHARES = (*rows.SHARES[:-1], (8, 30), rows.SHARES[-1])


def blocks(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Yield the original model at each of the league's numbers of layers, and at that of LinearPatch's tables."""
    if subject.printed:
        return
    for count in subject.counts(*SHARES, toy=rows.TOY_COUNTS):
        selection = {"method": "observed-window", "count": count, "cosine": "token"}
        row = rows.pruned(subject, limit, count, rows.LeagueSpec("", rows.NONE), selection=selection)
        yield replace(row, method="every-window", name="every block", spec=None)


def columns(profile: str) -> list[Column]:
    """Return the columns of the table of blocks."""
    benchmark = f"windows@{TEXTS[profile][1]}"
    labels = {
        "windows": "blocks",
        "dense": "PPL, dense",
        "cheapest": "PPL, cheapest",
        "cosine": "PPL, contiguous block",
        "least_left": "PPL, least residual",
        "least_loss": "PPL, least loss",
        "cosine_kept": "PPL, contiguous block, first token's state kept",
        "cosine_carried": "PPL, contiguous block, neuron grafting",
        "writer": "first token massive after layer",
    }
    return [Column(key, benchmark, key, compare="exact", label=label) for key, label in labels.items()]


BLOCKS = Table(
    target="figure-windows-league",
    paper="league",
    number="figure-windows",
    title="Extension: what removing each block of layers costs",
    declared=blocks,
    draw="figures.blocks:draw",
    columns=columns,
    note="Measured on eight sequences of 512 tokens of WIKI-2 (toy model: of 256 tokens of its learning docstrings), evenly "
    "spread. First token's state kept: where the layers are left out, the first token's state is the dense model's, that "
    "of the others is not. Neuron grafting: those of that layer that write the massive activation are copied into the "
    "last layer "
    "before the block. Least residual, least loss: selected on the calibration text.",
)
