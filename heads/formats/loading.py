"""Draft heads from a checkpoint of any known format."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import CheckpointError, ConfigError, DrafterError
from treespec.heads.base import DraftHeads
from treespec.heads.eagle import EagleHead
from treespec.heads.formats.checkpoint import Checkpoint, CheckpointWarning
from treespec.heads.formats.fitting import examine, full_settings
from treespec.heads.formats.own_layout import CONFIGS
from treespec.heads.formats.reading import read_checkpoint
from treespec.heads.hydra import HydraHeads
from treespec.heads.medusa import MedusaHeads
from treespec.heads.vocabulary import DraftVocabulary

_CLASSES: Mapping[str, Any] = {
    "medusa": MedusaHeads,
    "hydra": HydraHeads,
    "eagle": EagleHead,
    "eagle3": EagleHead,
}


def load_heads(
    path_or_repo: str | Path,
    target: PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> DraftHeads:
    """Draft heads for a target, in evaluation mode and on its device.

    Args:
        path_or_repo: a folder, a file of weights, or the name of a repository on the Hub; Medusa,
            Hydra, EAGLE-1, EAGLE-2 and EAGLE-3 as their authors, vLLM, SGLang, SpecForge and
            speculators write them, and what `save_heads` wrote.
        target: the model that the heads were trained for.
        dtype: of the heads; None for that of the file.
        tokenizer: the target's, to be compared with the one that the heads were saved with; without
            it the one in the target's folder is compared.

    Raises:
        CheckpointError: if the file is damaged, is no heads', or does not fit the target; nothing
            has been built then.
        DownloadError: if a repository cannot be had.

    Warns:
        CheckpointWarning: if the heads fit, but were trained for other weights.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ConfigError(f"heads cannot be {dtype}; give a floating point type")
    checkpoint = read_checkpoint(path_or_repo)
    doubts = examine(checkpoint, target, tokenizer)
    heads = build_heads(checkpoint, target, dtype=dtype)
    for message in doubts:
        warnings.warn(message, CheckpointWarning, stacklevel=2)
    return heads


def build_heads(
    checkpoint: Checkpoint, target: PreTrainedModel, *, dtype: torch.dtype | None = None
) -> DraftHeads:
    """Heads with the checkpoint's tensors.

    Raises:
        CheckpointError: if the settings contradict each other or the target.
    """
    recipe = replace(checkpoint.recipe, settings=full_settings(checkpoint.recipe, target))
    output: Any = target.get_output_embeddings()
    vocab_size = int(output.weight.shape[0])
    vocabulary = None
    if recipe.vocabulary is not None:
        vocabulary = DraftVocabulary(recipe.vocabulary, vocab_size)
    try:
        config = CONFIGS[recipe.family](**recipe.settings)
        heads: DraftHeads = _CLASSES[recipe.family](config, target, vocabulary)
    except (ConfigError, DrafterError) as error:
        raise CheckpointError(f"{checkpoint.place}: {error}") from error
    device = heads.borrowed.device
    tensors = {
        name: tensor.to(device, dtype or checkpoint.dtype)
        for name, tensor in checkpoint.tensors.items()
    }
    # Assigned, not copied: the heads take the type of the file.
    heads.load_state_dict(tensors, assign=True)
    return heads.to(device).eval()
