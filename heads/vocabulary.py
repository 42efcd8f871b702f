"""A draft vocabulary: the part of the target's tokens that a head can propose."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.errors import CheckpointError


class DraftVocabulary:
    """Which of the target's V token ids each of a head's D output columns stands for.

    Args:
        ids: the target's id of every column, distinct, in [0, V).
        vocab_size: V.

    Raises:
        CheckpointError: if an id is out of range or stands twice.
    """

    def __init__(self, ids: Int[Tensor, " D"], vocab_size: int) -> None:
        ids = ids.to(torch.int64)
        outside = ((ids < 0) | (ids >= vocab_size)).nonzero()
        if len(outside):
            column = int(outside[0])
            raise CheckpointError(
                f"the draft vocabulary maps column {column} to token {int(ids[column])}, but the "
                f"target has ids 0 to {vocab_size - 1}"
            )
        if len(ids.unique()) < len(ids):
            raise CheckpointError("the draft vocabulary maps two columns to one token")
        self.ids = ids
        self.vocab_size = vocab_size

    @classmethod
    def from_offsets(cls, offsets: Int[Tensor, " D"], vocab_size: int) -> "DraftVocabulary":
        """From EAGLE-3's `d2t`, which holds the target's id minus the column."""
        return cls(torch.arange(len(offsets), device=offsets.device) + offsets, vocab_size)

    def __len__(self) -> int:
        return self.ids.shape[0]

    def offsets(self) -> Int[Tensor, " D"]:
        """EAGLE-3's `d2t`."""
        return self.ids - torch.arange(len(self), device=self.ids.device)

    def mask(self) -> Bool[Tensor, " V"]:
        """EAGLE-3's `t2d`: which of the target's tokens are in it."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.ids.device)
        mask[self.ids] = True
        return mask

    def to(self, device: torch.device) -> "DraftVocabulary":
        """The same on another device."""
        moved = object.__new__(DraftVocabulary)
        moved.ids, moved.vocab_size = self.ids.to(device), self.vocab_size
        return moved
