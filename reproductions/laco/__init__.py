"""LaCo's tables and figures, declared: settings and rows, columns, the claims the paper draws."""

from reproductions.laco.figures import FIGURES
from reproductions.laco.tables import TABLES as _TABLES

TABLES = [*_TABLES, *FIGURES]

__all__ = ["TABLES"]
