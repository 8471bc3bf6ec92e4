"""LinearPatch's tables and figures, declared: settings and rows, columns, the claims the paper draws."""

from reproductions.linearpatch.figures import FIGURES
from reproductions.linearpatch.recipes import CALIBRATION, PAPER_MODELS, SLEB_LINES, TOP_K
from reproductions.linearpatch.tables import TABLES as _TABLES

TABLES = [*_TABLES, *FIGURES]

__all__ = ["CALIBRATION", "PAPER_MODELS", "SLEB_LINES", "TABLES", "TOP_K"]
