"""The league, ours: every training-free repair after every choice of layers, on one base and one calibration budget."""

from reproductions.league.answers import ANSWERS
from reproductions.league.grafts import GRAFTS
from reproductions.league.tables import TABLES as _TABLES
from reproductions.league.texts import TEXTS
from reproductions.league.windows import WINDOWS

TABLES = [*_TABLES, ANSWERS, TEXTS, WINDOWS, GRAFTS]

__all__ = ["TABLES"]
