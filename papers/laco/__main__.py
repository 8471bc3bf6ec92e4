"""``python -m papers.laco``; `--help` lists the options."""

import sys

from common import cli

if __name__ == "__main__":
    sys.exit(cli.start("papers.laco"))
