"""Token trees: topology, tokens, static shapes, growing, merging, rendering."""

from treespec.tree.growth import (
    NO_CANDIDATES,
    Candidates,
    Expander,
    GrowingTree,
    Grown,
    grow,
)
from treespec.tree.merge import Merged, merge
from treespec.tree.planning import (
    Plan,
    calibrated,
    chain,
    from_paths,
    kary,
    sequoia,
    to_paths,
)
from treespec.tree.render import render
from treespec.tree.shapes import BestFirst, Chain, StaticTree, TreeLimits
from treespec.tree.token_tree import DRAWS, TokenTree
from treespec.tree.topology import TreeTopology

__all__ = [
    "DRAWS",
    "NO_CANDIDATES",
    "BestFirst",
    "Candidates",
    "Chain",
    "Expander",
    "GrowingTree",
    "Grown",
    "Merged",
    "Plan",
    "StaticTree",
    "TokenTree",
    "TreeLimits",
    "TreeTopology",
    "calibrated",
    "chain",
    "from_paths",
    "grow",
    "kary",
    "merge",
    "render",
    "sequoia",
    "to_paths",
]
