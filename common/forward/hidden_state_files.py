"""Keep hidden states for the next model: one temporary file for each boundary of each model.

The full test sets of a table make gigabytes of states for one boundary (SmolLM2-135M: 2.65). So they are written to
nameless files in the cache folder, which no kill leaves behind, and the page cache keeps in memory what fits there.
Reading one layer's input costs a thousandth of computing it.

Selection of states. A model that shares nothing with earlier ones (a table's original model) leaves `SPREAD`
boundaries, evenly spread. One that differs from an earlier model from layer p on leaves X[p] as well, because the next
rows often differ from there, too.

Room. A table needs all states of one row and then all of them again, so dropping the least recently used state for a
new one would drop each before it is needed. Entire boundaries are dropped instead, and do not come back: those that the
last `STALE` models did not use, then of those never used the one that the others replace best. If neither exists, no
more is kept.
"""

import contextlib
import logging
import shutil
import tempfile
from dataclasses import dataclass, field
from threading import Lock
from typing import BinaryIO

import torch
from torch import Tensor

from common.utils import cache

log = logging.getLogger(__name__)

# The most bytes of states kept, and never more than the cache folder's disk has left.
LIMIT = 32_000_000_000
SPREAD = 5
STALE = 16


@dataclass
class Boundary:
    """The states of boundary ``depth`` of one model of ``layers`` layers, in a file.

    ``used`` is the number of the last model that read the states; ``proven`` says whether a later model has. ``states``
    maps the digest of a batch to offset, shape and type.
    """

    depth: int
    layers: int
    used: int
    proven: bool
    file: BinaryIO
    size: int = 0
    states: dict[str, tuple[int, torch.Size, torch.dtype]] = field(default_factory=dict)

    def write(self, batch: str, state: Tensor) -> None:
        """Append the state of a batch to the file."""
        self.file.seek(self.size)
        self.file.write(state.detach().contiguous().view(torch.uint8).numpy())
        self.file.flush()
        self.states[batch] = (self.size, state.shape, state.dtype)
        self.size += state.nbytes

    def read(self, batch: str) -> Tensor:
        """Read the state of a batch."""
        offset, shape, dtype = self.states[batch]
        state = torch.empty(shape, dtype=dtype)
        self.file.seek(offset)
        if self.file.readinto(state.view(torch.uint8).numpy()) != state.nbytes:
            raise OSError("a file of states is shorter than what was written to it")
        return state


class StateFiles:
    """States [batch, tokens, channels] in files, by the digest of the weights and of the batch.

    limit: largest number of bytes; 0 keeps nothing. hits: number of states read. Threads may read and write at once.
    """

    def __init__(self, limit: int = LIMIT):
        self.limit = limit
        self.hits = 0
        self._lock = Lock()
        self._boundaries: dict[str, Boundary] = {}
        self._seen: set[str] = set()  # digests of all boundaries that any model had
        self._given_up: set[str] = set()
        self._last: tuple[str, ...] = ()
        self._models = 0  # how often another model began
        # of each model, {digest: what is known of the boundary} of the states it leaves
        self._plans: dict[tuple[str, ...], dict[str, tuple[int, int, bool]]] = {}

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(boundary.size for boundary in self._boundaries.values())

    def begin(self, chain: dict[int, str], layers: int) -> set[int]:
        """Return the boundaries whose states the model with these digests should store; it has ``layers`` layers."""
        model = tuple(chain.values())
        if model not in self._plans:
            first_difference = max((depth for depth in chain if chain[depth] in self._seen), default=0)
            if first_difference:
                depths = {depth for depth in chain if chain[depth] in self._boundaries} | {first_difference}
            else:
                depths = {layers * part // (SPREAD + 1) for part in range(1, SPREAD + 1)} & set(chain)
            self._plans[model] = {chain[depth]: (depth, layers, depth == first_difference) for depth in depths}
            self._seen.update(model)
        self._models += model != self._last
        self._last = model
        return {depth for digest, (depth, _, _) in self._plans[model].items() if digest not in self._given_up}

    def deepest(self, chain: dict[int, str], batch: str) -> tuple[int, Tensor | None]:
        """Return the deepest boundary whose state is stored for this batch, with that state; (0, None) if none is."""
        with self._lock:
            for depth in sorted(chain, reverse=True):
                boundary = self._boundaries.get(chain[depth])
                if boundary is not None and batch in boundary.states:
                    try:
                        state = boundary.read(batch)
                    except OSError as error:
                        self._fail(chain[depth], error)
                        continue
                    self.hits += 1
                    boundary.used, boundary.proven = self._models, True
                    return depth, state
        return 0, None

    def put(self, digest: str, batch: str, state: Tensor) -> None:
        """Store a state of the model that began last, if there is room; a disk that fails only loses its states."""
        with self._lock:
            if digest in self._given_up:
                return
            try:
                if digest not in self._boundaries:
                    self._boundaries[digest] = self._opened(*self._plans[self._last][digest])
                boundary = self._boundaries[digest]
                boundary.used = self._models
                if batch not in boundary.states and self._make_room(state.nbytes, digest):
                    boundary.write(batch, state)
            except OSError as error:
                self._fail(digest, error)

    def _fail(self, digest: str, error: OSError) -> None:
        log.warning("cannot keep states in %s: %s; those layers are run again instead", cache.folder(), error)
        self._drop(digest)

    def _opened(self, depth: int, layers: int, proven: bool) -> Boundary:
        cache.folder().mkdir(parents=True, exist_ok=True)
        return Boundary(depth, layers, self._models, proven, tempfile.TemporaryFile(dir=cache.folder()))

    def _make_room(self, size: int, digest: str) -> bool:
        """Return whether `size` more bytes of a boundary may be kept.

        Drops others, or this one, if they are worth less.
        """
        while self.bytes + size > min(self.limit, (self.bytes + shutil.disk_usage(cache.folder()).free) // 2):
            victim = self._least_useful(digest)
            if victim is None:
                return False
            self._drop(victim)
            if victim == digest:
                return False
        return True

    def _least_useful(self, digest: str) -> str | None:
        stale = {key: b.used for key, b in self._boundaries.items() if self._models - b.used >= STALE}
        if stale:
            return min(stale, key=stale.get)
        unproven = {key: b for key, b in self._boundaries.items() if not b.proven}
        if not unproven.keys() - {digest}:
            return None  # the last one stays with what it has: a part of the batches is better than none
        depths = sorted({0, *(b.depth for b in self._boundaries.values())})

        def loss(boundary: Boundary) -> int:
            """Return the layers run again without it, over all depths where a model may part."""
            below = max(depth for depth in depths if depth < boundary.depth)
            above = min((depth for depth in depths if depth > boundary.depth), default=boundary.layers)
            return (boundary.depth - below) * (above - boundary.depth)

        return min(unproven, key=lambda key: (loss(unproven[key]), unproven[key].depth))

    def _drop(self, digest: str) -> None:
        self._given_up.add(digest)
        boundary = self._boundaries.pop(digest, None)
        if boundary is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take is not needed any more
                boundary.file.close()
