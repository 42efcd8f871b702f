"""How a draft model's trees grow: which nodes it runs, and which of them a step has accepted."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.attention import NewNodes
from treespec.drafters.drawing import Drawn, paths_topology
from treespec.tree.growth import NO_CANDIDATES, Candidates, GrowingTree, Grown
from treespec.tree.shapes import TreeLimits


@runtime_checkable
class Grower(Protocol):
    """A session whose trees grow by one forward a level."""

    @property
    def least_gain(self) -> float:
        """Expected tokens below which a level is not worth its forward."""
        ...

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> Sequence[Float[Tensor, "_F _V"]]:
        """Logits of the children of every frontier node."""
        ...

    def children(
        self,
        row: int,
        logits: Float[Tensor, "F V"],
        tree: GrowingTree,
        nodes: Sequence[int],
        width: int,
    ) -> Drawn:
        """Children of nodes with these logits."""
        ...


class ForwardExpander:
    """Candidates of the root from logits that are there, the others' from a forward per level.

    Args:
        session: runs the forwards and draws.
        root_logits: per row logits `[1, V]` of the root's children, `[0, V]` where none are wanted.
        limits: each row's bounds.

    Attributes:
        laws: per row, for every node by its index while growing, the law that its children were
            drawn from; only under draws that need it.
    """

    def __init__(
        self,
        session: Grower,
        root_logits: Sequence[Float[Tensor, "_M _V"]],
        limits: Sequence[TreeLimits],
    ) -> None:
        self._session = session
        self._root_logits = root_logits
        self._limits = limits
        self.laws: list[dict[int, Float[Tensor, " _V"]]] = [{} for _ in limits]

    def expand(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[list[Candidates]]:
        """See `Expander.expand`; rows that expect too little of another level stop here."""
        if any(frontier == [0] for frontier in frontiers):
            logits = self._root_logits
            chosen = frontiers
        else:
            chosen = [
                frontier if self._worth_it(tree, frontier) else []
                for tree, frontier in zip(trees, frontiers, strict=True)
            ]
            if not any(chosen):
                return [[NO_CANDIDATES] * len(frontier) for frontier in frontiers]
            logits = self._session.extend(trees, chosen)
        return [
            self._row_candidates(row, tree, frontier, nodes, logits[row])
            for row, (tree, frontier, nodes) in enumerate(
                zip(trees, frontiers, chosen, strict=True)
            )
        ]

    def _row_candidates(
        self,
        row: int,
        tree: GrowingTree,
        frontier: Sequence[int],
        nodes: Sequence[int],
        logits: Float[Tensor, "F V"],
    ) -> list[Candidates]:
        if not nodes:
            return [NO_CANDIDATES] * len(frontier)
        drawn = self._session.children(row, logits, tree, nodes, self._limits[row].width)
        if drawn.laws is not None:
            self.laws[row].update(zip(nodes, drawn.laws, strict=True))
        return drawn.candidates

    def _worth_it(self, tree: GrowingTree, frontier: Sequence[int]) -> bool:
        return sum(math.exp(tree.scores[node]) for node in frontier) >= self._session.least_gain


class Expansion:
    """One row's grown tree, and which of its nodes the draft model ran."""

    def __init__(self, grown: Grown, slots: Mapping[int, int]) -> None:
        self._grown = grown
        self._slots = slots

    def follow(self, accepted: Sequence[int]) -> list[int]:
        """Scratch places of the accepted tokens, as far as the draft model ran them.

        Siblings drawn with replacement may be equal, so all nodes that carry the text are followed.
        """
        tree, origins = self._grown.tree, self._grown.origins
        alive: dict[int, list[int]] = {0: []}
        longest: list[int] = []
        for token in accepted:
            alive = {
                child: [*path, self._slots[origins[child]]]
                for node, path in alive.items()
                for child in tree.topology.children[node]
                if tree.token_list[child] == token and origins[child] in self._slots
            }
            if not alive:
                break
            longest = next(iter(alive.values()))
        return longest


def with_paths(limits: TreeLimits) -> TreeLimits:
    """Limits that ask for whole paths, which is what "iid_paths" means."""
    if limits.topology is not None or limits.budget == 0:
        return limits
    topology = paths_topology(limits)
    return TreeLimits(
        budget=len(topology) - 1,
        depth=topology.max_depth,
        width=len(topology.children[0]),
        topology=topology,
    )


def new_nodes(tree: GrowingTree, frontier: Sequence[int], ran: Mapping[int, int]) -> NewNodes:
    """The frontier as nodes on top of those that ran before; the root is committed already."""
    before = sorted(ran, key=lambda node: ran[node])
    visible = torch.zeros(len(frontier), len(before) + len(frontier), dtype=torch.bool)
    for place, node in enumerate(frontier):
        visible[place, len(before) + place] = True
        ancestor = tree.parents[node]
        while ancestor > 0:
            visible[place, ran[ancestor]] = True
            ancestor = tree.parents[ancestor]
    return NewNodes(
        tokens=torch.tensor([tree.tokens[node] for node in frontier], dtype=torch.int64),
        depths=torch.tensor(
            [tree.depths[node] - 1 for node in [*before, *frontier]], dtype=torch.int64
        ),
        visible=visible,
    )
