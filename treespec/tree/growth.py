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
from typing import Protocol, runtime_checkable

from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology


@dataclass(frozen=True, slots=True)
class Candidates:
    """Possible children of one node, most promising first.

    Attributes:
        tokens: token ids, distinct unless drawn with replacement.
        log_probs: for each the logarithm of the estimate that it is accepted, given that the node
            is; not increasing, at most 0 (a higher value counts as 0). One that is -inf or NaN
            ends the list. For sampled tokens, which stand in draw order, the logarithm of the
            probability that the draft gives the token.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]


NO_CANDIDATES = Candidates((), ())

# How likely a sampled first child is taken to be accepted. Any value keeps the rules exact; a
# higher one grows deeper and narrower trees.
_LOG_SLOT_ACCEPTANCE = math.log(0.8)
_LEAST_MASS = 1e-6


class GrowingTree:
    """One row's tree while it grows: plain lists, nodes in order of creation."""

    __slots__ = ("depths", "parents", "scores", "tokens")

    def __init__(self, root: int) -> None:
        """A tree of its root alone."""
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


@runtime_checkable
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
        tree: the tree, its nodes in order of creation.
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
        draw: how the expander's candidates come about. Best-first growth drops tokens by their
            score under "shared" and "topk"; sampled tokens are never dropped, see `_SlotRow`.
        source: bit mask written for the drafted nodes.
    """
    rows = [_row(root, limit, draw) for root, limit in zip(roots, limits, strict=True)]
    while any(row.frontier for row in rows):
        found = expander.expand([row.tree for row in rows], [row.frontier for row in rows])
        for row, candidates in zip(rows, found, strict=True):
            if row.frontier:  # a finished row, or one without a budget, has nothing to take in
                row.add_level(candidates)
    return [_finish(row, draw, source) for row in rows]


def _row(root: int, limits: TreeLimits, draw: str) -> "_BestFirstRow | _StaticRow | _SlotRow":
    """The growth of one row that its limits and its draw ask for."""
    sampled = draw not in ("shared", "topk")
    if limits.topology is not None:
        return _StaticRow(root, limits.topology, sampled=sampled)
    return _SlotRow(root, limits) if sampled else _BestFirstRow(root, limits)


class _BestFirstRow:
    """Growth of one row by score: its pool, the best nodes in it, the nodes to expand next."""

    def __init__(self, root: int, limits: TreeLimits) -> None:
        self.tree = GrowingTree(root)
        self.limits = limits
        self.levels_left = limits.depth
        self.frontier = [0] if limits.budget > 0 and limits.depth > 0 else []
        self.best: list[tuple[float, int]] = []  # heap of (score, -node): the worst kept node first

    def add_level(self, candidates: Sequence[Candidates]) -> None:
        """Take the frontier's candidates in and choose the next frontier."""
        tree, best, budget = self.tree, self.best, self.limits.budget
        scores, ranks = tree.scores, range(self.limits.width)
        full = len(best) == budget
        floor = best[0][0] if full else -math.inf  # what a new node's score has to exceed
        added = []
        for parent, found in zip(self.frontier, candidates, strict=True):
            parent_score = scores[parent]
            for _, token, log_prob in zip(ranks, found.tokens, found.log_probs, strict=False):
                score = parent_score if log_prob >= 0.0 else parent_score + log_prob
                if not score > floor:  # false for NaN too
                    break
                node = tree.add(parent, token, score)
                if full:
                    heapq.heapreplace(best, (score, -node))
                else:
                    heapq.heappush(best, (score, -node))
                    full = len(best) == budget
                if full:
                    floor = best[0][0]
                added.append(node)
        self.levels_left -= 1
        # A node that does not exceed the floor has fallen out, or no child of it could come in.
        self.frontier = [node for node in added if scores[node] > floor and self.levels_left > 0]

    def kept(self) -> list[int]:
        """Nodes of the finished tree without the root, in order of creation."""
        return sorted(-negative for _, negative in self.best)


