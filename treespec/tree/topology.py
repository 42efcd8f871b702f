"""The shape of a token tree: who is whose parent, and nothing else."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.errors import InvalidTreeError


@dataclass(frozen=True, eq=False)
class TreeTopology:
    """Parents of N nodes in topological order; node 0 is the root.

    Topologies live on the host: growing and walking a tree is branching work. Siblings stand in
    the order in which they were drawn. Equal parents make equal topologies.

    Attributes:
        parents: for each node the index of its parent, shape `[N]`; `-1` for the root, and an
            earlier node for all others. Any sequence of ints is accepted and stored as an
            int64 CPU tensor.

    Raises:
        InvalidTreeError: if the tree is empty, a parent is not an integer, or a parent does not
            come before its children.
    """

    parents: Int[Tensor, " N"]

    def __init__(self, parents: Sequence[int] | Tensor) -> None:
        """Check and store the parents."""
        given = parents.tolist() if isinstance(parents, Tensor) else parents
        try:
            listed = tuple(map(operator.index, given))
        except TypeError:
            raise InvalidTreeError(
                f"parents must be a flat sequence of integers, one per node, got {given!r}"
            ) from None
        if not listed:
            raise InvalidTreeError("a tree needs at least its root; give parents=[-1]")
        if listed[0] != -1:
            raise InvalidTreeError(f"node 0 is the root and has parent -1, got {listed[0]}")
        for node, parent in enumerate(listed[1:], start=1):
            if not 0 <= parent < node:
                raise InvalidTreeError(
                    f"node {node} has parent {parent}, but a parent must come before its "
                    "children; sort the nodes by depth first"
                )
        # numpy converts short lists about four times faster than torch does
        object.__setattr__(self, "parents", torch.from_numpy(np.array(listed, dtype=np.int64)))
        self.__dict__["parent_list"] = listed

    @cached_property
    def parent_list(self) -> tuple[int, ...]:
        """Parent of each node as plain ints."""
        return tuple(self.parents.tolist())

    def __len__(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parent_list)

    def __eq__(self, other: object) -> bool:
        """Whether `other` has the same parents."""
        return isinstance(other, TreeTopology) and self.parent_list == other.parent_list

    def __hash__(self) -> int:
        """Hash of the parents."""
        return hash(self.parent_list)

    def __repr__(self) -> str:
        """The constructor call."""
        return f"TreeTopology({list(self.parent_list)})"

    @cached_property
    def depth_list(self) -> tuple[int, ...]:
        """Depth of each node as plain ints; the root has 0."""
        depths = [0] * len(self)
        for node, parent in enumerate(self.parent_list[1:], start=1):
            depths[node] = depths[parent] + 1
        return tuple(depths)

    @cached_property
    def depths(self) -> Int[Tensor, " N"]:
        """Depth of each node, shape `[N]`; the root has 0."""
        return torch.tensor(self.depth_list, dtype=torch.int64)

    @property
    def max_depth(self) -> int:
        """Number of levels below the root."""
        return max(self.depth_list)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each node its children, in draw order."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parent_list[1:], start=1):
            children[parent].append(node)
        return tuple(tuple(siblings) for siblings in children)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """For each node its place among its siblings, counted from 0; 0 for the root."""
        ranks = [0] * len(self)
        for siblings in self.children:
            for rank, node in enumerate(siblings):
                ranks[node] = rank
        return tuple(ranks)

    @cached_property
    def ancestor_mask(self) -> Bool[Tensor, "N N"]:
        """Entry `[i, j]` says whether j is i or an ancestor of i, shape `[N, N]`."""
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        for node, parent in enumerate(self.parent_list):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return torch.from_numpy(mask)

    def path_to(self, node: int) -> tuple[int, ...]:
        """Nodes from the root to `node`, both included."""
        path = [node]
        while (parent := self.parent_list[path[-1]]) >= 0:
            path.append(parent)
        return tuple(reversed(path))
