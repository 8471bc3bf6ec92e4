"""Work that is killed at one of its uses of the file system, or interrupted in one of its calls."""

import itertools
import os
import signal
import sys
import traceback

FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir", "os.listdir")


def killed_at(moment, work):
    """Run `work` in a child that dies by SIGKILL at its `moment`-th use of the file system; whether it came so far."""
    child = os.fork()
    if child == 0:
        seen = itertools.count(1)

        def count(event, arguments):
            if event in FILE_EVENTS and next(seen) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def raising_at(call, function, error=KeyboardInterrupt):
    """Return the function, which raises an error in place of its `call`-th call, counted from 1."""
    calls = itertools.count(1)

    def counted(*arguments, **options):
        if next(calls) == call:
            raise error
        return function(*arguments, **options)

    return counted
