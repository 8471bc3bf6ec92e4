"""One package per paper: the method, and the numbers the paper reports. Papers never import one another."""

import sys

from common import launch

if sys.argv[:1] == ["-m"]:  # `python -m papers.<paper>`: this and the paper's package are imported before its __main__
    launch.guard()
