"""Reassessing's tables and figures, declared: settings and rows, columns, the claims the paper draws."""

from reproductions.reassessing.figures import FIGURES
from reproductions.reassessing.tables import TABLES as _TABLES

TABLES = [*_TABLES, *FIGURES]

__all__ = ["TABLES"]
