"""The league, ours: every training-free repair after every choice of layers, on one base and one calibration budget."""

from reproductions.league.tables import TABLES

__all__ = ["TABLES"]
