"""The most memory that this process has held."""

import sys


def peak_memory_bytes() -> int | None:
    """Return the process's peak memory so far in bytes; None if the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
