"""The tables and figures of Prune&Comp, declared: rows, recipes, columns, and the claims the paper draws."""

from reproductions.prunecomp.figures import FIGURES
from reproductions.prunecomp.grid import GRID
from reproductions.prunecomp.recipes import METRICS, recipe
from reproductions.prunecomp.tables import TABLES as PRINTED

TABLES = [*PRINTED, *FIGURES, GRID]

__all__ = ["METRICS", "TABLES", "recipe"]
