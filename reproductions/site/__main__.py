"""``python -m reproductions.site``: write the report, and with ``--serve`` show it on this machine."""

from __future__ import annotations

import functools
import http.server
import sys
import time
from pathlib import Path

from common.records.results import ROOT
from common.utils.command_line import Parser
from common.utils.errors import UserError, one_line


def parser() -> Parser:
    """The command line's parser."""
    found = Parser(prog="python -m reproductions.site", description="Write the results as a static site.")
    found.add_argument("--out", metavar="FOLDER", default=str(ROOT / "report"), help="where (default: report)")
    found.add_argument("--published", action="store_true", help="the published records alone, without your own")
    found.add_argument("--serve", action="store_true", help="then show it on this machine until interrupted")
    found.add_argument("--port", type=int, default=8000, help="for --serve (default: 8000)")
    return found


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


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    try:
        options = parser().parse_args(arguments)
        from reproductions.render.evidence import gathered
        from reproductions.site import pages

        started, folder = time.perf_counter(), Path(options.out)
        pages.build(gathered(own=not options.published), folder)
        print(f"{folder / 'index.html'} ({time.perf_counter() - started:.0f} s)")
        if options.serve:
            serve(folder, options.port)
    except UserError as error:
        print(one_line(f"error: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
