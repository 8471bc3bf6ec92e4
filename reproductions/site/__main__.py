"""``python -m reproductions.site``: write the report, and with ``--serve`` show it on this machine."""

import functools
import http.server
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from common.console.command_line import answering, option, parse
from common.console.progress import say
from common.records.results import ROOT
from common.utils.errors import UserError, quiet_logging


@dataclass(kw_only=True)
class SiteCommand:
    """Write documents, notebooks, API reference and results as one static site."""

    out: str = option(str(ROOT / "report"), "write to this folder", metavar="FOLDER", usual="report")
    published: bool = option(False, "show the published records alone, without your own")
    serve: bool = option(False, "then show it on this machine until interrupted")
    port: int = option(8000, "serve on this port")


def serve(folder: Path, port: int) -> None:
    """Serve a folder on localhost until interrupted.

    Raises:
        UserError: the port is taken.
    """
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot serve on port {port}: {reason}; name another with --port") from error
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ (interrupt to stop)", file=sys.stderr)
        server.serve_forever()


@answering
def main(arguments: list[str] | None = None) -> int:
    """Build the site, and serve it with ``--serve``; return the exit status."""
    try:
        options = parse(SiteCommand, arguments, prog="python -m reproductions.site")
        quiet_logging()
        say("reading the results")
        from reproductions.render.evidence import gathered
        from reproductions.site import pages

        started, folder = time.perf_counter(), Path(options.out)
        pages.build(gathered(own=not options.published), folder)
        print(f"{folder / 'index.html'} ({time.perf_counter() - started:.0f} s)")
        if options.serve:
            serve(folder, options.port)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
