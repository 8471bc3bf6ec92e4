"""The papers' methods as tools: `python -m papers.<paper> --model NAME_OR_PATH --remove 8 --out DIR`.

A paper's `__main__` declares a `Method`: what is its own (options, what it does to the model). What all share is here:
options, checks, text, evaluation before and after, the saved checkpoint and its model card.
"""

from common.cli.job import Job
from common.cli.options import Method, require
from common.cli.run import main

__all__ = ["Job", "Method", "main", "require"]
