"""Recursive rejection: try the siblings one after the other, each against what is left of p."""

from collections.abc import Mapping
from typing import ClassVar

from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.randomness import Randomness
from treespec.verify.rule import (
    ANY_TREE,
    PATHS,
    Rule,
    Selection,
    Shape,
    Siblings,
    TreeLaws,
    walk_down,
)


class Rejection(Rule):
    """Recursive rejection from the root down; lossless for each of its draws.

    Siblings are verified in draw order. Each is accepted with probability min(1, P/Q), where Q is
    the law it was drawn from given those before it, and P the target's law minus what the rejected
    ones could have covered: after a rejection P becomes max(P - Q, 0), renormalised. Without
    replacement ("swor") Q loses the rejected token; deterministic candidates ("topk") are point
    masses, so that together they are accepted with exactly their probability under p.

    "shared" is refused: its candidates are pruned by value, and the noise that ranked them is used
    again in the next step, so that no declared law is the one they came from.

    Source: Miao et al. 2024, SpecInfer (arXiv 2305.09781) for independent draws; Jeon et al. 2024
    (arXiv 2402.14160) and Chen et al. 2024, Sequoia (arXiv 2402.12374) without replacement.
    """

    name = "rejection"
    lossless = True
    shapes: ClassVar[Mapping[str, Shape]] = {
        "swor": ANY_TREE,
        "iid": ANY_TREE,
        "iid_paths": PATHS,
        "topk": ANY_TREE,
    }
    draws = tuple(shapes)

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        """See `treespec.verify.rule.Rule.decide`."""
        return walk_down(tree, laws, randomness, accept_first)


def accept_first(siblings: Siblings, randomness: Randomness) -> Selection:
    """Accept the first candidate that passes against what is left of the target's law."""
    left = siblings.target
    for index, (token, law) in enumerate(zip(siblings.tokens, siblings.laws, strict=False)):
        if randomness.accept(left[token] / law[token]):
            return Selection(index, left)
        left = left.minus(law).normalized()
    return Selection(None, left)
