"""``python -m papers.prunecomp``; `--help` lists the options."""

import sys

from common.console import startup

if __name__ == "__main__":
    startup.guard()

from common.cli import command  # noqa: E402 - Ctrl-C is answered before anything slow is imported

if __name__ == "__main__":
    sys.exit(startup.run(command.main, "papers.prunecomp"))
