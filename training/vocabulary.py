"""The tokens worth guessing: those that the target says most often."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treespec.errors import ConfigError
from treespec.heads.vocabulary import DraftVocabulary
from treespec.training.data import Example


@dataclass(frozen=True, slots=True)
class VocabularyChoice:
    """A reduced draft vocabulary and what it leaves out.

    Attributes:
        vocabulary: the tokens, in the order of their ids.
        coverage: share of the supervised tokens that are among them, in [0, 1].
        distinct: different tokens that are supervised anywhere.
    """

    vocabulary: DraftVocabulary
    coverage: float
    distinct: int


def choose_vocabulary(examples: Sequence[Example], size: int, vocab_size: int) -> VocabularyChoice:
    """The `size` most frequent supervised tokens.

    Tokens that are never supervised fill the rest, those first that stand in the texts at all,
    and smaller ids first: tokenizers learn frequent pieces first.

    Args:
        examples: texts to count in; held-out ones should not be among them.
        size: D, tokens to keep.
        vocab_size: V, the target's logits.

    Raises:
        ConfigError: if there are not as many tokens.
    """
    if not 1 <= size <= vocab_size:
        raise ConfigError(
            f"draft_vocab_size is {size}, but the target has {vocab_size} tokens; give 1 to "
            f"{vocab_size}, or leave it out to keep all"
        )
    supervised = torch.zeros(vocab_size, dtype=torch.int64)
    anywhere = torch.zeros(vocab_size, dtype=torch.int64)
    for one in examples:
        supervised += torch.bincount(one.tokens[one.supervised], minlength=vocab_size)
        anywhere += torch.bincount(one.tokens, minlength=vocab_size)
    # Two stable sorts, the less important one first.
    order = anywhere.argsort(descending=True, stable=True)
    order = order[supervised[order].argsort(descending=True, stable=True)]
    ids = order[:size].sort().values
    total = int(supervised.sum())
    return VocabularyChoice(
        vocabulary=DraftVocabulary(ids, vocab_size),
        coverage=int(supervised[ids].sum()) / total if total else 0.0,
        distinct=int((supervised > 0).sum()),
    )
