"""Merging of trees that several drafters proposed for the same row.

Two drafters that agree should not pay twice: the same token under the same parent becomes one
node. Trees of different drafters are made comparable by their scores, so that the budget goes to
whichever node is most likely accepted, whoever proposed it. See docs/math/trees.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from treespec.errors import ConfigError, InvalidTreeError
from treespec.tree.token_tree import TokenTree

_ROUNDING = 1e-4  # by how much float32 sums may lift a score above the parent's


@dataclass(frozen=True, slots=True)
class Merged:
    """One tree made of several, and the way back.

    Attributes:
        tree: the merged tree, most promising nodes first. Bit i of a node's `sources` says whether
            input i proposed it.
        positions: `positions[i][n]` is where node n of input i stands in the merged tree, or None
            if the budget left it out.
        origins: `origins[i][m]` is the node of input i that became merged node m, or None if that
            input did not propose it. If an input holds a token twice below one parent, the first
            stands for both.
    """

    tree: TokenTree
    positions: tuple[tuple[int | None, ...], ...]
    origins: tuple[tuple[int | None, ...], ...]

    def own_path(self, source: int, path: Sequence[int]) -> tuple[int, ...]:
        """The part of an accepted path that input `source` drafted itself, in its own nodes.

        Args:
            source: index of the input.
            path: nodes of the merged tree from the root down, as in `Acceptance.path`.
        """
        own: list[int] = []
        for node in path:
            origin = self.origins[source][node]
            if origin is None:
                break
            own.append(origin)
        return tuple(own)


def merge(trees: Sequence[TokenTree], *, budget: int, width: int | None = None) -> Merged:
    """Merge trees of one row under one budget.

    Args:
        trees: the inputs, with scores, drawn "shared" or "topk". Their own `sources` are not read.
        budget: most draft tokens of the merged tree.
        width: most children of a node, None for no bound.

    Raises:
        InvalidTreeError: if there is no input, roots differ, an input has no scores, scores a
            node above its parent, or was drawn by sampling.
        ConfigError: if a bound is negative.
    """
    for name, bound in (("budget", budget), ("width", width)):
        if bound is not None and bound < 0:
            raise ConfigError(f"{name} must be at least 0, got {bound}")
    union = _Union(_common_root(trees), len(trees))
    draw = _common_draw(trees)
    for source, tree in enumerate(trees):
        union.add(source, tree, _checked_scores(source, tree))
    return union.best(budget, width, draw)


def _common_root(trees: Sequence[TokenTree]) -> int:
    if not trees:
        raise InvalidTreeError("nothing to merge; give at least one tree")
    roots = [tree.token_list[0] for tree in trees]
    if len(set(roots)) > 1:
        raise InvalidTreeError(
            f"the roots carry different tokens, {roots}; only trees of one row and step can be "
            "merged"
        )
    return roots[0]


def _common_draw(trees: Sequence[TokenTree]) -> str:
    """What the merged tree's draw is: one "shared" part makes it depend on the noise."""
    draws = [tree.draw for tree in trees]
    for source, draw in enumerate(draws):
        if draw not in ("shared", "topk"):
            raise InvalidTreeError(
                f"tree {source} was drawn {draw!r}, which merging would bias by dropping and "
                'reordering siblings; draw "shared" or "topk"'
            )
    return "shared" if "shared" in draws else "topk"


def _checked_scores(source: int, tree: TokenTree) -> list[float]:
    """The scores of an input, none above its parent's, which ranking relies on."""
    if tree.scores is None:
        raise InvalidTreeError(f"tree {source} has no scores, by which merging ranks nodes")
    scores: list[float] = tree.scores.tolist()
    scores[0] = 0.0
    for node, parent in enumerate(tree.topology.parent_list[1:], start=1):
        if not scores[node] <= scores[parent] + _ROUNDING:  # true for NaN too
            raise InvalidTreeError(
                f"tree {source} scores node {node} with {scores[node]}, but its parent {parent} "
                f"with {scores[parent]}; scores are for the path down to a node, which is accepted "
                "at most as often as its parent"
            )
        scores[node] = min(scores[node], scores[parent])
    return scores


class _Union:
    """All nodes of all inputs, each once, in order of first appearance."""

    def __init__(self, root: int, num_sources: int) -> None:
        self.parents = [-1]
        self.tokens = [root]
        self.sources = [0]
        self.scores = [0.0]
        self.depths = [0]
        self.index: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self.places: list[list[int]] = [[] for _ in range(num_sources)]
        self.origins: list[dict[int, int]] = [{0: 0} for _ in range(num_sources)]

    def add(self, source: int, tree: TokenTree, scores: Sequence[float]) -> None:
        """Take in one input."""
        places, origins = self.places[source], self.origins[source]
        places.append(0)
        bit = 1 << source
        own_parents, tokens = tree.topology.parent_list, tree.token_list
        for own in range(1, len(tokens)):
            own_parent, token, score = own_parents[own], tokens[own], scores[own]
            parent = places[own_parent]
            node = self.index.setdefault((parent, token), len(self.parents))
            if node == len(self.parents):
                self.parents.append(parent)
                self.tokens.append(token)
                self.depths.append(self.depths[parent] + 1)
                self.sources.append(bit)
                self.scores.append(score)
            else:
                self.sources[node] |= bit
                self.scores[node] = max(self.scores[node], score)
            places.append(node)
            if node not in origins and origins.get(parent) == own_parent:
                origins[node] = own

    def best(self, budget: int, width: int | None, draw: str) -> Merged:
        """The best nodes as a tree: parents rank before children, so they are connected."""
        parents, scores, depths = self.parents, self.scores, self.depths
        ranking = sorted(range(1, len(scores)), key=lambda v: (-scores[v], depths[v], v))
        kept = [0, *self._narrowed(ranking, width)[:budget]]
        renumbered = {node: place for place, node in enumerate(kept)}
        tree = TokenTree.from_lists(
            [-1, *(renumbered[parents[node]] for node in kept[1:])],
            [self.tokens[node] for node in kept],
            draw=draw,
            scores=[scores[node] for node in kept],
            source=[self.sources[node] for node in kept],
        )
        return Merged(
            tree,
            positions=tuple(tuple(map(renumbered.get, places)) for places in self.places),
            origins=tuple(tuple(map(origins.get, kept)) for origins in self.origins),
        )

    def _narrowed(self, ranking: list[int], width: int | None) -> list[int]:
        """The ranking without nodes beyond the best `width` siblings, and their descendants."""
        if width is None:
            return ranking
        counts = {0: 0}
        for node in ranking:
            parent = self.parents[node]
            if counts.get(parent, width) < width:
                counts[parent] += 1
                counts[node] = 0
        return [node for node in ranking if node in counts]
