"""What one run learns from: examples, those held out, and the draft vocabulary made of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from treespec.errors import DataError
from treespec.heads.vocabulary import DraftVocabulary
from treespec.training.config import TrainConfig
from treespec.training.data import DataFolder, Example, split
from treespec.training.labels import FIRST
from treespec.training.vocabulary import choose_vocabulary

# Of all examples; with fewer, the labels of the data are most likely wrong.
_LEAST_USABLE = 0.5
_MOST_HELD_OUT = 64


@dataclass(frozen=True, slots=True)
class Corpus:
    """Examples by what they are for.

    Attributes:
        train: learned from; each has a label.
        held_out: looked at only.
        unused: how many were left out because they have no label.
        lengths: tokens of every training example that are used.
        vocabulary: tokens that the heads can propose; None for all.
        coverage: share of the supervised tokens that are among them.
    """

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    unused: int
    lengths: tuple[int, ...]
    vocabulary: DraftVocabulary | None
    coverage: float

    def digest(self) -> str:
        """A hash of all examples in their order."""
        digest = hashlib.sha256()
        for one in (*self.train, *self.held_out):
            digest.update(f"{one.id}:{len(one.tokens)}:".encode())
            digest.update(one.tokens.numpy().tobytes())
            digest.update(one.supervised.numpy().tobytes())
        return digest.hexdigest()


def prepare(data: DataFolder, config: TrainConfig) -> Corpus:
    """Divide the examples of a folder, and choose the draft vocabulary.

    Raises:
        ConfigError: if too many are to be held out, or the draft vocabulary is too large.
        DataError: if most of the examples have nothing to learn.
    """
    count = config.held_out
    if count is None:
        count = min(_MOST_HELD_OUT, len(data.examples) // 20)
    train, held_out = split(data.examples, count, config.seed)
    usable = _with_labels(train, config.max_length)
    if len(usable) < _LEAST_USABLE * len(train) or not usable:
        raise DataError(
            f"only {len(usable)} of {len(train)} examples in {data.path} have a supervised token "
            f"among their first {config.max_length} tokens that heads could guess; look at the "
            "masks with `treespec distill --show-mask`, or raise max_length"
        )
    vocab_size = data.meta.vocab_size
    vocabulary, coverage = None, 1.0
    if config.draft_vocab_size is not None:
        choice = choose_vocabulary(usable, config.draft_vocab_size, vocab_size)
        vocabulary, coverage = choice.vocabulary, choice.coverage
    return Corpus(
        train=tuple(usable),
        held_out=tuple(_with_labels(held_out, config.max_length)),
        unused=len(train) - len(usable),
        lengths=tuple(min(len(one.tokens), config.max_length) for one in usable),
        vocabulary=vocabulary,
        coverage=coverage,
    )


def _with_labels(examples: Sequence[Example], max_length: int) -> list[Example]:
    """Examples that the first head has something to learn from."""
    return [one for one in examples if bool(one.supervised[FIRST:max_length].any())]
