"""What every family of draft heads looks like to the drafter that asks it.

A head is asked about positions in pairs: the target's features f_t of a token, and the token
x_(t+1) that came after it. Families differ in what they make of them: Medusa looks at the last
pair only, Hydra and EAGLE run a layer with a cache over all of them. What is computed for the nodes
of a tree is forgotten when the next pairs come: they bring the target's own features.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import CheckpointError
from treespec.heads.borrowed import Borrowed
from treespec.heads.vocabulary import DraftVocabulary
from treespec.tree.growth import GrowingTree

Heads = TypeVar("Heads", bound="DraftHeads")


@runtime_checkable
class HeadSession(Protocol):
    """A head's state for one call of `generate`; rows are the rows still being decoded."""

    def read(
        self,
        features: Sequence[Float[Tensor, "_L F"]],
        tokens: Sequence[Int[Tensor, " _L"]],
    ) -> list[Float[Tensor, "_M D"]]:
        """Take in committed pairs, and forget the tree before them.

        Args:
            features: per row the target's features f_t of its new pairs, all taps side by side in
                the order of `taps`; empty for rows with nothing new.
            tokens: per row the token x_(t+1) of every pair; the last is the next tree's root.

        Returns:
            Per row logits `[1, D]` of the root's children; `[0, D]` where nothing was given.
        """
        ...

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Float[Tensor, "_F D"]]:
        """Logits of the children of every frontier node, `[0, D]` for an empty frontier.

        The root is never in a frontier, a node is asked for at most once between two reads, and
        after its parent.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        ...


class DraftHeads(nn.Module, ABC):
    """Trained modules that guess tokens from a target's hidden states.

    Parameters and buffers are the heads' own; what they share with the target is `borrowed`.

    Args:
        target: the model they were trained for.
        vocabulary: the tokens they can propose; None for all.

    Attributes:
        taps: indices of the target's `hidden_states` that features are made of; the last one is
            post-norm, see `last_tap`.
        max_depth: levels that they can draft; None without a limit.
        costs_a_level: whether a level of the tree costs a forward of a layer, so that hopeless
            levels should not be asked for.
    """

    costs_a_level: ClassVar[bool] = True
    taps: tuple[int, ...]
    max_depth: int | None = None

    def __init__(self, target: PreTrainedModel, vocabulary: DraftVocabulary | None = None) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        # In a tuple, because a module would register the target's parameters as its own.
        self._borrowed = (Borrowed(target, vocabulary),)

    @property
    @abstractmethod
    def family(self) -> str:
        """Name of the family: "medusa", "hydra", "eagle" or "eagle3"."""

    @property
    def borrowed(self) -> Borrowed:
        """The target's embedding and LM head."""
        return self._borrowed[0]

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def num_columns(self) -> int:
        """D: how many tokens they can propose."""
        return self.target_vocab_size if self.vocabulary is None else len(self.vocabulary)

    @property
    def target_vocab_size(self) -> int:
        """V: number of the target's logits."""
        head = self.borrowed.target.get_output_embeddings()
        return int(head.weight.shape[0])

    @abstractmethod
    def begin(self, batch: int) -> HeadSession:
        """State for `batch` rows that have not read anything."""

    @classmethod
    def from_pretrained(
        cls: type[Heads],
        path_or_repo: str | Path,
        target: PreTrainedModel,
        *,
        dtype: torch.dtype | None = None,
    ) -> Heads:
        """Heads of this family; see `load_heads`, which takes any.

        Raises:
            CheckpointError: if they cannot be loaded, or belong to another family.
        """
        from treespec.heads.formats.loading import load_heads  # imports this module

        heads = load_heads(path_or_repo, target, dtype=dtype)
        if not isinstance(heads, cls):
            raise CheckpointError(
                f"{path_or_repo} holds {heads.family} heads, not {cls.__name__}; use load_heads"
            )
        return heads

    def save_pretrained(self, folder: str | Path, **details: Any) -> Path:
        """Write the heads to a folder; `details` and what is written: see `save_heads`."""
        from treespec.heads.formats.saving import save_heads  # imports this module

        return save_heads(self, folder, **details)

    def push_to_hub(self, repo_id: str, **details: Any) -> str:
        """Upload the heads to the Hub; see `push_heads`."""
        from treespec.heads.formats.hub import push_heads  # imports this module

        return push_heads(self, repo_id, **details)


def last_tap(target: PreTrainedModel) -> int:
    """Index of the target's final hidden state, which `transformers` gives after the final norm."""
    return int(target.config.get_text_config(decoder=True).num_hidden_layers)
