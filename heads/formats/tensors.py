"""Tensors in files, known by name and shape before any of them is read."""

import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from treespec.errors import CheckpointError

FLOATS = ("bfloat16", "float16", "float32", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_SAFETENSORS_NAMES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}

_REFUSED = re.compile("weights.only|unsupported", re.IGNORECASE)
"""What torch says of a pickle with anything but tensors in it."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is still in its file.

    Attributes:
        shape: its sizes.
        dtype: name of its data type, as torch calls it where torch has it.
        read: gives the tensor, on the CPU.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


def open_tensors(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Every tensor of some files, which are the shards of one checkpoint.

    Raises:
        CheckpointError: if a file is damaged, or holds anything but named tensors.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        _require_content(path)
        opened = _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)
        tensors.update(opened)
    return tensors


def read_ids(name: str, stored: StoredTensor) -> Tensor:
    """A vector of integers, as int64.

    Raises:
        CheckpointError: if it is no vector, or holds anything else.
    """
    if stored.dtype not in INTEGERS or len(stored.shape) != 1:
        raise CheckpointError(
            f"{name} must be a vector of integers, but is {stored.dtype} {list(stored.shape)}"
        )
    return stored.read().to(torch.int64)


def _require_content(path: Path) -> None:
    """Name the two files that people have in place of weights."""
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise CheckpointError(f"{path} is empty; download it again")
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`"
        )


def _open_safetensors(path: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            return {
                key: StoredTensor(
                    tuple(part.get_shape()),
                    _SAFETENSORS_NAMES.get(part.get_dtype(), part.get_dtype().lower()),
                    _reader(path, key),
                )
                for key, part in slices.items()
            }
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({_short(error)}); download it again"
        ) from error


def _reader(path: Path, key: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(key)
        return tensor

    return read


def _open_pickle(path: Path) -> dict[str, StoredTensor]:
    loaded = _load_pickle(path)
    if not isinstance(loaded, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(loaded).__name__}; a state dict of named tensors is needed"
        )
    odd = [key for key, value in loaded.items() if not isinstance(value, Tensor)]
    if odd:
        raise CheckpointError(
            f"{path} is no state dict: its entry {odd[0]!r} is a "
            f"{type(loaded[odd[0]]).__name__}, not a tensor; save module.state_dict() alone"
        )
    return {str(key): _stored(value) for key, value in loaded.items()}


def _load_pickle(path: Path) -> Any:
    """The content of a pickle that holds tensors only; code in it is never run."""
    try:
        # Files of torch before 1.6 are no archives, and cannot be mapped into memory.
        mapped = zipfile.is_zipfile(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of protocols; what matters is raised
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a damaged file fails in every possible way
        if _REFUSED.search(str(error)):
            raise CheckpointError(
                f"{path} holds more than tensors: unpickling it would run code, so it is refused; "
                "ask its author for a safetensors file, or for a state dict"
            ) from error
        raise CheckpointError(f"{path} is damaged ({_short(error)}); download it again") from error


def _stored(tensor: Tensor) -> StoredTensor:
    # A copy, because the file is only mapped into memory.
    return StoredTensor(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.detach().clone
    )


def _short(error: BaseException) -> str:
    """First line of a message, or the error's type."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:160] if lines else type(error).__name__
