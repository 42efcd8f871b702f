"""EAGLE-3's maps between its draft vocabulary and the target's."""

from collections.abc import Mapping

import torch
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.formats.tensors import INTEGERS, StoredTensor, read_ids
from treespec.heads.vocabulary import DraftVocabulary


def eagle_vocabulary(
    stored: Mapping[str, StoredTensor], *, columns: int | None, vocab_size: int | None
) -> Tensor | None:
    """The target's id of every column; None where the draft vocabulary is the target's.

    Args:
        stored: the file, in which `d2t` holds the id minus the column, and `t2d` marks the ids.
        columns: D.
        vocab_size: V.

    Raises:
        CheckpointError: if a map is missing, leaves the target's vocabulary, or if both disagree.
    """
    mask = _mask(stored, vocab_size)
    vocab_size = vocab_size if mask is None else len(mask)
    if "d2t" not in stored:
        if columns is not None and vocab_size is not None and columns != vocab_size:
            raise CheckpointError(
                f"the LM head has {columns} rows and the target {vocab_size} tokens, but there is "
                "no d2t that says which; the file is incomplete"
            )
        return None
    offsets = read_ids("d2t", stored["d2t"])
    if columns is not None and len(offsets) != columns:
        raise CheckpointError(f"d2t has {len(offsets)} entries, but the LM head {columns} rows")
    if vocab_size is None:
        raise CheckpointError("config.json does not say vocab_size, and there is no t2d to tell it")
    vocabulary = DraftVocabulary.from_offsets(offsets, vocab_size)
    if mask is not None and not torch.equal(vocabulary.mask(), mask):
        raise CheckpointError(
            f"d2t and t2d disagree: d2t names {len(vocabulary)} tokens, t2d marks "
            f"{int(mask.sum())}, and they are not the same ones; d2t must hold each token's id "
            "minus its column"
        )
    if len(vocabulary) == vocab_size and not offsets.any():
        return None
    return vocabulary.ids


def _mask(stored: Mapping[str, StoredTensor], vocab_size: int | None) -> Tensor | None:
    mask = stored.get("t2d")
    if mask is None:
        return None
    if mask.dtype not in ("bool", *INTEGERS) or len(mask.shape) != 1:
        raise CheckpointError(
            f"t2d must be a vector of truth values, but is {mask.dtype} {list(mask.shape)}"
        )
    if vocab_size is not None and mask.shape[0] != vocab_size:
        raise CheckpointError(
            f"t2d has {mask.shape[0]} entries, but config.json says vocab_size = {vocab_size}"
        )
    return mask.read().to(torch.bool)
