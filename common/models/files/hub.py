"""Fetch models from the Hugging Face hub without minutes of retries when there is no network.

A local mirror comes first: with the environment variable LAYERLAB_HUB=/dir, 'org/name' is looked up as
/dir/models/org/name (models) or /dir/datasets/org/name (datasets). Then the hub's cache. Then the network, and only
after a probe that takes at most `PROBE_SECONDS`. Every failure becomes one line that says what to do.

Only safetensors are loaded. For a repository without them, the conversion that the hub's bot proposes as a pull request
is taken; without one, the user may have the pickled weights converted (`common.models.files.pickled_weights`).

huggingface_hub's switch turns the hub off (HF_HUB_OFFLINE, which counts here). It has no mirror, does not tell whether
the hub answers, and takes a cache with a missing weight file for complete; these are the reasons for this module.
"""

import fnmatch
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, get_session

from common.models.files import pickled_weights, renamed_architectures, safetensors_reader
from common.models.files.older_transformers import VOCABULARIES
from common.utils import cache
from common.utils.errors import NoData, UserError, first_line, is_full_disk

PROBE_SECONDS = 3.0
MIRROR_VARIABLE = "LAYERLAB_HUB"
REMEDY = "`python -m reproductions fetch TARGET` on a machine with network, or use the toy model"
_IGNORED = ["original/*", "consolidated*", "*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.msgpack", "*.h5", "*.py"]
# Who proposes conversions, and how the hub's conversion service titles them.
_BOT, _BOT_TITLE = "SFconvertbot", "Adding `safetensors` variant of this model"


def mirror(kind: str, hub_id: str) -> Path | None:
    """Return the local copy of `hub_id` in the mirror, if there is one; kind: 'models' or 'datasets'.

    Raises:
        UserError: the configured mirror does not exist.
    """
    root = os.environ.get(MIRROR_VARIABLE)
    if not root:
        return None
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"cannot look up {hub_id}: {MIRROR_VARIABLE} names {root}, which is no directory; correct or unset it"
        )
    path = folder / kind / hub_id
    return path if path.is_dir() else None


def offline() -> bool:
    """Return whether the user has switched the hub off (HF_HUB_OFFLINE), also after the client was imported."""
    return constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable_because() -> str | None:
    """Return why the hub cannot be used, or None when it answers; name resolution counts in `PROBE_SECONDS`."""
    if offline():
        return "HF_HUB_OFFLINE is set"
    outcome: list[str | None] = []
    # The client's timeout does not cover a hanging name server, so the probe gets a thread that may be left behind.
    probe = threading.Thread(target=lambda: outcome.append(_probe()), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return outcome[0] if outcome else f"{constants.ENDPOINT} did not answer within {PROBE_SECONDS:g} s"


def _probe() -> str | None:
    try:
        status = get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS).status_code
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here means one thing: not reachable
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
    # a proxy may refuse its root and have the models; what the hub itself refuses the client explains
    return None if status < 500 else f"{constants.ENDPOINT} answered {status}"


def remedy(error: BaseException) -> str:
    """Return a remedy for this error: a full disk needs another one than a network failure."""
    return "free space there, or name a folder on a larger disk in HF_HOME" if is_full_disk(error) else REMEDY


def cause(error: NoData) -> str:
    """Return what a message of missing data says without `REMEDY`, which is of tables, where a tool names its own."""
    return str(error).replace(f"; {REMEDY}", "")


def require_hub(what: str) -> None:
    """Raise the UserError for `what`, which must come from the hub, unless the hub answers."""
    reason = unreachable_because()
    if reason:
        raise UserError(f"could not fetch {what}: {reason}; {REMEDY}")


def snapshot(hub_id: str, revision: str | None = None, *, convert_weights: bool = False) -> Path:
    """Return the directory with config, tokenizer and safetensors weights of a model, from mirror, cache, or download.

    ``convert_weights`` converts pickled weights if there are no others. An earlier conversion is found without it.

    Raises:
        UserError: the model is not available; the message names the reason and the remedy.
    """
    path = mirror("models", hub_id) or cached(hub_id, revision)
    if path and pickled_weights.only(path):
        converted = pickled_weights.folder(path, hub_id).is_dir()
        if not (path == mirror("models", hub_id) or converted or unreachable_because()):
            path = None
        elif converted or convert_weights:
            path = _as_safetensors(path, hub_id)
        else:
            raise pickled_weights.refusal(hub_id)
    return renamed_architectures.convert(path or _download(hub_id, revision, convert_weights), hub_id)


def revision_of(path: Path) -> str | None:
    """Return the hub commit of a directory from `snapshot`; None for the mirror's directories, which name none."""
    if path.parent.name == "snapshots":  # the hub's cache names its directories by commit
        return path.name
    converted = cache.folder() / "models" in path.parents and not path.name.startswith(pickled_weights.UNVERSIONED)
    return path.name if converted else None


