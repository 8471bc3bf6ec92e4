"""Run batches in parallel on a CPU: threads that share the model, each computing its batch with its core.

With a core for each batch the cores need not synchronise after each small operation. That costs little on an idle
machine, but most of the time if another process uses one of them: on two cores with three other processes, SmolLM2-135M
in bfloat16 read 60 to 90 tokens/s with its operations split and 330 to 470 with its batches split.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

# More threads than this wait for Python's lock; further cores are split among them.
MOST = 8

Item, Result = TypeVar("Item"), TypeVar("Result")


@contextmanager
def side_by_side(
    function: Callable[[Item], Result], items: Sequence[Item], device: torch.device
) -> Iterator[Iterator[Result]]:
    """Yield an iterator over function(item) for each item, in order.

    On a CPU the results are computed by up to `MOST` Python threads, among which torch's threads are split. torch's
    thread-local modes (inference mode, autocast) are not passed on to ``function``. Leaving the context early drops
    items that are not started.
    """
    cores = torch.get_num_threads()
    threads = min(cores, MOST, len(items)) if device.type == "cpu" else 1
    if threads < 2:
        yield map(function, items)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(cores // threads,))
    try:
        yield pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)
