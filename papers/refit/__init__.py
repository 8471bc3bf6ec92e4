"""Refitting what the kept layers around a cut write into the stream. Ours; see `papers.refit.method`."""

from common.watched import ATTENTION, GATE, MLP, UP
from papers.refit.method import FOLLOWING, RIDGE, RIDGES, refit, refit_one_by_one
from papers.refit.steps import Refit

__all__ = ["ATTENTION", "FOLLOWING", "GATE", "MLP", "RIDGE", "RIDGES", "UP", "Refit", "refit", "refit_one_by_one"]
