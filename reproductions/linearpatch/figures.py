"""The figures of LinearPatch, declared."""

from reproductions.registry import Table

FIGURES: list[Table] = []
