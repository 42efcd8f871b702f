"""Blending of evidence: several opinions about the next token become one estimate.

A piece of evidence is a small distribution over next tokens, seen in a context that resembles the
present one. The estimate is a chain of mixtures, as in prediction by partial matching: the evidence
of the most specific context holds with a probability that is learned for its kind, otherwise the
next one is asked. These reliabilities are learned online, by expectation maximisation over the
tokens that the target emits, so estimates stay comparable across kinds and drafters.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Probability of a token that no evidence names, so that evidence is not blamed without limit.
_UNNAMED = 1e-4
# Probability mass that is not worth passing on.
_NEGLIGIBLE = 1e-3
# Emitted tokens that a prior counts for.
_PRIOR_STRENGTH = 16.0


class Evidence(NamedTuple):
    """One opinion about the next token.

    Attributes:
        kind: what sort of opinion it is; opinions of one kind share their reliability.
        order: how specific its context is; higher is asked first.
        tokens: distinct token ids that it names, most probable first.
        weights: the share of each, not increasing; they sum to at most 1.
    """

    kind: str
    order: float
    tokens: Sequence[int]
    weights: Sequence[float]


class Reliabilities:
    """How often each kind of evidence is right when it is asked, learned online.

    Args:
        priors: the reliability of each kind before anything was seen, above 0 and below 1.
    """

    def __init__(self, priors: Mapping[str, float]) -> None:
        """Start from the priors."""
        self._right = {kind: prior * _PRIOR_STRENGTH for kind, prior in priors.items()}
        self._asked = dict.fromkeys(priors, _PRIOR_STRENGTH)

    def of(self, kind: str) -> float:
        """Probability that evidence of this kind holds, given that it is asked."""
        return self._right[kind] / self._asked[kind]

    def blend(self, evidence: Sequence[Evidence], *, least: float = 0.0) -> dict[int, float]:
        """Estimated probability of the tokens that the evidence names.

        Args:
            evidence: most specific first.
            least: contributions below this are left out, which saves most of the time where only
                probable tokens matter.
        """
        estimates: dict[int, float] = {}
        left = 1.0
        for kind, _, tokens, weights in evidence:
            share = left * self.of(kind)
            for token, weight in zip(tokens, weights, strict=True):
                part = share * weight
                if part < least:
                    break
                estimates[token] = estimates.get(token, 0.0) + part
            left -= share
            if left < _NEGLIGIBLE or left < least:
                break
        return estimates

    def learn(self, evidence: Sequence[Evidence], token: int) -> None:
        """Credit and blame the evidence once the token is known that came.

        Args:
            evidence: what spoke about the token before it came, most specific first.
            token: the token that came.
        """
        responsibilities = []
        chance = _UNNAMED  # probability of the token according to all less specific evidence
        for kind, _, tokens, weights in reversed(evidence):
            reliability = self.of(kind)
            own = reliability * weights[tokens.index(token)] if token in tokens else 0.0
            chance = own + (1.0 - reliability) * chance
            responsibilities.append((kind, own / chance))
        asked = 1.0
        for kind, right in reversed(responsibilities):
            self._asked[kind] += asked
            self._right[kind] += asked * right
            asked *= 1.0 - right
            if asked < _NEGLIGIBLE:
                break
