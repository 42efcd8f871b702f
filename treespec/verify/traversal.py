"""Traversal verification: judge a tree leaf to root, every branch before what it hangs on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.laws import Law, Number
from treespec.verify.randomness import Randomness
from treespec.verify.rule import ANY_TREE, PATHS, Rule, Shape, Siblings, TreeLaws


class Traversal(Rule):
    """Block verification on trees, children before their parent; lossless for each of its draws.

    A subtree is asked to answer with a given probability w, its weight; the root's is 1. Children
    are asked first, in draw order, each with weight min(1, w P/Q). After a child that did not
    answer, with R the mass of max(w P - Q, 0), the node goes on with that residual, renormalised,
    as its P and the weight R / (R + 1 - w). If no child answers, the node itself does with its
    weight, and adds a token from P. On a chain this is block verification.

    Source: Weng et al. 2025 (arXiv 2505.12398). The proof in docs/math/rules.md covers every draw.
    """

    name = "traversal"
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
        outcome = _ask_children(tree, laws, randomness, node=0, weight=1)
        if isinstance(outcome, Acceptance):
            return outcome
        return Acceptance((0,), randomness.choose(outcome.law))


@dataclass(frozen=True, slots=True)
class _Rest:
    """What a node has to answer for itself after its children did not.

    Attributes:
        weight: the probability to answer with.
        law: the law of its token, up to a factor.
    """

    weight: Number
    law: Law


def _ask_children(
    tree: TokenTree, laws: TreeLaws, randomness: Randomness, *, node: int, weight: Number
) -> Acceptance | _Rest:
    """The answer of a node's subtrees, asked in draw order, or what they left for the node."""
    children = tree.topology.children[node]
    siblings = Siblings.of(tree, laws, node, children)
    left = siblings.target
    for child, law in zip(children, siblings.laws, strict=False):
        token = tree.token_list[child]
        asked = min(1, weight * left[token] / law[token])
        answer = _ask(tree, laws, randomness, node=child, weight=asked)
        if answer is not None:
            return answer
        residual = left.scaled(weight).minus(law)
        mass = residual.total()
        failing = mass + 1 - weight  # probability that no child so far answered
        if failing > 0:  # at 0 the child had to answer, up to rounding: go on as before it
            weight = mass / failing
        if mass > 0:
            left = residual.scaled(1 / mass)
    return _Rest(weight, left)


def _ask(
    tree: TokenTree, laws: TreeLaws, randomness: Randomness, *, node: int, weight: Number
) -> Acceptance | None:
    """A path through `node` and the token after it, with probability `weight`; None otherwise."""
    if weight == 0:
        return None
    if not tree.topology.children[node]:  # a leaf that fails needs no row of probabilities
        if not randomness.accept(weight):
            return None
        return Acceptance(tree.topology.path_to(node), randomness.choose(laws.target(node)))
    outcome = _ask_children(tree, laws, randomness, node=node, weight=weight)
    if isinstance(outcome, Acceptance):
        return outcome
    if randomness.accept(outcome.weight):
        return Acceptance(tree.topology.path_to(node), randomness.choose(outcome.law))
    return None
