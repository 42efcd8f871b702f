"""Batches of examples: by count of tokens, in an order that a seed and a number determine.

Every example is a row of its own, so that no document sees another and positions are those of
decoding. Rows of one batch have similar lengths, so that little of it is padding, and everything
that is computed per position skips the padding altogether.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.training.data import Example

# Examples among which those of similar length are put together: many batches, a small part of an
# epoch.
_WINDOW = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded on the right.

    Attributes:
        examples: where they come from.
        tokens: their tokens; padding is 0.
        supervised: which of them count as labels; padding never does.
        lengths: tokens of every row.
    """

    examples: tuple[Example, ...]
    tokens: Int[Tensor, "B L"]
    supervised: Bool[Tensor, "B L"]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, examples: Sequence[Example], max_length: int) -> "Batch":
        """Examples, each cut to `max_length` tokens."""
        lengths = tuple(min(len(one.tokens), max_length) for one in examples)
        tokens = torch.zeros(len(examples), max(lengths), dtype=torch.int64)
        supervised = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, (one, length) in enumerate(zip(examples, lengths, strict=True)):
            tokens[row, :length] = one.tokens[:length]
            supervised[row, :length] = one.supervised[:length]
        return cls(tuple(examples), tokens, supervised, lengths)

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return sum(self.lengths)

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        return Batch(
            self.examples, self.tokens.to(device), self.supervised.to(device), self.lengths
        )


def shuffled_batches(
    lengths: Sequence[int], batch_tokens: int, *, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    """One pass over examples in an order of its own.

    Args:
        lengths: tokens of every example, each at most `batch_tokens`.
        batch_tokens: rows times length of the longest row is at most this.
        seed: of all orders.
        epoch: number of the pass.

    Returns:
        Indices of examples by batch; each example once.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[tuple[int, ...]] = []
    for start in range(0, len(order), _WINDOW):
        window = sorted(order[start : start + _WINDOW], key=lambda index: -lengths[index])
        batches += filled(window, lengths, batch_tokens)
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[place] for place in shuffled]


def filled(
    indices: Sequence[int], lengths: Sequence[int], batch_tokens: int
) -> list[tuple[int, ...]]:
    """Batches of examples in the given order, each as full as it can be."""
    batches: list[tuple[int, ...]] = []
    rows: list[int] = []
    longest = 0
    for index in indices:
        longest = max(longest, lengths[index])
        if rows and longest * (len(rows) + 1) > batch_tokens:
            batches.append(tuple(rows))
            rows, longest = [], lengths[index]
        rows.append(index)
    return [*batches, tuple(rows)] if rows else batches


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch stands in training.

    Attributes:
        epoch: pass over the data, from 0.
        indices: its examples.
    """

    epoch: int
    indices: tuple[int, ...]


class BatchStream:
    """All batches of all epochs, one behind the other, by number.

    It has no state that training depends on: batch n is the same whatever was asked before, so
    that a run continues exactly where another one stopped.

    Args:
        lengths: tokens of every example, each at most `batch_tokens`.
        batch_tokens: see `shuffled_batches`.
        seed: of the orders.
    """

    def __init__(self, lengths: Sequence[int], batch_tokens: int, seed: int) -> None:
        self._lengths = list(lengths)
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._sizes: list[int] = []  # batches of the epochs seen so far
        self._epoch = -1
        self._batches: list[tuple[int, ...]] = []

    def batch(self, number: int) -> Place:
        """The batch of this number, from 0."""
        epoch = 0
        while number >= self.size(epoch):
            number -= self.size(epoch)
            epoch += 1
        return Place(epoch, self._of(epoch)[number])

    def size(self, epoch: int) -> int:
        """Batches of one epoch; it depends a little on the order."""
        while len(self._sizes) <= epoch:
            self._sizes.append(len(self._of(len(self._sizes))))
        return self._sizes[epoch]

    def _of(self, epoch: int) -> list[tuple[int, ...]]:
        if epoch != self._epoch:
            self._epoch = epoch
            self._batches = shuffled_batches(
                self._lengths, self._batch_tokens, seed=self._seed, epoch=epoch
            )
        return self._batches
