"""Models larger than memory: two decoder layers at a time, read from the checkpoint when they are called.

`load` gives a model whose parts (embedding, decoder layers, head) hold no weights. A hook reads a part's weights when
it is called, and drops them when another is called; while one layer computes, a thread reads the next. Surgery, patches
and passes work as on any other model; code that changes parts of layers or needs gradients refuses it (`refuse`).

The order of work makes it usable. A pass that takes batch after batch through all layers reads the entire model for
each batch. The passes of this repository take all batches through one part, then through the next, and so read it once
(`Decoder.streamed` tells them). The states of all batches wait in a `common.forward.spill_buffer.Held`.

A part that was changed in memory (a factor fused into its weights, a matrix refitted) is written to a temporary folder
before it is dropped, and read from there afterwards. `save` copies part by part.

accelerate's disk offload reads every layer again for every batch, keeps no changes, and was therefore not used.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import RLock

import torch
from accelerate import init_empty_weights
from filelock import BaseFileLock
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig

from common.models.architectures import LEARNT, SUPPORTED, absent, at_hand
from common.models.files.safetensors_reader import DTYPES, INDEX, TensorEntry, entries, header, prevailing_dtype
from common.utils import cache, locks
from common.utils.errors import UserError, first_of

log = logging.getLogger(__name__)

LAYERS = "model.layers."
_CHANGED, _OWNER = "changed-layers-", "owner.lock"  # a folder's name, and in it the lock of who made it
EDGES = _EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"
_ROWS = 4096  # of embedding and head that are compared at a time: 2 x 128 MB where they have 8192 channels in float32


def load(folder: Path, config, *, device: torch.device, dtype: torch.dtype | None, states: int) -> nn.Module:
    """Return the model in a checkpoint's directory, streamed, without its patches (`common.models.checkpoint` adds them).

    The dtype is that of the weights in memory; None: as stored. ``states`` are the bytes of hidden states that wait in
    memory; more are written to a file in the cache folder. `model.streamed` is the `Streamed` that reads the parts.

    Raises:
        UserError: the directory's weights are damaged or incomplete.
    """
    spec = SUPPORTED[config.model_type]
    if config.model_type in LEARNT or (spec.body, spec.embed, spec.norm) != ("model", "embed_tokens", "norm"):
        raise UserError(f"architecture {config.model_type!r} is not read layer by layer. Leave --stream out")
    where = entries(folder)
    stored = DTYPES[prevailing_dtype(where.values())]
    dtype = dtype or stored
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    # as `from_pretrained`: older models have their settings in the config
    for file, mark in (("generation_config.json", {}), ("config.json", {"_from_model_config": True})):
        with suppress(OSError):
            model.generation_config = GenerationConfig.from_pretrained(
                folder, config_file_name=file, local_files_only=True, **mark
            )
            break
    model.eval().requires_grad_(False)
    parameters = {name for name, _ in model.named_parameters()}
    if buffers := [name for name in model.state_dict() if name.startswith(LAYERS) and name not in parameters]:
        raise UserError(
            f"architecture {config.model_type!r} is not read layer by layer: {first_of(buffers, 1)} is no parameter. Leave "
            "--stream out"
        )
    if wide := [name for name, parameter in model.named_parameters() if parameter.dtype != dtype]:
        raise UserError(
            f"architecture {config.model_type!r} is not read layer by layer in {dtype}: {wide[0]} stays in float32. Use "
            "--dtype float32, or leave --stream out"
        )
    streamed = Streamed(model, where, device, (dtype, stored), states)
    streamed.fill_resident()
    names = {name for name, _ in model.named_parameters()} | {f"{_HEAD}.weight"}
    apart = (".block_sparse_moe.", ".mlp.experts.", "rotary_emb.inv_freq")  # of other names in memory; computed
    if unknown := sorted(name for name in where if name not in names and not any(part in name for part in apart)):
        log.warning("%s: its config knows no %s; they are left out", folder, first_of(unknown, 3))
    model.streamed = streamed
    return model


def of(model: nn.Module) -> Streamed | None:
    """Return the reader of a streamed model's layers; None for a model in memory."""
    return getattr(model, "streamed", None)


def refuse(model: nn.Module, what: str) -> None:
    """Refuse work that needs all layers at once.

    Raises:
        UserError: the model is streamed.
    """
    if of(model) is not None:
        raise UserError(f"{what} needs the whole model in memory; leave --stream out")


