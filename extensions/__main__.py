"""``python -m extensions``: every step that a recipe can name, those of the extensions too."""

import sys

import extensions
from papers.__main__ import main

if __name__ == "__main__":
    extensions.load_steps()
    sys.exit(main())
