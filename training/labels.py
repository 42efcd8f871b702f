"""What heads are to say where: depth k at position t speaks of the token at t + 2 + k."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from treespec.heads.vocabulary import DraftVocabulary
from treespec.training.packing import Batch

FIRST = 2
"""Places from a hidden state to the first token that heads guess; the target guesses the one
between."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one depth at every position.

    Attributes:
        columns: what the heads' output should be largest at; 0 where nothing counts.
        supervised: where the label is a token to learn.
        counted: where, besides, the heads can propose it. Elsewhere there is no loss, and the
            guess is wrong.
    """

    columns: Int[Tensor, "B L"]
    supervised: Bool[Tensor, "B L"]
    counted: Bool[Tensor, "B L"]


class Columns:
    """Which output of the heads stands for which token.

    Args:
        vocabulary: of the heads; None if they can propose every token.
    """

    def __init__(self, vocabulary: DraftVocabulary | None) -> None:
        self._of_token: Tensor | None = None
        if vocabulary is not None:
            self._of_token = torch.full((vocabulary.vocab_size,), -1)
            self._of_token[vocabulary.ids.cpu()] = torch.arange(len(vocabulary))

    def labels(self, batch: Batch, depth: int) -> Labels:
        """Labels of one depth, on the batch's device."""
        tokens = ahead(batch.tokens, FIRST + depth)
        supervised = ahead(batch.supervised, FIRST + depth)
        if self._of_token is None:
            return Labels(tokens.where(supervised, 0), supervised, supervised)
        columns = self._of_token.to(tokens.device)[tokens]
        counted = supervised & (columns >= 0)
        return Labels(columns.where(counted, 0), supervised, counted)


def ahead(values: Shaped[Tensor, "B L *X"], places: int) -> Shaped[Tensor, "B L *X"]:
    """Of every position what stands `places` further on; zeros where the row has ended."""
    moved = torch.zeros_like(values)
    if places < values.shape[1]:
        moved[:, : values.shape[1] - places] = values[:, places:]
    return moved
