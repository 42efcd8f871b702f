"""Draft heads to a repository on the Hub."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from transformers import PreTrainedTokenizerBase

from treespec.errors import DownloadError
from treespec.heads.base import DraftHeads
from treespec.heads.formats.saving import save_heads


def push_heads(
    heads: DraftHeads,
    repo_id: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    base_model: str | None = None,
    acceptance: Mapping[str, float] | None = None,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Upload draft heads",
) -> str:
    """Save heads and upload them; the repository is made if there is none.

    Args:
        heads: what to upload.
        repo_id: name of the repository.
        tokenizer: as for `save_heads`.
        base_model: as for `save_heads`.
        acceptance: as for `save_heads`.
        private: whether a repository that is made is private; None for the account's default.
        token: for the Hub; None for the one that is logged in.
        commit_message: of the upload.

    Returns:
        Where the upload can be seen.

    Raises:
        CheckpointError: if a weight is not finite.
        DownloadError: if the Hub refuses, or cannot be reached.
    """
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as work:
        folder = save_heads(
            heads,
            Path(work) / "heads",
            tokenizer=tokenizer,
            base_model=base_model,
            acceptance=acceptance,
        )
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            uploaded = api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=commit_message
            )
        except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
            raise DownloadError(
                f"the heads could not be uploaded to {repo_id}: {error}; check the name, the "
                "network, and that `hf auth login` was done"
            ) from error
    return str(uploaded)
