"""Let one process at a time do a piece of work that several could do, perhaps on several machines.

    with locked(path) as waited:       # waits while another process has it
        ...

The lock is the operating system's (filelock). The kernel releases it when its process ends, however it ends, so a killed
process never blocks another. The empty file stays and says nothing.

On shared file systems: Linux's NFS client passes these locks to the server. NFSv4 servers free the locks of a lost node when
its lease ends, after about 90 seconds. NFSv3 servers keep them until the node is back; delete the lock file then. A mount
with ``local_lock`` (NFS) or ``localflock`` (Lustre) keeps each node's locks to itself, so two nodes may do the same work.
That costs time and no result, since everything is written whole. Without any locks, filelock uses the file's existence.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

log = logging.getLogger(__name__)


def take(path: Path) -> BaseFileLock | None:
    """Return the acquired lock, held until its `release` or the end of the process; None if another process has it.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock while the context is open, after waiting for its holder.

    Yields:
        Whether another process had it before, and may have left results. If no lock can be written the work continues
        without.
    """
    try:
        lock = take(path)
        waited = lock is None
        if waited:
            log.warning("another process does this work now; waiting for it (its lock: %s)", path)
            lock = FileLock(path)
            lock.acquire(poll_interval=0.5)
    except OSError as error:
        log.debug("no lock in %s: %s", path, error.strerror)
        yield False
        return
    try:
        yield waited
    finally:
        lock.release()
