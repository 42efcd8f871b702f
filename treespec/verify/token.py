"""The classic rule for chains: accept each token with probability min(1, p/q)."""

from collections.abc import Mapping
from typing import ClassVar

from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.randomness import Randomness
from treespec.verify.rule import CHAIN, Rule, Selection, Shape, Siblings, TreeLaws, walk_down


class Token(Rule):
    """Token by token down a chain; lossless for tokens sampled from the declared laws.

    A drafted token is accepted with probability min(1, p/q); the first rejected one is replaced
    by a token from the residual, max(p - q, 0). The acceptance of one position is the sum of
    min(p, q), which no rule for a single candidate can exceed.

    Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
    """

    name = "token"
    lossless = True
    shapes: ClassVar[Mapping[str, Shape]] = {"iid": CHAIN}
    draws = tuple(shapes)

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        """See `treespec.verify.rule.Rule.decide`."""
        return walk_down(tree, laws, randomness, accept_one)


def accept_one(siblings: Siblings, randomness: Randomness) -> Selection:
    """Accept a single candidate with probability min(1, p/q)."""
    (token,) = siblings.tokens
    target, draft = siblings.target, next(siblings.laws)
    if randomness.accept(target[token] / draft[token]):
        return Selection(0, target)
    return Selection(None, target.minus(draft))
