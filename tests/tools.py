"""Commands as tests call them: the tools, `python -m <module of a method>`, and the measuring of tables."""

import importlib
import json

from common.cli import run
from common.cli.command import failed
from common.cli.options import parsed
from common.utils.errors import UserError
from reproductions.engine import runner

TOOLS = ("linearpatch", "prunecomp", "laco", "reassessing", "refit")
PARAGRAPH = (
    "The layers of a model are removed. The stream is scaled by a factor that was measured on some text before.\n\n"
)


def module_of(name: str) -> str:
    return f"{'extensions' if name == 'refit' else 'papers'}.{name}"


def status_of(main, arguments) -> int:
    """The exit status of a command line, whether it is returned or raised."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code


def method_of(name: str):
    return importlib.import_module(f"{module_of(name)}.tool").METHOD


def main(method, arguments) -> int:
    """The exit status of a tool in this process, which keeps its threads and its answers to signals."""
    try:
        options = parsed(method.options, arguments)
    except UserError as error:
        return failed(error)
    except SystemExit as stop:  # after --help, or one line on an option
        return stop.code
    return run.main(method, options)


def paragraphs(count: int = 120) -> str:
    """A text to measure on, whose paragraphs differ by their number."""
    return "".join(f"{number} {PARAGRAPH}" for number in range(count))


def edited_config(**changes):
    """Return what changes a checkpoint folder's config."""

    def damage(folder):
        content = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(content))

    return damage


def measure_missing(
    tables, store, subject, measure, *, device="cpu", force=False, lacking=lambda recipe, benchmark: None, **chosen
):
    """Measure what these tables lack, as `run` does; the number of cells that failed."""
    work = runner.missing(tables, store, subject, force=force, **chosen)
    return runner.measured(work, store, measure, device=device, force=force, lacking=lacking)
