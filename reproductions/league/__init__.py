"""The league, ours: every training-free repair after every choice of layers, on one base and one calibration budget."""

from reproductions.league.answers import ANSWERS
from reproductions.league.tables import TABLES as _TABLES

TABLES = [*_TABLES, ANSWERS]

__all__ = ["TABLES"]
