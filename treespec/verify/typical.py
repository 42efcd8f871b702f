"""Typical acceptance: keep what the target finds plausible, whether or not it would draw it."""

import math
from collections.abc import Mapping
from typing import ClassVar

from treespec.errors import ConfigError
from treespec.tree.token_tree import DRAWS, TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.laws import Law
from treespec.verify.randomness import Randomness
from treespec.verify.rule import ANY_TREE, Rule, Shape, TreeLaws


class Typical(Rule):
    """Not lossless: accepts every token that the target finds plausible enough.

    A token passes if p(x) > min(epsilon, delta exp(-H(p))), with the entropy H of the target's
    law; the longest path of passing tokens is kept (among equals the most probable), and the token
    after it is drawn from p. Draft probabilities are not needed. At temperature 0 it is exact
    greedy decoding.

    Keeping x where sampling was asked for is a total variation of 1 - p(x) at that position, which
    the result reports for every accepted token (`Acceptance.deviations`).

    Source: Cai et al. 2024, Medusa (arXiv 2401.10774).

    Args:
        epsilon: threshold where the target is sure, in (0, 1].
        delta: factor of exp(-H), positive; it lowers the threshold where the target is unsure.

    Raises:
        ConfigError: if a value is outside its range.
    """

    name = "typical"
    lossless = False
    shapes: ClassVar[Mapping[str, Shape]] = dict.fromkeys(("topk", "shared", *DRAWS), ANY_TREE)
    draws = tuple(shapes)

    def __init__(self, *, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not 0 < epsilon <= 1:
            raise ConfigError(f"epsilon must be in (0, 1], got {epsilon}")
        if not 0 < delta < math.inf:
            raise ConfigError(f"delta must be positive and finite, got {delta}")
        self.epsilon = epsilon
        self.delta = delta

    def threshold(self, target: Law) -> float:
        """Probability that a token must exceed to pass."""
        return min(self.epsilon, self.delta * math.exp(-target.entropy()))

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        """See `treespec.verify.rule.Rule.decide`."""
        best, plausible = 0, {0: 0.0}  # passing nodes and the log-probabilities of their paths
        probs: dict[int, float] = {}
        depths = tree.topology.depth_list
        for parent, children in enumerate(tree.topology.children):
            if parent not in plausible or not children:
                continue
            target = laws.target(parent)
            threshold = self.threshold(target)
            for child in children:
                prob = float(target[tree.token_list[child]])
                if prob > threshold:
                    probs[child] = prob
                    plausible[child] = plausible[parent] + math.log(prob)
                    best = max(best, child, key=lambda node: (depths[node], plausible[node], -node))
        path = tree.topology.path_to(best)
        next_token = randomness.choose(laws.target(best))
        return Acceptance(path, next_token, tuple(1 - probs[node] for node in path[1:]))
