"""Reassessing's tables and figures, declared: settings and rows, columns, the claims the paper draws."""

from reproductions.reassessing import appendix, body
from reproductions.reassessing.figures import FIGURES

TABLES = [*body.TABLES, *appendix.TABLES, *FIGURES]

__all__ = ["TABLES"]
