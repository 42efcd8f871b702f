"""The two random decisions that an acceptance rule can ask for, and how decoding makes them."""

import hashlib
from typing import Protocol, runtime_checkable

from treespec.verify.laws import Law, Number


@runtime_checkable
class Randomness(Protocol):
    """Where an acceptance rule gets its decisions from; each is independent of all others."""

    def accept(self, prob: Number) -> bool:
        """True with probability `prob`; values below 0 count as 0, above 1 as 1."""
        ...

    def choose(self, weights: Law) -> int:
        """A token with probability proportional to its weight; some weight must be positive."""
        ...


class KeyedRandomness:
    """Decisions that are a function of a seed, a position, a purpose and their count.

    Nothing is shared with the noise of `treespec.sampling`, nor between purposes: a rule that
    compared a draft with the numbers that drew it would be biased.

    Args:
        seed: the row's seed.
        position: absolute position of the step's root; steps of one row have distinct ones.
        purpose: at most 16 characters that tell streams apart.
    """

    def __init__(self, seed: int, position: int, purpose: str = "verify") -> None:
        self._key = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
        self._purpose = purpose.encode()
        self._count = 0

    def uniform(self) -> float:
        """The next number in [0, 1), from a grid of 2**-53."""
        counted = self._key + self._count.to_bytes(8, "little")
        self._count += 1
        digest = hashlib.blake2b(counted, digest_size=8, person=self._purpose).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def accept(self, prob: Number) -> bool:
        """See `Randomness.accept`; strict, so that what is impossible is never accepted."""
        return self.uniform() < prob

    def choose(self, weights: Law) -> int:
        """See `Randomness.choose`."""
        return weights.quantile(self.uniform())
