"""Whether heads fit a target, asked before anything is built."""

from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import CheckpointError
from treespec.heads.base import last_tap
from treespec.heads.eagle import default_taps
from treespec.heads.formats.checkpoint import Checkpoint, Recipe
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.heads.layer import LayerConfig


def examine(
    checkpoint: Checkpoint,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[str]:
    """Refuse heads that cannot have been trained for the target.

    Returns:
        Why heads that fit may guess badly with it.

    Raises:
        CheckpointError: with everything that does not fit.
    """
    recipe, found = checkpoint.recipe, Fingerprint.of(target, tokenizer)
    faults = [] if recipe.fingerprint is None else recipe.fingerprint.contradictions(found)
    if not faults:
        faults = _misfits(recipe, found, last_tap(target))
    if faults:
        wanted = f", which were trained for {recipe.base_model}," if recipe.base_model else ""
        raise CheckpointError(
            f"the heads in {checkpoint.place}{wanted} do not fit this "
            f"{type(target).__name__}: {'; '.join(faults)}. Load them with their own target"
        )
    return _doubts(checkpoint, found, target)


def full_settings(recipe: Recipe, target: PreTrainedModel) -> dict[str, Any]:
    """Arguments of the heads' config, with what only the target can tell.

    Raises:
        CheckpointError: if the target's attention is not the one of the heads.
    """
    settings = dict(recipe.settings)
    if "prefix" in recipe.from_target:
        settings["prefix"] = _prefix_like(settings["prefix"], target)
    if "taps" in recipe.from_target:
        last = last_tap(target)
        settings["taps"] = (last,) if recipe.family == "eagle" else default_taps(last)
    return settings


def _misfits(recipe: Recipe, found: Fingerprint, last: int) -> list[str]:
    """What the sizes in a file without a fingerprint contradict."""
    settings = recipe.settings
    size = settings.get("target_hidden_size") or settings["hidden_size"]
    faults = []
    if size != found.hidden_size:
        faults.append(f"hidden size {found.hidden_size} instead of {size}")
    if recipe.vocab_size not in (None, found.vocab_size):
        faults.append(f"number of logits {found.vocab_size} instead of {recipe.vocab_size}")
    taps = [tap for tap in settings.get("taps", ()) if not 0 <= tap <= last]
    if taps:
        faults.append(f"hidden states 0 to {last}, but the heads read {taps[0]}")
    return faults


def _prefix_like(layer: LayerConfig, target: PreTrainedModel) -> LayerConfig:
    """Hydra's prefix layer with the attention of the target's own layers."""
    config: Any = target.config.get_text_config(decoder=True)
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    queries, keys = layer.num_attention_heads, layer.num_key_value_heads  # rows, at head_dim 1
    if queries != heads * head_dim or keys % head_dim:
        raise CheckpointError(
            f"the prefix layer has {queries} rows of queries and {keys} of keys, which are not "
            f"{heads} heads of {head_dim} as in {type(target).__name__}; load it with its target"
        )
    rope = dict(getattr(config, "rope_parameters", None) or {})
    theta = float(rope.get("rope_theta", 10000.0))
    return replace(
        layer,
        num_attention_heads=heads,
        num_key_value_heads=keys // head_dim,
        head_dim=head_dim,
        hidden_act=str(getattr(config, "hidden_act", layer.hidden_act)),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", layer.rms_norm_eps)),
        rope_theta=theta,
        rope_parameters=rope if rope.get("rope_type", "default") != "default" else None,
        max_position_embeddings=int(config.max_position_embeddings),
    )


def _doubts(checkpoint: Checkpoint, found: Fingerprint, target: PreTrainedModel) -> list[str]:
    """What speaks against a target that the heads fit."""
    recipe, place, doubts = checkpoint.recipe, checkpoint.place, []
    if recipe.base_is_tuned and target.name_or_path != place:
        doubts.append(
            f"the target in {place} was trained together with its heads; with another target's "
            "weights they guess badly, so load the target from there too"
        )
    if recipe.fingerprint is not None and recipe.fingerprint.has_other_weights(found):
        base = f" ({recipe.base_model})" if recipe.base_model else ""
        doubts.append(
            f"the heads in {place} were trained for other weights of this architecture{base}; "
            "output stays exact, but fewer guesses will be right"
        )
    if checkpoint.lm_head is not None and not _is_lm_head(target, recipe, checkpoint.lm_head):
        doubts.append(
            f"{place} has a copy of the target's LM head that is not this target's; the target's "
            "own is used"
        )
    return doubts


def _is_lm_head(target: PreTrainedModel, recipe: Recipe, theirs: Tensor) -> bool:
    """Whether an LM head is the target's, up to rounding."""
    head: Any = target.get_output_embeddings()
    mine = head.weight.detach()
    if recipe.vocabulary is not None and len(theirs) != len(mine):
        mine = mine[recipe.vocabulary.to(mine.device)]
    if mine.shape != theirs.shape:
        return False
    return bool(mine.float().cpu().allclose(theirs.float(), rtol=0.02, atol=1e-3))
