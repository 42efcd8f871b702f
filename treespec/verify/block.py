"""Block verification: judge a chain as a whole, from its end backwards."""

from collections.abc import Mapping
from typing import ClassVar

from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.laws import Law, Number
from treespec.verify.randomness import Randomness
from treespec.verify.rule import CHAIN, Rule, Shape, TreeLaws, owed


class Block(Rule):
    """Longest prefix of a chain that passes as a block; lossless, best possible for one chain.

    With w_0 = 1 and w_i = min(1, w_{i-1} p/q), prefix i of a chain of L tokens passes with
    probability h_i = R_i / (R_i + 1 - w_i), where R_i is the mass of max(w_i p - q, 0), and
    h_L = w_L. The longest prefix that passes is kept and followed by a token from that residual,
    or from p after the whole chain.

    Source: Sun et al. 2024 (arXiv 2403.10444).
    """

    name = "block"
    lossless = True
    shapes: ClassVar[Mapping[str, Shape]] = {"iid": CHAIN}
    draws = tuple(shapes)

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        """See `treespec.verify.rule.Rule.decide`."""
        chain = range(len(tree))  # in a chain, node i stands at depth i
        inner: list[tuple[Number, Law, Law]] = []  # weight and both laws of every node but the leaf
        weight: Number = 1
        for node in chain[:-1]:
            target, draft = laws.target(node), laws.draft(node)
            inner.append((weight, target, draft))
            token = tree.token_list[node + 1]
            weight = min(1, weight * target[token] / draft[token])
        if randomness.accept(weight):
            return Acceptance(tuple(chain), randomness.choose(laws.target(chain[-1])))
        for node in reversed(chain[1:-1]):
            weight, target, draft = inner[node]
            residual = target.scaled(weight).minus(draft)
            mass = residual.total()
            failing = mass + 1 - weight
            if failing > 0 and randomness.accept(mass / failing):
                return Acceptance(
                    tuple(chain[: node + 1]), randomness.choose(owed(residual, target))
                )
        _, target, draft = inner[0]
        return Acceptance((0,), randomness.choose(owed(target.minus(draft), target)))