class _StaticRow:
    """Growth of one row into a given topology, rank by rank."""

    def __init__(self, root: int, topology: TreeTopology, *, sampled: bool) -> None:
        self.tree = GrowingTree(root)
        self.sampled = sampled
        self.children = topology.children
        self.places = [0]  # for each node its node in the topology
        self.frontier = [0] if self.children[0] else []

    def add_level(self, candidates: Sequence[Candidates]) -> None:
        """Fill the frontier's places and choose the next frontier."""
        added = []
        for parent, found in zip(self.frontier, candidates, strict=True):
            places = self.children[self.places[parent]]
            for place, token, log_prob in zip(places, found.tokens, found.log_probs, strict=False):
                if not log_prob > -math.inf:  # false for NaN too
                    break
                worth = _LOG_SLOT_ACCEPTANCE if self.sampled else min(log_prob, 0.0)
                node = self.tree.add(parent, token, self.tree.scores[parent] + worth)
                self.places.append(place)
                if self.children[place]:
                    added.append(node)
        self.frontier = added

    def kept(self) -> list[int]:
        """Nodes of the finished tree without the root, in order of creation."""
        return list(range(1, len(self.tree)))


class _SlotRow:
    """Growth of one row whose tokens are sampled: places are chosen, then their tokens drawn.

    Dropping a drawn token for its score would bias the output (docs/math/trees.md), so what
    competes for the budget is the *slot* of a node's next child, scored by the parent's score and
    the draft's mass not yet drawn there. Every level gets its share of what is left of the budget,
    and more while its slots are better than any that the next level can open.
    """

    def __init__(self, root: int, limits: TreeLimits) -> None:
        self.tree = GrowingTree(root)
        self.limits = limits
        self.levels_left = limits.depth
        self.frontier = [0] if limits.budget > 0 and limits.depth > 0 else []
        self.slots: list[tuple[float, int]] = []  # heap of (-score, parent)
        self.draws: dict[int, Candidates] = {}
        self.drawn: dict[int, list[int]] = {}  # parent -> its children's tokens

    def add_level(self, candidates: Sequence[Candidates]) -> None:
        """Open the frontier's slots and draw this level's share of tokens into the best of all."""
        for node, found in zip(self.frontier, candidates, strict=True):
            self.draws[node], self.drawn[node] = found, []
            self._open_slot(node)
        left = self.limits.budget - (len(self.tree) - 1)
        share = math.ceil(left / self.levels_left)
        added: list[int] = []
        while self.slots and len(added) < left:
            score = -self.slots[0][0]
            if len(added) >= share and score <= self.tree.scores[added[0]] + _LOG_SLOT_ACCEPTANCE:
                break  # the next level's best slot will be no worse
            added.append(self._draw_best())
        self.levels_left -= 1
        depths = self.tree.depths
        self.frontier = [
            node for node in added if self.levels_left > 0 and depths[node] < self.limits.depth
        ]

    def _draw_best(self) -> int:
        """Draw the token of the best slot and open the one beside it."""
        negative, parent = heapq.heappop(self.slots)
        token = self.draws[parent].tokens[len(self.drawn[parent])]
        node = self.tree.add(parent, token, -negative)
        self.drawn[parent].append(token)
        self._open_slot(parent)
        return node

    def _open_slot(self, parent: int) -> None:
        """Let the next child of `parent` compete, if it can be drawn at all."""
        found, drawn = self.draws[parent], self.drawn[parent]
        if len(drawn) >= min(len(found.tokens), self.limits.width):
            return
        if not found.log_probs[len(drawn)] > -math.inf:
            return
        mass = dict(zip(drawn, found.log_probs, strict=False))
        open_mass = 1.0 - sum(math.exp(log_prob) for log_prob in mass.values())
        if open_mass > _LEAST_MASS:
            score = self.tree.scores[parent] + _LOG_SLOT_ACCEPTANCE + math.log(min(open_mass, 1.0))
            heapq.heappush(self.slots, (-score, parent))

    def kept(self) -> list[int]:
        """All nodes but the root: what was drawn stays."""
        return list(range(1, len(self.tree)))


def _finish(row: _BestFirstRow | _StaticRow | _SlotRow, draw: str, source: int) -> Grown:
    """The kept nodes as a tree, in order of creation."""
    origins = (0, *row.kept())
    renumbered = {origin: node for node, origin in enumerate(origins)}
    grown = row.tree
    tree = TokenTree.from_lists(
        [-1, *(renumbered[grown.parents[origin]] for origin in origins[1:])],
        [grown.tokens[origin] for origin in origins],
        draw=draw,
        scores=[grown.scores[origin] for origin in origins],
        source=source,
    )
    return Grown(tree, origins)
