"""Everything the four papers share: models, statistics, layer selection, surgery, measurement. It knows no paper."""

import logging

# On import it asks in vain for a hub kernel that nothing here uses, and says so to everyone.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def run_tool(package: str) -> int:
    """Run a package's pruning tool and return its exit status; Ctrl-C is answered before anything slow is imported."""
    from common.console import startup

    startup.guard()
    from common.cli import command

    return startup.run(command.main, package)