class Streamed:
    """Reader of embedding, decoder layers and head when they are called; it drops their weights afterwards.

    A head tied to the embedding is one part with it. Layers without weights are on torch's meta device. Embedding and
    head hold one number then, which is not a number: callers ask for an embedding's device, type and shape.

    Attributes:
        dtype: Type of the weights in memory.
        stored: Type of the weights in the files.
        reads: Number of layers read so far.
        bytes_read: Bytes read from disk so far.
        states: See `load`.
    """

    def __init__(
        self,
        model: nn.Module,
        where: Mapping[str, TensorEntry],
        device: torch.device,
        dtypes: tuple[torch.dtype, ...],
        states: int,
    ):
        (self.dtype, self.stored), self.device, self.states = dtypes, device, states
        self.reads = self.bytes_read = 0
        self._model, self._where = weakref.ref(model), where
        self._lock = RLock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._ahead: tuple[nn.Module, Future] | None = None
        self._no_read_ahead = False
        self._loaded_part: nn.Module | None = None
        self._meta: dict[nn.Module, dict[str, nn.Parameter]] = {}
        self._sources: dict[nn.Module, dict[str, Callable[[], Tensor]]] = {}
        self._marks: dict[nn.Module, dict[str, tuple]] = {}  # of the weights as they were read
        self._changed: Path | None = None
        self._tied = model.config.tie_word_embeddings and self._same_head()
        for index, layer in enumerate(model.model.layers):
            self._add(layer, self._source(f"{LAYERS}{index}.", layer))
        for name in EDGES:
            module = model.get_submodule(name)
            for leaf, parameter in module.named_parameters():
                nothing = torch.full((1,), torch.nan, dtype=self.dtype, device=device)
                _put(module, leaf, nothing.expand(parameter.shape))
            if not (name == _HEAD and self._tied):
                self._add(module, {leaf: self._reader(f"{name}.{leaf}") for leaf, _ in module.named_parameters()})
        if self._tied:
            model.lm_head.weight = model.model.embed_tokens.weight
            self._hook(model.lm_head, model.model.embed_tokens)

    def _same_head(self) -> bool:
        """Return whether the files hold no head but the embedding; the config is not asked.

        Told in the type that the weights have in memory, as there.
        """
        embedding, head = self._entry(f"{_EMBEDDING}.weight"), self._where.get(f"{_HEAD}.weight")
        if head is None:
            return True
        pieces = [(at, at + _ROWS) for at in range(0, embedding.shape[0], _ROWS)]
        return embedding.shape == head.shape and all(
            torch.equal(self._read(embedding.rows(*piece)), self._read(head.rows(*piece))) for piece in pieces
        )

    def _add(self, part: nn.Module, source: dict[str, Callable[[], Tensor]]) -> None:
        self._meta[part], self._sources[part] = dict(part.named_parameters()), source
        self._hook(part, part)

    def _hook(self, module: nn.Module, part: nn.Module) -> None:
        """Have the part there when the module is called."""
        module.fetch = partial(self.fetch, part)  # see `common.models.architectures.at_hand`
        module.register_forward_pre_hook(lambda *_: self.fetch(part), prepend=True)

    def fill_resident(self) -> None:
        """Read the part that stays in memory, the final norm."""
        model = self._model()
        for name in dict(model.named_parameters()):
            if not name.startswith((LAYERS, _EMBEDDING, _HEAD)):
                _put(model, name, self._read(self._entry(name)).to(self.device))
        model.model.rotary_emb.to(self.device)
        for name, buffer in model.named_buffers():  # of modules that hold no weights
            if buffer.device != self.device and not name.startswith(LAYERS):
                module, leaf = _parent(model, name)
                module._buffers[leaf] = buffer.to(self.device)

    def fetch(self, part: nn.Module) -> None:
        """Read the weights of a part into memory, and drop those of the part before."""
        with self._lock:
            if part is not self._loaded_part:
                tensors = self._tensors_of(part)
                self._drop()
                for name, value in tensors.items():
                    self._put(part, name, value)
                self._marks[part] = _marks(part)
                self._loaded_part = part
                self.reads += part in list(self._model().model.layers)
            self._read_ahead(part)

    def let_go(self) -> None:
        """Drop all parts, before work that needs the memory."""
        with self._lock:
            self._tensors_of(None)
            self._drop()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Read no layer ahead while the context is open, for work on one layer that needs the memory."""
        with self._lock:
            self._tensors_of(None)
            self._no_read_ahead = True
        try:
            yield
        finally:
            self._no_read_ahead = False

    def layer_bytes(self) -> int:
        """Return bytes in memory of the largest layer."""
        return self._largest(self._model().model.layers)

    def two_bytes(self) -> int:
        """Return the bytes of the largest two parts in memory at once: two layers, or one and the embedding or head."""
        return self.layer_bytes() + self._largest(self._meta)

    def _largest(self, parts: Iterable[nn.Module]) -> int:
        return max(sum(p.numel() for p in self._meta[part].values()) for part in parts) * self.dtype.itemsize

    def _tensors_of(self, layer: nn.Module | None) -> dict[str, Tensor]:
        """Return the layer's tensors: what was read ahead, if it was this one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            tensors = ahead[1].result()
            if ahead[0] is layer:
                return tensors
            del tensors
        return {} if layer is None else self._read_tensors(layer)

    def _read_ahead(self, layer: nn.Module) -> None:
        layers = list(self._model().model.layers)
        if self._no_read_ahead or self._ahead is not None or layer not in layers[:-1]:
            return
        following = layers[layers.index(layer) + 1]
        if following in self._sources:
            self._ahead = (following, self._pool.submit(self._read_tensors, following))

    def _read_tensors(self, layer: nn.Module) -> dict[str, Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            return {name: read().to(self.device) for name, read in self._sources[layer].items()}

    def _drop(self) -> None:
        """Drop the loaded part."""
        part, self._loaded_part = self._loaded_part, None
        if part is None:
            return
        marks = _marks(part)
        if changed := [name for name, mark in marks.items() if mark != self._marks[part].get(name)]:
            self._keep(part, changed)
        for name, parameter in self._meta[part].items():
            if name in marks:
                shape = part.get_parameter(name).shape
                if shape != parameter.shape:
                    parameter = nn.Parameter(parameter[(0,) * parameter.ndim].expand(shape), requires_grad=False)
                self._put(part, name, parameter)

    def _put(self, part: nn.Module, name: str, value: Tensor) -> None:
        _put(part, name, value)
        model = self._model()
        if self._tied and part is model.model.embed_tokens:
            model.lm_head.weight = part.weight

    def _keep(self, layer: nn.Module, names: list[str]) -> None:
        """Write changed weights where they are read from after this."""
        if self._changed is None:
            self._changed, self._owner = _folder_of_changes()
            weakref.finalize(self, shutil.rmtree, self._changed, True)
        file = self._changed / f"{len(list(self._changed.iterdir()))}.safetensors"
        save_file({name: layer.get_parameter(name).detach().cpu().contiguous() for name in names}, file)
        for name, entry in header(file).items():
            self._sources[layer][name] = lambda entry=entry: self._read(entry)

    def _source(self, prefix: str, layer: nn.Module) -> dict[str, Callable[[], Tensor]]:
        """Return {parameter: how to read it}."""
        return {
            name: self._reader(prefix + name) if prefix + name in self._where else self._experts(prefix, name, layer)
            for name, _ in layer.named_parameters()
        }

    def _reader(self, name: str) -> Callable[[], Tensor]:
        entry = self._entry(name)
        return lambda: self._read(entry)

    def _experts(self, prefix: str, name: str, layer: nn.Module) -> Callable[[], Tensor]:
        """Return a reader of a mixture's stacked matrices; checkpoints hold each expert's apart."""
        kind = self._model().config.model_type
        rows = [[self._entry(part) for part in row] for row in stored_names(kind, prefix, name, layer)]
        stored_shape, shape = _stacked(rows), tuple(layer.get_parameter(name).shape)
        if stored_shape != shape:
            raise UserError(
                f"cannot stream this model: {prefix}{name} is {stored_shape} in the files, but config.json asks for {shape}. "
                "Restore the config.json that was saved with the weights"
            )
        if len(rows) == 1 and len(rows[0]) == 1:
            return lambda: self._read(rows[0][0])
        return lambda: torch.stack([torch.cat([self._read(entry) for entry in row]) for row in rows])

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._where:
            raise UserError(f"cannot stream this model: its files hold no {name}; save or download it again")
        return self._where[name]

    def _read(self, entry: TensorEntry) -> Tensor:
        self.bytes_read += entry.end - entry.begin
        return entry.read().to(self.dtype)


def _stacked(rows: list[list[TensorEntry]]) -> tuple[int, ...]:
    """Return the shape of what is stacked of rows, each of parts joined; of a single entry its own."""
    joined = (sum(entry.shape[0] for entry in rows[0]), *rows[0][0].shape[1:])
    return joined if len(rows) == len(rows[0]) == 1 else (len(rows), *joined)


def stored_names(kind: str, prefix: str, name: str, layer: nn.Module) -> list[list[str]]:
    """Return the names in a mixture's checkpoint for one parameter in transformers: rows to stack, of parts to join."""
    spec = SUPPORTED[kind]
    for prefix_in_memory, stored in spec.renamed:
        if name.startswith(prefix_in_memory):
            return [[prefix + stored + name.removeprefix(prefix_in_memory)]]
    folder, gate, up, down = spec.experts or ("",) * 4
    parts = {"mlp.experts.gate_up_proj": (gate, up), "mlp.experts.down_proj": (down,)}.get(name)
    if not folder or parts is None:
        return [[prefix + name]]
    experts = range(len(layer.get_parameter(name)))
    return [[f"{prefix}{folder}experts.{expert}.{part}.weight" for part in parts] for expert in experts]


def save(model: nn.Module, directory: Path) -> None:
    """Write config and weights as `save_pretrained` does, in the stored type and a file for each part, one by one."""
    streamed = of(model)
    config = copy.deepcopy(model.config)
    config.dtype, config.architectures = streamed.stored, [type(model).__name__]
    config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    parts = {f"{LAYERS}{index}.": layer for index, layer in enumerate(model.model.layers)}
    parts[f"{_EMBEDDING}."] = model.model.embed_tokens
    if model.lm_head.weight is not model.model.embed_tokens.weight:  # the config may say so of what is apart
        parts[f"{_HEAD}."] = model.lm_head
    names, total, count = {}, 0, len(parts)
    for place, (prefix, module) in enumerate(parts.items()):
        part = _as_stored(model.config.model_type, prefix, at_hand(module))
        if place == len(model.model.layers):  # with the final norm
            part |= {n: p for n, p in model.named_parameters() if not n.startswith(tuple(parts))}
        file = f"model-{place + 1:05}-of-{count:05}.safetensors"
        tensors = {name: value.detach().to("cpu", streamed.stored).contiguous() for name, value in part.items()}
        save_file(tensors, directory / file, {"format": "pt"})
        names |= dict.fromkeys(tensors, file)
        total += sum(value.numel() * value.element_size() for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _as_stored(kind: str, prefix: str, part: nn.Module) -> dict[str, Tensor]:
    """Return a part's tensors by the names that they have in files (experts apart, as the hub has them)."""
    tensors = {}
    for name, value in part.named_parameters():
        rows = stored_names(kind, prefix, name, part)
        if len(rows) == len(rows[0]) == 1:
            tensors[rows[0][0]] = value
            continue
        for row, matrix in zip(rows, value, strict=True):
            tensors |= {part: piece.clone() for part, piece in zip(row, matrix.chunk(len(row)), strict=True)}
    return tensors


def _folder_of_changes() -> tuple[Path, BaseFileLock | None]:
    """Make a folder for layers that were changed, with its lock; delete those of this host's processes that were killed."""
    folder = cache.folder()
    prefix = f"{_CHANGED}{socket.gethostname()}-"  # another host's lock may not be seen here
    with locks.locked(folder / f".{_CHANGED}{_OWNER}"):
        for old in folder.glob(f"{prefix}*/{_OWNER}"):
            if (lock := locks.take(old)) is not None:
                shutil.rmtree(old.parent, ignore_errors=True)
                lock.release()
        own = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        return own, locks.take(own / _OWNER)


def _parent(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _put(module: nn.Module, name: str, value: Tensor) -> None:
    parent, leaf = _parent(module, name)
    if not isinstance(value, nn.Parameter):
        with torch.inference_mode(False):
            value = nn.Parameter(value, requires_grad=False)
    parent._parameters[leaf] = value


def _marks(part: nn.Module) -> dict[str, tuple]:
    """Return what differs once a weight was changed in place or replaced; empty where nothing is there."""
    return {name: (id(p), p.data_ptr(), p._version) for name, p in part.named_parameters() if not absent(p)}
