"""Methods of other papers, for comparison: one module per method.

A module registers its steps and the loaders of its saved patches; nothing else names it.
"""

from common.utils.plugins import import_modules


def load_steps() -> None:
    """Import every method, so that recipes can name its steps."""
    import_modules(__name__)
