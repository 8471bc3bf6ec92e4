"""``python -m extensions``: the extensions' tools; ``python -m extensions --steps``: every step that a recipe can name."""

import sys

from common.cli.overview import main

if __name__ == "__main__":
    sys.exit(main("extensions"))
