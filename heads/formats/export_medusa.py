"""Medusa heads for Medusa's own code, TGI and vLLM."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.formats.checkpoint import Checkpoint, Recipe
from treespec.heads.formats.exported import Export, target_lm_head
from treespec.heads.formats.medusa_layouts import vllm_names


def medusa_plain(checkpoint: Checkpoint) -> Export:
    """The layout of Medusa's first release; without LM heads that of its second."""
    _require_all_tokens(checkpoint.recipe, "Medusa's layout")
    config = _plain_config(checkpoint.recipe)
    if checkpoint.recipe.settings["lm_head"] == "each":
        return Export(config, "medusa_lm_head.pt", _with_biases(checkpoint))
    config["version"] = "2"
    return Export(config, "medusa_lm_head.safetensors", _with_biases(checkpoint))


def medusa_for_tgi(checkpoint: Checkpoint) -> Export:
    """TGI's layout, which is Medusa's first one as safetensors."""
    _require_all_tokens(checkpoint.recipe, "TGI")
    if checkpoint.recipe.settings["lm_head"] != "each":
        raise CheckpointError(
            "TGI wants an LM head for each Medusa head, but these use the target's; train heads "
            'with lm_head="each"'
        )
    config = _plain_config(checkpoint.recipe)
    return Export(config, "medusa_lm_head.safetensors", _with_biases(checkpoint))


def medusa_for_vllm(checkpoint: Checkpoint) -> Export:
    """The layout of vLLM, in its own names rather than those that it translates.

    Its reader renames every entry of the config that speaks of a number of heads or layers, so
    there is one of each; drops biases unless `medusa_fc_bias` is set; and fits a map of tokens to
    the target's LM head only.
    """
    recipe = checkpoint.recipe
    settings, vocabulary = recipe.settings, recipe.vocabulary
    is_original = settings["lm_head"] == "target"
    if vocabulary is not None and not is_original:
        raise CheckpointError(
            "vLLM cannot load Medusa heads that have LM heads of their own and propose a part of "
            "the vocabulary: it builds the LM heads at full size; use heads for all tokens, or "
            'heads with lm_head="target"'
        )
    names = vllm_names(checkpoint.tensors)
    tensors = {names[name]: tensor for name, tensor in checkpoint.tensors.items()}
    if is_original:
        tensors["lm_head.weight"] = target_lm_head(checkpoint, "vLLM")
    if vocabulary is not None:
        tensors["token_map"] = vocabulary
    vocab_size = recipe.vocab_size or len(tensors["lm_head.weight"])
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": settings["hidden_size"],
        "vocab_size": vocab_size,
        "num_heads": settings["num_heads"],
        "num_hidden_layers": settings["num_layers"],
        "truncated_vocab_size": vocab_size if vocabulary is None else len(vocabulary),
        "medusa_fc_bias": settings["block_bias"],
        "original_lm_head": is_original,
    }
    return Export(config, "model.safetensors", tensors)


def _plain_config(recipe: Recipe) -> dict[str, Any]:
    return {
        "medusa_num_heads": recipe.settings["num_heads"],
        "medusa_num_layers": recipe.settings["num_layers"],
        "base_model_name_or_path": recipe.base_model,
    }


def _require_all_tokens(recipe: Recipe, engine: str) -> None:
    if recipe.vocabulary is not None:
        raise CheckpointError(
            f"{engine} has no place for a map of tokens, but these heads propose "
            f"{len(recipe.vocabulary)} of the target's; use heads for all tokens"
        )


def _with_biases(checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    """Tensors with the biases that readers of these layouts look for; zero where there are none."""
    tensors = dict(checkpoint.tensors)
    for name, weight in checkpoint.tensors.items():
        if name.endswith(".linear.weight"):
            bias = name.removesuffix("weight") + "bias"
            tensors.setdefault(bias, weight.new_zeros(weight.shape[0]))
    return tensors