def _as_safetensors(path: Path, hub_id: str) -> Path:
    renamed = renamed_architectures.convert(path, hub_id)
    return pickled_weights.convert(path, hub_id) if renamed == path else renamed


def _download(hub_id: str, revision: str | None, convert_weights: bool) -> Path:
    require_hub(hub_id)
    with _explained(hub_id, revision):
        files = _files(hub_id, revision)
        if fnmatch.filter(files, "*.safetensors"):
            return Path(huggingface_hub.snapshot_download(hub_id, revision=revision, ignore_patterns=_IGNORED))
        if revision is None and (proposed := _proposed_conversion(hub_id)):
            path = Path(huggingface_hub.snapshot_download(hub_id, revision=proposed, ignore_patterns=_IGNORED))
            _remember_conversion(hub_id, path.name)
            return path
        if not fnmatch.filter(files, "pytorch_model*.bin"):
            raise UserError(
                f"could not load {hub_id}: it has neither safetensors nor pickled weights, and no other kind is read, such "
                "as GGUF. Name the repository that it was made from"
            )
        if not convert_weights:
            raise pickled_weights.refusal(hub_id)
        ignored = [pattern for pattern in _IGNORED if pattern != "*.bin"]
        path = Path(huggingface_hub.snapshot_download(hub_id, revision=revision, ignore_patterns=ignored))
        return _as_safetensors(path, hub_id)


def config_file(hub_id: str) -> Path:
    """Return the path of a model's config.json alone, from mirror, cache, or download.

    Raises:
        UserError: the file is not available; the message names the reason and the remedy.
    """
    if path := mirror("models", hub_id):
        return path / "config.json"
    try:
        file = huggingface_hub.hf_hub_download(hub_id, "config.json", local_files_only=True)
    except (OSError, ValueError):
        require_hub(hub_id)
        with _explained(hub_id):
            file = huggingface_hub.hf_hub_download(hub_id, "config.json")
    return Path(file)


@contextmanager
def _explained(hub_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn what the hub's client raises into one line that says what to do."""
    try:
        yield
    except UserError:
        raise
    except GatedRepoError as error:
        raise UserError(
            f"could not fetch {hub_id}: access is gated; accept its licence at https://huggingface.co/{hub_id}, "
            "then `hf auth login` (or set HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"could not fetch {hub_id}: it has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"could not fetch {hub_id}: the hub has no such model, or it is private; if private, `hf auth login` first"
        ) from error
    except Exception as error:  # OSError, httpx2.HTTPError (no OSError), a full disk: the client has no common base
        raise UserError(f"could not fetch {hub_id}: {first_line(error)}; {remedy(error)}") from error


def _files(hub_id: str, revision: str | None) -> list[str]:
    """Return the names of a repository's files outside its folders."""
    names = (file.rfilename for file in huggingface_hub.HfApi().model_info(hub_id, revision=revision).siblings)
    return [name for name in names if "/" not in name]


def _proposed_conversion(hub_id: str) -> str | None:
    """Return the revision (refs/pr/N) of the bot's open pull request that adds safetensors, or None.

    The author counts: anybody may propose other weights under the same title.
    """
    proposals = huggingface_hub.HfApi().get_repo_discussions(
        hub_id, author=_BOT, discussion_type="pull_request", discussion_status="open"
    )
    for proposal in proposals:
        by_the_bot = proposal.author == _BOT and proposal.title == _BOT_TITLE
        if by_the_bot and fnmatch.filter(_files(hub_id, proposal.git_reference), "*.safetensors"):
            return proposal.git_reference
    return None


def _remembered_conversion(hub_id: str) -> Path:
    return cache.folder() / "models" / hub_id.replace("/", "--") / "conversion"


def _remember_conversion(hub_id: str, commit: str) -> None:
    """Note which commit stands for the model, so that it is found without the network."""
    note = _remembered_conversion(hub_id)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(commit)


def cached(hub_id: str, revision: str | None = None) -> Path | None:
    """Return the hub cache's snapshot of a model if it is complete (config, tokenizer, every weight file), else None.

    Of a model without safetensors it is the snapshot of their conversion if one was fetched, else that of the pickled
    weights.
    """
    path = _cached(hub_id, revision)
    note = _remembered_conversion(hub_id)
    if revision is None and (path is None or pickled_weights.only(path)) and note.is_file():
        path = _cached(hub_id, note.read_text()) or path
    return path


def _cached(hub_id: str, revision: str | None) -> Path | None:
    try:
        path = Path(huggingface_hub.snapshot_download(hub_id, revision=revision, local_files_only=True))
        weights = safetensors_reader.loaded(path)
    except (OSError, ValueError, UserError):
        return None
    complete = pickled_weights.only(path) or (weights and all((path / name).exists() for name in weights))
    complete = complete and (path / "config.json").exists()
    return path if complete and any((path / name).exists() for name in VOCABULARIES) else None
