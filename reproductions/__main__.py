"""``python -m reproductions``: see `reproductions.command_line`."""

import sys

from common.console import startup, threads

if __name__ == "__main__":
    startup.guard()
    threads.settle()

from reproductions.command_line import main  # noqa: E402 - Ctrl-C is answered before anything slow is imported

if __name__ == "__main__":
    sys.exit(startup.run(main))
