"""LinearPatch's tables and figures, declared: settings and rows, columns, the claims the paper draws."""

from reproductions.linearpatch.figures import FIGURES
from reproductions.linearpatch.patch_ablation import CAUSES
from reproductions.linearpatch.tables import TABLES as _TABLES

TABLES = [*_TABLES, *FIGURES, CAUSES]

__all__ = ["TABLES"]
