"""Upload a saved result to the Hugging Face hub (`--push-to-hub REPO`)."""

from pathlib import Path

import huggingface_hub

from common.models.files import hub
from common.utils.errors import UserError, one_line


def check(repo: str) -> None:
    """Refuse an upload that cannot succeed, before any work.

    Raises:
        UserError: the hub does not answer, or there is no token that it accepts.
    """
    if reason := hub.unreachable_because():
        raise UserError(f"--push-to-hub {repo}: {reason}. Connect to the hub, or leave the option out")
    if huggingface_hub.get_token() is None:
        raise UserError(
            f"--push-to-hub {repo}: there is no access token. Log in with `hf auth login`, or set HF_TOKEN to a token that "
            "may write"
        )
    try:
        huggingface_hub.whoami()
    except Exception as error:  # HfHubHTTPError, OSError, httpx2.TransportError: no common base
        raise UserError(
            f"--push-to-hub {repo}: the hub does not accept the token, or did not answer ({one_line(error)}). Log in again "
            "with `hf auth login`, or leave the option out"
        ) from error


def push(repo: str, folder: Path) -> str:
    """Upload a directory, to a new private repository if there is none; return the address.

    Raises:
        UserError: the hub refuses it, or the connection breaks. The directory is unchanged.
    """
    api = huggingface_hub.HfApi()
    try:
        created = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message=f"Add {folder.name}")
    except Exception as error:  # ValueError, too, and whatever the upload's own library raises
        raise UserError(
            f"cannot push to {repo}: {one_line(error)}. The result is complete in {folder}. Check the connection, the name "
            f"and the token's rights, then run `hf upload {repo} {folder}`"
        ) from error
    return str(created)
