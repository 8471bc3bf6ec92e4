"""``python -m papers.linearpatch``; `--help` lists the options."""

import sys

from common.console import startup

if __name__ == "__main__":
    sys.exit(startup.tool("papers.linearpatch"))
