"""Texts to measure heads on: a prompt, what the target said after it, and its hidden states."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import DataError
from treespec.options import eos_ids
from treespec.target import Target, TargetOutput
from treespec.training.examples import Example
from treespec.training.masks import stretches


@dataclass(frozen=True, slots=True)
class Passage:
    """A prompt and its answer, which heads are to guess.

    Attributes:
        tokens: both, one behind the other, int64, on the CPU.
        start: index of the answer's first token, at least 1. Heads never guess it: it comes with
            the prompt.
        ended: whether the answer ended by itself. One that was cut off shows decoding how many
            tokens are left, one that ended does not.
    """

    tokens: Int[Tensor, " L"]
    start: int
    ended: bool

    @property
    def num_guessable(self) -> int:
        """Tokens behind the answer's first, at least 1."""
        return len(self.tokens) - self.start - 1

    @property
    def prompt(self) -> Int[Tensor, " S"]:
        """The tokens before the answer."""
        return self.tokens[: self.start]


def passages_of(
    examples: Sequence[Example], *, end_ids: Collection[int] = (), max_length: int | None = None
) -> list[Passage]:
    """One passage for every answer in the examples that has something to guess.

    Args:
        examples: texts; every run of supervised tokens is an answer.
        end_ids: tokens that end an answer.
        max_length: tokens of an example that are used; None for all.

    Raises:
        DataError: if no answer has two tokens.
    """
    found = []
    for one in examples:
        tokens = one.tokens[:max_length]
        for start, end in stretches(one.supervised[:max_length].tolist()):
            first = max(start, 1)
            if end - first >= 2:
                ended = int(tokens[end - 1]) in end_ids
                found.append(Passage(tokens[:end], first, ended))
    if not found:
        raise DataError(
            f"none of the {len(examples)} examples has an answer of two tokens or more, so there "
            "is nothing to guess; look at the masks with `treespec distill --show-mask`"
        )
    return found


def end_ids_of(target: PreTrainedModel) -> frozenset[int]:
    """Tokens that end the target's answers, by its generation config."""
    return eos_ids(target.generation_config)


def states_of(
    target: Target, passages: Sequence[Passage], taps: Sequence[int]
) -> list[TargetOutput]:
    """The target's hidden states at every token of every passage but the last, which none needs.

    Args:
        target: runs all passages in one batch.
        passages: at least one.
        taps: indices of `hidden_states`.
    """
    texts = [one.tokens[:-1] for one in passages]
    return target.read(texts, taps=taps)
