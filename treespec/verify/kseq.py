"""K-SEQ: K independent candidates, each accepted with the same damped ratio p / (rho q)."""

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.laws import Law, Number
from treespec.verify.randomness import Randomness
from treespec.verify.rule import (
    ONE_LEVEL,
    PATHS,
    Rule,
    Selection,
    Shape,
    Siblings,
    TreeLaws,
    walk_down,
)


class KSeq(Rule):
    """SpecTr's selection among K paths drafted independently; lossless for such paths.

    At each position the candidates are the next tokens of all paths that agree with the accepted
    text so far, duplicates counted as often as they occur. Each is accepted with probability
    min(1, p / (rho q)). With beta the mass of min(q, p / rho), one of K passes with probability
    1 - (1 - beta)^K; the smallest rho for which a residual exists solves
    1 - (1 - beta)^K = rho beta, lies in [1, K], and is found anew for every number of remaining
    candidates. The acceptance rho beta is at least 1 - (1 - 1/K)^K of the optimum.

    The number of candidates must not depend on their values, since rho depends on it: apart from
    whole paths ("iid_paths") only one level of independent candidates ("iid") is taken.

    Source: Sun et al. 2023, SpecTr (arXiv 2310.15141).
    """

    name = "kseq"
    lossless = True
    shapes: ClassVar[Mapping[str, Shape]] = {"iid_paths": PATHS, "iid": ONE_LEVEL}
    draws = tuple(shapes)

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        """See `treespec.verify.rule.Rule.decide`."""
        return walk_down(tree, laws, randomness, accept_damped)


def accept_damped(siblings: Siblings, randomness: Randomness) -> Selection:
    """Accept the first candidate that passes with probability min(1, p / (rho q))."""
    target, draft, count = siblings.target, next(siblings.laws), len(siblings.tokens)
    rho = smallest_rho(target, draft, count)
    for index, token in enumerate(siblings.tokens):
        if randomness.accept(target[token] / (rho * draft[token])):
            return Selection(index, target)
    matched = draft.minimum(target.scaled(1 / rho))
    beta = matched.total()
    if beta == 0:
        return Selection(None, target)
    return Selection(None, target.minus(matched.scaled(_one_passes(beta, count) / beta)))


def smallest_rho(target: Law, draft: Law, count: int) -> Number:
    """The least damping that leaves a residual, in [1, count].

    It is searched in floats, then moved up until a residual exists in the arithmetic of the laws:
    above the root the rule is exact as well, and worse by no more than that rounding.
    """
    rho = target.rounded(_searched_rho(target, draft, count))
    step = Fraction(1, 2**51)
    while _one_passes(beta := _beta(target, draft, rho), count) > rho * beta:
        rho += step
        step *= 2
    return rho


def _beta(target: Law, draft: Law, rho: Number) -> Number:
    """Probability that one candidate passes."""
    return draft.minimum(target.scaled(1 / rho)).total()


def _one_passes(beta: Number, count: int) -> Number:
    """Probability that one of `count` candidates passes."""
    return 1 - (1 - beta) ** count


def _searched_rho(target: Law, draft: Law, count: int) -> float:
    """Upper end of a bracket of the root, narrowed by false position (the Illinois variant)."""

    def excess(rho: float) -> float:
        beta = float(_beta(target, draft, rho))
        return float(_one_passes(beta, count)) - rho * beta

    low, high = 1.0, float(count)
    at_low, at_high = excess(low), excess(high)
    if at_low <= 0:
        return low
    kept = 0  # which end stood still in the last step: -1 the lower, 1 the upper
    while at_high < 0 and high - low > 1e-14 * high:
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        if not low < middle < high:
            break
        at_middle = excess(middle)
        if at_middle > 0:
            low, at_low = middle, at_middle
            at_high = at_high / 2 if kept == 1 else at_high
            kept = 1
        else:
            high, at_high = middle, at_middle
            at_low = at_low / 2 if kept == -1 else at_low
            kept = -1
    return high
