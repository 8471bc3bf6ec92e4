"""``python -m papers.laco``; `--help` lists the options."""

import sys

from common import run_tool

if __name__ == "__main__":
    sys.exit(run_tool("papers.laco"))
