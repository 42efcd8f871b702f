"""What known noise makes of estimated probabilities.

Sampling chooses the token with the largest log-probability plus noise, and the noise is shared with
the drafter. A drafter that knew the target's probabilities would know the choice.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from treespec.sampling import RowNoise

# Estimates come from other contexts than the one that is sampled in. The noise is trusted to this
# degree to decide between candidates: 0 takes them as they are, 1 believes them fully.
_TRUST = 0.8
_GUMBEL_MEAN = 0.5772156649


def perturbed(
    estimates: Sequence[Mapping[int, float]], noise: RowNoise, position: int
) -> list[dict[int, float]]:
    """Probabilities that each token wins at `position`, where the noise is known.

    Were the estimates the target's own probabilities, the token with the largest log-probability
    plus noise would win for certain. They are only close to them, so the perturbed values are
    flattened before they become probabilities. The tokens that are not named take part as one whose
    noise is not known.
    """
    tokens = [token for found in estimates for token in found]
    gumbels = iter(noise.at(position, torch.tensor(tokens, dtype=torch.int64)).tolist())
    sharpened = []
    for found in estimates:
        values = {
            token: (math.log(estimate) + next(gumbels) if estimate > 0 else next(gumbels) - 99.0)
            for token, estimate in found.items()
        }
        rest = max(1.0 - sum(found.values()), 1e-6)
        others = math.log(rest) + _GUMBEL_MEAN
        highest = max(values.values(), default=others)
        sharpness = 1.0 / (1.0 - _TRUST)
        odds = {token: math.exp(sharpness * (value - highest)) for token, value in values.items()}
        total = sum(odds.values()) + math.exp(min(sharpness * (others - highest), 50.0))
        sharpened.append({token: odd / total for token, odd in odds.items()})
    return sharpened
