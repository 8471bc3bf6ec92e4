"""``python -m papers``: the papers' tools; ``python -m papers --steps``: every step that a recipe can name."""

import sys

from common.cli.overview import main

if __name__ == "__main__":
    sys.exit(main("papers"))
