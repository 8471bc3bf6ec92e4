"""Calibration: texts, tokens drawn from them, and the statistics of one pass over these."""

import importlib
from typing import Any

_WHERE = {
    "all_pairs": "common.calibration.one_pass",
    "collect": "common.calibration.one_pass",
    "dealt": "common.calibration.sampling",
    "default_pairs": "common.calibration.one_pass",
    "sample_crops": "common.calibration.sampling",
    "sample_documents": "common.calibration.sampling",
    "sample_lines": "common.calibration.sampling",
    "COSINES": "common.calibration.statistics",
    "Statistics": "common.calibration.statistics",
}

__all__ = [
    "COSINES",
    "Statistics",
    "all_pairs",
    "collect",
    "dealt",
    "default_pairs",
    "sample_crops",
    "sample_documents",
    "sample_lines",
]


def __getattr__(name: str) -> Any:  # on demand, so that what needs no torch does not load it
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
