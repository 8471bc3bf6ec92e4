"""``python -m papers.prunecomp``; `--help` lists the options."""

import sys

from common import run_tool

if __name__ == "__main__":
    sys.exit(run_tool("papers.prunecomp"))
