"""The default rule with its noise integrated out: races of exponentials, in closed form.

With E = exp(-G), choosing argmax(log p + G) is letting token i arrive at time E_i / p_i and taking
the first; the draft ranks tokens by arrival at E_i / q_i, with the same E. What both do is a
function of independent exponentials, so that its probabilities are rational where p and q are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from treespec.tree.topology import TreeTopology
from treespec.verify.enumeration import Emission, LawLookup
from treespec.verify.laws import Number, TableLaw


@dataclass(frozen=True, slots=True)
class Choice:
    """What the target chose at one position, and where the draft ranked it.

    Attributes:
        token: the target's choice.
        rank: its place among the draft's candidates, from 0; None if it is none of them.
    """

    token: int
    rank: int | None


def race(target: TableLaw, draft: TableLaw, candidates: int) -> dict[Choice, Number]:
    """The joint law of the target's choice and its rank among the draft's top candidates.

    Let y arrive in the target's race at time t; it is first there if E_i > t p_i for every other
    token i. Token i comes before y in the draft's race if E_i < t q_i p_y / q_y. With a_i = p_i and
    b_i the larger of p_i and q_i p_y / q_y, token i lets y be chosen with probability
    exp(-t a_i), of which exp(-t b_i) with i behind y in the draft's race, and the rest ahead of it;
    independently for all i. The product, multiplied out and integrated over t, is a sum of
    1 / rate.
    """
    law: dict[Choice, Number] = {}
    for token, prob in target.support():
        unranked = prob
        for rank, weight in enumerate(_rank_law(target, draft, token, candidates)):
            if weight != 0:
                law[Choice(token, rank)] = weight
                unranked = unranked - weight
        if unranked > 0:
            law[Choice(token, None)] = unranked
    return law


def _rank_law(target: TableLaw, draft: TableLaw, token: int, candidates: int) -> list[Number]:
    """For each rank below `candidates`, the probability that `token` is chosen and ranked there."""
    if draft[token] == 0 or candidates == 0:
        return []
    # For every number of tokens ahead of `token` a sum of exponentials, as {rate: coefficient}.
    ahead: list[dict[Number, Number]] = [{} for _ in range(candidates)]
    ahead[0][target[token]] = 1
    for other, late in enumerate(target.weights):
        if other == token:
            continue
        early = max(late, draft[other] * target[token] / draft[token])
        grown: list[dict[Number, Number]] = [{} for _ in range(candidates)]
        for count, terms in enumerate(ahead):
            for rate, coefficient in terms.items():
                _add(grown[count], rate + early, coefficient)
                if early > late and count + 1 < candidates:
                    _add(grown[count + 1], rate + late, coefficient)
                    _add(grown[count + 1], rate + early, -coefficient)
        ahead = grown
    return [
        target[token] * sum(coefficient / rate for rate, coefficient in terms.items())
        for terms in ahead
    ]


def _add(terms: dict[Number, Number], rate: Number, coefficient: Number) -> None:
    terms[rate] = terms.get(rate, 0) + coefficient


def every_shared_walk(
    target_law: LawLookup, draft_law: LawLookup, topology: TreeTopology
) -> Iterator[Emission]:
    """All ways in which the default rule can walk down a tree drafted with the shared noise.

    Noise differs from depth to depth, so the choices along the walk are independent given the text.
    """
    walks: list[tuple[int, tuple[int, ...], Number]] = [(0, (), 1)]
    while walks:
        node, prefix, probability = walks.pop()
        children = topology.children[node]
        for choice, weight in _choices(target_law, draft_law, prefix, len(children)).items():
            emitted = (*prefix, choice.token)
            if choice.rank is None:
                yield Emission(emitted, len(prefix), probability * weight)
            else:
                walks.append((children[choice.rank], emitted, probability * weight))


def _choices(
    target_law: LawLookup, draft_law: LawLookup, prefix: tuple[int, ...], candidates: int
) -> Mapping[Choice, Number]:
    """What may be chosen after a prefix; a leaf has no draft law and no candidates."""
    target = target_law(prefix)
    if candidates == 0:
        return {Choice(token, None): weight for token, weight in target.support()}
    return race(target, draft_law(prefix), candidates)
