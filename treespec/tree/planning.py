"""Static trees: shapes that are decided before decoding.

Two of them are optimal for acceptances that were measured: `calibrated` for a table by depth and
rank, `sequoia` for one row that holds at every depth (Chen et al. 2024). See docs/math/trees.md.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from treespec.errors import ConfigError, InvalidTreeError
from treespec.tree.topology import TreeTopology

Number = int | float | Fraction

_MOST_NODES = 1 << 16  # a larger tree is a slip: its ancestor mask alone would take 4 GiB


@dataclass(frozen=True, slots=True)
class Plan:
    """A static tree and what it promises.

    Attributes:
        topology: the shape.
        acceptance_length: expected tokens emitted per target pass, the next token included, if the
            acceptances that it was planned for hold; a `Fraction` if they were given as such.
    """

    topology: TreeTopology
    acceptance_length: Number


def from_paths(paths: Sequence[Sequence[int]]) -> TreeTopology:
    """Topology of a list of paths in Medusa's notation.

    Nodes are ordered by depth, then by path.

    Args:
        paths: one list of child ranks per node, without the root: `[0, 2]` is the third child of
            the root's first child. Order does not matter.

    Raises:
        InvalidTreeError: if a path is empty, stands twice, has no parent, or leaves a rank out.
    """
    listed = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    index: dict[tuple[int, ...], int] = {(): 0}
    parents = [-1]
    for path in listed:
        if not path:
            raise InvalidTreeError(
                "an empty path stands for the root, which every tree has; leave it out"
            )
        if path in index:
            raise InvalidTreeError(f"path {list(path)} stands twice; remove one")
        if path[-1] < 0:
            raise InvalidTreeError(f"path {list(path)} has a negative rank; ranks count from 0")
        parent, before = path[:-1], (*path[:-1], path[-1] - 1)
        if parent not in index:
            raise InvalidTreeError(f"path {list(path)} has no parent: add {list(parent)}")
        if path[-1] > 0 and before not in index:
            raise InvalidTreeError(f"path {list(path)} skips a rank: add {list(before)}")
        index[path] = len(parents)
        parents.append(index[parent])
    return TreeTopology(parents)


def to_paths(topology: TreeTopology) -> list[list[int]]:
    """Paths of a topology in Medusa's notation, one per node without the root, in node order."""
    paths: list[list[int]] = [[]]
    for parent, rank in zip(topology.parent_list[1:], topology.ranks[1:], strict=True):
        paths.append([*paths[parent], rank])
    return paths[1:]


def chain(length: int) -> TreeTopology:
    """A single path of `length` draft tokens.

    Raises:
        ConfigError: if the length is negative, or too large to be meant.
    """
    _check_count("length", length, least=0)
    return kary(1, length)


def kary(width: int, depth: int) -> TreeTopology:
    """The complete tree in which every node above `depth` has `width` children.

    Raises:
        ConfigError: if a number is negative, or the tree would be too large to be meant.
    """
    _check_count("width", width, least=0)
    _check_count("depth", depth, least=0)
    parents, level = [-1], [0]
    for _ in range(depth if width else 0):
        if len(parents) + len(level) * width > _MOST_NODES:
            raise ConfigError(
                f"a tree of width {width} and depth {depth} has more than {_MOST_NODES} nodes; "
                "lower one of them"
            )
        start = len(parents)
        parents.extend(node for node in level for _ in range(width))
        level = list(range(start, len(parents)))
    return TreeTopology(parents)


def calibrated(table: Sequence[Sequence[Number]], budget: int, depth: int | None = None) -> Plan:
    """The static tree with the most expected accepted tokens for a measured table.

    A node is worth the product of the acceptances along its path. Nodes that are worth nothing
    are left out, so that the tree may stay below its budget; among equals the shallower node is
    taken, then the one whose path of ranks comes first.

    Args:
        table: `table[d][k]` is the probability that the child of rank k of a node at depth d is
            accepted, given that the node is. Its rows bound the depth, their lengths the width.
        budget: most draft tokens.
        depth: most levels below the root; None for all that the table knows.

    Raises:
        ConfigError: if an entry is no probability, or a bound is negative.
    """
    _check_count("budget", budget, least=0)
    levels = len(table)
    if depth is not None:
        _check_count("depth", depth, least=0)
        levels = min(levels, depth)
    for level, row in enumerate(table):
        _check_row(f"row {level} of the table", row)
    return _plan(table[:levels], budget)


