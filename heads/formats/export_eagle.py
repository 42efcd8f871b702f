"""EAGLE heads for vLLM, SGLang and the speculators format.

vLLM and speculators count the layers below a hidden state, SGLang names the layer whose output it
is. Both numbers are written, each where its engine looks first.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.formats.checkpoint import Checkpoint, Recipe
from treespec.heads.formats.exported import Export, target_lm_head
from treespec.heads.layer import LayerConfig
from treespec.heads.vocabulary import DraftVocabulary

_FILE = "model.safetensors"
_IDS = "eagle_aux_hidden_state_layer_ids"
_SPECULATORS_VERSION = "0.9.0"
_SPECULATIVE_TOKENS = 5  # what vLLM drafts unless it is told otherwise


def for_vllm(checkpoint: Checkpoint) -> Export:
    """A folder for vLLM's methods "eagle" and "eagle3"."""
    recipe = checkpoint.recipe
    settings, layer = recipe.settings, recipe.settings["layer"]
    if recipe.family == "eagle":
        _require_plain_version_1(checkpoint, "vLLM")
        tensors = _tensors(checkpoint, "layers.0.")
        bias = tensors.pop("fc.bias", None)
        if bias is not None and bias.any():
            raise CheckpointError(
                "vLLM's EAGLE has no bias behind fc and drops it in silence, but this head has "
                "one; export it to sglang"
            )
        config = {"architectures": ["EagleLlamaForCausalLM"], **_layer_config(recipe)}
        return Export({**config, "bias": False}, _FILE, tensors)
    _require_known_states(recipe)
    _require_biases(layer, "vLLM")
    _require_no_fusing_bias(checkpoint, "vLLM")
    architecture = "Eagle3Qwen3ForCausalLM" if layer.qk_norm else "Eagle3LlamaForCausalLM"
    config = {
        "architectures": [architecture],
        **_layer_config(recipe),
        **_version_3_config(checkpoint),
        "norm_output": settings.get("feedback") == "post_norm",
    }
    return Export(config, _FILE, _version_3_tensors(checkpoint, "layers.0.", "vLLM"))


def for_sglang(checkpoint: Checkpoint) -> Export:
    """A folder for SGLang's algorithms EAGLE and EAGLE3."""
    recipe = checkpoint.recipe
    settings, layer = recipe.settings, recipe.settings["layer"]
    if layer.qkv_bias or layer.o_bias or layer.mlp_bias or layer.qk_norm:
        raise CheckpointError(
            "SGLang's EAGLE layers are Llama's, without biases and without norms of queries and "
            "keys, and drop them in silence; this head has them"
        )
    if recipe.family == "eagle":
        _require_plain_version_1(checkpoint, "SGLang")
        tensors = _tensors(checkpoint, "layers.0.")
        # SGLang always builds the bias, and leaves it at random where the file has none.
        tensors.setdefault("fc.bias", torch.zeros_like(tensors["fc.weight"][:, 0]))
        config = {"architectures": ["LlamaForCausalLMEagle"], **_layer_config(recipe)}
        return Export(config, _FILE, tensors)
    variants = [
        name for name in ("norm_before_residual", "norm_before_fc", "fc_norm") if settings.get(name)
    ]
    variants += ["feedback after the norm"] * (settings.get("feedback") == "post_norm")
    if variants:
        raise CheckpointError(
            f"SGLang does not know this variant of EAGLE-3 ({', '.join(variants)}) and would run "
            "it as the plain one; export it to vllm"
        )
    taps = settings.get("taps")
    if taps is not None and len(taps) != 3:
        raise CheckpointError(f"SGLang fuses three hidden states, but this head reads {len(taps)}")
    _require_known_states(recipe)
    _require_no_fusing_bias(checkpoint, "SGLang")  # "bias" would mean attention's there too
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_config(recipe),
        **_version_3_config(checkpoint),
    }
    if settings["lm_head"] == "target" and recipe.vocabulary is None:
        config["draft_vocab_size"] = None  # shares the target's LM head
        return Export(config, _FILE, _tensors(checkpoint, "midlayer."))
    return Export(config, _FILE, _version_3_tensors(checkpoint, "midlayer.", "SGLang"))


def for_speculators(checkpoint: Checkpoint) -> Export:
    """A folder in the speculators format, which `vllm serve` takes without further options.

    Raises:
        ConfigError: if the target has no name, which the format needs.
    """
    recipe = checkpoint.recipe
    if not recipe.base_model:
        raise ConfigError(
            "the speculators format names the target, but the heads do not know its name; give "
            "base_model"
        )
    _require_known_states(recipe)
    _require_biases(recipe.settings["layer"], "The speculators format")
    _require_no_fusing_bias(checkpoint, "The speculators format")
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": _SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": _SPECULATIVE_TOKENS,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": recipe.base_model,
                "architectures": _base_architectures(recipe),
            },
        },
        "transformer_layer_config": _layer_config(recipe),
        **_version_3_config(checkpoint),
        "norm_output": recipe.settings.get("feedback") == "post_norm",
        "tie_word_embeddings": False,
    }
    del config["eagle_config"]
    return Export(config, _FILE, _version_3_tensors(checkpoint, "layers.0.", "speculators"))


