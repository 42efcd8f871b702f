"""Traversal verification: judge a tree leaf to root, every branch before what it hangs on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.laws import Law, Number
from treespec.verify.randomness import Randomness
from treespec.verify.rule import (
    ANY_TREE,
    PATHS,
    Rule,
    Shape,
    Siblings,
    TreeLaws,
    children_of,
    going_on,
)


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
        descent = _Descent(tree, laws, randomness)
        outcome = descent.ask_children((0,), tree.topology.children[0], 1)
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


@dataclass(frozen=True, slots=True)
class _Descent:
    """One walk over a tree; nodes are given as all those that stand for one text."""

    tree: TokenTree
    laws: TreeLaws
    randomness: Randomness

    def ask(self, nodes: Sequence[int], weight: Number) -> Acceptance | None:
        """A path through the first of the nodes, with probability `weight`; None otherwise."""
        if weight == 0:  # also for the duplicates of a sibling that did not answer
            return None
        children = children_of(self.tree, nodes)
        if children:
            outcome = self.ask_children(nodes, children, weight)
            if isinstance(outcome, Acceptance):
                return outcome
            if not self.randomness.accept(outcome.weight):
                return None
            law = outcome.law
        elif self.randomness.accept(weight):
            law = self.laws.target(nodes[0])
        else:  # a leaf that fails needs no row of probabilities
            return None
        return Acceptance(self.tree.topology.path_to(nodes[0]), self.randomness.choose(law))

    def ask_children(
        self, nodes: Sequence[int], children: Sequence[int], weight: Number
    ) -> Acceptance | _Rest:
        """The answer of the children, asked in draw order, or what they left for the nodes."""
        siblings = Siblings.of(self.tree, self.laws, nodes[0], children)
        left = siblings.target
        for child, law in zip(children, siblings.laws, strict=False):
            token = self.tree.token_list[child]
            asked = min(1, weight * left[token] / law[token])
            answer = self.ask(going_on(self.tree, child, children), asked)
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
