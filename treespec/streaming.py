"""Tokens of rows that advance unevenly, handed to a streamer as `generate` hands them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.generation.streamers import BaseStreamer


class RowStreamer:
    """Puts one vector of shape `[B]` for each new position, once every row has got there.

    Args:
        streamer: where tokens go; None for nowhere.
        rows: B, the rows of the batch.
        pad_id: what a finished row gives.
    """

    def __init__(self, streamer: BaseStreamer | None, rows: int, pad_id: int) -> None:
        self._streamer = streamer
        self._waiting: list[list[int]] = [[] for _ in range(rows)]
        self._finished = [False] * rows
        self._pad_id = pad_id

    def put_prompt(self, block: Int[Tensor, "B W"]) -> None:
        """Hand on the prompt, which streamers expect first."""
        if self._streamer is not None:
            self._streamer.put(block.cpu())

    def put(self, row: int, tokens: Sequence[int], *, finished: bool) -> None:
        """Take new tokens of one row; call `flush` when all rows of a step have been taken."""
        if self._streamer is not None:
            self._waiting[row].extend(tokens)
            self._finished[row] = finished

    def flush(self) -> None:
        """Hand on every position that no unfinished row is waiting for."""
        if self._streamer is None:
            return
        while any(self._waiting) and all(
            waiting or finished
            for waiting, finished in zip(self._waiting, self._finished, strict=True)
        ):
            column = [waiting.pop(0) if waiting else self._pad_id for waiting in self._waiting]
            self._streamer.put(torch.tensor(column))

    def end(self) -> None:
        """Tell the streamer that nothing follows."""
        if self._streamer is not None:
            self._streamer.end()
