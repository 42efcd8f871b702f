"""A folder of training data while it is written; what was written survives a kill at any moment.

A shard of hidden states is on disk before the index that names it, and the index before the lines
of the examples. Whatever a kill leaves behind without a line is cleared away at the next start.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from treespec.errors import DataError
from treespec.training.conversations import Piece
from treespec.training.data import (
    EXAMPLES_FILE,
    HIDDEN_FILE,
    META_FILE,
    read_meta,
    read_shards,
)
from treespec.training.examples import DataMeta, digest_of
from treespec.training.files import replace_text, unfinished

_SHARD_BYTES = 64 * 2**20
_SHARD_NAME = "hidden-{:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class _Pending:
    """An example that is not on disk."""

    name: str
    line: dict[str, Any]
    states: Tensor | None


class DataWriter:
    """Adds examples to a folder, begun now or by an earlier run with the same settings.

    Args:
        path: the folder; made if it does not exist.
        meta: whose data they are.
        shard_bytes: hidden states are written once there are so many.

    Attributes:
        done: ids of the conversations on disk.

    Raises:
        DataError: if the folder holds something else, or was begun with other settings.
    """

    def __init__(
        self, path: str | Path, meta: DataMeta, *, shard_bytes: int = _SHARD_BYTES
    ) -> None:
        self.path = Path(path).expanduser()
        self._meta = meta
        self._shard_bytes = shard_bytes
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        _begin(self.path, meta)
        self._names = _mend(self.path / EXAMPLES_FILE)
        self._shards = _clear_shards(self.path, set(self._names))
        self.done: set[str] = {name for name, is_first in self._names.items() if is_first}

    def __enter__(self) -> "DataWriter":
        """Write."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put on disk what is finished, also when something went wrong."""
        self.flush()

    def add(self, name: str, category: str | None, pieces: Sequence[Piece]) -> None:
        """Take a finished conversation; its first piece gets the name as id."""
        for place, piece in enumerate(pieces):
            own = name if place == 0 else f"{name}/turn-{place + 1}"
            line: dict[str, Any] = {
                "id": own,
                "category": category,
                "tokens": list(piece.text.tokens),
                "supervised": [list(span) for span in piece.text.spans],
            }
            if len(pieces) > 1:
                line["part"] = [place + 1, len(pieces)]
            states = None if piece.states is None else _fitted(piece)
            self._pending.append(_Pending(own, line, states))
            self._pending_bytes += 0 if states is None else states.nbytes
        self.done.add(name)

    def step(self) -> None:
        """Put examples on disk, unless their hidden states are yet too few for a shard."""
        if self._meta.taps is None or self._pending_bytes >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Put every finished example on disk."""
        if not self._pending:
            return
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if self._meta.taps is not None:
            self._write_shard(pending)
        text = "".join(json.dumps(one.line, ensure_ascii=False) + "\n" for one in pending)
        with (self.path / EXAMPLES_FILE).open("ab", buffering=0) as file:
            file.write(text.encode())
            os.fsync(file.fileno())

    def _write_shard(self, pending: Sequence[_Pending]) -> None:
        numbers = [int(shard.split("-")[1].split(".")[0]) for shard in self._shards.values()]
        shard = _SHARD_NAME.format(max(numbers, default=-1) + 1)
        fingerprint = self._meta.fingerprint
        tensors = {one.name: one.states for one in pending if one.states is not None}
        digests = {
            one.name: digest_of(one.name, one.line["tokens"], fingerprint) for one in pending
        }
        with unfinished(self.path / shard) as work:
            save_file(tensors, work, metadata=digests)
        self._shards |= dict.fromkeys(tensors, shard)
        write_json(self.path / HIDDEN_FILE, self._shards)


def write_json(path: Path, values: object) -> None:
    """Write a JSON file, whole or not at all."""
    replace_text(path, json.dumps(values, indent=1) + "\n")


def _fitted(piece: Piece) -> Tensor:
    """States of exactly the piece's tokens; the last token's may never have been computed."""
    length = len(piece.text.tokens)
    if piece.states is None or piece.states.shape[0] < length - 1:
        known = 0 if piece.states is None else piece.states.shape[0]
        raise DataError(f"{known} hidden states for {length} tokens; one may be missing, not more")
    states = piece.states[:length]
    if states.shape[0] < length:
        states = torch.cat([states, states.new_zeros(1, states.shape[1])])
    return states.contiguous()


def _begin(path: Path, meta: DataMeta) -> None:
    """Make the folder, or see that it was begun alike."""
    if (path / META_FILE).is_file():
        differences = _differences(read_meta(path), meta)
        if differences:
            raise DataError(
                f"{path} was begun with other settings ({'; '.join(differences)}); give the same "
                "to go on, or another folder"
            )
        return
    if path.exists() and (not path.is_dir() or _visible(path)):
        raise DataError(f"{path} exists and is no folder of training data; give another folder")
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / META_FILE, meta.as_dict())


def _differences(old: DataMeta, new: DataMeta) -> list[str]:
    """What keeps examples of two runs from standing in one folder, in words."""
    found = [f"the target has {word}" for word in old.fingerprint.contradictions(new.fingerprint)]
    if old.fingerprint.has_other_weights(new.fingerprint):
        found.append("the target has other weights")
    if old.chat_template_sha256 != new.chat_template_sha256:
        found.append("another chat template")
    before = {"taps": old.taps, "hidden_dtype": old.hidden_dtype, **old.options}
    after = {"taps": new.taps, "hidden_dtype": new.hidden_dtype, **new.options}
    found += [
        f"{name} was {before.get(name)}, is {after.get(name)}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    return found


def _mend(path: Path) -> dict[str, bool]:
    """Cut off what a kill left of a conversation; names on disk, and which are first pieces."""
    if not path.exists():
        path.touch()
        return {}
    names: dict[str, bool] = {}
    good_end = place = 0
    begun: list[str] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place += len(line)
            if not line.endswith(b"\n"):
                break
            try:
                values = json.loads(line)
                name, (part, parts) = str(values["id"]), values.get("part", (1, 1))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}, line {number} is damaged: {error}; remove the line to go on"
                ) from error
            names[name] = part == 1
            begun.append(name)
            if part == parts:
                good_end, begun = place, []
    if good_end < path.stat().st_size:
        os.truncate(path, good_end)
    return {name: first for name, first in names.items() if name not in begun}


def _clear_shards(path: Path, names: set[str]) -> dict[str, str]:
    """Forget hidden states of examples that have no line; the shard of every other."""
    known = read_shards(path)
    shards = {name: shard for name, shard in known.items() if name in names}
    if shards != known:
        write_json(path / HIDDEN_FILE, shards)
    for file in path.glob("hidden-*.safetensors"):
        if file.name not in shards.values():
            file.unlink()
    for file in path.glob(".*"):
        if file.name.startswith((".hidden", ".data")) and file.is_file():
            file.unlink()
    return shards


def _visible(folder: Path) -> list[str]:
    """Names in a folder, without those of unfinished files."""
    return [file.name for file in folder.iterdir() if not file.name.startswith(".")]
