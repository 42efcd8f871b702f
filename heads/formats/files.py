"""Where a checkpoint's files are: a folder, one file, or a repository on the Hub."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from treespec.errors import CheckpointError, DownloadError

_PICKLES = (".pt", ".bin", ".pth")
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|rng_state|scaler)\b.*")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+|[A-Za-z0-9][\w-]*")


@dataclass(frozen=True, slots=True)
class Files:
    """What was found at a place.

    Attributes:
        place: the folder, the file, or the name of the repository, for messages.
        safetensors: files of tensors, the shards of one checkpoint together.
        pickles: the same for pickles, which are opened only where safetensors hold no heads.
        config: content of `config.json`; empty without one.
    """

    place: str
    safetensors: tuple[tuple[Path, ...], ...]
    pickles: tuple[tuple[Path, ...], ...]
    config: Mapping[str, Any]


def find_files(path_or_repo: str | Path) -> Files:
    """The files of a checkpoint; a repository is downloaded, or taken from the local cache.

    Raises:
        CheckpointError: if there is nothing, or a config that is no JSON.
        DownloadError: if a repository cannot be had.
    """
    place = str(path_or_repo)
    path = Path(place).expanduser()
    if path.is_file():
        suffix = path.suffix
        if suffix not in (".safetensors", *_PICKLES):
            raise CheckpointError(
                f"{place} is no file of weights; give a .safetensors, .pt or .bin file, or a folder"
            )
        group = (_shards(path) or (path,),)
        is_safe = suffix == ".safetensors"
        return Files(
            place, group if is_safe else (), () if is_safe else group, _read_config(path.parent)
        )
    if path.is_dir():
        return _in_folder(place, path)
    if isinstance(path_or_repo, Path) or not _HUB_ID.fullmatch(place):
        raise CheckpointError(f"there is no file or folder {place}; check the path")
    return _in_folder(place, _download(place))


def _in_folder(place: str, folder: Path) -> Files:
    names = sorted(path for path in folder.iterdir() if path.is_file())
    weights = [path for path in names if not _NOT_WEIGHTS.match(path.name)]
    safetensors = _groups([path for path in weights if path.suffix == ".safetensors"])
    pickles = _groups([path for path in weights if path.suffix in _PICKLES])
    if not safetensors and not pickles:
        held = ", ".join(path.name for path in names[:5]) or "nothing"
        raise CheckpointError(
            f"{place} has no weights (no .safetensors, .pt or .bin file); it holds {held}"
        )
    return Files(place, safetensors, pickles, _read_config(folder))


def _groups(paths: list[Path]) -> tuple[tuple[Path, ...], ...]:
    """Files by checkpoint."""
    groups: dict[str, tuple[Path, ...]] = {}
    for path in paths:
        match = _SHARD.match(path.stem)
        groups[match["stem"] + path.suffix if match else path.name] = _shards(path) or (path,)
    return tuple(groups.values())


def _shards(path: Path) -> tuple[Path, ...]:
    """All shards of the checkpoint that a file is a shard of; empty if it is whole.

    Raises:
        CheckpointError: if one is missing.
    """
    match = _SHARD.match(path.stem)
    if match is None:
        return ()
    count = int(match["count"])
    shards = [
        path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}{path.suffix}")
        for number in range(1, count + 1)
    ]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise CheckpointError(
            f"{path.parent} lacks {missing[0]}, one of {count} shards; download it again"
        )
    return tuple(shards)


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, not an object of settings")
    return config


def _download(repo: str) -> Path:
    """A local copy of a repository: its safetensors, or its pickles where there are none."""
    try:
        folder = Path(snapshot_download(repo, allow_patterns=["*.json", "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            patterns = ["*.json", *(f"*{suffix}" for suffix in _PICKLES)]
            folder = Path(snapshot_download(repo, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise DownloadError(
            f"there is no folder {repo} here, and the Hub cannot be reached, nor is a repository "
            "of that name in the local cache; check the name and the network, or give a folder"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()
        raise DownloadError(
            f"{repo} is neither a folder here nor a repository on the Hub that you may read "
            f"({reason[0] if reason else type(error).__name__}); check the name, and log in with "
            "`hf auth login` if it is gated"
        ) from error
    except OSError as error:
        raise DownloadError(f"{repo} could not be downloaded: {error}; try again") from error
    return folder
