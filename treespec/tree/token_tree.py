"""A drafted tree: a topology with a token at every node."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import InvalidTreeError
from treespec.tree.topology import TreeTopology

DRAWS = ("shared", "topk", "iid", "swor", "iid_paths")


@dataclass(frozen=True, eq=False)
class TokenTree:
    """What one row's drafter proposes for one step; lives on the host.

    Attributes:
        topology: the shape.
        tokens: token id of each node, shape `[N]`, int64 on the CPU. Node 0, the root, is the last
            committed token, which is not yet in the cache.
        sources: for each node a bit mask of the drafters that proposed it, shape `[N]`; 0 for the
            root. A single drafter sets bit 0.
        draw: how siblings came about, one of `DRAWS`.
        draft_probs: row i is the law that node i's *children* were drawn from, before any
            removal, shape `[N, V]`; None where the draw needs none.
        scores: logarithm of the drafter's estimate that the node is accepted, shape `[N]`;
            0 for the root, never above the parent's. Merging ranks nodes by it; no verifier reads it.

    Raises:
        InvalidTreeError: if a part has another length than the topology, or `draw` is unknown.
    """

    topology: TreeTopology
    tokens: Int[Tensor, " N"]
    sources: Int[Tensor, " N"]
    draw: str
    draft_probs: Float[Tensor, "N V"] | None = None
    scores: Float[Tensor, " N"] | None = None

    def __post_init__(self) -> None:
        size = len(self.topology)
        for name in ("tokens", "sources", "draft_probs", "scores"):
            part = getattr(self, name)
            if part is not None and part.shape[0] != size:
                raise InvalidTreeError(f"{name} has {part.shape[0]} rows, but the topology has {size} nodes")
        if self.draw not in DRAWS:
            raise InvalidTreeError(f"draw is {self.draw!r}; it must be one of {', '.join(DRAWS)}")

    @classmethod
    def from_lists(
        cls,
        parents: Sequence[int],
        tokens: Sequence[int],
        *,
        draw: str = "topk",
        scores: Sequence[float] | None = None,
        source: int = 1,
    ) -> "TokenTree":
        """Tree of one drafter from plain lists; every node but the root gets the bit mask `source`."""
        return cls(
            topology=TreeTopology(parents),
            tokens=torch.tensor(tokens, dtype=torch.int64),
            sources=torch.tensor([0] + [source] * (len(tokens) - 1), dtype=torch.int64),
            draw=draw,
            scores=None if scores is None else torch.tensor(scores, dtype=torch.float32),
        )

    @classmethod
    def root_only(cls, token: int, *, draw: str = "topk") -> "TokenTree":
        """The tree that proposes nothing: scoring it is a plain decoding step."""
        return cls.from_lists([-1], [token], draw=draw, scores=[0.0])

    def __len__(self) -> int:
        """Number of nodes, the root included."""
        return len(self.topology)

    @cached_property
    def token_list(self) -> tuple[int, ...]:
        """Token id of each node as plain ints."""
        return tuple(self.tokens.tolist())

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Tokens from the root to `node`, both included."""
        return tuple(self.token_list[i] for i in self.topology.path_to(node))
