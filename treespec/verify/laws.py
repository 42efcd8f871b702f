"""Laws over the vocabulary, with the few operations that acceptance rules are made of.

Rules are written against `Law` alone, so that decoding (`TensorLaw`) and enumeration (`TableLaw`,
in rationals if need be) run the same lines.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import TypeAlias, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Number: TypeAlias = Fraction | float | int
Weights: TypeAlias = Sequence[Number] | Float[Tensor, " _V"] | Float[np.ndarray, " _V"]
SameLaw = TypeVar("SameLaw", bound="Law")


class Law(ABC):
    """Non-negative weights of the token ids; a probability law where they add up to 1."""

    @abstractmethod
    def __getitem__(self, token: int) -> Number:
        """Weight of one token."""

    @abstractmethod
    def total(self) -> Number:
        """Sum of the weights."""

    @abstractmethod
    def scaled(self: SameLaw, factor: Number) -> SameLaw:
        """All weights times `factor`."""

    @abstractmethod
    def minus(self: SameLaw, other: SameLaw) -> SameLaw:
        """What is left of each weight after taking the other's away, never below 0."""

    @abstractmethod
    def minimum(self: SameLaw, other: SameLaw) -> SameLaw:
        """The smaller of the two weights of each token."""

    @abstractmethod
    def without(self: SameLaw, token: int) -> SameLaw:
        """The same weights, but 0 for one token."""

    @abstractmethod
    def point(self: SameLaw, token: int) -> SameLaw:
        """The law over the same vocabulary that is sure of one token."""

    @abstractmethod
    def quantile(self, level: float) -> int:
        """First token at which the weights so far exceed `level`, in [0, 1), of their total.

        Never a token of weight 0, even where rounding would lead to one.
        """

    @abstractmethod
    def support(self) -> list[tuple[int, Number]]:
        """Tokens of positive weight and their weights, in order of id."""

    @abstractmethod
    def entropy(self) -> float:
        """Entropy in nats; the weights must add up to 1."""

    @abstractmethod
    def rounded(self, value: float) -> Number:
        """A number near `value` in the arithmetic of the weights.

        Where they are rational it is a simple fraction, so that a solution that is one is found.
        """

    def normalized(self: SameLaw) -> SameLaw:
        """The weights divided by their total; zero weights stay zero."""
        total = self.total()
        return self.scaled(1 / total) if total > 0 else self


@final
class TensorLaw(Law):
    """Weights in a tensor, on the device where the model left its scores.

    Args:
        weights: shape `[V]`, float64, or float32 on devices that know no float64.
    """

    def __init__(self, weights: Float[Tensor, " V"]) -> None:
        self.weights = weights

    @classmethod
    def from_logits(cls, logits: Float[Tensor, " V"]) -> "TensorLaw":
        """The softmax of processed logits; -inf stays impossible."""
        return cls(torch.softmax(logits, dim=-1, dtype=_widest(logits.device)))

    @classmethod
    def from_probs(
        cls, probs: Float[Tensor, " V"], vocab_size: int, device: torch.device
    ) -> "TensorLaw":
        """The law that sampling by these weights obeys, over the target's vocabulary.

        Args:
            probs: weights as drawn from; they need not add up to exactly 1.
            vocab_size: number of the target's logits, perhaps more than there are weights.
            device: where the target's scores are.
        """
        weights = torch.zeros(vocab_size, dtype=_widest(device), device=device)
        weights[: probs.shape[0]] = probs
        return cls(weights).normalized()

    def __getitem__(self, token: int) -> float:
        return float(self.weights[token])

    def total(self) -> float:
        """See `Law.total`."""
        return float(self.weights.sum())

    def scaled(self, factor: Number) -> "TensorLaw":
        """See `Law.scaled`."""
        return TensorLaw(self.weights * float(factor))

    def minus(self, other: "TensorLaw") -> "TensorLaw":
        """See `Law.minus`."""
        return TensorLaw((self.weights - other.weights).clamp_(min=0))

    def minimum(self, other: "TensorLaw") -> "TensorLaw":
        """See `Law.minimum`."""
        return TensorLaw(torch.minimum(self.weights, other.weights))

    def without(self, token: int) -> "TensorLaw":
        """See `Law.without`."""
        weights = self.weights.clone()
        weights[token] = 0
        return TensorLaw(weights)

    def point(self, token: int) -> "TensorLaw":
        """See `Law.point`."""
        weights = torch.zeros_like(self.weights)
        weights[token] = 1
        return TensorLaw(weights)

    def quantile(self, level: float) -> int:
        """See `Law.quantile`."""
        tokens = self.weights.nonzero().squeeze(-1)
        reached = self.weights[tokens].cumsum(0)
        place = torch.searchsorted(reached, level * reached[-1], right=True)
        return int(tokens[place.clamp(max=len(tokens) - 1)])

    def support(self) -> list[tuple[int, Number]]:
        """See `Law.support`."""
        tokens = self.weights.nonzero().squeeze(-1)
        return list(zip(tokens.tolist(), self.weights[tokens].tolist(), strict=True))

    def entropy(self) -> float:
        """See `Law.entropy`."""
        return float(torch.special.entr(self.weights).sum())

    def rounded(self, value: float) -> float:
        """See `Law.rounded`."""
        return value


@final
class TableLaw(Law):
    """Weights as plain numbers: exact where they are fractions, floats otherwise.

    Args:
        weights: one number per token id; arrays become floats.
    """

    def __init__(self, weights: Iterable[Number] | Weights) -> None:
        numbers = weights.tolist() if isinstance(weights, Tensor | np.ndarray) else weights
        # an int among fractions would turn a quotient into a float
        self.weights = tuple(Fraction(w) if isinstance(w, int) else w for w in numbers)

    def __getitem__(self, token: int) -> Number:
        return self.weights[token]

    def total(self) -> Number:
        """See `Law.total`."""
        return sum(self.weights, Fraction(0))

    def scaled(self, factor: Number) -> "TableLaw":
        """See `Law.scaled`."""
        return TableLaw(weight * factor for weight in self.weights)

    def minus(self, other: "TableLaw") -> "TableLaw":
        """See `Law.minus`."""
        return TableLaw(max(a - b, 0) for a, b in zip(self.weights, other.weights, strict=True))

    def minimum(self, other: "TableLaw") -> "TableLaw":
        """See `Law.minimum`."""
        return TableLaw(min(a, b) for a, b in zip(self.weights, other.weights, strict=True))

    def without(self, token: int) -> "TableLaw":
        """See `Law.without`."""
        return TableLaw(0 if i == token else weight for i, weight in enumerate(self.weights))

    def point(self, token: int) -> "TableLaw":
        """See `Law.point`."""
        return TableLaw(int(i == token) for i in range(len(self.weights)))

    def quantile(self, level: float) -> int:
        """See `Law.quantile`."""
        support = self.support()
        sought = level * self.total()
        reached = accumulate(weight for _, weight in support)
        above = (token for (token, _), mass in zip(support, reached, strict=True) if mass > sought)
        return next(above, support[-1][0])

    def support(self) -> list[tuple[int, Number]]:
        """See `Law.support`."""
        return [(token, weight) for token, weight in enumerate(self.weights) if weight > 0]

    def entropy(self) -> float:
        """See `Law.entropy`."""
        return -sum(float(weight) * math.log(weight) for _, weight in self.support())

    def rounded(self, value: float) -> Number:
        """See `Law.rounded`."""
        return Fraction(value).limit_denominator(10**6)


def _widest(device: torch.device) -> torch.dtype:
    """The most precise floating point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64
