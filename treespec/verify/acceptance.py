"""What a verifier decides, and the protocol that verifiers follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree.token_tree import TokenTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The accepted path of one row and the token that follows it.

    Attributes:
        path: node indices from the root down; `path[0] == 0`. Empty only after prefill, which has
            no tree.
        next_token: the token emitted after the path: a bonus token after a leaf, a recovered one
            otherwise. It is the root of the next tree.
        deviations: from a rule that is not lossless, for each accepted token 1 - p, its distance
            from sampling there; empty otherwise.
    """

    path: tuple[int, ...]
    next_token: int
    deviations: tuple[float, ...] = ()

    @property
    def num_accepted(self) -> int:
        """Draft tokens accepted; excludes the root and `next_token`."""
        return max(len(self.path) - 1, 0)


@runtime_checkable
class Verifier(Protocol):
    """A rule that decides which path of a tree the target accepts.

    Attributes:
        lossless: whether the emitted tokens follow the target's own law.
        draws: the draws it is exact for, preferred first.
    """

    lossless: bool
    draws: tuple[str, ...]

    def accept(
        self,
        trees: Sequence[TokenTree],
        scores: Sequence[NodeScores],
        noises: Sequence[RowNoise],
        root_positions: Sequence[int],
    ) -> list[Acceptance]:
        """Decide one step, row by row, without changing an argument's meaning.

        Args:
            trees: one tree per row.
            scores: per row the target's processed logits; `scores[r].row(i)`, of shape `[V]`,
                speaks of the children of node i.
            noises: each row's source of randomness.
            root_positions: absolute position of each row's root; the children of a node at depth
                d stand at `root_position + d + 1`.
        """
        ...
