"""The shape of every tensor of our heads, by the sizes in their settings."""

from collections.abc import Mapping
from typing import Any

from treespec.heads.layer import LayerConfig

Shapes = dict[str, tuple[int, ...]]


def medusa_shapes(settings: Mapping[str, Any], columns: int) -> Shapes:
    """Of `MedusaHeads` with these settings; `columns` is D."""
    size, layers = settings["hidden_size"], settings["num_layers"]
    shapes: Shapes = {}
    for head in range(settings["num_heads"]):
        for layer in range(layers):
            shapes[f"{head}.{layer}.linear.weight"] = (size, size)
            if settings["block_bias"]:
                shapes[f"{head}.{layer}.linear.bias"] = (size,)
        if settings["lm_head"] == "each":
            shapes[f"{head}.{layers}.weight"] = (columns, size)
    return shapes


def hydra_shapes(settings: Mapping[str, Any], columns: int) -> Shapes:
    """Of `HydraHeads` with these settings, without the prefix layer."""
    size = settings["hidden_size"]
    shapes: Shapes = {}
    for head in range(settings["num_heads"]):
        name, width = f"heads.{head}", (head + 2) * size
        for part in ("linear", "residual"):
            shapes[f"{name}.first.{part}.weight"] = (size, width)
            shapes[f"{name}.first.{part}.bias"] = (size,)
        if settings["num_layers"] > 1:
            shapes[f"{name}.block.linear.weight"] = (size, size)
            shapes[f"{name}.block.linear.bias"] = (size,)
        if settings["lm_head"] == "each":
            shapes[f"{name}.lm_head.weight"] = (columns, size)
            if settings["lm_head_bias"]:
                shapes[f"{name}.lm_head.bias"] = (columns,)
    return shapes


def prefix_shapes(layer: LayerConfig) -> Shapes:
    """Of Hydra's prefix layer."""
    size = layer.hidden_size
    return {
        "prefix.input_layernorm.weight": (size,),
        "prefix.post_attention_layernorm.weight": (size,),
        "prefix.norm.weight": (size,),
        **{f"prefix.{name}": shape for name, shape in _layer_shapes(layer, size).items()},
    }


def eagle_shapes(
    settings: Mapping[str, Any], *, num_taps: int, columns: int, vocab_size: int
) -> Shapes:
    """Of `EagleHead` with these settings."""
    layer: LayerConfig = settings["layer"]
    size, theirs = layer.hidden_size, settings["target_hidden_size"]
    is_third = settings["version"] == 3
    fused = num_taps * theirs if is_third else 2 * size
    shapes: Shapes = {"fc.weight": (size, fused)}
    if settings["fc_bias"]:
        shapes["fc.bias"] = (size,)
    for name, shape in _layer_shapes(layer, 2 * size if is_third else size).items():
        shapes[f"layer.{name}"] = shape
    shapes["layer.post_attention_layernorm.weight"] = (size,)
    if is_third:
        for name in ("layer.input_layernorm", "layer.hidden_norm", "norm"):
            shapes[f"{name}.weight"] = (size,)
    if settings["lm_head"] == "own":
        shapes["lm_head.weight"] = (columns, size)
    if settings["own_embedding"]:
        shapes["embed_tokens.weight"] = (vocab_size, size)
    if settings.get("embedding_norm"):
        shapes["embed_layernorm.weight"] = (size,)
    if settings.get("norm_before_fc"):
        shapes["input_norm.weight"] = (fused,)
    if settings.get("fc_norm"):
        shapes.update({f"fc_norm.{tap}.weight": (theirs,) for tap in range(num_taps)})
    return shapes


def _layer_shapes(layer: LayerConfig, inputs: int) -> Shapes:
    """Of attention and MLP, whose queries, keys and values read `inputs` numbers."""
    size, inner = layer.hidden_size, layer.intermediate_size
    queries = layer.num_attention_heads * layer.head_dim
    keys = layer.num_key_value_heads * layer.head_dim
    linear = {
        "self_attn.q_proj": (queries, inputs, layer.qkv_bias),
        "self_attn.k_proj": (keys, inputs, layer.qkv_bias),
        "self_attn.v_proj": (keys, inputs, layer.qkv_bias),
        "self_attn.o_proj": (size, queries, layer.o_bias),
        "mlp.gate_proj": (inner, size, layer.mlp_bias),
        "mlp.up_proj": (inner, size, layer.mlp_bias),
        "mlp.down_proj": (size, inner, layer.mlp_bias),
    }
    shapes: Shapes = {}
    for name, (rows, width, bias) in linear.items():
        shapes[f"{name}.weight"] = (rows, width)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if layer.qk_norm:
        shapes["self_attn.q_norm.weight"] = (layer.head_dim,)
        shapes["self_attn.k_norm.weight"] = (layer.head_dim,)
    return shapes
