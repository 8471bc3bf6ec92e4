"""The most memory that this process has held."""

import sys


def peak_memory_bytes() -> int | None:
    """Return the most memory the process has held so far; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
