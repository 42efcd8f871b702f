"""How good guesses were: sums that add up over batches and processes, and their rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_ROWS = ("loss", "counted", "supervised", "correct", "distance")


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over positions, by depth.

    Attributes:
        sums: `loss` over the positions that count, how many those are (`counted`), how many labels
            there were (`supervised`), how many guesses were `correct`, and the summed `distance`
            between predicted and true features.
        chains: positions at which every depth has a label.
        chained: how many guesses were right there before the first wrong one.
    """

    sums: Float[Tensor, "5 K"]
    chains: float = 0.0
    chained: float = 0.0

    @classmethod
    def zero(cls, depth: int) -> "Tally":
        """Nothing seen."""
        return cls(torch.zeros(len(_ROWS), depth, dtype=torch.float64))

    @classmethod
    def of(
        cls,
        losses: Sequence[Tensor],
        distances: Sequence[Tensor],
        *,
        supervised: Bool[Tensor, "K B L"],
        counted: Bool[Tensor, "K B L"],
        correct: Bool[Tensor, "K B L"],
    ) -> "Tally":
        """Of one batch.

        Args:
            losses: sum over the positions that count, of every depth.
            distances: the same for features; empty where nobody asked.
            supervised: where there is a label.
            counted: where it counts.
            correct: where it was guessed.
        """
        parts = [counted, supervised, correct]
        counts = [part.sum(dim=(1, 2)).double().cpu() for part in parts]
        loss = torch.stack([one.detach().double().cpu() for one in losses])
        distance = torch.zeros_like(loss)
        if distances:
            distance = torch.stack([one.detach().double().cpu() for one in distances])
        whole = supervised.all(dim=0)
        runs = correct.to(torch.int64).cumprod(dim=0).sum(dim=0)
        return cls(
            torch.stack([loss, *counts, distance]), float(whole.sum()), float(runs[whole].sum())
        )

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.sums + other.sums, self.chains + other.chains, self.chained + other.chained
        )

    def flat(self) -> Float[Tensor, " N"]:
        """All sums in one tensor, to be added up over processes."""
        rest = torch.tensor([self.chains, self.chained], dtype=torch.float64)
        return torch.cat([self.sums.reshape(-1), rest])

    @classmethod
    def from_flat(cls, flat: Float[Tensor, " N"]) -> "Tally":
        """What `flat` gave."""
        sums = flat[:-2].reshape(len(_ROWS), -1)
        return cls(sums, float(flat[-2]), float(flat[-1]))

    def row(self, name: str) -> Float[Tensor, " K"]:
        """One of the sums by its name."""
        return self.sums[_ROWS.index(name)]

    def metrics(self, weights: Sequence[float], feature_share: float) -> "Metrics":
        """Means, and the loss that is minimised.

        Args:
            weights: of the depths.
            feature_share: weight of the distance between features.
        """
        losses = self.row("loss") / self.row("counted").clamp(min=1)
        distances = self.row("distance") / self.row("supervised").clamp(min=1)
        top1 = self.row("correct") / self.row("supervised").clamp(min=1)
        by_depth = losses + feature_share * distances
        loss = by_depth @ torch.tensor(list(weights), dtype=torch.float64)
        return Metrics(
            loss=float(loss),
            loss_by_depth=tuple(by_depth.tolist()),
            top1=tuple(top1.tolist()),
            acceptance_length=1 + self.chained / self.chains if self.chains else None,
            tokens=int(self.row("supervised")[0]),
        )


@dataclass(frozen=True, slots=True)
class Metrics:
    """How good heads are on some texts, the true tokens given up to every guess.

    Attributes:
        loss: what training minimises: means of the depths, weighted and added up.
        loss_by_depth: the means.
        top1: share of the labels that were the first guess; labels outside the draft vocabulary
            are wrong guesses.
        acceptance_length: tokens per pass of the target that a chain of all depths would give,
            the target's own included; None where no position has labels of every depth.
        tokens: labels of the first depth.
    """

    loss: float
    loss_by_depth: tuple[float, ...]
    top1: tuple[float, ...]
    acceptance_length: float | None
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "loss": self.loss,
            "loss_by_depth": list(self.loss_by_depth),
            "top1": list(self.top1),
            "acceptance_length": self.acceptance_length,
            "tokens": self.tokens,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Metrics":
        """What `as_dict` gave."""
        given = dict(values)
        for name in ("loss_by_depth", "top1"):
            given[name] = tuple(given[name])
        return cls(**given)