def _base_architectures(recipe: Recipe) -> list[str]:
    """Class of the target, from the file or by its architecture."""
    if recipe.base_architectures or recipe.fingerprint is None:
        return list(recipe.base_architectures)
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(recipe.fingerprint.model_type)
    return [] if name is None else [str(name)]


def _layer_config(recipe: Recipe) -> dict[str, Any]:
    """The layer as a configuration of transformers, rotary parameters in both spellings."""
    layer: LayerConfig = recipe.settings["layer"]
    rope = dict(layer.rope_parameters or {"rope_type": "default"})
    rope.pop("rope_theta", None)
    scaling = None if rope.get("rope_type", "default") == "default" else dict(rope)
    return {
        "model_type": "qwen3" if layer.qk_norm else "llama",
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_dim,
        "hidden_act": layer.hidden_act,
        "rms_norm_eps": layer.rms_norm_eps,
        "max_position_embeddings": layer.max_position_embeddings,
        "rope_theta": layer.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": {**rope, "rope_theta": layer.rope_theta},
        "attention_bias": layer.qkv_bias,
        "mlp_bias": layer.mlp_bias,
        "vocab_size": recipe.vocab_size,
        "tie_word_embeddings": False,
    }


def _version_3_config(checkpoint: Checkpoint) -> dict[str, Any]:
    recipe = checkpoint.recipe
    settings = recipe.settings
    taps, vocabulary = settings.get("taps"), recipe.vocabulary
    config: dict[str, Any] = {
        "draft_vocab_size": recipe.vocab_size if vocabulary is None else len(vocabulary),
        "target_hidden_size": settings["target_hidden_size"],
        "norm_before_residual": settings.get("norm_before_residual", False),
        "norm_before_fc": settings.get("norm_before_fc", False),
        "fc_norm": settings.get("fc_norm", False),
        "eagle_config": {"use_aux_hidden_state": True},
    }
    if taps is not None:
        config[_IDS] = list(taps)
        config["eagle_config"][_IDS] = [tap - 1 for tap in taps]
    return config


def _version_3_tensors(checkpoint: Checkpoint, layer: str, engine: str) -> dict[str, Tensor]:
    """Tensors with an LM head and both maps, which say "every token" where there are none."""
    recipe = checkpoint.recipe
    tensors = _tensors(checkpoint, layer)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = target_lm_head(checkpoint, engine)
    columns = len(tensors["lm_head.weight"])
    ids = torch.arange(columns) if recipe.vocabulary is None else recipe.vocabulary
    vocabulary = DraftVocabulary(ids, recipe.vocab_size or columns)
    return {**tensors, "d2t": vocabulary.offsets(), "t2d": vocabulary.mask()}


def _tensors(checkpoint: Checkpoint, layer: str) -> dict[str, Tensor]:
    return {
        name.replace("layer.", layer, 1) if name.startswith("layer.") else name: tensor
        for name, tensor in checkpoint.tensors.items()
    }


def _require_plain_version_1(checkpoint: Checkpoint, engine: str) -> None:
    recipe = checkpoint.recipe
    layer = recipe.settings["layer"]
    _require_biases(layer, engine)
    odd = {
        "norms its embeddings": recipe.settings.get("embedding_norm", False),
        "has an LM head of its own": recipe.settings["lm_head"] == "own",
        "proposes a part of the vocabulary": recipe.vocabulary is not None,
        "norms queries and keys": layer.qk_norm,
    }
    for what, is_so in odd.items():
        if is_so:
            raise CheckpointError(
                f"this EAGLE-1 head {what}, which {engine} ignores in silence; only treespec can "
                "run it"
            )


def _require_known_states(recipe: Recipe) -> None:
    """The final state comes after a norm in transformers, before it in the engines."""
    fingerprint, taps = recipe.fingerprint, recipe.settings.get("taps") or ()
    if fingerprint is not None and fingerprint.num_hidden_layers in taps:
        raise CheckpointError(
            f"this head reads the target's final hidden state ({fingerprint.num_hidden_layers}), "
            "which other engines give before the final norm; only treespec can run it"
        )


def _require_biases(layer: LayerConfig, engine: str) -> None:
    if layer.qkv_bias != layer.o_bias:
        raise CheckpointError(
            f"{engine} gives all four projections of attention a bias or none, but this head has "
            f"them for {'queries, keys and values' if layer.qkv_bias else 'the output'} only"
        )


def _require_no_fusing_bias(checkpoint: Checkpoint, engine: str) -> None:
    if checkpoint.recipe.settings["fc_bias"]:
        raise CheckpointError(f"{engine} has no bias behind EAGLE-3's fc, but this head has one")
