"""Upper bounds on acceptance: what no lossless rule can exceed for a given way of drafting."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from treespec.errors import ConfigError
from treespec.tree.topology import TreeTopology
from treespec.verify.enumeration import LawTable, check_law, law_lookup
from treespec.verify.laws import Number, TableLaw, Weights


def optimal_acceptance(p: Weights, q: Weights, *, candidates: int, draw: str) -> Number:
    """The best acceptance of one position: the value of optimal transport between draws and p.

    By duality it is the minimum over token sets H of 1 + p(H) - Pr[all candidates lie in H]. For
    both draws a minimal H consists of the tokens with the largest q/p (docs/math/rules.md), so that
    only as many sets as tokens have to be tried.

    Args:
        p: the target's law.
        q: the draft's law.
        candidates: how many are drawn, K, at least 1.
        draw: "iid" or "swor" (without replacement; all tokens q allows if they are fewer than K).

    Returns:
        Exact where p and q are fractions; without replacement the time then grows like V^K. For
        floats it is accurate to about 1e-12 and takes V steps.

    Raises:
        ConfigError: if a law is none, the lengths differ, or the draw is another one.
    """
    if len(p) != len(q):
        raise ConfigError(f"p has {len(p)} entries and q {len(q)}; both are laws of one vocabulary")
    if candidates < 1:
        raise ConfigError(f"candidates must be at least 1, got {candidates}")
    target, draft = TableLaw(p), TableLaw(q)
    check_law(target, "p")
    check_law(draft, "q")
    # Tokens that are never drawn can only add to p(H).
    order = sorted((token for token, _ in draft.support()), key=lambda t: target[t] / draft[t])
    covered = [target[token] for token in order]
    drawn = [draft[token] for token in order]
    if draw == "iid":
        inside = _all_inside_iid(drawn, candidates)
    elif draw == "swor":
        inside = _all_inside_swor(drawn, candidates)
    else:
        raise ConfigError(f"the bound is known for draws iid and swor, not for {draw!r}")
    best: Number = 1
    mass: Number = 0
    for weight, chance in zip(covered, inside, strict=True):
        mass = mass + weight
        best = min(best, 1 + mass - chance)
    return best


def _all_inside_iid(drawn: Sequence[Number], candidates: int) -> list[Number]:
    """For every prefix of the tokens, the probability that all draws fall into it."""
    mass: Number = 0
    inside = []
    for weight in drawn:
        mass = mass + weight
        inside.append(mass**candidates)
    return inside


def _all_inside_swor(drawn: Sequence[Number], candidates: int) -> list[Number]:
    """The same without replacement; exact for fractions."""
    if candidates >= len(drawn):
        return [*(0 for _ in drawn[1:]), 1]
    if all(isinstance(weight, Fraction) for weight in drawn):
        return _inside_by_sets(drawn, candidates)
    return _inside_by_races([float(weight) for weight in drawn], candidates)


def _inside_by_sets(drawn: Sequence[Number], candidates: int) -> list[Number]:
    """Sum over all sets of candidates, built up from the probability to draw each set first."""
    first: dict[tuple[int, ...], Number] = {(): 1}
    masses: dict[tuple[int, ...], Number] = {(): 0}
    inside: list[Number] = [0] * len(drawn)
    for size in range(1, candidates + 1):
        grown: dict[tuple[int, ...], Number] = {}
        for chosen in combinations(range(len(drawn)), size):
            chance: Number = 0
            for place, token in enumerate(chosen):
                before = chosen[:place] + chosen[place + 1 :]
                chance = chance + first[before] * drawn[token] / (1 - masses[before])
            grown[chosen] = chance
            if size == candidates:
                inside[chosen[-1]] = inside[chosen[-1]] + chance
        masses = {chosen: sum(drawn[token] for token in chosen) for chosen in grown}
        first = grown
    for end in range(1, len(inside)):
        inside[end] = inside[end] + inside[end - 1]
    return inside


def _inside_by_races(drawn: Sequence[float], candidates: int) -> list[Number]:
    """Integral over the time at which the first token outside arrives.

    Drawing without replacement is ranking exponential arrival times with rates q. The first arrival
    outside has the rate c of all tokens there; all candidates lie inside if at least K tokens there
    have arrived by then. In the logarithm of time the integrand is analytic and dies off doubly
    exponentially, where the trapezoidal rule converges to rounding at a coarse step.
    """
    rates = np.array(drawn) / math.fsum(drawn)
    outside = np.append(np.cumsum(rates[::-1])[::-1][1:], 0.0)  # rate of what follows each prefix
    step = 0.25
    times = np.exp(np.arange(-42.0, math.log(45.0 / outside[-2]), step))
    arrived = np.zeros((candidates, len(times)))  # probability of exactly k arrivals so far
    arrived[0] = 1.0
    inside: list[Number] = []
    for rate, other in zip(rates[:-1], outside[:-1], strict=True):
        waiting = np.exp(-rate * times)
        arrived[1:] = arrived[1:] * waiting + arrived[:-1] * (1.0 - waiting)
        arrived[0] *= waiting
        density = other * times * np.exp(-other * times)
        inside.append(float(step * (density * (1.0 - arrived.sum(axis=0))).sum()))
    return [*inside, 1.0]


def fixed_tree_bound(p_table: LawTable, topology: TreeTopology, tokens: Sequence[int]) -> Number:
    """The most draft tokens that any lossless rule can accept of one given tree, on average.

    A node is accepted at most as often as the target itself would emit its path; the bound is the
    sum of these probabilities over the tree, the same path counted once. The default rule attains
    it for trees that do not depend on its noise.

    Args:
        p_table: the target's law after every prefix of draft tokens; the root's key is ().
        topology: the shape of the tree.
        tokens: token id of every node, the root's included.

    Raises:
        ConfigError: if there is not one token per node, or a law is missing or none.
    """
    if len(tokens) != len(topology):
        raise ConfigError(f"got {len(tokens)} tokens for a topology of {len(topology)} nodes")
    target = law_lookup(p_table, "p_table")
    reached: dict[tuple[int, ...], Number] = {(): 1}
    prefixes: list[tuple[int, ...]] = [()]
    for parent, token in zip(topology.parent_list[1:], tokens[1:], strict=True):
        prefix = prefixes[parent]
        if reached[prefix] == 0:
            reached[(*prefix, token)] = 0
        else:
            reached[(*prefix, token)] = reached[prefix] * target(prefix)[token]
        prefixes.append((*prefix, token))
    return sum(reached.values()) - 1
