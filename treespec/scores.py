"""What the target says at every node of a tree, once processed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class NodeScores:
    """Processed scores of the N nodes of one tree: of all V tokens, or of the few that are left.

    Attributes:
        values: shape `[N V]`; or `[N K]`, the scores of `ids`, the largest first, -inf where a node
            has fewer than K tokens left.
        ids: the tokens that `values` speaks of, ties in order of id; None for all of them in order.
        vocab_size: V.
        undecided: nodes that may have more than K tokens left, whose `values` and `ids` mean
            nothing; None if there is none.
        exact: the scores of all tokens at one node; only asked at undecided nodes.
    """

    values: Float[Tensor, "N _K"]
    ids: Int[Tensor, "N _K"] | None
    vocab_size: int
    undecided: Bool[Tensor, " N"] | None = None
    exact: Callable[[int], Float[Tensor, " _V"]] | None = None

    @classmethod
    def of_all(cls, values: Float[Tensor, "N V"]) -> "NodeScores":
        """The scores of every token at every node."""
        return cls(values, None, values.shape[1])

    def __len__(self) -> int:
        return self.values.shape[0]

    def row(self, node: int) -> Float[Tensor, " _V"]:
        """Scores of all tokens at one node, -inf for those that are ruled out."""
        if self.ids is None:
            return self.values[node]
        if self.exact is not None and self.undecided is not None and bool(self.undecided[node]):
            return self.exact(node)
        row = self.values.new_full((self.vocab_size,), -torch.inf)
        return row.scatter_(0, self.ids[node], self.values[node])

    def dense(self) -> Float[Tensor, "N _V"]:
        """Scores of all tokens at all nodes."""
        return torch.stack([self.row(node) for node in range(len(self))])
