"""``python -m papers.prunecomp``; `--help` lists the options."""

import sys

from common.console import startup

if __name__ == "__main__":
    sys.exit(startup.tool("papers.prunecomp"))
