"""Methods of other papers that several of ours compare with, one module a method.

A module registers its own steps and the loaders of what it saves; nothing else names it.
"""

from common.utils.plugins import import_modules


def load_steps() -> None:
    """Import every method, so that recipes can name its steps."""
    import_modules(__name__)
