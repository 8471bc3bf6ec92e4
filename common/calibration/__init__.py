"""Calibration: texts, tokens drawn from them, and the statistics of one pass over these."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "common.calibration.one_pass": ("all_pairs", "collect", "default_pairs"),
        "common.calibration.sampling": ("interleaved", "sample_crops", "sample_documents", "sample_lines"),
        "common.calibration.statistics": ("COSINES", "Statistics"),
    },
)
