"""Medusa and Hydra as their authors, TGI and vLLM write them, key by key."""

from typing import Any

from torch import Tensor

from tests.heads.foreign_parts import (
    DRAFT_IDS,
    LAYERS,
    D,
    Draw,
    Foreign,
    H,
    V,
    llama_config,
    llama_layer,
)


def medusa_blocks(draw: Draw, heads: int, layers: int) -> dict[str, Tensor]:
    """Residual blocks in the common names."""
    tensors = {}
    for k in range(heads):
        for l in range(layers):  # noqa: E741
            tensors[f"{k}.{l}.linear.weight"] = draw(H, H)
            tensors[f"{k}.{l}.linear.bias"] = draw(H)
    return tensors


def medusa_v01() -> Foreign:
    """FasterDecoding/medusa-vicuna-*-v1.3: five heads, and a config that says two."""
    draw = Draw(1)
    tensors = medusa_blocks(draw, 5, 1)
    for k in range(5):
        tensors[f"{k}.1.weight"] = draw(V, H)
    config = {
        "medusa_num_heads": 2,
        "medusa_num_layers": 1,
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    }
    return Foreign(config, tensors, "medusa_lm_head.pt")


def medusa_tgi() -> Foreign:
    """The same as safetensors, with two layers a head."""
    draw = Draw(2)
    tensors = medusa_blocks(draw, 3, 2)
    for k in range(3):
        tensors[f"{k}.2.weight"] = draw(V, H)
    config = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "base"}
    return Foreign(config, tensors, "medusa_lm_head.safetensors")


def medusa_2() -> Foreign:
    """FasterDecoding/medusa-1.0-*: heads among the weights of a whole model, in shards."""
    draw = Draw(3)
    heads = {f"medusa_head.{key}": value for key, value in medusa_blocks(draw, 4, 1).items()}
    for k in range(4):
        heads[f"medusa_head.{k}.1.weight"] = draw(V, H)
    base = {
        "model.embed_tokens.weight": draw(V, H),
        "model.norm.weight": draw(H),
        "lm_head.weight": draw(V, H),
        **llama_layer(draw, "model.layers.0.", H),
    }
    config = {**llama_config(), "num_hidden_layers": LAYERS, "medusa_num_heads": 4}
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    return Foreign(config, base, shards[0], {shards[1]: heads})


def medusa_head_only() -> Foreign:
    """Heads that use the target's LM head."""
    config = {
        "medusa_num_heads": 3,
        "medusa_num_layers": 1,
        "base_model_name_or_path": "base",
        "version": "2",
    }
    return Foreign(config, medusa_blocks(Draw(4), 3, 1), "medusa_lm_head.safetensors")


def medusa_vllm() -> Foreign:
    """VLLM's own names, without biases."""
    draw = Draw(5)
    tensors = {}
    for k in range(3):
        for l in range(2):  # noqa: E741
            tensors[f"blocks.{k}.layers.{l}.weight"] = draw(H, H)
        tensors[f"lm_heads.{k}.weight"] = draw(V, H)
    return Foreign(vllm_config(heads=3, layers=2, medusa_fc_bias=False), tensors)


def medusa_vllm_map(lm_head: Tensor | None = None) -> Foreign:
    """VLLM's names with biases, the target's LM head and a map of tokens."""
    draw = Draw(6)
    tensors = {}
    for k in range(3):
        tensors[f"medusa_heads.blocks.{k}.layers.0.weight"] = draw(H, H)
        tensors[f"medusa_heads.blocks.{k}.layers.0.bias"] = draw(H)
    tensors["medusa_heads.lm_head.weight"] = draw(V, H) if lm_head is None else lm_head
    tensors["token_map"] = DRAFT_IDS
    config = vllm_config(heads=3, layers=1, medusa_fc_bias=True)
    config |= {"truncated_vocab_size": D, "original_lm_head": True}
    return Foreign(config, tensors)


def vllm_config(*, heads: int, layers: int, medusa_fc_bias: bool) -> dict[str, Any]:
    """Of vLLM's Medusa."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": H,
        "vocab_size": V,
        "num_heads": heads,
        "num_hidden_layers": layers,
        "truncated_vocab_size": None,
        "medusa_fc_bias": medusa_fc_bias,
        "original_lm_head": False,
    }


def hydra() -> Foreign:
    """ankner/hydra-vicuna-*: prefix layer, four heads of four layers, dropouts between them."""
    draw = Draw(7)
    prefix = "prefix_embeding_layer."
    tensors = {
        f"{prefix}embed_tokens.weight": draw(V, H),
        f"{prefix}layers.0.input_layernorm.weight": draw(H),
        **llama_layer(draw, f"{prefix}layers.0.", H),
        f"{prefix}norm.weight": draw(H),
        "input_embed_fn.weight": draw(V, H),
    }
    for i in range(4):
        tensors[f"hydra_mlp.{i}.1.linear.weight"] = draw(H, (i + 2) * H)
        tensors[f"hydra_mlp.{i}.1.linear.bias"] = draw(H)
        tensors[f"hydra_mlp.{i}.1.res_connection.weight"] = draw(H, (i + 2) * H)
        tensors[f"hydra_mlp.{i}.1.res_connection.bias"] = draw(H)
        weight, bias = draw(H, H), draw(H)
        for j in (3, 5, 7):
            tensors[f"hydra_mlp.{i}.{j}.linear.weight"] = weight
            tensors[f"hydra_mlp.{i}.{j}.linear.bias"] = bias
        tensors[f"hydra_lm_head.{i}.1.weight"] = draw(V, H)
        tensors[f"hydra_lm_head.{i}.1.bias"] = draw(V)
    return Foreign(hydra_config("prefix-mlp", heads=4, layers=4), tensors, "hydra_lm_head.pt")


def hydra_mlp() -> Foreign:
    """The architecture without a prefix layer and without dropouts."""
    draw = Draw(8)
    tensors = {"input_embed_fn.weight": draw(V, H)}
    for i in range(3):
        tensors[f"hydra_mlp.{i}.0.linear.weight"] = draw(H, (i + 2) * H)
        tensors[f"hydra_mlp.{i}.0.linear.bias"] = draw(H)
        tensors[f"hydra_mlp.{i}.0.res_connection.weight"] = draw(H, (i + 2) * H)
        tensors[f"hydra_mlp.{i}.0.res_connection.bias"] = draw(H)
        weight, bias = draw(H, H), draw(H)
        for j in (1, 2):
            tensors[f"hydra_mlp.{i}.{j}.linear.weight"] = weight
            tensors[f"hydra_mlp.{i}.{j}.linear.bias"] = bias
        tensors[f"hydra_lm_head.{i}.weight"] = draw(V, H)
        tensors[f"hydra_lm_head.{i}.bias"] = draw(V)
    return Foreign(hydra_config("mlp", heads=3, layers=3), tensors, "hydra_lm_head.pt")


def hydra_config(arch: str, *, heads: int, layers: int) -> dict[str, Any]:
    """Of Hydra heads."""
    return {
        "hydra_num_heads": heads,
        "hydra_num_layers": layers,
        "hydra_head_arch": arch,
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "grounded_heads": True,
        "hidden_state_offset": 0,
    }
