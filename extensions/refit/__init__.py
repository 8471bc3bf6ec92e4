"""Refitting what the kept layers around a cut write into the stream. Ours; see `extensions.refit.method`."""

from common.calibration.layer_inputs import ATTENTION, GATE, MLP, UP
from extensions.refit.method import FOLLOWING, RIDGE, RIDGES, refit, refit_one_by_one
from extensions.refit.steps import Refit

__all__ = ["ATTENTION", "FOLLOWING", "GATE", "MLP", "RIDGE", "RIDGES", "UP", "Refit", "refit", "refit_one_by_one"]
