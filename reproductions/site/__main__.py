"""``python -m reproductions.site``: write the report."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from common.console.command_line import answering, option, parse
from common.console.progress import say
from common.utils.errors import quiet_logging
from common.utils.paths import ROOT


@dataclass(kw_only=True)
class SiteCommand:
    """Write documents, notebooks, API reference and results as one static site."""

    out: str = option(str(ROOT / "report"), "write to this folder", metavar="FOLDER", usual="report")
    published: bool = option(False, "show the published records alone, without your own")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Build the site; return the exit status."""
    try:
        options = parse(SiteCommand, arguments, prog="python -m reproductions.site")
        quiet_logging()
        say("reading the results")
        from reproductions.render.evidence import gathered
        from reproductions.site import pages

        started, folder = time.perf_counter(), Path(options.out)
        pages.build(gathered(own=not options.published), folder)
        print(f"{folder / 'index.html'} ({time.perf_counter() - started:.0f} s)")
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