def sequoia(acceptance_by_rank: Sequence[Number], size: int, max_depth: int | None = None) -> Plan:
    """The static tree with the most expected accepted tokens if ranks count alike at every depth.

    Sequoia's dynamic programme finds it for any acceptances; where these do not increase with the
    rank, best-first search finds the same and is used instead.

    Args:
        acceptance_by_rank: for each rank k the probability that a node's child of rank k is
            accepted, given that the node is. With sampled siblings a later one may well do better
            than an earlier one.
        size: most nodes, the root included.
        max_depth: most levels below the root; None for no bound.

    Raises:
        ConfigError: if an entry is no probability, or a bound is out of range.
    """
    _check_count("size", size, least=1)
    if max_depth is not None:
        _check_count("max_depth", max_depth, least=0)
    _check_row("acceptance_by_rank", acceptance_by_rank)
    levels = size - 1 if max_depth is None else min(size - 1, max_depth)
    return _plan([acceptance_by_rank] * levels, size - 1)


def _check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check_row(name: str, row: Sequence[Number]) -> None:
    for rank, value in enumerate(row):
        if not 0 <= value <= 1:  # false for NaN too
            raise ConfigError(
                f"{name} holds {value!r} at rank {rank}; acceptances lie between 0 and 1"
            )


def _plan(table: Sequence[Sequence[Number]], budget: int) -> Plan:
    """The best tree of at most `budget` draft tokens, one row of the table per level."""
    table = table[:budget]  # no path is longer than the budget
    falling = all(row[rank] <= row[rank - 1] for row in table for rank in range(1, len(row)))
    paths = _best_first(table, budget) if falling else _exact(table, budget)
    return Plan(from_paths(paths), _acceptance_length(table, paths))


def _acceptance_length(
    table: Sequence[Sequence[Number]], paths: Sequence[tuple[int, ...]]
) -> Number:
    """1 for the next token, and for each node the probability that it is accepted."""
    values: dict[tuple[int, ...], Number] = {(): 1}
    for path in sorted(paths, key=len):
        values[path] = values[path[:-1]] * table[len(path) - 1][path[-1]]
    return sum(values.values())


def _best_first(table: Sequence[Sequence[Number]], budget: int) -> list[tuple[int, ...]]:
    """Paths of the best nodes, where neither a later sibling nor a child can beat its elder.

    Every node but the root's first child enters when its elder sibling, or for rank 0 its parent,
    is taken: the best node not yet taken is always waiting.
    """
    taken: list[tuple[int, ...]] = []
    waiting: list[tuple[Number, int, tuple[int, ...], Number]] = []

    def offer(path: tuple[int, ...], parent_value: Number) -> None:
        level, rank = len(path) - 1, path[-1]
        if level < len(table) and rank < len(table[level]):
            value = parent_value * table[level][rank]
            if value > 0:
                heapq.heappush(waiting, (-value, len(path), path, parent_value))

    offer((0,), 1)
    while waiting and len(taken) < budget:
        negative, _, path, parent_value = heapq.heappop(waiting)
        taken.append(path)
        offer((*path[:-1], path[-1] + 1), parent_value)
        offer((*path, 0), -negative)
    return taken


def _exact(table: Sequence[Sequence[Number]], budget: int) -> list[tuple[int, ...]]:
    """Paths of the best tree for any table, by dynamic programming over levels and ranks.

    Let `W[d][k][m]` be the most that children of rank k and above can add below a node at depth d
    with m nodes, in units of that node. The child of rank k gets y of them, itself included:
    `W[d][k][m] = max over y of a[d][k] (1 + W[d+1][0][y-1]) + W[d][k+1][m-y]`, or 0 with none.
    Only the best y are kept; among equals the one with the fewest nodes below the elder sibling.
    """
    shares: list[list[list[int]]] = []  # shares[d][k][m]: the best y, 0 for no child
    below: list[Number] = [0] * (budget - len(table) + 1)  # W[d+1][0]
    for row in reversed(table):
        level_shares: list[list[int]] = []
        after: list[Number] = [0] * (len(below) + 1)  # W[d][k+1]
        for acceptance in reversed(row):
            worth = [acceptance * (1 + value) for value in below]
            best: list[Number] = [0]
            chosen = [0]
            for nodes in range(1, len(after)):
                sums = [worth[y - 1] + after[nodes - y] for y in range(1, nodes + 1)]
                most = max(range(nodes), key=sums.__getitem__)
                best.append(sums[most])
                chosen.append(most + 1 if sums[most] > 0 else 0)
            after = best
            level_shares.append(chosen)
        shares.append(level_shares[::-1])
        below = after
    return _read_shares(shares[::-1], budget)


def _read_shares(shares: Sequence[Sequence[Sequence[int]]], budget: int) -> list[tuple[int, ...]]:
    """Paths of the tree that the shares of `_exact` describe."""
    paths: list[tuple[int, ...]] = []
    waiting: list[tuple[tuple[int, ...], int]] = [((), budget)]
    while waiting:
        parent, nodes = waiting.pop()
        if len(parent) == len(shares):
            continue
        for rank, chosen in enumerate(shares[len(parent)]):
            share = chosen[nodes]
            if share == 0:
                break
            paths.append((*parent, rank))
            waiting.append(((*parent, rank), share - 1))
            nodes -= share
    return paths
