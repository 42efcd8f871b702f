"""Static trees: shapes that are decided before decoding."""

from collections.abc import Sequence

from treespec.errors import InvalidTreeError
from treespec.tree.topology import TreeTopology


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
            raise InvalidTreeError("an empty path stands for the root, which every tree has; leave it out")
        if path in index:
            raise InvalidTreeError(f"path {list(path)} stands twice; remove one")
        if path[:-1] not in index:
            raise InvalidTreeError(f"path {list(path)} has no parent: add {list(path[:-1])}")
        if path[-1] != 0 and (*path[:-1], path[-1] - 1) not in index:
            raise InvalidTreeError(f"path {list(path)} skips a rank: add {[*path[:-1], path[-1] - 1]}")
        index[path] = len(parents)
        parents.append(index[path[:-1]])
    return TreeTopology(parents)
