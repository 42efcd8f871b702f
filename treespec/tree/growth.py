"""The one growing loop: dynamic best-first trees, and static shapes filled with tokens.

Level by level, the nodes that are among the best `budget` so far are expanded together, their
children join the pool, and at the end the best `budget` nodes are the tree. A child never scores
above its parent, so the best nodes are always connected, and no later level can bring a node back
that has fallen out: the result is the optimum of the drafter's own estimate (OPT-Tree, Wang et al.
2024; EAGLE-2's rerank and DDTree are the same loop with other limits). See docs/math/trees.md.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree


@dataclass(frozen=True, slots=True)
class Candidates:
    """Possible children of one node, most promising first.

    Attributes:
        tokens: distinct token ids.
        log_probs: for each the logarithm of the estimate that it is accepted, given that the node
            is; not increasing, at most 0.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]


NO_CANDIDATES = Candidates((), ())


class GrowingTree:
    """One row's tree while it grows: plain lists, nodes in order of creation."""

    __slots__ = ("depths", "parents", "scores", "tokens")

    def __init__(self, root: int) -> None:
        self.parents = [-1]
        self.tokens = [root]
        self.depths = [0]
        self.scores = [0.0]

    def __len__(self) -> int:
        """Number of nodes so far."""
        return len(self.parents)

    def add(self, parent: int, token: int, score: float) -> int:
        """Append a node and return its index."""
        self.parents.append(parent)
        self.tokens.append(token)
        self.depths.append(self.depths[parent] + 1)
        self.scores.append(score)
        return len(self.parents) - 1


class Expander(Protocol):
    """Knows likely children; may run a model once per level."""

    def expand(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Candidates]]:
        """Candidates for every frontier node of every row, in the same order."""
        ...


@dataclass(frozen=True, slots=True)
class Grown:
    """A finished tree.

    Attributes:
        tree: the tree.
        origins: for each of its nodes the index it had while growing; node 0 stays node 0.
    """

    tree: TokenTree
    origins: tuple[int, ...]


def grow(
    expander: Expander,
    roots: Sequence[int],
    limits: Sequence[TreeLimits],
    *,
    draw: str,
    source: int = 1,
) -> list[Grown]:
    """Grow one tree per row, all rows level by level together.

    Args:
        expander: where candidates come from.
        roots: token of each row's root.
        limits: each row's bounds; a topology in them is filled rank by rank instead.
        draw: how the expander's candidates come about, "shared" or "topk".
        source: bit mask written for the drafted nodes.
    """
    rows = [_Row(root, limit) for root, limit in zip(roots, limits, strict=True)]
    while any(row.frontier for row in rows):
        found = expander.expand([row.tree for row in rows], [row.frontier for row in rows])
        for row, candidates in zip(rows, found, strict=True):
            row.add_level(candidates)
    return [row.finish(draw, source) for row in rows]


class _Row:
    """Growth of one row: its pool, the best nodes in it, and the nodes to expand next."""

    def __init__(self, root: int, limits: TreeLimits) -> None:
        self.tree = GrowingTree(root)
        self.limits = limits
        self.frontier = [0] if limits.budget > 0 and limits.depth > 0 else []
        self.best: list[tuple[float, int]] = []  # heap of (score, -node): the worst kept node on top
        self.places = {0: 0}  # node -> its node in limits.topology, where a topology is to be filled

    def add_level(self, candidates: Sequence[Candidates]) -> None:
        """Take the frontier's candidates in and choose the next frontier."""
        if self.limits.topology is None:
            self._add_best(candidates)
        else:
            self._fill_level(candidates)

    def _add_best(self, candidates: Sequence[Candidates]) -> None:
        tree, best, limits = self.tree, self.best, self.limits
        added = []
        for parent, found in zip(self.frontier, candidates, strict=True):
            parent_score = tree.scores[parent]
            for _, token, log_prob in zip(range(limits.width), found.tokens, found.log_probs, strict=False):
                score = parent_score + min(log_prob, 0.0)
                full = len(best) == limits.budget
                if score == -math.inf or (full and score <= best[0][0]):
                    break
                node = tree.add(parent, token, score)
                (heapq.heapreplace if full else heapq.heappush)(best, (score, -node))
                added.append(node)
        kept = {-negative for _, negative in best}
        self.frontier = [node for node in added if node in kept and tree.depths[node] < limits.depth]

    def _fill_level(self, candidates: Sequence[Candidates]) -> None:
        topology = self.limits.topology
        added = []
        for parent, found in zip(self.frontier, candidates, strict=True):
            places = topology.children[self.places[parent]]
            for place, token, log_prob in zip(places, found.tokens, found.log_probs, strict=False):
                node = self.tree.add(parent, token, self.tree.scores[parent] + min(log_prob, 0.0))
                self.places[node] = place
                self.best.append((0.0, -node))
                if topology.children[place]:
                    added.append(node)
        self.frontier = added

    def finish(self, draw: str, source: int) -> Grown:
        """The kept nodes as a tree, in order of creation."""
        origins = (0, *sorted(-negative for _, negative in self.best))
        renumbered = {origin: node for node, origin in enumerate(origins)}
        tree = TokenTree.from_lists(
            [-1, *(renumbered[self.tree.parents[origin]] for origin in origins[1:])],
            [self.tree.tokens[origin] for origin in origins],
            draw=draw,
            scores=[self.tree.scores[origin] for origin in origins],
            source=source,
        )
        return Grown(tree, origins)
