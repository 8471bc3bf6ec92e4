"""Store a teacher's output for every training token: its K most likely next tokens and their probabilities.

A store is a folder of shards and a manifest:

    manifest.json           what it was made from: digests of teacher and token ids, K, ...
    shard-00000.safetensors "probabilities" [samples, tokens, K], "indices" [samples, tokens, K]

Per token that is K float16 numbers and K indices, of two bytes where the vocabulary allows, else four (LinearPatch, Table 7,
counts the K numbers alone). A shard is written beside its place and then moved, so it is whole or missing; making a store
that was interrupted continues with the shards that are missing or unreadable.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from common.console.progress import track
from common.models.decoder import Decoder
from common.utils import atomic_files
from common.utils.errors import UserError

MANIFEST = "manifest.json"
FORMAT = 1
DTYPE = "float16"  # of the probabilities, as in the official code
SHARD_SAMPLES = 64


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits of each token as probabilities that sum to 1 (temperature 1), and their indices.

    ``[..., vocabulary]`` -> float32 ``[..., k]`` and int64 ``[..., k]``. LinearPatch, Eq. 9: z(o_t^K).
    """
    values, indices = logits.topk(k, dim=-1)
    return values.float().softmax(-1), indices


def model_digest(model: nn.Module) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def sequences_digest(sequences: Tensor) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of token ids [samples, tokens]."""
    ids = sequences.cpu().long().contiguous()
    return hashlib.sha256(f"{list(ids.shape)}".encode() + ids.numpy().tobytes()).hexdigest()[:16]


class TeacherStore:
    """The ``k`` stored probabilities per token of one teacher on one set of sequences [samples, tokens].

    Raises:
        UserError: the folder holds a store of another teacher, K or text, or cannot be written.
    """

    def __init__(self, folder: str | os.PathLike, decoder: Decoder, sequences: Tensor, k: int):
        self.folder, self.decoder, self.sequences, self.k = Path(folder), decoder, sequences, k
        self.manifest = {
            "format": FORMAT,
            "teacher": model_digest(decoder.model),
            "K": k,
            "windows": sequences_digest(sequences),
            "samples": len(sequences),
            "tokens": sequences.shape[1],
            "dtype": DTYPE,
            "shard_samples": SHARD_SAMPLES,
        }
        self._check_manifest()
        self._open = lru_cache(maxsize=4)(lambda shard: safe_open(self._path(shard), "pt"))

    def fill(self, progress: bool = False) -> int:
        """Run the teacher over sequences whose shards are missing or unreadable; return the number of these sequences."""
        missing = [shard for shard in range(self._shards()) if not self._complete(shard)]
        sequences = sum(map(self._make, track(missing, "teacher", unit="shard", shown=progress, each=True)))
        self._open.cache_clear()
        return sequences

    def read(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read the probabilities, float32, and token indices, int64, of samples, both [samples, tokens, K]."""
        rows = []
        for sample in samples:
            shard, row = divmod(sample, self.manifest["shard_samples"])
            file = self._open(shard)
            rows.append([file.get_slice(name)[row : row + 1] for name in ("probabilities", "indices")])
        probabilities, indices = (torch.cat(parts) for parts in zip(*rows))
        return probabilities.float(), indices.long()

    def bytes_per_token(self) -> float:
        """Return the size of all shards on disk divided by the number of tokens."""
        size = sum(self._path(shard).stat().st_size for shard in range(self._shards()))
        return size / self.sequences.numel()

    def _check_manifest(self) -> None:
        """Write the manifest, or compare with the one that is there."""
        path = self.folder / MANIFEST
        if path.exists():
            try:
                manifest = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise UserError(f"cannot read {path}: {error}; delete the folder to make the store again") from error
            for name, value in self.manifest.items():
                if manifest.get(name) != value:
                    raise UserError(
                        f"the store in {self.folder} was made with another {name} ({manifest.get(name)!r} there, {value!r} "
                        "here); name another folder, or delete it to make it again"
                    )
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_files.whole(path) as file:
                file.write_text(json.dumps(self.manifest, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write the store {self.folder}: {error.strerror}; name another folder") from error

    def _shards(self) -> int:
        return -(-len(self.sequences) // self.manifest["shard_samples"])

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.safetensors"

    def _rows(self, shard: int) -> Tensor:
        size = self.manifest["shard_samples"]
        return self.sequences[shard * size : (shard + 1) * size]

    def _complete(self, shard: int) -> bool:
        """Return whether the shard is there, complete and of the right shape."""
        if not self._path(shard).exists():
            return False
        try:
            with safe_open(self._path(shard), "pt") as file:
                shapes = [file.get_slice(name).get_shape() for name in ("probabilities", "indices")]
        except (OSError, SafetensorError):
            return False
        return shapes == [[*self._rows(shard).shape, self.k]] * 2

    @torch.no_grad()
    def _make(self, shard: int) -> int:
        decoder, rows = self.decoder, self._rows(shard)
        small = torch.uint16 if decoder.config.vocab_size <= 1 << 16 else torch.int32
        parts = []
        for ids in rows.split(1):
            logits = decoder.logits(decoder.run(decoder.embed_tokens(ids)))
            probabilities, indices = top_k(logits, self.k)
            parts.append((probabilities.to("cpu", getattr(torch, DTYPE)), indices.cpu().to(small)))
        tensors = {name: torch.cat(part) for name, part in zip(("probabilities", "indices"), zip(*parts))}
        path = self._path(shard)
        try:
            with atomic_files.whole(path) as file:
                save_file(tensors, file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write {path}: {error}; free space there, what is written is kept") from error
        return len(rows)
