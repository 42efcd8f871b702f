"""Draft heads for other engines, as those read them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.base import DraftHeads
from treespec.heads.formats.checkpoint import Checkpoint
from treespec.heads.formats.export_eagle import for_sglang, for_speculators, for_vllm
from treespec.heads.formats.export_medusa import medusa_for_tgi, medusa_for_vllm, medusa_plain
from treespec.heads.formats.exported import Export
from treespec.heads.formats.reading import read_checkpoint
from treespec.heads.formats.saving import checkpoint_of, write_folder

_Writer = Callable[[Checkpoint], Export]
_WRITERS: Mapping[str, Mapping[str, _Writer]] = {
    "medusa": {"medusa": medusa_plain},
    "tgi": {"medusa": medusa_for_tgi},
    "vllm": {"medusa": medusa_for_vllm, "eagle": for_vllm, "eagle3": for_vllm},
    "sglang": {"eagle": for_sglang, "eagle3": for_sglang},
    "speculators": {"eagle3": for_speculators},
}
_NAMES = {
    "medusa": "Medusa's own code",
    "tgi": "TGI",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "speculators": "the speculators format",
}
ENGINES = tuple(_WRITERS)


def export_heads(
    heads_or_path: DraftHeads | str | Path,
    to: str,
    out: str | Path,
    *,
    base_model: str | None = None,
) -> Path:
    """Write heads in the format of another engine.

    Args:
        heads_or_path: heads, or where a checkpoint of any known format is. Heads that use the
            target's LM head have to be loaded for engines that want a copy of it.
        to: "medusa" (the layout of the authors), "tgi", "vllm", "sglang" or "speculators".
        out: folder to write to.
        base_model: what the target is called on the Hub; None for what the heads know.

    Returns:
        The folder.

    Raises:
        CheckpointError: if the engine cannot run these heads, saying why.
        ConfigError: for an unknown engine, or a name that the format needs and nobody gave.
    """
    if to not in _WRITERS:
        raise ConfigError(f"heads can be exported to {', '.join(ENGINES)}, not to {to!r}")
    if isinstance(heads_or_path, DraftHeads):
        checkpoint = replace(checkpoint_of(heads_or_path), lm_head=_lm_head(heads_or_path))
    else:
        checkpoint = read_checkpoint(heads_or_path)
    if base_model is not None:
        checkpoint = replace(checkpoint, recipe=replace(checkpoint.recipe, base_model=base_model))
    family = checkpoint.recipe.family
    writer = _WRITERS[to].get(family)
    if writer is None:
        able = [name for name, writers in _WRITERS.items() if family in writers]
        elsewhere = f"; {', '.join(able)} can" if able else "; only treespec can"
        raise CheckpointError(f"{_NAMES[to]} cannot run {family} heads{elsewhere}")
    made = writer(checkpoint)
    return write_folder(out, made.config, {made.file: made.tensors})


def _lm_head(heads: DraftHeads) -> Tensor | None:
    """The target's LM head, if a matrix is all that it is."""
    head: Any = heads.borrowed.target.get_output_embeddings()
    config: Any = heads.borrowed.target.config.get_text_config(decoder=True)
    scales = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    if head.bias is not None or any(getattr(config, name, None) for name in scales):
        return None
    weight: Tensor = head.weight.detach().cpu()
    return weight
