"""What an export writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.formats.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Export:
    """Files of one engine's format.

    Attributes:
        config: content of `config.json`.
        file: name of the file of weights.
        tensors: what is in it.
    """

    config: Mapping[str, Any]
    file: str
    tensors: Mapping[str, Tensor]


def target_lm_head(checkpoint: Checkpoint, engine: str) -> Tensor:
    """A copy of the target's LM head, for the columns of the heads.

    Raises:
        CheckpointError: if there is none, or none that a matrix can stand for.
    """
    head = checkpoint.lm_head
    if head is None:
        raise CheckpointError(
            f"{engine} wants a copy of the target's LM head with these heads: load them with "
            "load_heads and export what it returns; it cannot be had of targets whose LM head has "
            "a bias, a scale or a cap"
        )
    vocabulary = checkpoint.recipe.vocabulary
    if vocabulary is not None and len(vocabulary) != len(head):
        head = head[vocabulary]
    return head.to(checkpoint.dtype)
