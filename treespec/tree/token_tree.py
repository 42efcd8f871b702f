"""A drafted tree: a topology with a token at every node."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
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
        sources: for each node a bit mask of the drafters that proposed it, shape `[N]`, int64 on
            the CPU; 0 for the root. A single drafter sets bit 0.
        draw: how siblings came about, one of `DRAWS`.
        draft_probs: row i is the law that node i's *children* were drawn from, before any
            removal, shape `[N, V]`; None where the draw needs none.
        scores: logarithm of the drafter's estimate that the node is accepted, shape `[N]`;
            0 for the root, never above the parent's. Merging ranks nodes by it; no verifier
            reads it.

    Raises:
        InvalidTreeError: if a part does not have one row per node, `tokens` or `sources` is not
            int64 on the CPU, or `draw` is unknown.
    """

    topology: TreeTopology
    tokens: Int[Tensor, " N"]
    sources: Int[Tensor, " N"]
    draw: str
    draft_probs: Float[Tensor, "N V"] | None = None
    scores: Float[Tensor, " N"] | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        size = len(self.topology)
        for name, axes in (("tokens", 1), ("sources", 1), ("draft_probs", 2), ("scores", 1)):
            part: Tensor | None = getattr(self, name)
            if part is not None and (part.ndim != axes or part.shape[0] != size):
                raise InvalidTreeError(
                    f"{name} has shape {tuple(part.shape)}, but the topology has {size} nodes; "
                    f"give {f'[{size}]' if axes == 1 else f'[{size}, vocabulary]'}"
                )
        for name in ("tokens", "sources"):
            part = getattr(self, name)
            if part.dtype != torch.int64 or part.device.type != "cpu":
                raise InvalidTreeError(
                    f"{name} is {part.dtype} on {part.device}; trees live on the host: "
                    "convert with .to('cpu', torch.int64)"
                )
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
        source: int | Sequence[int] = 1,
    ) -> "TokenTree":
        """Tree from plain lists.

        Args:
            parents: as in `TreeTopology`.
            tokens: token id of each node.
            draw: how siblings came about.
            scores: one per node, the root's included, or None.
            source: bit mask for every node but the root, or one per node, the root's included.
        """
        sources = [0] + [source] * (len(tokens) - 1) if isinstance(source, int) else source
        # numpy converts short lists about four times faster than torch does
        return cls(
            topology=TreeTopology(parents),
            tokens=torch.from_numpy(np.array(tokens, dtype=np.int64)),
            sources=torch.from_numpy(np.array(sources, dtype=np.int64)),
            draw=draw,
            scores=None if scores is None else torch.from_numpy(np.array(scores, dtype=np.float32)),
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
