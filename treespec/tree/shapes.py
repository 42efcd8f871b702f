"""What a step's tree may look like: the settings a user gives, and the limits a drafter gets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from treespec.errors import ConfigError
from treespec.tree.planning import from_paths
from treespec.tree.topology import TreeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLimits:
    """Bounds on one row's next tree.

    Attributes:
        budget: most draft tokens, N - 1; 0 asks for the root alone.
        depth: most levels below the root.
        width: most children of a node.
        topology: the exact shape to fill, or None for one that the drafter grows itself. A drafter
            that cannot fill a node leaves it and its descendants out.
    """

    budget: int
    depth: int
    width: int
    topology: TreeTopology | None = None

    def cut(self, depth: int) -> "TreeLimits":
        """The same limits down to at most `depth` levels."""
        if depth >= self.depth:
            return self
        if depth <= 0:
            return TreeLimits(budget=0, depth=0, width=self.width)
        if self.topology is None:
            return TreeLimits(budget=self.budget, depth=depth, width=self.width)
        kept = [node for node, d in enumerate(self.topology.depth_list) if d <= depth]
        renumbered = {-1: -1} | {node: place for place, node in enumerate(kept)}
        topology = TreeTopology([renumbered[self.topology.parent_list[node]] for node in kept])
        return TreeLimits(budget=len(kept) - 1, depth=depth, width=self.width, topology=topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirst:
    """A tree grown anew each step, most promising nodes first.

    Attributes:
        budget: most draft tokens a step, at least 1.
        depth: most levels below the root, at least 1.
        width: most children of a node, at least 1.
    """

    budget: int = 31
    depth: int = 31
    width: int = 8

    def __post_init__(self) -> None:
        for name in ("budget", "depth", "width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}")

    def limits(self, *, depth: int) -> TreeLimits:
        """Limits of a step that may go down at most `depth` levels."""
        return TreeLimits(
            budget=self.budget if depth > 0 else 0,
            depth=min(self.depth, max(depth, 0)),
            width=self.width,
        )

    def examples(self) -> list[TreeTopology]:
        """Small topologies that it may grow: a chain, siblings, and both below one another."""
        candidates = ([-1, 0, 1], [-1, 0], [-1, 0, 0], [-1, 0, 0, 1], [-1, 0, 1, 1])
        return [tree for parents in candidates if self._may_grow(tree := TreeTopology(parents))]

    def _may_grow(self, topology: TreeTopology) -> bool:
        widest = max(map(len, topology.children))
        return (
            len(topology) - 1 <= self.budget
            and topology.max_depth <= self.depth
            and widest <= self.width
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTree(BestFirst):
    """A best-first tree that is cut, step by step, to the size that pays best on this machine.

    How long steps of each size take is learnt while decoding, how much of a tree comes true from
    the drafter's own estimate and from what it was worth so far; a step may be plain. Sampled draws
    ("iid", "swor", "iid_paths") may not be cut by value: their trees keep to `budget_sampled`.

    Attributes:
        budget: most draft tokens a step, at least 1.
        depth: most levels below the root, at least 1.
        width: most children of a node, at least 1.
        budget_sampled: draft tokens a step under sampled draws, at least 1.
    """

    budget: int = 63
    budget_sampled: int = 31

    def __post_init__(self) -> None:
        BestFirst.__post_init__(self)
        if self.budget_sampled < 1:
            raise ConfigError(f"budget_sampled must be at least 1, got {self.budget_sampled}")

    def fixed(self) -> BestFirst:
        """The shape for draws that may not be cut."""
        return BestFirst(budget=self.budget_sampled, depth=self.depth, width=self.width)


def Chain(length: int) -> BestFirst:  # noqa: N802 (reads as a shape beside BestFirst and StaticTree)
    """A single path of `length` draft tokens: linear speculative decoding."""
    return BestFirst(budget=length, depth=length, width=1)


@dataclass(frozen=True, slots=True)
class StaticTree:
    """The same shape every step, in Medusa's notation.

    Attributes:
        paths: one list of child ranks per node, without the root: `[0]` is the root's most likely
            child, `[0, 2]` that child's third most likely one.

    Raises:
        InvalidTreeError: if a path's parent or an elder sibling is missing, or it stands twice.
    """

    paths: Sequence[Sequence[int]]
    topology: TreeTopology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(tuple(path) for path in self.paths))
        object.__setattr__(self, "topology", from_paths(self.paths))

    def limits(self, *, depth: int) -> TreeLimits:
        """Limits of a step that may go down at most `depth` levels."""
        kept = [path for path in self.paths if len(path) <= depth]
        topology = self.topology if len(kept) == len(self.paths) else from_paths(kept)
        return TreeLimits(
            budget=len(kept),
            depth=topology.max_depth,
            width=max((len(siblings) for siblings in topology.children), default=0),
            topology=topology,
        )

    def examples(self) -> list[TreeTopology]:
        """The one topology that it is."""
        return [self.topology]
